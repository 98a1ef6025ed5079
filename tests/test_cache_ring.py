"""A cache with a window is a ring: few slots, any length, and never a token lost in silence."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rove_jax.attention import cached_attention
from rove_jax.attention.cache import noted
from rove_jax.config import Model
from rove_jax.errors import UsageError
from rove_jax.models import functional
from tests.cache_cases import SPECS, definition, empty, fed, inputs, options_of
from tests.reference.weights import random_params

close = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-5)
W = 5


@pytest.mark.parametrize("name", ["rope", "own values", "absolute_qkv"])
def test_a_window_and_a_chunk_of_slots_hold_any_length(name):
    spec, qkv = SPECS[name], inputs(t=23)
    out, store = fed(empty(spec, W - 1 + 4), qkv, spec, (4, 4, 1, 4, 4, 1, 1, 4), window=W)
    exact = definition(qkv, spec, window=W)
    close(out, exact)
    assert store.length == 23 and sorted(store.positions[0].tolist()) == list(range(15, 23))
    assert np.abs(definition(qkv, spec, window=W - 1) - exact).max() > 0.01, "control: the oldest in sight counts"


def test_one_token_at_a_time_needs_no_more_slots_than_the_window():
    """A decoding loop as one scan, many times around; two rows at positions of their own."""
    spec, qkv = SPECS["rove"], inputs(t=40)
    starts = jnp.array([0, 70_000])

    def step(store, token):
        q, k, v, at = token
        ones = jnp.ones((2, 1), jnp.int32)
        out, store = cached_attention(
            *(q[:, None], k[:, None], v[:, None]),
            store,
            positions=starts[:, None] + at,
            segments=ones,
            window=W,
            **options_of(spec),
        )
        return store, out[:, 0]

    def decode(store, q, k, v):
        return jax.lax.scan(step, store, (*(x.swapaxes(0, 1) for x in (q, k, v)), jnp.arange(40)))

    store, out = jax.jit(decode)(empty(spec, W), *qkv)
    close(out.swapaxes(0, 1), definition(qkv, spec, window=W))
    assert store.key.shape[1] == W and not store.lost.any()
    short, out = jax.jit(decode)(empty(spec, W - 1), *qkv)
    assert short.lost.all() and jnp.isnan(out[W - 1 :]).all() and jnp.isfinite(out[: W - 1]).all(), "control"


def test_padding_overwrites_nothing():
    """Row 0 rests while row 1 goes on; with as many slots more it finds everything in its place, with fewer it says."""
    spec, qkv = SPECS["rove"], inputs(t=20)
    segments = np.ones((2, 20), int)
    segments[0, 6:10] = 0
    segments[1, :2] = 0
    positions = np.cumsum(segments, 1) - 1

    def out(slots):
        rows = {"positions": positions, "segments": segments}
        return fed(empty(spec, slots), qkv, spec, (2,) * 10, **rows, window=W)[0]

    exact = definition(qkv, spec, positions=positions, segments=segments, window=W)
    close(out(W - 1 + 2 + 4), exact)
    assert (out(W - 1 + 2 + 4)[0, 6:10] == 0).all()
    close(out(W - 1 + 2)[1], exact[1])
    assert jnp.isnan(out(W - 1 + 2)[0, 10:]).all()


def test_a_new_document_overwrites_the_last():
    spec, qkv = SPECS["rove"], inputs(t=20)
    segments = np.repeat([[1] * 7 + [2] * 13], 2, 0)
    positions = np.repeat([[*range(7), *range(13)]], 2, 0)
    out, _ = fed(empty(spec, W), qkv, spec, (1,) * 20, positions=positions, segments=segments, window=W)
    close(out, definition(qkv, spec, positions=positions, segments=segments, window=W))


def test_a_token_still_to_be_seen_is_never_overwritten_in_silence():
    """By a chunk too long for the ring; traced, only the row that loses something gives NaN."""
    spec, qkv = SPECS["rove"], inputs(t=12)
    slots = W - 1 + 3
    at, ones = jnp.arange(4), jnp.ones((2, 4), jnp.int32)
    with pytest.raises(
        UsageError, match=r"4 new tokens: with a window of 5 they need 5 - 1 \+ 4 slots, the cache has 7"
    ):
        noted(noted(empty(spec, slots), at, ones, W), at + 4, ones, W)
    with pytest.raises(UsageError, match="12 new tokens: the cache has 7 slots"):
        fed(empty(spec, slots), qkv, spec, (12,), window=W)
    segments = np.ones((2, 12), int)
    segments[1, :3] = 0
    positions = np.cumsum(segments, 1) - 1
    out, store = fed(empty(spec, slots), qkv, spec, (4, 4, 4), positions=positions, segments=segments, window=W)
    exact = definition(qkv, spec, positions=positions, segments=segments, window=W)
    assert store.lost.tolist() == [True, True]
    close(out[:, :4], exact[:, :4])
    assert jnp.isnan(out[0, 4:]).all()
    close(out[1, 4:8], exact[1, 4:8])  # its first three tokens were padding, so the second chunk has room
    assert jnp.isnan(out[1, 8:]).all()


MODEL = Model(layers=2, width=32, query_heads=4, kv_heads=2, head_dim=16, mlp_width=32, vocab=40, window=W)


@pytest.mark.parametrize("variant", [pytest.param("rope", marks=pytest.mark.slow), "rove"])
def test_a_model_decodes_beyond_its_slots(variant):
    cfg = dataclasses.replace(MODEL, variant=variant, scan_layers=True)
    params, tokens = random_params(cfg, seed=1), np.random.default_rng(0).integers(0, 40, (2, 30))
    cache = functional.init_cache(cfg, 2, 1_000_000, chunk=6)
    assert cache.key.shape == (2, 2, W - 1 + 6, 2, 16)

    def step(cache, tokens, at):
        output = functional.apply(
            cfg, params, tokens, positions=at, segments=jnp.ones(tokens.shape, jnp.int32), cache=cache
        )
        return output.cache, output.hidden

    @jax.jit
    def decode(cache, tokens, at):
        """Prefill of two chunks of 6, then a scan."""
        first = []
        for chunk in (slice(0, 6), slice(6, 12)):
            cache, hidden = step(cache, tokens[:, chunk], at[chunk])
            first.append(hidden)

        def one(cache, token):
            cache, hidden = step(cache, token[0][:, None], token[1][None])
            return cache, hidden[:, 0]

        cache, rest = jax.lax.scan(one, cache, (tokens[:, 12:].T, at[12:]))
        return jnp.concatenate([*first, rest.swapaxes(0, 1)], 1), cache

    found, _ = decode(cache, tokens, jnp.arange(30))
    close(found, jax.jit(functional.apply, static_argnums=0)(cfg, params, tokens).hidden)


def test_init_cache_says_what_a_ring_needs():
    assert functional.init_cache(MODEL, 1, 7, chunk=6).key.shape[2] == 7, "never more than asked for"
    assert functional.init_cache(MODEL, 1, 70).key.shape[2] == 70
    with pytest.raises(UsageError, match="chunk = 0"):
        functional.init_cache(MODEL, 1, 70, chunk=0)
    whole = dataclasses.replace(MODEL, window=None)
    assert functional.init_cache(whole, 1, 70, chunk=6).key.shape[2] == 70, "without a window every token is kept"


def test_a_window_beyond_all_positions_forgets_nothing():
    spec, qkv = SPECS["rove"], inputs(t=4)
    out, store = fed(empty(spec, 4), qkv, spec, (3, 1), window=2**40)
    close(out, definition(qkv, spec))
    assert jnp.isnan(fed(store, [x[:, :1] for x in qkv], spec, (1,), positions=np.array([4]), window=2**40)[0]).all()
