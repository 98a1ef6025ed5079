"""Calls at the edges of what `rotary_attention` takes: empty arrays, odd types, huge windows, cuts over devices."""

import contextlib
import functools
from typing import Any

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from rove_jax import config, sharding
from rove_jax.attention import Target, interpret, rotary_attention
from rove_jax.attention.visibility import describe
from rove_jax.errors import UsageError
from tests.attention_cases import BACKENDS, ROVE, compiled, inputs, small_chunks  # noqa: F401

OPTIONS = {"rotary": ROVE, "value_rotary": ROVE, "is_causal": True}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["uint8", "uint32", "int8"])
def test_positions_of_any_integer_type_hide_later_keys(dtype, backend):
    """Differences of unsigned or narrow integers wrap around: every key would look earlier than every query."""
    q, k, v = inputs(t=200, b=1)
    at = jnp.asarray(np.arange(200) - (100 if dtype == "int8" else 0), dtype)
    plain = compiled(q, k, v, **OPTIONS, backend=backend)
    np.testing.assert_allclose(compiled(q, k, v, **OPTIONS, query_positions=at, backend=backend), plain, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_to_attend_from_or_to(backend):
    q, k, v = inputs(t=3)
    for rows, queries, keys in ((2, 0, 0), (0, 3, 3), (2, 3, 0), (2, 0, 3)):
        at = {"query_positions": jnp.arange(queries), "key_positions": jnp.arange(keys)}

        def attend(q, k, v, at=at):
            return compiled(q, k, v, **OPTIONS, **at, backend=backend)

        cut = (q[:rows, :queries], k[:rows, :keys], v[:rows, :keys])
        assert attend(*cut).shape == (rows, queries, 4, 16) and (attend(*cut) == 0).all()
        grads = jax.grad(lambda *x: attend(*x).sum(), argnums=(0, 1, 2))(*cut)  # noqa: B023
        assert all((grad == 0).all() for grad in grads)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_causal", [True, False])
def test_a_window_beyond_int32_is_no_window(is_causal, backend):
    q, k, v = inputs()
    options = {**OPTIONS, "is_causal": is_causal, "backend": backend}
    for window in (2**31 - 1, 2**40):
        assert (compiled(q, k, v, **options, window=window) == compiled(q, k, v, **options)).all()
    shape = {"is_causal": True, "contiguous": False, "query_positions": None, "key_positions": None, "segments": None}
    assert describe((1, 4, 4), window=2**21, **shape).window == 2**21  # as far as positions lie apart


@pytest.mark.parametrize("backend", BACKENDS)
def test_numpy_arrays_serve_even_where_nothing_turns(backend, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # the signatures want jax's own
    arrays: list[Any] = [np.asarray(x) for x in inputs()]
    for rotary in (None, config.Rotary(alpha=0.0)):
        options = {"rotary": rotary, "value_rotary": rotary, "is_causal": True, "backend": backend}
        out = rotary_attention(*arrays, **options)
        np.testing.assert_allclose(out, compiled(*arrays, **options), atol=1e-6)


def test_odd_segments_heads_and_types_are_refused():
    q, k, v = inputs()
    ids = jnp.ones((2, 11), jnp.int32)
    shape = {"is_causal": True, "window": None, "contiguous": False, "query_positions": None, "key_positions": None}
    for several in ((ids,), (ids, ids, ids)):
        with pytest.raises(UsageError, match=f"{len(several)} arrays of segments"):
            describe.__wrapped__((2, 11, 11), **shape, segments=several)
    with pytest.raises(UsageError, match="0 key heads"):
        rotary_attention(q, k[:, :, :0], v[:, :, :0], **OPTIONS)
    with pytest.raises(UsageError, match="of floats"):
        rotary_attention.__wrapped__(*(x.astype(jnp.int32) for x in (q, k, v)), **OPTIONS)


ROWS, HEADS = PartitionSpec(sharding.BATCH), PartitionSpec(sharding.BATCH, None, "tensor")


@pytest.mark.parametrize("backend", [*BACKENDS, "splash"])
@pytest.mark.parametrize("queries", [ROWS, HEADS], ids=["rows", "heads of queries too"])
def test_inside_shard_map(queries, backend):
    """Its types say what varies from device to device, and a loop may not change that of what it carries."""
    q, k, v = inputs(b=4, k=1)
    attend = functools.partial(rotary_attention, **OPTIONS, backend=backend)
    mesh = sharding.make_mesh(config.Mesh(data=4, tensor=2))
    cut = jax.shard_map(attend, mesh=mesh, in_specs=(queries, ROWS, ROWS), out_specs=queries)

    def both(function):
        return jax.jit(jax.value_and_grad(lambda *x: (function(*x) ** 2).sum(), argnums=(0, 1, 2)))(q, k, v)

    plain = both(functools.partial(attend, backend="xla"))
    with interpret() if backend == "splash" else contextlib.nullcontext():
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), both(cut), plain)


@pytest.mark.parametrize("backend", BACKENDS)
def test_float32_products_are_float32_whatever_the_default(backend):
    """The text of the program, since a CPU computes in float32 anyway: GPUs and TPUs do not, unless told."""
    q, k, v = inputs()
    for setting in ("bfloat16", None):
        with jax.default_matmul_precision(setting):
            text = jax.jit(functools.partial(rotary_attention, **OPTIONS, backend=backend)).lower(q, k, v).as_text()
        products = [line for line in text.splitlines() if "dot_general" in line and "stablehlo" in line]
        assert products and all("HIGHEST" in line for line in products)


def test_a_traced_call_knows_its_platform_from_the_mesh_alone():
    """Under a bare `jit` a program may be compiled for anything, so `auto` stays with what runs everywhere."""
    seen = []

    def look(x):
        seen.append(Target.here(x).platform)
        return x

    x = jnp.ones(3)
    look(x)
    jax.jit(look)(x)
    with jax.set_mesh(jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))):
        jax.jit(lambda x: look(x) + 1)(x)
    with interpret():
        jax.jit(lambda x: look(x) + 2)(x)
    assert seen == ["cpu", "unknown", "cpu", "tpu"]
