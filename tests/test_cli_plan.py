"""`python -m train plan`: what it prints and writes, what it refuses, and how it is stopped."""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest
from tiny_runs import SETTINGS, changed

from rove_jax.cli import plan as command
from rove_jax.cli import train
from rove_jax.evaluation import results
from rove_jax.models import accounting
from rove_jax.planning import plan_table, proposal, recipe, sheets, topology

TINY = Path(__file__).parent.parent / "configs" / "tiny_rove.py"
SMALL = ["--model.layers", "2", "--data.context-length", "32", "--model.scan-layers"]
GIB = 2**30


@pytest.mark.slow
def test_a_plan_says_what_the_compiler_says_and_writes_it(tmp_path, capsys):
    out = tmp_path / "plan.json"
    words = ["plan", "--config", str(TINY), "--topology", "cpu:8", "--out", str(out), *SMALL]
    assert train.main(words) == 0
    shown = capsys.readouterr()
    assert max(map(len, shown.out.splitlines())) <= 120
    assert shown.err.splitlines()[0] == "compiling 1 of at most 6: data 8, fsdp 1, 1 parts, remat none"
    found = results.read(out)
    [record] = found["results"]
    memory = record["memory"]
    parts = ("parameters", "optimizer", "gradients", "temporaries", "program")
    assert memory["total"] == sum(memory[name] for name in parts) and memory["usable"] is None
    assert record["fits"] is None and record["seconds"] is None and "not known" in shown.out
    assert "\n- compiler: " in shown.out and "\n- estimate: " not in shown.out, "sources of what is there"
    # Everything but the batch is whole on each device.
    count = 320 * 128 + 2 * (4 * 128 * 128 + 4 * 128 + 2 * 128 * 512 + 512 + 128 + 4 * 128) + 2 * 128
    assert memory["parameters"] == memory["gradients"] == 4 * count
    assert memory["optimizer"] == 2 * 4 * count + 8
    assert found["provenance"]["topology"] == "cpu:8" and found["settings"]["config"]["model"]["layers"] == 2
    assert f"{memory['total'] / GIB:,.3f}" in shown.out


def known(usable: float) -> dict[str, sheets.Sheet]:
    """A data sheet for CPUs."""
    return {"cpu": sheets.Sheet(usable, usable, "", bandwidth=1e9, links=1e8, links_source="", between_hosts=1e7)}


def test_the_time_of_a_step_lies_between_its_longest_part_and_their_sum(monkeypatch):
    monkeypatch.setattr(sheets, "SHEETS", known(1e12))
    monkeypatch.setitem(accounting.PEAKS, "cpu", 1e12)
    collectives = {"all-reduce": {"count": 3, "bytes": 1e6}, "all-gather": {"count": 1, "bytes": 2e6}}
    work = {"flops": 5e10, "bytes_moved": 3e7, "collectives": collectives}
    device = jax.devices()[0]
    found = sheets.roofline(device, "bfloat16", 1, **work)
    wanted = {"compute": 0.05, "memory": 0.03, "network": 0.04, "overlapped": 0.05, "in_turn": 0.12}
    assert found == pytest.approx(wanted)
    assert sheets.roofline(device, "bfloat16", 2, **work)["network"] == pytest.approx(0.4)
    assert sheets.roofline(device, "float32", 1, **work) is None, "the peak is of bfloat16"
    cfg = changed(SETTINGS, training={"steps": 3600})
    assert recipe.whole_run(cfg, 8, found)["in_turn"] == pytest.approx(
        {"tokens_per_second": 4 * 16 / 0.12, "device_hours": 0.96}
    )


@pytest.fixture
def tried(monkeypatch):
    """Propose with programs made up: 16 bytes a parameter, 10 a number of the table, 25,600 a row, less with remat."""
    state, table = 16 * accounting.parameter_count(SETTINGS.model, padded=True), 10 * 320 * 16

    def propose(usable: float, compiles: int):
        monkeypatch.setattr(sheets, "SHEETS", known(usable))
        monkeypatch.setitem(accounting.PEAKS, "cpu", 1e12)

        def estimate(settings, devices, hosts):
            mesh, parts, remat = settings.mesh, settings.training.accumulation, settings.model.remat
            rows = settings.training.batch_size // (mesh.data * mesh.fsdp * parts)
            total = state / mesh.fsdp + table + 25_600 * rows * {"none": 1, "dots": 0.5, "full": 0.1}[remat]
            end = 1.0 + 0.01 * parts + 0.1 * mesh.fsdp + {"none": 0, "dots": 0.2, "full": 0.5}[remat]
            return {
                "mesh": {"data": mesh.data, "fsdp": mesh.fsdp, "tensor": mesh.tensor},
                "accumulation": parts,
                "remat": remat,
                "rows": rows,
                "fits": total <= usable,
                "memory": {"total": total, "usable": usable},
                "seconds": {"overlapped": end / 2, "in_turn": end},
                "compile_seconds": 0.0,
            }

        monkeypatch.setattr(recipe, "estimate", estimate)
        said: list[str] = []
        cfg = changed(SETTINGS, training={"batch_size": 64, "accumulation": 1}, mesh={"data": -1})
        return proposal.propose(cfg, jax.devices(), 1, compiles, said.append), said

    return propose


