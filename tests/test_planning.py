"""The train step of gpt2-small compiled for a TPU that is not here: what RoVE's has that RoPE's has not.

Needs libtpu (the extra `tpu`), which compiles without a device. Layers are scanned, so that a variant compiles in half
a minute: the compiler then counts one layer of twelve.
"""

import importlib.util
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.sharding import SingleDeviceSharding

from rove_jax.cli import eval as command
from rove_jax.errors import UsageError
from rove_jax.evaluation import results
from rove_jax.evaluation.workload import Workload
from rove_jax.planning import executable, topology
from rove_jax.planning.costs import Costs
from rove_jax.planning.hlo import Module
from rove_jax.training import setup
from rove_jax.training.step import compile_update

tpu = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed (extra `tpu`)")

ASKED = Workload("gpt2-small", batch_size=4, scan_layers=True)
DIMS = (1, 1024, 12, 64)
"""B, T, N, H on one of four devices."""

TEMPORARIES = 2.2e9
"""Bytes. Beside the float32 gradient, its sum over the parts of the batch and bfloat16 weights, 1.2e9 together, the
activations of one row in twelve layers, and 0.2e9 of logits."""

KERNELS = {"splash_forward", "splash_backward"}


class Executable:
    """A compiled program with other text, for controls."""

    def __init__(self, compiled, text: str) -> None:
        self.compiled, self.text = compiled, text

    def as_text(self) -> str:
        return self.text

    def __getattr__(self, name: str):
        return getattr(self.compiled, name)


@pytest.fixture(scope="module")
def steps():
    """The compiled train steps of both variants for four chips, attention "auto"."""
    devices = topology.devices("v5e:2x2")
    made = {}
    for variant in ASKED.variants:
        p = setup.make(ASKED.settings(variant, "auto"), devices)
        assert p.choice.backend == "splash", p.choice
        made[variant] = compile_update(p.settings, p.model, 50_256, p.optimizer, p.target, p.mesh)
    return made


@pytest.fixture(scope="module")
def facts(steps):
    return {variant: executable.facts(compiled, DIMS) for variant, compiled in steps.items()}


@tpu
@pytest.mark.slow
@pytest.mark.parametrize("variant", ASKED.variants)
def test_the_step_contains_the_kernels_asked_for_and_fits(steps, facts, variant):
    found = facts[variant]
    assert KERNELS <= set(found["kernels"])
    # All products with weights, of layers that a loop computes too: one row, forward and twice that backward.
    by_hand = 3 * 2 * 1024 * (12 * 12 * 768**2 + 50_304 * 768)
    assert Costs(Module(steps[variant].as_text()), tpu=True).products == by_hand
    assert found["memory"]["temporaries"] <= TEMPORARIES
    # Three float32 trees of 123.6M parameters, tokens and counters; each is replaced by its successor.
    assert abs(found["memory"]["arguments"] / (3 * 4 * 123_653_376) - 1) < 0.01
    assert found["memory"]["aliased"] >= 0.999 * found["memory"]["arguments"]
    parameters = [
        array
        for i in Module(steps[variant].as_text()).instructions
        if i.opcode == "parameter" and i.computation.startswith("main")
        for array in i.results
    ]
    assert sum(array.bytes for array in parameters) == found["memory"]["arguments"], "layouts are read as they are"


@tpu
@pytest.mark.slow
def test_rove_adds_no_square_no_collective_and_no_transposition(steps, facts):
    """Transpositions in the layers, that is: outside, XLA lays the residual stream out as it likes."""
    rove, rope = facts["rove"], facts["rope"]
    added = executable.beside(rove, rope)["added"]
    assert (added["squares"], added["collectives"], added["transpositions_in_loops"]) == ({}, {}, {})
    assert not rope["squares"] and not rove["squares"]

    text = steps["rove"].as_text()
    [body, *_] = re.findall(r"body=%([\w.\-]+)", text)
    start = text.index("\n", text.index(f"\n%{body} (") + 1) + 1
    doctored = f"""{text[:start]}  %doctored.0 = bf16[1,1024,12,64]{{3,2,1,0:T(8,128)(2,1)}} parameter(999)
  %doctored.1 = f32[1,12,1024,1024]{{3,2,1,0:T(8,128)}} broadcast(%doctored.0), dimensions={{}}
  %doctored.2 = bf16[1,12,1024,64]{{3,2,1,0:T(8,128)(2,1)}} transpose(%doctored.0), dimensions={{0,2,1,3}}
  %doctored.3 = bf16[1,1024,12,64]{{3,2,1,0:T(8,128)(2,1)}} all-gather(%doctored.0), dimensions={{0}}
{text[start:]}"""
    worse = executable.facts(Executable(steps["rove"], doctored), DIMS)
    added = executable.beside(worse, rope)["added"]
    assert added["squares"] == {"f32[1,12,1024,1024]": 1} and added["collectives"] == {"all-gather": 12}
    assert added["transpositions_in_loops"] == {"transpose bf16[1,12,1024,64]": 1}


