"""The speed job, through its command, on a model small enough to compile in seconds; and how its numbers are made."""

import json
import re

import jax
import numpy as np
import pytest
import tiny_runs

from rove_jax.attention import Choice
from rove_jax.cli import eval as command
from rove_jax.evaluation import rates, results, speed
from rove_jax.evaluation.speed import Program
from rove_jax.evaluation.workload import Workload, cached_model, extend, filled, prefill
from rove_jax.models import accounting, functional
from rove_jax.models.presets import PRESETS, preset
from rove_jax.training import machine, setup

TINY = ("speed", "--preset", "tiny", "--layers", 1, "--context-length", 16, "--batch-size", 2, "--data", 1)


@pytest.fixture(scope="module", autouse=True)
def programs(tmp_path_factory):
    tiny_runs.keep_programs(tmp_path_factory)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """A small product, and measurements that end at once."""
    monkeypatch.setattr(speed, "PRODUCT", {"cpu": 64})
    monkeypatch.setattr(speed, "SECONDS", 1e-9)


@pytest.fixture
def run(capsys):
    """Runs the command: (exit code, lines of stdout, lines of stderr)."""

    def call(*words) -> tuple[int, list[str], list[str]]:
        code = command.main([str(word) for word in words])
        out, err = capsys.readouterr()
        return code, out.splitlines(), err.splitlines()

    return call


@pytest.mark.parametrize(("load", "words"), [(None, ""), (1.0, ""), (1.5, "trust ratios"), (2.5, "measure again")])
def test_other_work_is_told_of(load, words):
    said = rates.busy({"load_before": load, "host": "2 x cpu"})
    assert words in said and bool(said) == bool(words)


@pytest.mark.slow
def test_the_command_measures_every_program_of_every_variant(run, tmp_path):
    out = tmp_path / "speed.json"
    # xla is what auto chooses here, so it is not measured again.
    code, lines, _ = run(*TINY, "--rounds", 3, "--backends", "auto", "xla", "--out", out)
    assert code == 0 and lines[-1] == f"Written: {out}"
    found = results.read(out)
    assert found["kind"] == "speed" and found["settings"]["rounds"] == 3
    records = found["results"]
    programs = [("train", None), ("prefill", None), ("decode", 4), ("decode", 8), ("decode", 12)]
    expected = [(*program, variant) for program in programs for variant in ("rope", "rove")]
    assert [(r["what"], r["filled"], r["variant"]) for r in records] == expected
    assert all((r["asked"], r["backend"]) == ("auto", "xla") and r["refused"]["cudnn"] for r in records)
    model, whole = preset("tiny", layers=1), found["whole"]
    for r in records:
        each = r["seconds"]["each"]
        assert len(each) == 3 and r["seconds"]["median"] == np.median(each) > 0
        tokens = 2 if r["what"] == "decode" else 32
        np.testing.assert_allclose(r["tokens_per_second"], tokens / np.median(each))
        rate = r["model_flops"] / np.median(each)
        np.testing.assert_allclose(r["utilisation"]["of_product"], rate / whole["product_flops_per_second"])
        assert r["utilisation"]["of_data_sheet"] is None, "no data sheet for this CPU"
        assert r["memory"]["total"] > 0 and r["compile_seconds"] > 0
        if r["what"] == "train":
            assert r["model_flops"] == 32 * accounting.flops_per_token(model, 16)
        same = (r["what"], r["filled"])
        [first] = [o for o in records if (o["what"], o["filled"]) == same and o["variant"] == "rope"]
        if r is first:
            assert r["ratio"] is None
            continue
        paired = np.array(each) / first["seconds"]["each"]
        assert r["ratio"]["pairs"] == 3
        np.testing.assert_allclose(r["ratio"]["median"], np.median(paired))
        np.testing.assert_allclose(r["ratio"]["upper_quartile"], np.quantile(paired, 0.75))
    made = found["provenance"]
    assert made["devices"] == 1 and made["platform"] == "cpu" and made["versions"]["jax"] == jax.__version__
    assert re.match(r"\d+ x \w", made["host"]) and made["load_before"] >= 0
    assert whole["peak_memory"]["of"] == "process, resident" and whole["peak_memory"]["bytes"] > 2**20
    row = next(line for line in lines if line.startswith("|  decode at 8 |") and "rove" in line)
    [shown] = [r for r in records if (r["what"], r["filled"], r["variant"]) == ("decode", 8, "rove")]
    assert f"{shown['ratio']['median']:.3f} (" in row
    text = " ".join(" ".join(lines).split())
    assert rates.CONVENTION in text and max(map(len, lines[:-1])) <= 120


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--preset gpt2-smal", "preset = 'gpt2-smal'.*did you mean gpt2-small"),
        ("--preset tiny --variants rope rov", "model.variant = 'rov'.*did you mean"),
        ("--preset tiny --backends chunkd", "model.attention = 'chunkd'.*did you mean chunked"),
        ("--preset tiny --backends cudnn", "attention = 'cudnn': needs an NVIDIA GPU, the mesh is on cpu; use auto"),
        ("--preset tiny --variants rove rove", "variants = 'rove rove': must be one or more, each once"),
        ("--preset tiny --layers 0", "layers = 0: must be at least 1"),
        ("--preset tiny --batch-size 3 --data 2", "batch_size = 3: does not divide"),
        ("--preset tiny --rounds 0", "rounds = 0: must be at least 1"),
        ("--preset tiny --what trian", "invalid choice: 'trian'"),
        ("--preset tiny --topology v5:2x2", "topology = 'v5:2x2': 'v5' is none of v5e.*did you mean v5"),
        ("--preset tiny --topology v5e:200x200", "topology = 'v5e:200x200': at most 16 chips"),
        ("--preset tiny --topology v5e", "topology = 'v5e': must be KIND:SIZES, such as v5e:2x2"),
        ("--preset tiny --topology v5e:2x2 --rounds 3", "rounds = 3: is not read with --topology"),
        ("--preset tiny --topology v5e:2x2 --what decode", "what = .*decode.*: is not read with --topology"),
        ("--preset tiny --variant rope", "--variant: no such option; did you mean --variants"),
    ],
)
def test_wrong_words_end_in_one_line_before_anything_is_compiled(run, monkeypatch, words, message):
    def compiles(*arguments):
        raise AssertionError("compiled")

    monkeypatch.setattr(speed, "compile_update", compiles)
    code, out, errors = run("speed", *words.split())
    assert code == 2 and not out
    assert re.search(message, errors[-1]) and errors[-1].startswith("error: ")


