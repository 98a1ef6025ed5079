"""Work of a whole program read off its text: products, bytes and collectives, loops as often as they turn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_runs import SETTINGS, changed

from rove_jax.planning.costs import Costs, product_flops
from rove_jax.planning.hlo import Module
from rove_jax.training import setup
from rove_jax.training.step import compile_update

LOOP = """HloModule jit_step

%fused (param_0: f32[24,8,128], param_1: s32[], param_2: f32[1,8,128]) -> f32[24,8,128] {
  %param_0 = f32[24,8,128]{2,1,0:T(8,128)} parameter(0)
  %param_1 = s32[]{:T(128)} parameter(1)
  %param_2 = f32[1,8,128]{2,1,0:T(8,128)} parameter(2)
  ROOT %update = f32[24,8,128]{2,1,0:T(8,128)} dynamic-update-slice(%param_0, %param_2, %param_1, %param_1, %param_1)
}

%body (arg: (s32[], f32[8,128], f32[24,8,128])) -> (s32[], f32[8,128], f32[24,8,128]) {
  %arg = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)}, f32[24,8,128]{2,1,0:T(8,128)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%arg), index=0
  %x = f32[8,128]{1,0:T(8,128)} get-tuple-element(%arg), index=1
  %all = f32[24,8,128]{2,1,0:T(8,128)} get-tuple-element(%arg), index=2
  %slice = f32[1,8,128]{2,1,0:T(8,128)} dynamic-slice(%all, %i, %i, %i), dynamic_slice_sizes={1,8,128}
  %stacked = f32[24,8,128]{2,1,0:T(8,128)} fusion(%all, %i, %slice), kind=kLoop, calls=%fused
  %near = f32[8,128]{1,0:T(8,128)S(1)} copy(%x)
  %ahead = ((f32[24,8,128]{2,1,0:T(8,128)}), f32[2,8,128]{2,1,0:T(8,128)S(1)}, s32[]{:T(128)}) slice-start(%all), slice={[0:2], [0:8], [0:128]}
  %begun = f32[8,128]{1,0:T(8,128)} all-reduce(%near), channel_id=7, to_apply=%add
  %gone.on = f32[8,128]{1,0:T(8,128)} all-reduce(%near), channel_id=7, to_apply=%add
  %square = f32[8,8]{1,0:T(8,128)} dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  ROOT %next = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)}, f32[24,8,128]{2,1,0:T(8,128)}) tuple(%i, %x, %stacked)
}

%condition (arg.1: (s32[], f32[8,128], f32[24,8,128])) -> pred[] {
  %arg.1 = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)}, f32[24,8,128]{2,1,0:T(8,128)}) parameter(0)
  %limit = s32[]{:T(128)} constant(24)
  %at = s32[]{:T(128)} get-tuple-element(%arg.1), index=0
  ROOT %less = pred[]{:T(512)} compare(%at, %limit), direction=LT
}

%all-reduce-scatter.1 (p: f32[16,128]) -> f32[8,128] {
  %p = f32[16,128]{1,0:T(8,128)} parameter(0)
  %sum = f32[16,128]{1,0:T(8,128)} all-reduce(%p), channel_id=9, to_apply=%add
  ROOT %part = f32[8,128]{1,0:T(8,128)} slice(%sum), slice={[0:8], [0:128]}
}

ENTRY %main (start: (s32[], f32[8,128], f32[24,8,128]), w: f32[16,128]) -> f32[8,128] {
  %start = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)}, f32[24,8,128]{2,1,0:T(8,128)}) parameter(0)
  %w = f32[16,128]{1,0:T(8,128)} parameter(1)
  %done = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)}, f32[24,8,128]{2,1,0:T(8,128)}) while(%start), condition=%condition, body=%body
  ROOT %out = f32[8,128]{1,0:T(8,128)} fusion(%w), kind=kCustom, calls=%all-reduce-scatter.1
}
"""  # noqa: E501, XLA's lines


def test_a_loop_without_a_known_count_turns_as_often_as_its_condition_says():
    """A TPU's loop: slices move what they take, memory on the chip is not counted, a collective in pieces is one."""
    costs, tile = Costs(Module(LOOP), tpu=True), 8 * 128 * 4
    assert costs.times == {"main": 1, "body": 24, "condition": 24, "fused": 24, "all-reduce-scatter.1": 1}
    assert costs.unknown == 0
    assert costs.products == 24 * 2 * 8 * 8 * 128
    assert costs.collectives() == {
        "all-reduce": {"count": 24, "bytes": 24 * tile},
        "reduce-scatter": {"count": 1, "bytes": 2 * tile},
    }
    body = {i.name: costs.traffic(i) for i in costs.by_computation["body"]}
    assert {name: size for name, size in body.items() if size} == {
        "slice": 2 * tile,
        "stacked": 2 * tile + 512,  # and the index
        "near": tile,
        "ahead": 2 * tile,  # to the chip
        "square": 3 * tile,  # its result is padded to one
    }
    [compared] = [costs.traffic(i) for i in costs.by_computation["condition"] if i.opcode == "compare"]
    assert costs.moved() - costs.moved(loops=False) == 23 * (10 * tile + 512 + compared)
    blind = Costs(Module(LOOP.replace("direction=LT", "direction=NE")), tpu=True)
    assert blind.products == 2 * 8 * 8 * 128 and blind.unknown == 1