@tpu
@pytest.mark.slow
def test_rove_moves_what_rope_moves(facts):
    """Within 3% with layers unrolled, which follows from here: a layer more of RoVE's costs that much more than one of
    RoPE's twelve times over, of bytes that are at least those counted here."""
    rove, rope = facts["rove"]["bytes_moved"], facts["rope"]["bytes_moved"]
    assert 12 * (rove - rope) <= 0.03 * rope
    assert rope > 3 * 4 * 123_653_376 * 2, "at least, the state is read and written"


@tpu
@pytest.mark.slow
def test_the_plain_form_around_a_kernel_is_seen_to_move_more():
    """The control of the three above: halves split and joined outside the kernel, scores in memory, no kernel."""
    device = topology.devices("v5e:2x2")[0]
    x = jax.ShapeDtypeStruct((16, 1024, 12, 64), jnp.bfloat16, sharding=SingleDeviceSharding(device))
    angle = np.arange(1024.0)[None, :, None, None] * 10_000.0 ** (-np.arange(32) / 32)

    def turned(x, sign):
        a, b = jnp.split(x.astype(jnp.float32), 2, -1)
        c, s = (f(angle).astype(np.float32) for f in (np.cos, lambda x: sign * np.sin(x)))
        return jnp.concatenate([a * c - b * s, a * s + b * c], -1).astype(x.dtype)

    def kernel(q, k, v, o):
        o[...] = q[...] + k[...] + v[...]

    def attention(q, k, v):
        flat = [a.swapaxes(1, 2).reshape(192, 1024, 64) for a in (q, k, v)]
        block = pl.BlockSpec((1, 1024, 64), lambda i: (i, 0, 0))
        out = pl.pallas_call(
            kernel,
            out_shape=jax.ShapeDtypeStruct((192, 1024, 64), jnp.bfloat16),
            grid=(192,),
            in_specs=[block] * 3,
            out_specs=block,
            name="adder",
        )(*flat)
        return out.reshape(16, 12, 1024, 64).swapaxes(1, 2)

    def rope(q, k, v):
        return attention(turned(q, 1), turned(k, 1), v)

    def rove(q, k, v):
        return turned(attention(turned(q, 1), turned(k, 1), turned(v, 1)), -1)

    def dense(q, k, v):
        return jax.nn.dot_product_attention(turned(q, 1), turned(k, 1), v, is_causal=True, implementation="xla")

    rope, rove, dense = (executable.facts(jax.jit(f).lower(x, x, x).compile(), x.shape) for f in (rope, rove, dense))
    assert rope["kernels"]["adder"]["calls"] == 1 and "adder" not in dense["kernels"]
    # Four arrays of 192 x 1024 rows of 64 bfloat16, each row padded to 128.
    assert rope["kernels"]["adder"]["bytes"] == 4 * 192 * 1024 * 128 * 2
    assert executable.beside(rove, rope)["bytes_moved"] > 1.2
    assert not rope["squares"] and dense["squares"]
    # At least one array of scores, in bfloat16.
    assert dense["memory"]["temporaries"] > rope["memory"]["temporaries"] + 2 * 192 * 1024 * 1024


@tpu
def test_bytes_moved_are_those_that_a_kernel_takes_whatever_it_states():
    device = topology.devices("v5e:2x2")[0]
    x = jax.ShapeDtypeStruct((8, 256, 64), jnp.bfloat16, sharding=SingleDeviceSharding(device))

    def doubled(estimate):
        def double(x, o):
            o[...] = x[...] * 2

        def run(x):
            call = pl.pallas_call(double, out_shape=x, name="double", cost_estimate=estimate)
            return call(x + 1)

        return executable.facts(jax.jit(run).lower(x).compile(), (8, 256, 1, 64))

    silent = doubled(None)
    stating = doubled(pl.CostEstimate(flops=10**6, bytes_accessed=7_777_777, transcendentals=5))
    through = 2 * 8 * 256 * 128 * 2  # in and out, rows of 64 padded to 128
    assert silent["kernels"]["double"] == {"calls": 1, "bytes": through, "stated_bytes": 0}
    assert stating["kernels"]["double"] == {"calls": 1, "bytes": through, "stated_bytes": 7_777_777}
    assert stating["bytes_accessed"] - silent["bytes_accessed"] == 7_777_777
    assert stating["bytes_moved"] == silent["bytes_moved"] == silent["bytes_accessed"] + through


