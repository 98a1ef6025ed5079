"""Every backend with every feature: what it serves equals the float64 definition, forward and gradient; what it does
not serve it refuses, in words."""

from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rove_jax.attention import BACKENDS, Call, Target, interpret, rotary_attention
from rove_jax.attention.backends import refusal
from rove_jax.attention.visibility import describe
from rove_jax.config import TURNS, Rotary, Scaling
from rove_jax.errors import UsageError
from rove_jax.rotary import frequencies
from tests.attention_cases import ROVE, causal, definition, inputs, small_chunks  # noqa: F401
from tests.reference import attention as reference

YARN = Rotary(scaling=Scaling(rule="yarn", factor=32.0, original_length=128))
T = 11
AGES = np.arange(T)[:, None] - np.arange(T)[None]
PACKED = np.array([[1, 1, 1, 2, 2, 2, 2, 3, 3, 0, 0], [1, 1, 4, 4, 4, 4, 5, 5, 5, 5, 5]])
RESTARTING = np.array([[0, 1, 2, 0, 1, 2, 3, 0, 1, 0, 1], [0, 1, 0, 1, 2, 3, 0, 1, 2, 3, 4]])
PADDED = np.array([[0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0]])
LEFT = np.stack([np.arange(T) - 3, np.arange(T)])
# Two prompts, of which the first goes on in two ways and the second in one; each continuation has its own positions.
TREES = np.array([[1, 1, 1, 2, 2, 3, 3, 3, 4, 5, 0], [2, 2, 7, 7, 7, 9, 9, 5, 5, 5, 5]])
TRUNKS = np.array([[0, 0, 0, 1, 1, 1, 1, 1, 4, 4, 0], [0, 0, 2, 2, 2, 2, 2, 0, 0, 0, 0]])
GROWING = np.array([[0, 1, 2, 3, 4, 3, 4, 5, 0, 1, 0], [4, 5, 6, 7, 8, 6, 7, 0, 1, 2, 3]])
GAPS = np.array([0, 1, 2, 5, 6, 7, 20, 21, 22, 23, 40])


def within(segments):
    return (segments[:, :, None] == segments[:, None, :]) & (segments != 0)[:, None, :]


def tree():
    return within(TREES) | (TREES[:, None, :] == TRUNKS[:, :, None]) & (TRUNKS != 0)[:, :, None]


# name -> (shape of the inputs, options of the call, who is seen [T, S] or [B, T, S])
FEATURES = {
    "causal": ({}, {}, causal(T)),
    "bidirectional": ({}, {"is_causal": False}, np.ones((T, T), bool)),
    "one token": ({"t": 1}, {}, causal(1)),
    "grouped 4:1": ({"n": 8, "k": 2}, {}, causal(T)),
    "multi-query": ({"n": 3, "k": 1}, {}, causal(T)),
    "as many key heads": ({"n": 3, "k": 3}, {}, causal(T)),
    "head 64": ({"h": 64, "b": 1}, {}, causal(T)),
    "head 80": ({"h": 80, "b": 1}, {}, causal(T)),
    "head 128": ({"h": 128, "b": 1}, {}, causal(T)),
    "window": ({}, {"window": 4}, (AGES >= 0) & (AGES < 4)),
    "window of one": ({}, {"window": 1}, np.eye(T, dtype=bool)),
    "bidirectional window": ({}, {"window": 4, "is_causal": False}, np.abs(AGES) < 4),
    "packed documents": (
        {},
        {"segments": PACKED, "query_positions": RESTARTING, "contiguous": True},
        within(PACKED) & causal(T),
    ),
    "packed, window": (
        {},
        {"segments": PACKED, "query_positions": RESTARTING, "contiguous": True, "window": 2},
        within(PACKED) & (AGES >= 0) & (AGES < 2),
    ),
    "packed, bidirectional": ({}, {"segments": PACKED, "is_causal": False}, within(PACKED)),
    "left and right padding": (
        {},
        {"segments": PADDED, "query_positions": LEFT, "contiguous": True},
        within(PADDED) & causal(T),
    ),
    "branches of a tree": (
        {},
        {"segments": TREES, "prefixes": TRUNKS, "query_positions": GROWING, "contiguous": True},
        tree() & causal(T),
    ),
    "branches, by position": (
        {"n": 4, "k": 2},
        {"segments": TREES, "prefixes": TRUNKS, "query_positions": GROWING},
        tree() & (GROWING[:, :, None] >= GROWING[:, None, :]),
    ),
    "positions with gaps": ({}, {"query_positions": GAPS}, causal(T)),
    "far positions": ({}, {"query_positions": np.arange(T) + 2**20 - T, "contiguous": True}, causal(T)),
    "queries fewer than keys": (
        {"t": 3, "s": T},
        {"query_positions": np.array([4, 7, 8]), "key_positions": np.arange(T)},
        np.array([4, 7, 8])[:, None] >= np.arange(T)[None],
    ),
    "interleaved": ({}, {"rotary": Rotary(pairing="interleaved"), "value_rotary": Rotary(pairing="interleaved")}, None),
    "partial, independent": ({}, {"rotary": Rotary(dims=8), "value_rotary": Rotary(dims=4)}, None),
    "own base": ({}, {"value_rotary": Rotary(base=500.0)}, None),
    "half-way alpha": ({}, {"value_rotary": Rotary(alpha=0.5)}, None),
    "yarn": ({}, {"rotary": YARN, "value_rotary": YARN}, None),
    "custom": ({}, {"rotary": Rotary(dims=8), "value_rotary": Rotary(base=500.0, alpha=0.5)}, None),
    **{f"turns {variant}": ({}, {"turns": turns}, None) for variant, turns in TURNS.items() if variant != "custom"},
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("feature", FEATURES)
def test_served_as_defined_or_refused_in_words(feature, backend):
    shape, options, seen = FEATURES[feature]
    q, k, v = inputs(**{"t": T, **shape})
    seen = causal(T) if seen is None else seen
    options = {name: jnp.asarray(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}
    call = {"rotary": ROVE, "value_rotary": ROVE, "is_causal": True, "backend": backend, **options}

    described = describe(
        (q.shape[0], q.shape[1], k.shape[1]),
        is_causal=call["is_causal"],
        **{name: call.get(name) for name in ("window", "query_positions", "key_positions", "segments", "prefixes")},
        contiguous=call.get("contiguous", False),
    )
    platform = BACKENDS[backend].platform or "cpu"
    why = refusal(backend, Call.of(q, k, described), Target(platform))
    with interpret() if platform == "tpu" else nullcontext():
        if why or platform == "gpu":  # no GPU here: its own refusals are in test_backends.py
            with pytest.raises(UsageError, match="needs an NVIDIA GPU" if platform == "gpu" else why.split(",")[0]):
                rotary_attention(q, k, v, **call)
            return
        probe = np.random.default_rng(3).normal(size=q.shape)

        def loss(q, k, v):
            out = rotary_attention(q, k, v, **call)
            return (out * probe.astype(np.float32)).sum(), out

        (_, out), grads = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))(q, k, v)
    exact = {name: np.asarray(x) if isinstance(x, jax.Array) else x for name, x in options.items()}
    np.testing.assert_allclose(out, definition(q, k, v, seen, **exact), atol=3e-6)
    unseen = ~np.broadcast_to(seen, (q.shape[0], *np.asarray(seen).shape[-2:])).any(-1)
    assert (np.asarray(out)[unseen] == 0).all()

    # Slopes of the definition along random directions; an error anywhere in a gradient shows in nearly all of them.
    arrays = [np.asarray(x, np.float64) for x in (q, k, v)]
    rng = np.random.default_rng(4)
    for which, grad in enumerate(grads):
        assert np.isfinite(grad).all()
        for _ in range(2):
            way = rng.normal(size=grad.shape)
            ends = []
            for step in (1e-5, -1e-5):
                moved = list(arrays)
                moved[which] = moved[which] + step * way
                ends.append((definition(*moved, seen, **exact) * probe).sum())
            slope = (ends[0] - ends[1]) / 2e-5
            assert (np.asarray(grad, np.float64) * way).sum() == pytest.approx(slope, rel=1e-4, abs=2e-4)