@pytest.mark.parametrize(
    ("text", "flops"),
    [
        ("f32[4,6]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}", 2 * 4 * 6 * 8),
        # A product of matrices as a TPU spells it, and a batch of three as one with a window that fits once each.
        ("f32[4,6]{1,0} convolution(%a, %b), dim_labels=bf_io->bf", 2 * 4 * 6 * 8),
        (
            "f32[3,4,6]{2,1,0} convolution(%c, %d), window={size=3 stride=2 pad=0_0 lhs_dilate=3}, "
            "dim_labels=0bf_0io->0bf",
            2 * 3 * 4 * 6 * 8,
        ),
        ("f32[5,4,6]{2,1,0} convolution(%c, %d), window={size=3 pad=2_2}, dim_labels=0bf_0io->0bf", 2 * 9 * 4 * 6 * 8),
    ],
)
def test_a_product_counts_what_is_not_padding(text, flops):
    module = Module(f"""ENTRY %main (a: f32[4,8]) -> f32[4,6] {{
  %a = f32[4,8]{{1,0}} parameter(0)
  %b = f32[8,6]{{1,0}} parameter(1)
  %c = f32[3,4,8]{{2,1,0}} parameter(2)
  %d = f32[3,8,6]{{2,1,0}} parameter(3)
  ROOT %out = {text}
}}
""")
    assert product_flops(module, module.instructions[-1]) == flops


@pytest.fixture(scope="module")
def programs():
    """The costs of one update of a small model, layers and accumulation in loops, and all unrolled."""
    cfg = changed(SETTINGS, training={"batch_size": 16}, mesh={"data": 4, "fsdp": 2}, model={"layers": 3})
    found = {}
    for scan in (True, False):
        one = changed(cfg, model={"scan_layers": scan}, training={"accumulation": 2 if scan else 1})
        made = setup.make(one)
        compiled = compile_update(one, made.model, 256, made.optimizer, made.target, made.mesh)
        found[scan] = Costs(Module(compiled.as_text()), tpu=False)
    return cfg, found


@pytest.mark.slow
def test_a_program_in_loops_does_what_the_same_one_does_unrolled(programs):
    cfg, found = programs
    model, rows, length = cfg.model, 2, cfg.data.context_length
    inner = model.width * (4 * model.query_heads * model.head_dim + 2 * model.mlp_width)
    weights = model.layers * inner + model.padded_vocab * model.width
    scores = model.layers * 2 * length * model.query_heads * model.head_dim  # all of [T, T], and twice
    by_hand = 3 * 2 * rows * length * (weights + scores)
    assert found[False].products == found[True].products == by_hand
    assert found[True].unknown == 0
    assert found[True].moved(loops=False) < 0.6 * found[True].moved()


def test_bytes_are_the_compilers_own_where_nothing_repeats():
    def f(x, y):
        return jnp.tanh(x @ y).sum(axis=0), x * 2

    shapes = (jax.ShapeDtypeStruct((256, 512), np.float32), jax.ShapeDtypeStruct((512, 128), np.float32))
    compiled = jax.jit(f).lower(*shapes).compile()
    told = compiled.cost_analysis()
    costs = Costs(Module(compiled.as_text()), tpu=False)
    assert costs.moved() == pytest.approx(told["bytes accessed"], rel=0.05)
    assert costs.products == pytest.approx(told["flops"], rel=0.05)
