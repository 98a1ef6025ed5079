"""The key/value cache at its ends: exactly full, one past it, and what does not fit."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rove_jax.config import Model
from rove_jax.errors import UsageError
from rove_jax.models import functional

CFG = Model(layers=2, width=16, query_heads=2, kv_heads=1, head_dim=8, mlp_width=16, vocab=40, scan_layers=True)
SLOTS = 4
TOKENS = jax.random.randint(jax.random.key(7), (2, SLOTS + 1), 0, 40)

compiled = jax.jit(functional.apply, static_argnums=0)


@functools.cache
def parameters():
    return jax.tree.map(lambda x: 5.0 * x if x.ndim > 2 else x, functional.init(CFG, jax.random.key(0)))


def extend(cache, tokens, start, apply: Any = compiled):
    """Positions are [T] here: rows without padding share theirs."""
    at, ones = jnp.arange(start, start + tokens.shape[1]), jnp.ones(tokens.shape, jnp.int32)
    return apply(CFG, parameters(), tokens, positions=at, segments=ones, cache=cache)


def full_cache():
    return extend(functional.init_cache(CFG, 2, SLOTS), TOKENS[:, :SLOTS], 0)


def test_every_slot_can_be_used():
    whole = compiled(CFG, parameters(), TOKENS[:, :SLOTS]).hidden
    start = extend(functional.init_cache(CFG, 2, SLOTS), TOKENS[:, : SLOTS - 1], 0)
    last = extend(start.cache, TOKENS[:, SLOTS - 1 : SLOTS], SLOTS - 1)
    np.testing.assert_allclose(jnp.concatenate([start.hidden, last.hidden], 1), whole, atol=1e-5)


def test_one_past_the_last_slot_is_refused_or_where_traced_loud():
    """XLA would move the write back to the last slot, and wrong text come out."""
    with pytest.raises(UsageError, match="4 slots, 4 of them written"):
        extend(full_cache().cache, TOKENS[:, SLOTS:], SLOTS, functional.apply)
    assert jnp.isnan(extend(full_cache().cache, TOKENS[:, SLOTS:], SLOTS).hidden).all()


def test_what_does_not_fit_is_refused():
    with pytest.raises(UsageError, match="5 new tokens: the cache has 4 slots"):
        extend(functional.init_cache(CFG, 2, SLOTS), TOKENS, 0)
    with pytest.raises(UsageError, match="store of keys"):
        extend(functional.init_cache(CFG, 3, SLOTS), TOKENS[:, :1], 0)


def test_parameters_are_float32_where_jax_counts_in_64_bits():
    with jax.enable_x64(True):
        assert {x.dtype.name for x in jax.tree.leaves(functional.init(CFG, jax.random.key(0)))} == {"float32"}
