"""What a person may get wrong about attention and its cache: refused by name, or served right, never another number."""

import dataclasses

import flax.linen as linen
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from flax import nnx

from rove_jax.attention import (
    Call,
    RotaryAttention,
    Store,
    Target,
    attention_fn,
    cached_attention,
    interpret,
    joined,
    keep,
    reposition,
    retable,
)
from rove_jax.attention import rotary_attention as attend
from rove_jax.attention.backends import BACKENDS
from rove_jax.config import Model, Rotary
from rove_jax.errors import UsageError
from rove_jax.models import functional
from tests.attention_cases import ROVE, inputs

OPTIONS = {"rotary": ROVE, "value_rotary": ROVE, "is_causal": True}
MODEL = Model(layers=3, width=16, query_heads=2, kv_heads=1, head_dim=8, mlp_width=16, vocab=20)
PARAMS = functional.init(MODEL, jax.random.key(0))
HEADS = {"query_heads": 2, "kv_heads": 2, "head_dim": 8, "rotary": ROVE, "value_rotary": ROVE}
ONES = jnp.ones((2, 11), jnp.int32)


def test_segments_of_keys_alone_hide_keys_on_every_backend():
    """A kernel that takes one array of segments must not be given two."""
    q, k, v = inputs()
    of_keys = ONES.at[:, 6:].set(0)
    options = {**OPTIONS, "is_causal": False, "segments": (ONES, of_keys)}
    cut = {"query_positions": jnp.arange(11), "key_positions": jnp.arange(6)}
    expected = attend(q, k[:, :6], v[:, :6], **{**OPTIONS, "is_causal": False}, **cut)
    for name, backend in BACKENDS.items():
        if backend.platform is None:
            np.testing.assert_allclose(attend(q, k, v, **options, backend=name), expected, atol=1e-5)
    with interpret():
        np.testing.assert_allclose(attend(q, k, v, **options), expected, atol=1e-5)
        with pytest.raises(UsageError, match="splash.*in order only"):
            attend(q, k, v, **options, backend="splash")


@pytest.mark.parametrize("turns", ["QKVO", "qkvz"])
def test_turns_other_than_the_four_letters(turns):
    q, k, v = inputs()
    for wrong in (
        lambda: attend(q, k, v, **OPTIONS, turns=turns),
        lambda: Store.empty((2, 8, 2, 16), "float32", rotary=ROVE, value_rotary=ROVE, turns=turns),
    ):
        with pytest.raises(UsageError, match="turns = "):
            wrong()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"query_positions": jnp.arange(11) + 3, "key_positions": jnp.arange(11)}, "leave key_positions out"),
        ({"query_positions": jnp.arange(11)[::-1]}, "do not rise by one"),
        ({"query_positions": jnp.arange(11).at[6:].add(1)}, "do not rise by one"),
        (
            {
                "segments": ONES.at[:, 2:4].set(2),
                "query_positions": jnp.array([0, 1, 0, 1, 2, 3, 4, 5, 6, 7, 8]),
            },
            "do not rise by one",
        ),
    ],
)
def test_a_broken_promise_of_contiguous_positions(options, words):
    with pytest.raises(UsageError, match=words):
        attend(*inputs(), **OPTIONS, **options, contiguous=True)


def test_odd_types():
    with pytest.raises(UsageError, match="model.window = 2.5"):
        Model(window=2.5)
    with pytest.raises(UsageError, match="model.layers = 2.5"):
        Model(layers=2.5)
    with pytest.raises(UsageError, match="a cache holds floats"):
        functional.init_cache(MODEL, 1, 8, "int8")


def test_a_mask_that_is_a_bias():
    x = jax.random.normal(jax.random.key(0), (2, 5, 2, 8))
    fn, seen = attention_fn(ROVE, ROVE), np.tril(np.ones((1, 1, 5, 5)))
    with pytest.raises(UsageError, match="not a bias"):
        fn(x, x, x, mask=jnp.where(seen == 1, 0.0, -1e9))
    np.testing.assert_array_equal(fn(x, x, x, mask=jnp.asarray(seen)), fn(x, x, x, mask=jnp.asarray(seen == 1)))
    assert linen.make_causal_mask(jnp.ones((1, 5))).dtype == jnp.float32  # why numbers are taken at all


