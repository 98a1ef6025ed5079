"""Optimised HLO read from its text: layouts with padding, kernels, collectives, transpositions, loops."""

import pytest

from rove_jax.planning.hlo import COLLECTIVES, Array, Module, padded


def array(text: str) -> Array:
    [found] = Array.all_in(text)
    return found


@pytest.mark.parametrize(
    ("text", "size"),
    [
        # The two fastest axes are filled up to whole tiles: 64 to 128; nothing where they are whole.
        ("bf16[8,12,1024,64]{3,2,1,0:T(8,128)(2,1)}", 8 * 12 * 1024 * 128 * 2),
        ("bf16[8,12,1024,64]{2,3,1,0:T(8,128)(2,1)}", 8 * 12 * 1024 * 64 * 2),
        ("bf16[8,12,1024,64]{3,2,1,0:T(8,128)(2,1)S(1)}", 8 * 12 * 1024 * 128 * 2),
        # These three were compiled for v5e: memory_analysis gave the sizes.
        ("bf16[3,5,7]{2,0,1:T(4,128)(2,1)}", 5120),
        ("bf16[2,12,64]{2,0,1:T(2,128)(2,1)}", 6144),
        ("bf16[8,256,64]{1,2,0:T(8,128)(2,1)}", 262_144),
        ("f32[12,64]{1,0:T(8,128)}", 16 * 128 * 4),
        ("s32[]{:T(128)}", 512),
        ("f32[768]{0:T(1024)}", 4096),
        ("pred[1024,1000]{0,1:T(8,128)(4,1)}", 1024 * 1000),
        ("f32[2,3]{1,0}", 24),
        ("f32[5]", 20),
        ("f8e4m3fn[5]{0}", 5),
        ("s4[6]{0}", 3),
        ("u32[]{:S(2)}", 4),
        ("token[]", 0),
        ("f32[0,4]{1,0:T(8,128)}", 0),
    ],
)
def test_the_bytes_of_an_array_are_those_of_its_layout(text, size):
    assert array(text).bytes == size


def test_a_tile_is_itself_filled_up_to_tiles():
    assert padded([3, 5], [(1, 128), (2, 1)]) == 3 * 1 * 2 * 128
    assert padded([3, 5], []) == 15


PROGRAM = """HloModule jit_step, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias) }

FileNames
1 "a.py"

%fused (param_0: bf16[2,8,3,64]) -> bf16[2,8,3,64] {
  %param_0 = bf16[2,8,3,64]{3,2,1,0:T(8,128)(2,1)} parameter(0)
  %inner = f32[8,8]{1,0} iota(), iota_dimension=0
  ROOT %copy.9 = bf16[2,8,3,64]{3,1,2,0:T(8,128)(2,1)} copy(%param_0)
}

%body.1 (arg: (s32[], f32[8])) -> (s32[], f32[8]) {
  %arg = (s32[], f32[8]{0}) parameter(0)
  ROOT %same = (s32[], f32[8]{0}) tuple(%arg)
}

ENTRY %main.1 (x: bf16[2,8,3,64], w: f32[8,8]) -> (bf16[2,8,3,64], f32[8,8]) {
  %x = bf16[2,8,3,64]{3,2,1,0:T(8,128)(2,1)} parameter(0), metadata={op_name="x"}
  %w = f32[8,8]{1,0:T(8,128)} parameter(1)
  %fusion = bf16[2,8,3,64]{3,1,2,0:T(8,128)(2,1)S(1)} fusion(%x), kind=kLoop, calls=%fused
  %splash_fwd.1 = (bf16[2,8,3,64]{3,2,1,0:T(8,128)(2,1)}, /*index=1*/f32[2,3,8]{2,1,0:T(8,128)}) custom-call(%fusion, %w), custom_call_target="tpu_custom_call", frontend_attributes={kernel_metadata={
"block": "{\\"q\\": 128}"
}}, metadata={op_name="jit(step)/splash/forward/pallas_call"}, backend_config={"custom_call_config":{"body":"ab//","cost_estimate":{"flops":"1","transcendentals":"5","bytes_accessed":"777"}}}
  %unnamed.3.clone = f32[8,8]{1,0:T(8,128)} custom-call(%w), custom_call_target="tpu_custom_call", backend_config={}
  %piece = f32[8,8]{1,0:T(8,128)} custom-call(%w), custom_call_target="ConcatBitcast"
  %part = bf16[2,8,3,64]{3,2,1,0:T(8,128)(2,1)} get-tuple-element(%splash_fwd.1), index=0
  %moved.1 = bf16[2,3,8,64]{3,2,1,0} transpose(%part), dimensions={0,2,1,3}
  %moved.2 = bf16[2,3,8,64]{3,1,2,0} transpose(%part), dimensions={0,2,1,3}
  %space = bf16[2,8,3,64]{3,2,1,0:T(8,128)(2,1)S(1)} copy(%part)
  %started = (bf16[2,8,3,64]{3,1,2,0}, bf16[2,8,3,64]{3,2,1,0}, u32[]{:S(2)}) copy-start(%part)
  %other = f32[8,8]{0,1:T(8,128)} copy(%w)
  %sum.1 = (f32[8,8]{1,0:T(8,128)}, bf16[2,8,3,64]{3,2,1,0:T(8,128)(2,1)}) all-reduce(%w, %part), to_apply=%add
  %gather.1 = (f32[8,8]{1,0:T(8,128)}, f32[32,8]{1,0:T(8,128)}) all-gather-start(%w), dimensions={0}
  %gather.2 = f32[32,8]{1,0:T(8,128)} all-gather-done(%gather.1)
  %loop = (s32[], f32[8]{0}) while(%start), condition=%cond, body=%body.1, backend_config={"known_trip_count":{"n":"8"}}
  %loop.2 = (s32[], f32[8]{0}) while(%start), condition=%cond, body=%body.1
  ROOT %out = (bf16[2,8,3,64]{3,2,1,0:T(8,128)(2,1)}, f32[8,8]{1,0:T(8,128)}) tuple(%part, %w)
}
"""  # noqa: E501, XLA's lines