class Clock:
    """`time.perf_counter` that each call of a program advances by what the program says."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


def test_variants_take_turns_and_the_order_is_reversed_each_time(monkeypatch):
    """A machine that gets slower by the call costs the second variant nothing."""
    clock, log = Clock(), []
    monkeypatch.setattr(speed, "time", clock)
    monkeypatch.setattr(speed, "SECONDS", 1.0)

    def program(variant: str, factor: float) -> Program:
        def call():
            log.append(variant)
            clock.now += factor * (1.0 + 0.01 * len(log))
            return ()

        return Program("train", call, flops=1.0, variant=variant)

    first, second = program("rope", 1.0), program("rove", 1.02)
    times = speed.measure([first, second], 8, lambda: None)
    assert log[:4] == ["rope", "rope", "rove", "rove"], "what a first call pays for is not measured"
    assert log[4:10] == ["rope", "rove", "rove", "rope", "rope", "rove"]
    ratio = rates.spread([mine / its for mine, its in zip(times[second], times[first])])
    np.testing.assert_allclose(ratio["median"], 1.02, rtol=1e-3)
    drifted = np.median(times[second]) / np.median(times[first][:4])
    assert abs(drifted - 1.02) > 0.02, "the drift itself is larger than that"


def test_a_variant_is_compared_with_the_first_one_of_its_own_backend():
    made = {
        (variant, backend): Program(
            "decode", lambda: (), 1.0, variant=variant, choice=Choice(backend, "", {}), filled=4
        )
        for variant in ("rope", "rove")
        for backend in ("xla", "chunked")
    }
    times = {program: [float(number)] for number, program in enumerate(made.values())}
    assert rates.baseline(made["rove", "xla"], times, "rope") == times[made["rope", "xla"]]
    assert rates.baseline(made["rove", "chunked"], times, "rope") == times[made["rope", "chunked"]]
    assert rates.baseline(made["rope", "chunked"], times, "rope") is None


def test_short_programs_are_called_often_enough_and_as_often_as_each_other(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(speed, "time", clock)
    monkeypatch.setattr(speed, "SECONDS", 1.0)
    calls = {"rope": 0, "rove": 0, "ready": 0}

    def program(variant: str, seconds: float, limit: int) -> Program:
        def call():
            calls[variant] += 1
            clock.now += seconds
            return ()

        def ready():
            calls["ready"] += 1
            clock.now += 100.0

        return Program("decode", call, flops=1.0, variant=variant, ready=ready, limit=limit)

    pair = [program("rope", 0.125, 100), program("rove", 0.25, 100)]
    times = speed.measure(pair, 2, lambda: None)
    assert (calls["rope"], calls["rove"]) == (2 + 2 * 4, 2 + 2 * 4)
    assert times[pair[0]] == [0.125, 0.125] and calls["ready"] == 8, "getting ready is not timed"
    limited = [program("rope", 0.01, 3)]
    before = calls["rope"]
    speed.measure(limited, 1, lambda: None)
    assert calls["rope"] - before == 2 + 3


@pytest.mark.slow
def test_each_update_goes_on_from_the_one_before():
    asked = Workload("tiny", layers=1, batch_size=2, context_length=16, mesh=tiny_runs.SETTINGS.mesh)
    programs, mesh = speed.compile_all(asked, ("train",), lambda: None)
    assert [(p.name, p.variant) for p in programs] == [("product", ""), ("train", "rope"), ("train", "rove")]
    assert mesh.size == 1
    _, rope, rove = programs
    steps = [int(jax.block_until_ready(program.call())[0].step) for program in (rope, rove, rove, rope)]
    assert steps == [1, 2, 3, 4]


@pytest.mark.parametrize("variant", ["rope", "rove"])
def test_what_is_decoded_is_what_a_forward_pass_says(variant):
    """`prefill`, then `extend` by one token, against the logits of all tokens at once."""
    made = setup.make(
        Workload("tiny", layers=1, batch_size=2, context_length=8).settings(variant, "xla"), jax.devices()[:1]
    )
    model, choice = cached_model(made.model, 2, 1, 9, made.mesh)
    assert choice.backend == "xla"
    params = jax.jit(functional.init, static_argnums=0)(model, jax.random.key(1))
    tokens_bt = np.random.RandomState(2).randint(0, 256, (2, 9)).astype(np.int32)
    whole = jax.jit(lambda t: functional.unembed(model, params, functional.apply(model, params, t).hidden))(tokens_bt)

    @jax.jit
    def decoded(tokens_bt):
        cache = functional.init_cache(model, 2, 9)
        _, cache = extend(model, params, cache, tokens_bt[:, :8])
        return extend(model, params, cache, tokens_bt[:, 8:])

    logits, cache = decoded(tokens_bt)
    np.testing.assert_allclose(logits, whole[:, -1], atol=1e-5)
    np.testing.assert_allclose(jax.jit(lambda t: prefill(model, params, t)[0])(tokens_bt), whole[:, -1], atol=1e-5)
    assert abs(whole[:, -1] - whole[:, -2]).max() > 1e-3
    assert int(cache.length) == 9


def test_a_filled_cache_holds_as_many_tokens_as_it_says():
    cache = filled(preset("tiny", layers=1), 2, 8, 5)
    assert int(cache.length) == 5
    np.testing.assert_array_equal(cache.segments, [[1] * 5 + [0] * 3] * 2)
    np.testing.assert_array_equal(cache.positions[:, :5], [range(5)] * 2)


@pytest.mark.parametrize("window", [None, 3])
def test_flops_of_a_forward_pass_by_hand(window):
    """A key for each query and each position that it sees, one at a time."""
    model = preset("tiny", layers=2, window=window)
    weights = 2 * (4 * 128 * 128 + 2 * 128 * 512)

    def by_hand(positions, logits):
        seen = sum(1 for i in positions for j in range(i + 1) if window is None or i - j < window)
        return 2 * weights * len(positions) + 2 * 128 * 257 * logits + 2 * 2 * 2 * 128 * seen

    assert accounting.forward_flops(model, 7) == by_hand(range(7), 7)
    assert accounting.forward_flops(model, 7, logits=1) == by_hand(range(7), 1)
    assert accounting.forward_flops(model, 1, before=9) == by_hand(range(9, 10), 1)
    split = accounting.forward_flops(model, 4, logits=0) + accounting.forward_flops(model, 3, before=4, logits=1)
    assert split == accounting.forward_flops(model, 7, logits=1)


def test_peaks_of_data_sheets_by_the_kind_of_a_device():
    assert accounting.peak_flops("TPU v5 lite") == 197e12 and accounting.peak_flops("TPU v5") == 459e12
    assert accounting.peak_flops("NVIDIA H100 80GB HBM3") == 989e12
    assert accounting.peak_flops("NVIDIA H100 PCIe") is None and accounting.peak_flops("cpu") is None


@pytest.mark.parametrize(
    ("flags", "on"),
    [
        ("--xla_gpu_deterministic_ops", True),
        ("--xla_dump_to=/tmp --xla_gpu_deterministic_ops=true", True),
        ("--xla_gpu_exclude_nondeterministic_ops=1", True),
        ("--xla_gpu_deterministic_ops=false", False),
        ("--xla_gpu_autotune_level=0", False),
        ("", False),
    ],
)
def test_the_switch_for_repeatable_kernels_is_read_off_the_flags(monkeypatch, flags, on):
    monkeypatch.setenv("XLA_FLAGS", flags)
    assert machine.compiler_flags() == {"xla_flags": flags, "libtpu_init_args": "", "deterministic": on}


def test_memory_is_the_devices_where_it_counts():
    class Counts:
        def memory_stats(self):
            return {"peak_bytes_in_use": 7, "bytes_in_use": 3}

    assert machine.peak_memory(Counts()) == {"bytes": 7, "of": "device"}
    assert machine.peak_memory(jax.devices()[0])["of"] == "process, resident"


def test_presets_make_workloads():
    for name in PRESETS:
        model = Workload(name).settings("rove", "auto").model
        assert not model.scan_layers and model.variant == "rove"
        assert model.layers == PRESETS[name].layers
    assert json.dumps(Workload("tiny").settings("rope", "xla").model.dtype) == '"float32"'