def tree(q, segments, prefixes, **options):
    return attend(q, q, q, **{**OPTIONS, **options}, segments=jnp.array(segments), prefixes=jnp.array(prefixes))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda q: attend(q, q, q, **OPTIONS, query_positions=[0, 1, 2]), "positions of type list"),
        (lambda q: attend(q, q, q, **OPTIONS, segments=[[1, 1, 1]]), "segments of type list"),
        (lambda q: attend(q, q, q, **OPTIONS, prefixes=ONES[:1, :3]), "prefixes: need one array of segments"),
        (lambda q: tree(q, [[1, 1, 2]], [[0, 0, 1]], window=2), "prefixes: need .* no window"),
        (lambda q: tree(q, [[1, 1, 2]], [[0, 1]]), "prefixes of shape"),
        (lambda q: tree(q, [[2, 1, 1]], [[1, 0, 0]]), "prefixes: a segment must stand left of those that continue it"),
        (lambda q: attend(q, q, q, **{**OPTIONS, "rotary": "rove"}), "rotary = 'rove': must be a Rotary"),
        (lambda q: attend(q, q, q, **{**OPTIONS, "value_rotary": True}), "value_rotary = True"),
        (lambda q: attend(q, q, q, **OPTIONS, backend=None), "attention = None"),
        (lambda q: Target("TPU"), "target.platform = 'TPU'"),
        (lambda q: Target("gpu", "9.0"), "target.capability = '9.0'"),
        (lambda q: Call(1, 4, 4, 2, 0, 8, "float32"), "call.kv_heads = 0"),
        (lambda q: Call(1, 4, 4, 3, 2, 8, "float32"), "call.kv_heads = 2"),
        (lambda q: Call(1, 4, 5, 2, 2, 8, "float32"), "call.aligned = True"),
        (lambda q: RotaryAttention(16, **HEADS, backend="xia", rngs=nnx.Rngs(0)), "did you mean xla"),
        (lambda q: RotaryAttention(16, **HEADS, window=0, rngs=nnx.Rngs(0)), "window = 0"),
        (lambda q: RotaryAttention(16, **{**HEADS, "kv_heads": 3}, rngs=nnx.Rngs(0)), "kv_heads = 3"),
        (lambda q: RotaryAttention(16, **{**HEADS, "head_dim": 7}, rngs=nnx.Rngs(0)), "head_dim = 7"),
        (lambda q: attention_fn(ROVE, "rove"), "value_rotary = 'rove'"),
        (lambda q: attention_fn(ROVE, ROVE)(q, q, q, mask=jnp.ones((2, 4))), "mask of shape"),
        (lambda q: functional.apply(MODEL, PARAMS, jnp.full((1, 3), 20)), "token = 20: the vocabulary has 0 to 19"),
        (lambda q: functional.apply(MODEL, PARAMS, jnp.full((1, 3), -1)), "token = -1"),
        (lambda q: functional.apply(MODEL, PARAMS, jnp.ones((1, 3), jnp.int32), capture="query"), "capture = 'query'"),
        (lambda q: functional.init_cache(MODEL, -1, 8), "shape = "),
        (lambda q: functional.init_cache(MODEL, 1, 8, "floot"), "dtype = 'floot'"),
        (lambda q: functional.init_cache(MODEL, 1, 8, chunk=0), "chunk = 0"),
        (lambda q: joined(), "give the caches"),
        (lambda q: joined(store(), store(heads=3)), "may differ in their slots alone"),
        (lambda q: joined(store(), store(Rotary(base=500.0))), "rotary.base = 500.0: the first cache has 10000.0"),
        (lambda q: retable(store(), "rove", ROVE), "rotary = 'rove'"),
        (lambda q: keep(store(), jnp.ones(2)), "slots of dtype"),
    ],
)
def test_odd_arguments_in_one_line(call, words, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for those who use the library
    with pytest.raises(UsageError, match=words) as caught:
        call(jnp.ones((1, 3, 2, 8)))
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("backend", ["chunked", "splash"])
def test_second_derivatives(backend):
    def loss(q):
        return attend(q, q, q, **OPTIONS, backend=backend).sum()

    with interpret(), pytest.raises(UsageError, match="first derivatives only"):
        jax.grad(lambda q: jax.grad(loss)(q).sum())(jnp.ones((1, 4, 2, 8)))


def store(rotary=ROVE, heads=2):
    return Store.empty((1, 4, heads, 8), "float32", rotary=rotary, value_rotary=ROVE)


class TestCache:
    STORE = Store.empty((2, 12, 2, 16), "float32", rotary=ROVE, value_rotary=ROVE)

    def write(self, **changes):
        q, k, v = inputs(t=6)
        options = {"positions": jnp.arange(6), "segments": ONES[:, :6], **changes}
        return cached_attention(q, k, v, self.STORE, rotary=ROVE, value_rotary=ROVE, **options)

    @pytest.mark.parametrize("positions", [jnp.zeros((2, 1), int), jnp.zeros(1, int), jnp.zeros((), int)])
    def test_positions_that_would_be_spread_over_all_tokens(self, positions):
        with pytest.raises(UsageError, match="positions of shape"):
            self.write(positions=positions)

    def test_segments_missing_or_odd(self):
        for segments, words in ((None, "segments = None"), (ONES[:, :5], "shape"), (ONES[:, :6] * 0.5, "dtype")):
            with pytest.raises(UsageError, match=words):
                self.write(segments=segments)

    def test_of_another_number_of_layers(self):
        other = functional.init_cache(dataclasses.replace(MODEL, layers=2), 1, 8)
        tokens, segments = jnp.zeros((1, 3), jnp.int32), ONES[:1, :3]
        with pytest.raises(UsageError, match="a cache of 2 layers: the model has 3"):
            functional.apply(MODEL, PARAMS, tokens, positions=jnp.arange(3), segments=segments, cache=other)

    def test_prefixes_are_not_kept(self):
        tokens, ones = jnp.zeros((1, 3), jnp.int32), ONES[:1, :3]
        call = {
            "positions": jnp.arange(3),
            "segments": ones,
            "prefixes": ones,
            "cache": functional.init_cache(MODEL, 1, 8),
        }
        with pytest.raises(UsageError, match="prefixes: not with a cache"):
            functional.apply(MODEL, PARAMS, tokens, **call)

    def test_moves_and_slots_out_of_range(self):
        _, store = self.write()
        with pytest.raises(UsageError, match="beyond"):
            reposition(store, 0, np.int64(2**32 + 5))
        with pytest.raises(UsageError, match="beyond"):
            reposition(store, 0, 2**40)
        for slots in ([0, 50], [0, 0], [-1]):
            with pytest.raises(UsageError, match="slots = "):
                keep(store, jnp.array(slots))

    def test_under_x64(self):
        plain, _ = self.write()
        with jax.enable_x64(True):
            out, _ = self.write()
        np.testing.assert_allclose(out, plain, atol=1e-5)
