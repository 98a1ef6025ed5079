"""The kernels of the TPU backend compiled for TPUs that are not here. Needs libtpu (the extra `tpu`).

Compiling takes all of Mosaic's checks: operations, layouts, memory on the core. Numbers are in test_splash.py.
"""

import importlib.util

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.pallas.ops.tpu import splash_attention as published
from jax.sharding import SingleDeviceSharding

from rove_jax.attention import splash as backend
from rove_jax.attention.visibility import Visibility
from rove_jax.config import Rotary
from rove_jax.planning import topology
from rove_jax.planning.hlo import PALLAS, Module

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed (extra `tpu`)"
)

ROVE = Rotary()


def gradient(
    name="v5e:2x2", *, b=1, t=1024, n=2, k=2, h=64, dtype=jnp.bfloat16, packed=False, tree=False, attend=None, **options
):
    """Loss and gradients of one call, compiled for one device of the topology `name`."""
    where = SingleDeviceSharding(topology.devices(name)[0])
    query, key = (jax.ShapeDtypeStruct((b, t, heads, h), dtype, sharding=where) for heads in (n, k))
    ids = jax.ShapeDtypeStruct((b, t), jnp.int32, sharding=where)
    options = {"causal": True, "window": None, "rotary": ROVE, "value_rotary": ROVE, **options}

    def ours(q, k, v, ids):
        segments = {"query_segments": ids, "key_segments": ids} if packed else {}
        segments |= {"query_prefixes": ids // 2} if tree else {}
        visibility = Visibility(options["causal"], options["window"], True, **segments)
        return backend.splash(q, k, v, visibility, 0.125, options["rotary"], options["value_rotary"])

    def loss(q, k, v, ids):
        return ((attend or ours)(q, k, v, ids).astype(jnp.float32) ** 2).sum()

    return jax.jit(jax.value_and_grad(loss, (0, 1, 2))).lower(query, key, key, ids).compile()


def kernels(compiled):
    return [call.kernel for call in Module(compiled.as_text()).custom_calls(PALLAS)]


@pytest.mark.parametrize("name", ["v5e:2x2", "v5p:2x2x1", "v6e:2x2"])
def test_compiles_for_each_generation(name):
    compiled = gradient(name)
    forward, backward = sorted(kernels(compiled), key=lambda name: "backward" in name)
    assert "splash_forward" in forward and "splash_backward" in backward
    # Nothing of the size of a head's scores.
    assert not Module(compiled.as_text()).squares(1024)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"dtype": jnp.float32},
        {"h": 80, "t": 1000, "packed": True, "window": 100},
        {"h": 128, "n": 8, "causal": False, "rotary": Rotary(pairing="interleaved")},
        {"n": 25, "k": 25, "value_rotary": Rotary(dims=12), "causal": False, "window": 300},
        {"packed": True, "tree": True, "rotary": None, "value_rotary": None},
        {"t": 16_384},
        {"t": 16_384, "h": 128, "n": 4, "k": 1, "dtype": jnp.float32},
        {"n": 32, "k": 1, "h": 128},
    ],
    ids=lambda options: ", ".join(f"{name} {getattr(x, '__name__', x)}" for name, x in options.items()),
)
def test_compiles_with_each_feature(options):
    assert len(kernels(gradient(**options))) == 2


def test_a_kernel_that_takes_more_memory_than_it_may_does_not_compile(monkeypatch):
    """The negative control: these compilations do check."""
    monkeypatch.setattr(backend, "VMEM_LIMIT", 2**20)
    with pytest.raises(Exception, match="(?i)vmem"):
        gradient()


@pytest.mark.slow
def test_rove_moves_what_rope_moves_and_less_than_the_published_kernel():
    """Operands and results of the kernels as they lie in memory, and temporaries, eight rows of gpt2-small."""

    def bytes_of(compiled):
        module = Module(compiled.as_text())
        moved = sum(module.traffic(call) for call in module.custom_calls(PALLAS))
        return moved, moved + compiled.cost_analysis()["bytes accessed"], compiled.memory_analysis().temp_size_in_bytes

    mask = published.MultiHeadMask([published.CausalMask((1024, 1024))] * 12)
    kernel = jax.vmap(published.make_splash_mha(mask, head_shards=1, q_seq_shards=1))

    def theirs(q, k, v, ids):
        return kernel(*(x.swapaxes(1, 2) for x in (q / 8, k, v))).swapaxes(1, 2)

    shape = {"b": 8, "n": 12, "k": 12}
    rove, rope = (bytes_of(gradient(value_rotary=v, **shape)) for v in (ROVE, None))
    other = bytes_of(gradient(attend=theirs, **shape))
    assert all(ours <= 1.01 * plain for ours, plain in zip(rove, rope))
    assert all(ours < 0.6 * its for ours, its in zip(rove, other))
