"""What a decoding step costs, by the compiler's account: no copy of the cache, and the rotation of the new token."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest

from rove_jax.config import Model
from rove_jax.models import functional

CFG = Model(layers=2, width=32, query_heads=2, kv_heads=2, head_dim=16, mlp_width=32, vocab=40)
ROWS = 2


@functools.cache
def decode(cfg, slots, keeping=lambda cache: cache):
    """Bytes of keys and values, memory and costs of the compiled step of one token a row, the cache given up to it."""

    def step(params, cache, tokens, positions, segments):
        output = functional.apply(cfg, params, tokens, positions=positions, segments=segments, cache=cache)
        return output.hidden, keeping(output.cache)

    cache = jax.eval_shape(lambda: functional.init_cache(cfg, ROWS, slots))
    one = jax.ShapeDtypeStruct((ROWS, 1), jnp.int32)
    compiled = jax.jit(step, donate_argnums=1).lower(functional.abstract(cfg), cache, one, one, one).compile()
    memory, costs = compiled.memory_analysis(), compiled.cost_analysis()
    assert memory is not None and costs is not None
    return sum(x.size * x.dtype.itemsize for x in (cache.key, cache.value)), memory, costs


def copied(cache):
    """What a loop over layers that gives out each layer's cache does."""
    return dataclasses.replace(cache, key=jnp.stack([*cache.key[::-1]])[::-1])


@pytest.mark.parametrize("scan", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["scanned", "unrolled"])
def test_the_cache_is_written_in_place(scan):
    cfg = dataclasses.replace(CFG, scan_layers=scan)
    size, memory, _ = decode(cfg, 1024)
    assert memory.alias_size_in_bytes >= size, "the donated cache is the one that comes out"
    deep = dataclasses.replace(cfg, layers=6)
    more, deeper, _ = decode(deep, 1024)
    assert more == 3 * size
    # Attention works on one layer at a time, whatever their number.
    assert deeper.temp_size_in_bytes - memory.temp_size_in_bytes < 0.1 * (more - size)
    _, copying, _ = decode(deep, 1024, copied)
    assert copying.temp_size_in_bytes - memory.temp_size_in_bytes > 0.4 * (more - size), "the check sees a copy"


def test_values_cost_the_rotation_of_the_new_token_only():
    """What RoVE adds to a step of RoPE does not grow with the cache."""
    flops = {
        (variant, slots): decode(dataclasses.replace(CFG, variant=variant), slots)[2]["flops"]
        for variant in ("rope", "rove")
        for slots in (256, 1024)
    }
    assert flops["rope", 1024] > flops["rope", 256] + 2 * CFG.layers * ROWS * 2 * 16 * (1024 - 256)
    added = [flops["rove", slots] - flops["rope", slots] for slots in (256, 1024)]
    assert 0 < added[0] < 0.02 * flops["rope", 256] and abs(added[1] - added[0]) < 100