def test_layouts_are_tried_until_one_fits_and_the_fastest_is_proposed(tried):
    records, said = tried(1e12, 1)
    assert [r["best"] for r in records] == [True] and len(said) == 2
    records, said = tried(240_000, 6)
    assert len(records) <= 6 and len(said) == 2 * len(records)
    assert records[0]["fits"] is False and "does not fit by" in said[1]
    good = [r for r in records if r["fits"]]
    [best] = [r for r in records if r["best"]]
    assert best is min(good, key=lambda r: r["seconds"]["in_turn"])
    layouts = [(tuple(r["mesh"].values()), r["accumulation"], r["remat"]) for r in records]
    assert len(set(layouts)) == len(layouts), "none twice"


def test_where_nothing_fits_nothing_is_proposed(tried):
    records, _ = tried(1e3, 3)
    assert len(records) == 3 and not any(r["fits"] or r["best"] for r in records)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--topology", "v7:2x2"], "topology = 'v7:2x2': 'v7' is none of v5e, v5p, v6e, h100, h200, cpu"),
        (["--topology", "h100:12"], "topology = 'h100:12': hosts have 8 GPUs; ask for up to 8, or whole hosts"),
        (["--topology", "h100:2x2"], "topology = 'h100:2x2': GPUs are a number, or PARTITIONSxHOSTSxDEVICES"),
        (["--topology", "cpu:2x2"], "topology = 'cpu:2x2': CPUs are a number of virtual devices, such as cpu:8"),
        (["--topology", "cpu:64"], "topology = 'cpu:64': JAX has started with 8"),
        (["--topology", "cpu:8", "--compiles", "0"], "--compiles = 0: must be at least 1"),
        (["--topology", "cpu:8", "--training.batch-size", "4"], "training.batch_size = 4: does not divide into 1 acc"),
        (["--topology", "cpu:8", "--mesh.tensor", "4", "--mesh.data", "2"], "does not divide axis 'kv_heads' = 2"),
        (["--topology", "cpu:8", "--mesh.data", "16"], "mesh = data 16 x fsdp 1 x tensor 1: needs 16 devices"),
        (["--topolgy", "cpu:8"], "--topolgy: no such option; did you mean --topology?"),
        (["--topology", "cpu:8", "--model.layer", "4"], "--model.layer: no such field; did you mean --model.layers?"),
        ([], "the following arguments are required: --topology"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(words, message, capsys):
    assert command.main(["--config", str(TINY), *words]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("error: ") and message in line


@pytest.mark.parametrize(("name", "sizes"), [("8", "1x1x8"), ("1", "1x1x1"), ("16", "1x2x8"), ("1x1x4", "1x1x4")])
def test_gpus_are_a_number_or_three(name, sizes):
    assert topology.spelled("h100", name) == sizes


def test_a_compiler_s_refusal_is_read():
    """What libtpu says on either stack, and what it says of a program whose buffers it has laid out."""
    for start in ("", "E1000: CompileTimeHbmOom: "):
        text = f"RESOURCE_EXHAUSTED: {start}Ran out of memory on HBM, the total memory required for HLO temporaries "
        text += "(71.22G) exceeds available HBM (15.75G). HLO module: jit_step."
        assert recipe.too_large(text, GIB) == (72.22 * GIB, 15.75 * GIB)
    text = "Ran out of memory in memory space hbm. Used 24.63G of 15.75G hbm. Exceeded hbm capacity by 8.88G."
    assert recipe.too_large(text, GIB) == (24.63 * GIB, 15.75 * GIB)
    assert recipe.too_large("something else", GIB) == (None, None)


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed (extra `tpu`)")
@pytest.mark.parametrize("name", ["v5e:2x2", "v5p:2x2x1", "v6e:2x2"])
def test_the_memory_of_a_sheet_is_what_libtpu_allows(name):
    device = topology.devices(name)[0]
    much = jax.ShapeDtypeStruct((2**37,), "float32", sharding=jax.sharding.SingleDeviceSharding(device))
    with pytest.raises(jax.errors.JaxRuntimeError) as error:
        jax.jit(lambda x: x + 1).lower(much).compile()
    known = sheets.sheet(device)
    assert known is not None
    assert recipe.too_large(str(error.value), 0)[1] == pytest.approx(known.usable, abs=0.02 * GIB)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143)])
def test_a_signal_ends_a_compile_at_once(number, code, checkout):
    """A program that takes minutes to compile: 300 layers, unrolled."""
    words = ["--config", str(TINY), "--topology", "cpu:1", "--model.layers", "300"]
    process = subprocess.Popen(
        [sys.executable, "-m", "train", "plan", *words],
        cwd=checkout,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stderr is not None
    assert process.stderr.readline().startswith("compiling 1 of")
    time.sleep(8)  # past tracing
    assert process.poll() is None
    process.send_signal(number)
    began = time.monotonic()
    rest = process.stderr.read()
    assert process.wait(timeout=10) == code
    assert time.monotonic() - began < 5 and rest.count("\n") == 1 and rest.startswith("error: ")


@pytest.mark.parametrize(
    ("fits", "total", "words"), [(True, 1, "No time can be"), (False, 9, "Nothing that was tried fits")]
)
def test_what_fits_without_a_time_is_not_said_not_to_fit(fits, total, words):
    text = plan_table.verdict({"memory": {"total": total, "usable": 5}, "fits": fits, "seconds": None}, None)
    assert words in text and text.count("fit") == (1 if fits else 2)