def test_the_absolute_definition_is_the_relative_one_where_both_exist():
    q, k, v = inputs()
    relative = reference.attention(
        q,
        k,
        v,
        qk_frequencies=frequencies(ROVE, 16),
        v_frequencies=frequencies(ROVE, 16),
        seen=np.broadcast_to(causal(T), (2, T, T)),
        query_positions=np.broadcast_to(np.arange(T), (2, T)),
        key_positions=np.broadcast_to(np.arange(T), (2, T)),
    )
    np.testing.assert_allclose(definition(q, k, v, causal(T)), relative, atol=1e-12)
    assert np.abs(definition(q, k, v, causal(T), turns="qkv") - relative).max() > 0.1


@pytest.mark.parametrize("variant", TURNS)
def test_only_the_absolute_patterns_feel_where_the_text_starts(variant):
    q, k, v = inputs()

    def at(shift):
        return rotary_attention(
            q, k, v, rotary=ROVE, value_rotary=ROVE, is_causal=True,
            query_positions=jnp.arange(T) + shift, turns=TURNS[variant],
        )  # fmt: skip

    moved = jnp.abs(at(0) - at(50)).max()
    assert moved > 0.01 if variant.startswith("absolute") else moved < 1e-5


@pytest.mark.parametrize("backend", [name for name, row in BACKENDS.items() if row.platform != "gpu"])
@pytest.mark.parametrize("head_dim", [64, 80, 128])
def test_bfloat16_stays_within_its_own_rounding(head_dim, backend):
    """Error at most 2^-7 of the largest value entry, its root mean square at most half of that."""
    q, k, v = (x.astype(jnp.bfloat16) for x in inputs(b=1, t=512, n=2, k=2, h=head_dim, q_std=3.0))
    with interpret() if BACKENDS[backend].platform == "tpu" else nullcontext():
        out = jax.jit(
            lambda q, k, v: rotary_attention(q, k, v, rotary=ROVE, value_rotary=ROVE, is_causal=True, backend=backend)
        )(q, k, v)
    f = frequencies(ROVE, head_dim)
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    error = np.asarray(out, np.float64) - reference.fast_attention(q, k, v, qk_frequencies=f, v_frequencies=f)
    bound = 2.0**-7 * np.abs(v).max()
    assert np.abs(error).max() <= bound and np.sqrt((error**2).mean()) <= bound / 2