@pytest.fixture(scope="module")
def module() -> Module:
    return Module(PROGRAM)


def test_kernels_have_names_traffic_and_what_they_state(module):
    kernel, unnamed = module.custom_calls("tpu_custom_call")
    assert (kernel.kernel, unnamed.kernel) == ("forward", "unnamed")
    assert [call.kernel for call in module.custom_calls()] == ["forward", "unnamed", "ConcatBitcast"]
    turned, whole = 2 * 3 * 8 * 128 * 2, 2 * 8 * 8 * 128 * 2  # of [2, 8, 3, 64]: T next to H; N next to H, 3 up to 8
    square, statistics = 8 * 128 * 4, 2 * 8 * 128 * 4
    assert module.traffic(kernel) == turned + square + whole + statistics
    assert module.traffic(unnamed) == 2 * square
    assert (kernel.stated_bytes, unnamed.stated_bytes) == (777, 0)


def test_collectives_hand_over_operands_or_results(module):
    square, whole = 8 * 128 * 4, 2 * 8 * 8 * 128 * 2
    found = [
        (i.opcode, module.handed(i)) for i in module.instructions if i.opcode.removesuffix("-start") in COLLECTIVES
    ]
    assert found == [("all-reduce", square + whole), ("all-gather-start", 32 * 128 * 4)]


def test_square_arrays_are_those_that_reach_memory(module):
    """Of two kernels' results, a copy and two collectives; not `inner` in a fusion, nor what only has another name."""
    assert module.squares(8) == {"f32[8,8]": 5}
    assert PROGRAM.count(" = f32[8,8]") == 5 and "%inner = f32[8,8]" in PROGRAM
    assert not module.squares(64)


def test_transpositions_are_of_memory_not_of_names(module):
    """`moved.1` and the copy inside the fusion change the order of axes in memory, `moved.2` and `space` do not."""
    elements = 2 * 8 * 3 * 64
    assert module.transpositions(elements) == {
        "copy bf16[2,8,3,64]": 2,  # the fused one, and the one that is started
        "transpose bf16[2,3,8,64]": 1,
    }
    assert module.transpositions(64) == {"copy f32[8,8]": 1}
    assert not Module(PROGRAM.replace("{0,1:T(8,128)} copy(%w)", "{1,0:T(8,128)} copy(%w)")).transpositions(64)


def test_what_loops_run_is_told_apart(module):
    assert module.repeated == {"body.1"} and not module.transpositions(2 * 8 * 3 * 64, repeated=True)
    inside = PROGRAM.replace(
        "ROOT %same =", "%f = bf16[2,8,3,64]{3,1,2,0} fusion(%arg), kind=kLoop, calls=%fused\n  ROOT %same ="
    )
    assert Module(inside).repeated == {"body.1", "fused"}
    assert Module(inside).transpositions(2 * 8 * 3 * 64, repeated=True) == {"copy bf16[2,8,3,64]": 1}


def test_an_axis_of_one_has_no_place_in_the_order():
    text = """ENTRY %main (x: f32[1,4,6]) -> f32[1,4,6] {
  %x = f32[1,4,6]{2,1,0} parameter(0)
  %same = f32[1,4,6]{2,0,1} copy(%x)
  ROOT %other = f32[1,4,6]{1,2,0} copy(%x)
}
"""
    assert Module(text).transpositions(24) == {"copy f32[1,4,6]": 1}


def test_loops_say_how_often_they_turn_where_it_is_known(module):
    assert module.loops() == [8, None]
