"""`eval figure` and `eval limits` from the words a person types to the files: pictures, and the numbers in them."""

import csv
import io
import json
import re
from pathlib import Path

import jax
import numpy as np
import pytest
import tiny_runs
from figure_files import check_files, numbers, save_what_fits

from rove_jax.analysis.picture import Picture
from rove_jax.cli import eval as command
from rove_jax.evaluation import results


@pytest.fixture
def run(capsys):
    """Runs a command: (exit code, lines of stdout, lines of stderr)."""

    def call(*words) -> tuple[int, list[str], list[str]]:
        code = command.main([str(word) for word in words])
        out, err = capsys.readouterr()
        return code, out.splitlines(), err.splitlines()

    return call


@pytest.fixture(autouse=True)
def captions_fit(monkeypatch):
    """Every picture that a test saves is looked at."""
    monkeypatch.setattr(Picture, "save", save_what_fits(Picture.save))


@pytest.mark.parametrize(
    "words, message",
    [
        (("scores",), "invalid choice: 'scores'"),
        (("score", "--workdir", "runs/x"), "--workdir: figure score is drawn without it; remove it"),
        (("head-inversion",), "--workdir: needed for figure head-inversion; name one run"),
        (("head-inversion", "--workdir", "a", "b"), "is of one run"),
        (("score", "--layer", "0"), "--layer: figure score is drawn without it; remove it"),
        (("training", "--workdir", "a", "--step", "best"), "--step: figure training is drawn without it"),
        (("swaps",), "--results: needed for figure swaps; name results"),
        (("score", "--length", "3"), "--length = 3: must lie between 16 and 2\\^20"),
        (("training", "--workdir", "."), "no metrics.jsonl; name a run folder"),
        (("profile", "--results", "a", "b"), "a: no such file; name one"),
        (("score", "--phases", "gold"), "phases = 'gold': must be aligned, golden, root2"),
        (("mixer", "--phases", "golden"), "--phases: figure mixer is drawn without it"),
        (("mixer", "--length", "99"), "--length = 99: a mixer this long"),
        (("induction", "--training-steps", "0"), "--training-steps = 0"),
        (("energy", "--workdir", "nowhere"), "nowhere: no such folder"),
        (("energy", "--workdir", "nowhere", "--step", "soon"), "--step: 'soon' is neither last, best nor a step"),
        (("swaps", "--results", "nowhere.json"), "nowhere.json: no such file"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(run, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    code, _, err = run("figure", *words, "--out", tmp_path / "out")
    assert code == 2 and len(err) == 1
    assert re.search(message, err[0]), err[0]


def test_results_of_another_job_are_refused(run, tmp_path):
    path = tmp_path / "perplexity.json"
    results.write(
        path,
        {"schema": results.SCHEMA, "kind": "perplexity", "provenance": {"run": "x"}, "settings": {}, "results": []},
    )
    code, _, err = run("figure", "index", "--results", path, "--out", tmp_path)
    assert code == 2 and "holds perplexity; figure index is of results of eval index" in err[0]
    (tmp_path / "file").write_text("")
    code, _, err = run("figure", "score", "--out", tmp_path / "file")
    assert code == 2 and "is a file; give a folder" in err[0]
    (tmp_path / "odd" / "score.png").mkdir(parents=True)
    code, _, err = run("figure", "score", "--out", tmp_path / "odd")
    assert code == 2 and "odd': score.png in it is a folder; give another" in err[0]


def test_the_index_figure_shows_accuracy_and_its_interval(run, tmp_path):
    records = [
        {"variant": variant, "length": length, "scaling": "none", "accuracy": accuracy, "chance": 0.25,
         "interval": [accuracy - 0.1, accuracy + 0.1]}
        for variant, accuracy in (("list", 0.5), ("numbered", 0.9)) for length in (64, 128)
    ]  # fmt: skip
    document = {
        "schema": results.SCHEMA,
        "kind": "index",
        "provenance": {"run": "mine"},
        "settings": {},
        "results": records,
    }
    results.write(tmp_path / "index.json", document)
    assert run("figure", "index", "--results", tmp_path / "index.json", "--out", tmp_path)[0] == 0
    found = check_files(tmp_path, "index")
    np.testing.assert_array_equal(found["a", "mine"], [(64, 0.5), (128, 0.5)])
    np.testing.assert_array_equal(found["a", "mine, lower 95%"], [(64, 0.4), (128, 0.4)])
    document["results"] = records[2:]
    results.write(tmp_path / "index.json", document)
    code, _, err = run("figure", "index", "--results", tmp_path / "index.json", "--out", tmp_path)
    assert code == 2 and "holds nothing of the variant list" in err[0]


CACHE_OPTIONS = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a RoVE run, and its text beside it."""
    folder = tmp_path_factory.mktemp("runs")
    kept = {name: getattr(jax.config, name) for name in CACHE_OPTIONS}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        tiny_runs.keep_programs(tmp_path_factory)
        data = tiny_runs.corpus(folder)
        cfg = tiny_runs.settings(
            data, model={"variant": "rove", "dropout": 0.0}, training={"steps": 3, "accumulation": 1}
        )
        tiny_runs.train(cfg, folder / "rove")
        yield folder / "rove"
    for name, value in kept.items():
        jax.config.update(name, value)


@pytest.mark.slow
def test_limits_of_a_run_and_figures_of_its_results(trained, run, tmp_path):
    out = tmp_path / "first"
    code, lines, err = run(
        "limits", "--workdir", trained, "--lengths", 64, 512, "--draws", 2, "--swaps", 3, "--out", out
    )
    assert code == 0, err
    document = json.loads((out / "limits.json").read_text())
    records = document["results"]
    assert document["kind"] == "limits" and document["provenance"]["run"] == "rove"
    assert [(r["length"], r["layer"], r["head"]) for r in records] == [
        (length, layer, head) for length in (64, 512) for layer in (0, 1) for head in (0, 1)
    ]
    rows = list(csv.DictReader(io.StringIO((out / "limits.csv").read_text())))
    for row, record in zip(rows, records, strict=True):
        assert row == {name: "" if value is None else str(value) for name, value in record.items()}
    readme = (Path(__file__).parents[1] / "eval" / "README.md").read_text()
    names = {*records[0], *document["model_swaps"][0], *document["model_swaps_by_kind"][0]}
    explained = re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in readme.splitlines() if line[:3] == "| `"))
    assert names - {*explained, "intervals", "swaps", "mattering", "matter"} == set(), "every column has a definition"
    unseen = [record["swap_unseen"] for record in records if record["swap_unseen"] is not None]
    assert unseen and np.mean(unseen) < 0.5
    for name in ("heads", "profile", "lengths", "swaps"):
        check_files(out, name)
    drawn = [y for values in numbers(out / "model-swaps.csv").values() for y in values[:, 1]]
    assert sorted(drawn) == sorted(
        max(record["total_variation"], 1e-4) for record in document["model_swaps"] if record["stake"] > 0.01
    )
    kinds = [record["kind"] for record in document["model_swaps"]]
    assert kinds == ["nearest", "random"] * 3 and any(line.split()[1:4] == ["nearest", "|", "3"] for line in lines)
    summary = document["swaps_by_length"][1]
    counts = [str(summary[name]) for name in ("length", "heads", "draws", "pairs")]
    assert any(re.findall(r"\S+", line.replace("|", ""))[:4] == counts for line in lines), "with how many, in the table"
    assert summary["pairs"] == sum(record["swap_trials"] for record in records[4:]) > 0
    matter = document["model_swaps_by_kind"][0]
    assert any(f"{matter['mattering']} of 3 [" in line for line in lines)
    mean = np.mean([record["position_inversion"] for record in records[4:]])
    assert any(line.split()[1:2] == ["512"] and f"{mean:.4f}" in line for line in lines)
    other = tmp_path / "other"
    held = json.loads(json.dumps(document))
    held["provenance"]["weights"] = "of another run"
    results.write(other / "limits.json", held)
    code, _, err = run("limits", "--workdir", trained, "--lengths", 64, "--out", other)
    assert code == 2 and "holds the limits of rove at step 3; give another folder" in err[0]
    results.write(other / "limits.json", document)
    (other / "model-swaps.csv").write_text("of the earlier result")
    words = (
        "--lengths",
        512,
        "--draws",
        2,
        "--layers",
        1,
        "--heads",
        0,
        "--scaling",
        "yarn",
        "--swaps",
        0,
        "--out",
        other,
    )
    assert run("limits", "--workdir", trained, *words)[0] == 0
    assert {path.name for path in other.iterdir()} == {path.name for path in out.iterdir()} - {
        f"model-swaps.{kind}" for kind in ("png", "svg", "csv")
    }, "what this result has not is gone"
    [scaled] = json.loads((other / "limits.json").read_text())["results"]
    assert (scaled["layer"], scaled["head"]) == (1, 0) == (records[6]["layer"], records[6]["head"])
    assert scaled["effective_pairs"] == records[6]["effective_pairs"]  # the same draws
    assert scaled["position_inversion"] != records[6]["position_inversion"]
    both = [folder / "limits.json" for folder in (out, other)]
    for name in ("lengths", "swaps"):
        assert run("figure", name, "--results", *both, "--out", tmp_path)[0] == 0
        series = {series for _, series in check_files(tmp_path, name)}
        assert {one.partition(":")[0].removesuffix(", lower 95%").removesuffix(", upper 95%") for one in series} == {
            "rove, first",
            "rove, other, yarn",
        }
    assert run("limits", "--workdir", trained, *words, "--lengths", 32, "--out", tmp_path / "short")[0] == 0
    code, _, err = run("figure", "swaps", "--results", both[0], tmp_path / "short" / "limits.json", "--out", tmp_path)
    assert code == 2 and "have no length in common" in err[0]
    for name, message in (("profile", "is of one result"), ("model-swaps", "rove, other: holds no swaps")):
        code, _, err = run("figure", name, "--results", *both, "--out", tmp_path)
        assert code == 2 and message in str(err[0]).replace("'", "").replace(" = ", ": "), err
    assert run("figure", "profile", "--results", both[0], "--out", tmp_path)[0] == 0


@pytest.mark.slow
def test_figures_of_runs(trained, run, tmp_path):
    for name, words in (
        ("head-inversion", ("--layer", 1, "--length", 128)),
        ("head-aliasing", ("--head", 1, "--length", 128)),
        ("training", ()),
        ("layer", ("--layer", 1, "--length", 5)),
        ("kernel", ("--head", 1)),
        ("energy", ("--length", 16)),
        ("reach", ()),
        ("composition", ()),
    ):
        code, _, err = run("figure", name, "--workdir", trained, *words, "--out", tmp_path)
        assert code == 0, err
        check_files(tmp_path, name)
    for words, message in (
        (("figure", "composition", "--layer", 1), "--layer = 1: must lie between 0 and 0"),
        (("figure", "layer", "--head", 2), "--head = 2: the model has heads 0 to 1"),
        (("limits", "--swaps", -1), "--swaps = -1: must be at least 0"),
        (("limits", "--seed", -3), "--seed = -3: must be at least 0"),
        (("figure", "head-aliasing", "--seed", -3), "--seed = -3: must be at least 0"),
        (("limits", "--heads", 2), "--heads = 2: the model has 0 to 1"),
        (("limits", "--swap-length", 99999), "--swap-length = 99999: the longest held-out document is good for"),
        (("figure", "head-inversion", "--layer", 2), "--layer = 2: the model has layers 0 to 1"),
        (("limits", "--dtype", "fp8"), "dtype = 'fp8'"),
        (("limits", "--lengths", 3), "--lengths = 3: must lie between"),
        (("limits", "--step", "soon"), "--step: 'soon' is neither last, best nor a step"),
    ):
        code, _, err = run(*words, "--workdir", trained, "--out", tmp_path)
        assert code == 2 and message in err[0]
