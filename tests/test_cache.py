"""Attention over the cache against the float64 definition of all tokens at once, and the cache at its ends."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rove_jax.attention import cached_attention
from rove_jax.config import Model, Rotary
from rove_jax.errors import UsageError
from rove_jax.models import functional
from tests.cache_cases import ROVE, SPECS, definition, empty, fed, inputs, options_of
from tests.reference.weights import random_params

CFG = Model(layers=2, width=16, query_heads=2, kv_heads=1, head_dim=8, mlp_width=16, vocab=40, scan_layers=True)
SLOTS = 4
TOKENS = jax.random.randint(jax.random.key(7), (2, SLOTS + 1), 0, 40)

apply = jax.jit(functional.apply, static_argnums=0)
close = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-5)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
def test_a_prompt_in_pieces_equals_all_of_it_at_once(spec):
    qkv = inputs(t=13)
    out, store = fed(empty(spec, 16), qkv, spec, (5, 4, 4))
    close(out, definition(qkv, spec))
    assert store.length == 13 and (np.asarray(store.segments) == (np.arange(16) < 13)).all()
    assert np.abs(definition(qkv, spec, window=7) - out).max() > 0.01, "control: later pieces see the first"


@pytest.mark.parametrize("backend", ["xla", "chunked"])
@pytest.mark.parametrize("pieces", [(7, 3, 1, 2), (1,) * 13])
def test_any_split_on_every_backend_and_with_grouped_heads(pieces, backend):
    spec, qkv = SPECS["rove"], inputs(t=13, n=4, k=1)
    out, _ = fed(empty(spec, 13, k=1), qkv, spec, pieces, backend=backend)
    close(out, definition(qkv, spec))


LEFT = np.array([[0, 0, 0, 1, 1, 1, 1, 1, 1], [1] * 9])
RIGHT = np.array([[1, 1, 1, 1, 0, 0, 0, 1, 1], [1] * 9])
# Where padding stands: (segments, positions), pads at any position, and where the tokens of row 0 are.
RAGGED = {
    "left": (LEFT, np.stack([np.maximum(np.arange(9) - 3, 0), np.arange(9)])),
    "right": (RIGHT, np.array([[0, 1, 2, 3, 3, 3, 3, 4, 5], list(range(9))])),
}


@pytest.mark.parametrize("side", RAGGED)
@pytest.mark.parametrize("spec", [SPECS["rope"], SPECS["rove"]], ids=["rope", "rove"])
def test_a_row_beside_a_longer_one_equals_the_row_alone(spec, side):
    """The last two are decoded one by one; row 0 is shorter by three."""
    segments, positions = RAGGED[side]
    qkv = inputs(t=9)
    out, _ = fed(empty(spec, 9), qkv, spec, (7, 1, 1), positions=positions, segments=segments)
    close(out, definition(qkv, spec, positions=positions, segments=segments))
    real = segments[0] == 1
    alone = [x[:1, real] for x in qkv]
    close(out[:1, real], definition(alone, spec))
    assert (out[0, ~real] == 0).all(), "padding sees nothing"


def test_positions_are_any_and_each_rows_own():
    spec, qkv = SPECS["rove"], inputs(t=9)
    positions = np.array([[0, 1, 2, 40, 41, 42, 1000, 1001, 2**20], [-9, -3, -4, 3, 2, 7, 5, 6, 8]])
    out, store = fed(empty(spec, 9), qkv, spec, (4, 3, 2), positions=positions)
    # Index order is not position order in row 1, so a piece sees what is written, by position.
    for row, stop in ((0, 9), (1, 4), (1, 7), (1, 9)):
        part = [x[row : row + 1, :stop] for x in qkv]
        first = {4: 0, 7: 4, 9: 7}[stop] if row else 0
        close(out[row : row + 1, first:stop], definition(part, spec, positions=positions[row, :stop])[:, first:])
    assert (store.positions == positions).all()


def test_documents_in_one_row_see_themselves_only():
    spec, qkv = SPECS["rove"], inputs(t=9)
    segments = np.array([[1, 1, 1, 1, 2, 2, 2, 2, 2], [3, 3, 3, 3, 3, 3, 3, 4, 4]])
    out, _ = fed(empty(spec, 9), qkv, spec, (3, 2, 4), segments=segments)
    close(out, definition(qkv, spec, segments=segments))


def test_scan_vmap_and_traced_offsets():
    spec, qkv = SPECS["rove"], inputs(t=8)
    whole = definition(qkv, spec)

    def decode(q, k, v, offset):
        def step(store, token):
            q, k, v, at = token
            one = (q[:, None], k[:, None], v[:, None])
            ones = jnp.ones((2, 1), jnp.int32)
            out, store = cached_attention(*one, store, positions=at[None], segments=ones, **options_of(spec))
            return store, out[:, 0]

        tokens = (*(x.swapaxes(0, 1) for x in (q, k, v)), offset + jnp.arange(8))
        return jax.lax.scan(step, empty(spec, 8), tokens)[1].swapaxes(0, 1)

    for offset in (0, 123_456, -77):
        close(jax.jit(decode)(*qkv, offset), whole)
    reversed_rows = [jnp.stack([x, x[::-1]]) for x in qkv]
    many = jax.jit(jax.vmap(decode))(*reversed_rows, jnp.array([5, 70_000]))
    close(many, np.stack([whole, whole[::-1]]))
    close(
        jax.jit(jax.vmap(functools.partial(write_two, spec)))(*reversed_rows), np.stack([whole, whole[::-1]])[:, :, :5]
    )


def write_two(spec, q, k, v):
    """The first five tokens in two pieces, traced throughout."""
    return fed(empty(spec, 6), [x[:, :5] for x in (q, k, v)], spec, (3, 2), call=cached_attention)[0]


def test_a_bfloat16_store_under_float32_attention():
    """Keys and values are rounded once, after their turn; queries, scores and outputs stay float32."""
    spec, qkv = SPECS["rove"], inputs(t=9)
    out, store = fed(empty(spec, 9, dtype=jnp.bfloat16), qkv, spec, (5, 4))
    assert out.dtype == jnp.float32 and store.key.dtype == store.value.dtype == jnp.bfloat16
    exact, store32 = fed(empty(spec, 9), qkv, spec, (5, 4))
    close(store.value.astype(jnp.float32), store32.value.astype(jnp.bfloat16).astype(jnp.float32), atol=0)
    assert 0 < np.abs(out - exact).max() < 0.03
    low = [x.astype(jnp.bfloat16) for x in qkv]
    out, store = fed(empty(spec, 9), low, spec, (5, 4))
    assert out.dtype == jnp.bfloat16 and store.key.dtype == jnp.float32
    close(out.astype(jnp.float32), exact, atol=0.03)


@functools.cache
def parameters():
    return random_params(CFG, seed=0)


def extend(cache, tokens, start, call: Any = apply):
    """Positions are [T] here: rows without padding share theirs."""
    at, ones = jnp.arange(start, start + tokens.shape[1]), jnp.ones(tokens.shape, jnp.int32)
    return call(CFG, parameters(), tokens, positions=at, segments=ones, cache=cache)


def full_cache():
    return extend(functional.init_cache(CFG, 2, SLOTS), TOKENS[:, :SLOTS], 0)


def test_every_slot_can_be_used():
    whole = apply(CFG, parameters(), TOKENS[:, :SLOTS]).hidden
    start = extend(functional.init_cache(CFG, 2, SLOTS), TOKENS[:, : SLOTS - 1], 0)
    last = extend(start.cache, TOKENS[:, SLOTS - 1 : SLOTS], SLOTS - 1)
    close(jnp.concatenate([start.hidden, last.hidden], 1), whole)


def test_one_past_the_last_slot_is_refused_or_where_traced_loud():
    """XLA would move the write back to the last slot, and wrong text come out."""
    with pytest.raises(UsageError, match="4 slots, 4 of them written"):
        extend(full_cache().cache, TOKENS[:, SLOTS:], SLOTS, functional.apply)
    past = extend(full_cache().cache, TOKENS[:, SLOTS:], SLOTS)
    assert jnp.isnan(past.hidden).all() and past.cache.lost.all()
    assert jnp.isnan(extend(past.cache, TOKENS[:, :1], SLOTS + 1).hidden).all(), "and stays loud"
    assert jnp.isfinite(full_cache().hidden).all() and not full_cache().cache.lost.any()


def test_what_does_not_fit_is_refused():
    with pytest.raises(UsageError, match="5 new tokens: the cache has 4 slots"):
        extend(functional.init_cache(CFG, 2, SLOTS), TOKENS, 0)
    with pytest.raises(UsageError, match="store of keys"):
        extend(functional.init_cache(CFG, 3, SLOTS), TOKENS[:, :1], 0)
    with pytest.raises(UsageError, match="length = 0"):
        functional.init_cache(CFG, 2, 0)
    spec, qkv = SPECS["rove"], inputs(t=1)
    with pytest.raises(UsageError, match="store of keys"):
        fed(empty(spec, 4, layers=(3,)), qkv, spec, (1,))


def test_a_key_without_a_position_is_refused_by_name():
    spec, (q, k, v) = SPECS["rove"], inputs(t=1)
    options: dict[str, Any] = {**options_of(spec), "segments": jnp.ones((2, 1), jnp.int32)}
    with pytest.raises(UsageError, match="positions = None: every key needs one.*prefix or null tokens"):
        cached_attention(q, k, v, empty(spec, 4), positions=None, **options)


def test_another_rotation_than_the_stores_is_refused_by_name():
    spec, (q, k, v) = SPECS["rove"], inputs(t=1)
    options: dict[str, Any] = {"positions": jnp.arange(1), "segments": jnp.ones((2, 1), jnp.int32)}
    for change in ({"rotary": Rotary(base=500.0)}, {"value_rotary": None}, {"turns": "qk"}):
        with pytest.raises(UsageError, match=f"{next(iter(change))}.* = .*the cache was written with"):
            cached_attention(q, k, v, empty(spec, 4), **{**options_of(spec), **options, **change})
    cached_attention(q, k, v, empty(spec, 4), rotary=ROVE, value_rotary=ROVE, **options)


def test_parameters_are_float32_where_jax_counts_in_64_bits():
    with jax.enable_x64(True):
        assert {x.dtype.name for x in jax.tree.leaves(functional.init(CFG, jax.random.key(0)))} == {"float32"}
