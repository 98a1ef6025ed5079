"""What the tests of the cache share: what turns, pieces written one after another, and the float64 definition."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rove_jax.attention import Store, cached_attention
from rove_jax.config import TURNS, Rotary, Scaling
from rove_jax.rotary import frequencies, logit_scale
from tests.attention_cases import ROVE, inputs
from tests.reference import attention as reference

INTERLEAVED = Rotary(pairing="interleaved")
YARN = Rotary(scaling=Scaling(rule="yarn", factor=32.0, original_length=128))

# name -> (rotary, value_rotary, turns)
SPECS: dict[str, tuple[Rotary | None, Rotary | None, str]] = {
    "nope": (None, None, ""),
    "rope": (ROVE, None, "qkvo"),
    "rove": (ROVE, ROVE, "qkvo"),
    "interleaved": (INTERLEAVED, INTERLEAVED, "qkvo"),
    "partial": (Rotary(dims=8), Rotary(dims=4), "qkvo"),
    "own values": (ROVE, Rotary(base=500.0, alpha=0.5), "qkvo"),
    "yarn": (YARN, YARN, "qkvo"),
    **{name: (ROVE, ROVE, turns) for name, turns in TURNS.items() if name.startswith("absolute") or name == "vo"},
}


@functools.partial(
    jax.jit,
    static_argnames=("rotary", "value_rotary", "turns", "window", "backend"),
    donate_argnames="store",
)
def compiled(query, key, value, store, **options):
    """`cached_attention` in one piece, the store given up to it."""
    return cached_attention(query, key, value, store, **options)


def options_of(spec) -> dict[str, Any]:
    rotary, value_rotary, turns = spec
    return {"rotary": rotary, "value_rotary": value_rotary, "turns": turns}


def empty(spec, slots, b=2, k=2, h=16, dtype=jnp.float32, layers=()):
    return Store.empty((*layers, b, slots, k, h), dtype, **options_of(spec))


def fed(store, qkv, spec, pieces, *, positions=None, segments=None, call: Any = compiled, **options):
    """(outputs [B, T, N, H], store) of q, k and v written in pieces of these lengths."""
    batch, length = qkv[0].shape[:2]
    positions = np.broadcast_to(np.arange(length) if positions is None else positions, (batch, length))
    segments = np.ones((batch, length), np.int32) if segments is None else segments
    assert sum(pieces) == length
    outs, start = [], 0
    for size in pieces:
        part = slice(start, start + size)
        out, store = call(
            *(x[:, part] for x in qkv),
            store,
            positions=jnp.asarray(positions[:, part]),
            segments=jnp.asarray(segments[:, part]),
            **options_of(spec),
            **options,
        )
        outs.append(out)
        start += size
    return jnp.concatenate(outs, 1), store


def definition(qkv, spec, *, positions=None, segments=None, window=None):
    """float64 attention of all tokens at once, by positions, segments and window."""
    q, k, v = qkv
    batch, length, _, head_dim = q.shape
    rotary, value_rotary, turns = spec
    positions = np.broadcast_to(np.arange(length) if positions is None else positions, (batch, length))
    ages = positions[:, :, None] - positions[:, None]
    seen = (ages >= 0) & (ages < (2**30 if window is None else window))
    if segments is not None:
        seen &= (segments[:, :, None] == segments[:, None]) & (segments != 0)[:, None]
    return reference.turned_attention(
        q,
        k,
        v,
        qk_frequencies=np.zeros(0) if rotary is None else frequencies(rotary, head_dim),
        v_frequencies=np.zeros(0) if value_rotary is None else frequencies(value_rotary, head_dim),
        pairing=(rotary or value_rotary or ROVE).pairing,
        seen=seen,
        query_positions=positions,
        key_positions=positions,
        logit_scale=logit_scale(rotary),
        turns=turns,
    )


__all__ = ["ROVE", "SPECS", "YARN", "compiled", "definition", "empty", "fed", "inputs", "options_of"]