@tpu
@pytest.mark.slow
def test_the_command_compares_variants_and_writes_what_it_shows(tmp_path, capsys):
    out = tmp_path / "plan.json"
    words = "speed --preset tiny --layers 1 --context-length 256 --batch-size 4 --dtype bfloat16 --topology v5e:2x2"
    assert command.main([*words.split(), "--out", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"Written: {out}"
    found = results.read(out)
    made = found["provenance"]
    assert found["kind"] == "plan" and (made["device"], made["devices"]) == ("TPU v5 lite", 4)
    assert made["compiler"].startswith("libtpu 0.") and made["mesh"] == {"data": 4, "fsdp": 1, "tensor": 1}
    rope, rove = found["results"]
    assert (rope["backend"], rope["beside"], rove["backend"]) == ("splash", None, "splash")
    assert KERNELS <= set(rope["kernels"]) and rope["refused"]["cudnn"] == "needs an NVIDIA GPU, the mesh is on tpu"
    np.testing.assert_allclose(rove["beside"]["bytes_moved"], rove["bytes_moved"] / rope["bytes_moved"])
    [row] = [line for line in lines if "GB moved" in line]
    assert f"{rove['bytes_moved'] / 1e9:.3f} ({rove['beside']['bytes_moved']:.4f}x)" in row
    for name in KERNELS:
        [row] = [line for line in lines if f"calls of {name}" in line]
        assert row.count(" 1, ") == 2


@tpu
@pytest.mark.parametrize(
    ("name", "count", "kind"),
    [
        ("v5e:2x2", 4, "TPU v5 lite"),
        ("v5e:1x1", 1, "TPU v5 lite"),
        ("v5e:16x16", 256, "TPU v5 lite"),
        ("v6e:2x2", 4, "TPU v6 lite"),
        ("v5p:2x2x1", 4, "TPU v5"),
    ],
)
def test_devices_of_named_topologies(name, count, kind):
    devices = topology.devices(name)
    assert len(devices) == count and devices[0].device_kind == kind and devices[0].platform == "tpu"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("v5e:2x2", 'needs the package libtpu; install it with `pip install -e ".[tpu]"`'),
        ("h100:1x1x1", 'needs the package jax_cuda13_plugin; install it with `pip install -e ".[cuda]"`'),
    ],
)
def test_what_is_missing_is_said_with_the_extra_that_has_it(monkeypatch, name, message):
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
    with pytest.raises(UsageError) as error:
        topology.devices(name)
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["v5e", "v5e:", "v5e:2x", "v5e:0x2", "v5e:2x2x2x2", "h100", "h100:", "cpu:0"])
def test_names_that_are_none(name):
    with pytest.raises(UsageError, match=f"topology = '{name}': must be KIND:SIZES, such as v5e:2x2"):
        topology.devices(name)


def test_a_gpu_is_told_apart_by_what_xla_asks_of_it():
    text = topology.target_config("h100")
    assert "core_count: 132" in text and "cuda_compute_capability { major: 9 }" in text
    assert text.count("{") == text.count("}") and 'device_description_str: "NVIDIA H100' in text


def test_what_a_compiler_does_not_tell_is_none():
    """As on a GPU, whose cost analysis is empty."""

    class Silent:
        def as_text(self):
            return "ENTRY %main (x: f32[8,8]) -> f32[8,8] {\n  ROOT %x = f32[8,8]{1,0} parameter(0)\n}\n"

        def cost_analysis(self):
            return None

        def memory_analysis(self):
            return jax.jit(jnp.sin).lower(np.zeros((8, 8), np.float32)).compile().memory_analysis()

    found = executable.facts(Silent(), (1, 8, 1, 8))
    assert found["flops"] is None and found["bytes_moved"] is None
    ratios = executable.beside(found, found)
    assert ratios["flops"] is None and ratios["bytes_moved"] is None
