"""The eval commands on trained runs, from the words a person types to the files and lines that come out."""

import json
import re
import shutil

import jax
import numpy as np
import pytest
import tiny_runs
from reference import perplexity as oracle

from rove_jax import zoo
from rove_jax.cli import eval as command
from rove_jax.config import Evaluation, Scaling
from rove_jax.evaluation import runs
from rove_jax.evaluation.at_end import evaluate_run
from rove_jax.models import functional
from rove_jax.training.checkpoints.stored import sealed

pytestmark = pytest.mark.slow  # two runs are trained, which is mostly compiling
CACHE_OPTIONS = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with the runs `rope` and `rove`, alike but for the variant, and their text."""
    folder = tmp_path_factory.mktemp("runs")
    kept = {name: getattr(jax.config, name) for name in CACHE_OPTIONS}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        tiny_runs.keep_programs(tmp_path_factory)
        data = tiny_runs.corpus(folder)
        asked = Evaluation(lengths=(16, 32), documents=1, max_new_tokens=6)
        for variant in ("rope", "rove"):
            cfg = tiny_runs.settings(
                data,
                model={"variant": variant, "dropout": 0.0},
                training={"steps": 3, "accumulation": 1},
                evaluation=asked,
            )
            tiny_runs.train(cfg, folder / variant)
        yield folder
    for name, value in kept.items():
        jax.config.update(name, value)


@pytest.fixture
def run(capsys):
    """Runs a command: (exit code, lines of stdout, lines of stderr)."""

    def call(*words) -> tuple[int, list[str], list[str]]:
        code = command.main([str(word) for word in words])
        out, err = capsys.readouterr()
        return code, out.splitlines(), err.splitlines()

    return call


def test_perplexity_is_that_of_the_text_in_the_files(trained, run, tmp_path):
    out = tmp_path / "out.json"
    code, lines, _ = run("perplexity", "--workdir", trained / "rove", "--lengths", 16, 48, "--scaling", "none", "yarn",
                         "--mode", "first_n", "--out", out)  # fmt: skip
    assert code == 0 and lines[-1] == f"Written: {out}"
    found = json.loads(out.read_text())
    assert found["settings"]["mode"] == "first_n" and found["provenance"]["step"] == 3
    loaded = zoo.load_model(trained / "rove")
    model = loaded.config.model

    @jax.jit
    def after(tokens_bt, last):
        hidden = functional.apply(model, loaded.params, tokens_bt).hidden[:, last]
        return functional.unembed(model, loaded.params, hidden)[0, : model.vocab]

    def next_logits(context):
        return after(np.pad(context, (0, 48 - len(context))).astype(np.int32)[None], len(context) - 1)

    [document] = found["results"][0]["documents"]
    [path] = [path for path in (trained / "text").iterdir() if path.stem in document["id"]]
    for record in found["results"]:
        if record["scaling"] == "yarn":
            continue
        scored = oracle.token_nlls(
            next_logits, list(path.read_bytes()), record["length"], "first_n", 0, "document", 256
        )
        np.testing.assert_allclose(record["perplexity"], oracle.perplexity([nats for *_, nats in scored]), rtol=1e-5)
        # A byte is a token here, so that bits per byte are the logarithm.
        np.testing.assert_allclose(record["bits_per_byte"], np.log2(record["perplexity"]), rtol=1e-12)
    row = next(line for line in lines if line.startswith("|      48 |"))
    shown = [float(cell) for cell in re.findall(r"\d+\.\d+", row)]
    by_rule = {record["scaling"]: record for record in found["results"] if record["length"] == 48}
    assert by_rule["yarn"]["factor"] == 3.0
    expected = [by_rule["none"]["perplexity"], by_rule["yarn"]["perplexity"]]
    np.testing.assert_allclose(shown[:2], expected, atol=5e-4)


def test_what_a_run_shows_at_its_end_is_stored_and_compared_without_measuring_again(
    trained, run, tmp_path, capsys, monkeypatch
):
    shown = evaluate_run(trained / "rove")
    text = capsys.readouterr().out
    assert shown["sample"].startswith("The condition of our") and shown["sample"] in text
    assert "|      32 |          2x |" in text
    for path in shown["files"]:
        assert path in text
    compare = ("compare", "--workdirs", trained / "rope", trained / "rove", "--out", tmp_path / "report")
    code, lines, _ = run(*compare)
    assert code == 0
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert report["runs"][1] == shown["perplexity"], "the stored result is the one compared"
    assert report["differ_in"] == {"model.variant": ["rope", "rove"]}
    assert (tmp_path / "report" / "perplexity.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "report" / "report.md").read_text() in "\n".join(lines)

    def measured_again(*arguments):
        raise AssertionError("measured again")

    monkeypatch.setattr(runs, "measure_perplexity", measured_again)
    assert run(*compare)[0] == 0
    with pytest.raises(AssertionError, match="measured again"):  # control: other settings are not in the run folder
        run(*compare, "--documents", 2)


def test_recipes_are_compared_over_seeds(trained, run, tmp_path):
    words = ("seeds", "--baseline", trained / "rope", "--against", trained / "rove", "--out", tmp_path / "report")
    code, lines, _ = run(*words)
    assert code == 0 and (tmp_path / "report" / "seeds.png").read_bytes().startswith(b"\x89PNG")
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert (
        report["differ_in"] == {"model.variant": ["rope", "rove"]}
        and lines[0] == "# RoVE / RoPE over 1 seed"
        and "One seed has no interval" in "".join(lines)
    )
    perplexities = {}
    for name in ("rope", "rove"):
        assert run("perplexity", "--workdir", trained / name, "--out", tmp_path / f"{name}.json")[0] == 0
        perplexities[name] = json.loads((tmp_path / f"{name}.json").read_text())["results"][0]["perplexity"]
    first = report["results"][0]
    assert (first["length"], first["part"], first["interval"]) == (16, "whole", None)
    np.testing.assert_allclose(first["ratio"], perplexities["rove"] / perplexities["rope"], rtol=1e-6)
    code, _, errors = run(*words[:-3], trained / "rope", trained / "rove", *words[-2:])
    assert code == 2 and "is named twice" in errors[-1]


def test_contexts_that_no_document_fills_are_left_out_at_the_end_of_a_run(trained, tmp_path, capsys):
    usual = tmp_path / "usual"
    shutil.copytree(trained / "rove", usual, ignore=shutil.ignore_patterns("evaluation"))
    stored = json.loads((usual / "config.json").read_text())
    stored["evaluation"]["lengths"] = []
    (usual / "config.json").write_text(json.dumps(stored))
    assert 128 <= max(path.stat().st_size for path in (trained / "text").iterdir()) < 256
    shown = evaluate_run(usual)
    assert shown["perplexity"]["settings"]["lengths"] == [16, 32, 64, 128]
    assert "No validation document has 256 tokens" in capsys.readouterr().out


def test_runs_that_do_not_compare_are_refused(trained, run, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(trained / "rove", other)
    [metadata] = other.glob("checkpoints/3/metadata/metadata")
    values = json.loads(metadata.read_text())
    metadata.write_text(json.dumps(sealed({**values, "data_fingerprint": "feed"})))
    code, _, errors = run("compare", "--workdirs", trained / "rope", other, "--out", tmp_path / "report")
    assert code == 2 and "rope and other are not comparable: data_fingerprint is" in errors[-1]
    code, _, errors = run("perplexity", "--workdir", other)
    assert code == 2 and "was trained with feed" in errors[-1]


def test_generate_prints_the_prompt_and_goes_on_from_it(trained, run):
    words = ("generate", "--workdir", trained / "rove", "--prompt", "the état", "--max-new-tokens", 20)
    first, same, other = (run(*words, "--seed", seed) for seed in (1, 1, 2))
    assert first[0] == 0 and first[1][0].startswith("the état")
    assert first == same and first[1] != other[1]
    assert "9 + 20 tokens go past the training length, 16" in first[2][0]
    code, lines, _ = run("generate", "--workdir", trained / "rove", "--prompt", "", "--temperature", 0, "--top-k", 3)
    assert code == 0 and "".join(lines)


def test_generate_scales_frequencies_as_perplexity_does(trained, run, monkeypatch):
    models = []
    monkeypatch.setattr("rove_jax.evaluation.generate.generate", lambda cfg, *given, **named: models.append(cfg))
    words = ("generate", "--workdir", trained / "rove", "--prompt", "the état", "--max-new-tokens", 23)
    run(*words)
    run(*words, "--scaling", "yarn")
    _, _, notes = run(*words[:-1], 2, "--scaling", "yarn")
    assert "within the training length, 16; nothing is scaled" in notes[0]
    run(*words, "--scaling", "dynamic_ntk", "--value-scaling", "none")
    plain, yarn, short, dynamic = models
    assert plain == short == zoo.load_model(trained / "rove").config.model
    # 9 + 23 tokens are twice the training length.
    assert yarn == plain.with_scaling(Scaling("yarn", factor=2.0, original_length=16))
    assert dynamic == plain.with_scaling(Scaling("dynamic_ntk", original_length=16, length=32), values=False)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("perplexity --workdir RUNS/none", "RUNS/none: no such folder"),
        ("perplexity --workdir RUNS/rove --step 4", "checkpoints/4: no such checkpoint; there are .*3"),
        ("perplexity --workdir RUNS/rove --step lst", "'lst' is neither last, best nor a step"),
        ("perplexity --workdir RUNS/rove --lengths 16 100000", "no validation document has 100000 tokens"),
        ("perplexity --workdir RUNS/rove --lenghts 16", "--lenghts.*did you mean --lengths"),
        ("perplexity --workdir RUNS/rove --stride 4", "stride = 4: is read by mode sliding only"),
        ("perplexity --workdir RUNS/rove --out RUNS/text/0.txt/x", "--out = .*cannot be written there"),
        ("compare --workdirs RUNS/none --out RUNS/text/0.txt", "--out = .*is a file"),
        ("generate --workdir RUNS/rove --prompt x --temperature -1", "temperature = -1.0: must be at least 0"),
        ("generate --workdir RUNS/rove --prompt x --max-new-tokens 0", "--max-new-tokens = 0"),
        ("generate --workdir RUNS/rove --prompt x --scaling yam", "--scaling.*yam"),
        ("perplexty", "perplexty"),
    ],
)
def test_wrong_words_end_in_one_line_and_exit_code_2(trained, run, words, message):
    code, _, errors = run(*words.replace("RUNS", str(trained)).split())
    assert code == 2
    assert re.search(message.replace("RUNS", str(trained)), errors[-1]) and errors[-1].startswith("error: ")


def test_a_suite_runs_each_job_once_and_writes_one_report(trained, run, tmp_path):
    out = tmp_path / "suite"
    (tmp_path / "text.txt").write_text("the state of the union is strong, and so are its laws " * 5)
    words = ["suite", "--workdirs", trained / "rope", trained / "rove", "--out", out]
    words += [f"--perplexity=--lengths 16 32 --text {tmp_path / 'text.txt'}"]
    words += ["--index=--lengths 48 --variants list --samples 5"]
    code, lines, _ = run(*words)
    assert code == 0 and sum(line.startswith("python -m eval ") for line in lines) == 4
    stored = json.loads((out / "results/2_rove/index.json").read_text())
    row, *_ = [line for line in lines if line.startswith("|") and "list, 48" in line]
    assert f"{stored['results'][0]['accuracy']:.2f} [" in row.split("|")[3]
    assert "<img " in (out / "report.html").read_text()

    # Again: nothing is measured. With other options, or a file that is gone: only that.
    code, lines, _ = run(*words)
    assert code == 0 and not any(line.startswith("python -m eval ") for line in lines)
    assert lines[3] == "job 4 of 4: index of rove, measured before"
    (out / "results/1_rope/perplexity.json").unlink()
    code, lines, _ = run(*words[:-1], "--index=--lengths 48 --variants list --samples 6")
    ran = [re.findall(r"eval (\w+) --workdir \S+/(\w+) ", line)[0] for line in lines if line.startswith("python -m")]
    assert code == 0 and ran == [("perplexity", "rope"), ("index", "rope"), ("index", "rove")]
    (tmp_path / "text.txt").write_text("we the people of the union, in order to form a more perfect one " * 5)
    code, lines, _ = run(*words[:-1], "--index=--lengths 48 --variants list --samples 6")
    ran = [re.findall(r"eval (\w+) --workdir \S+/(\w+) ", line)[0] for line in lines if line.startswith("python -m")]
    assert code == 0 and ran == [("perplexity", "rope"), ("perplexity", "rove")]
    assert sum("have changed since it was measured" in line for line in lines) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "nothing to measure; give one or more of --perplexity, --core, --ruler, --index"),
        (["--index=--lengths 48 --out x"], "--out is given to the suite, not to the job"),
        (["--perplexity=", "--index=--length 48"], "--length"),
        (["--index='"], "No closing quotation"),
    ],
)
def test_a_suite_reads_all_options_before_it_runs_anything(trained, run, tmp_path, words, message):
    code, lines, errors = run("suite", "--workdirs", trained / "rope", "--out", tmp_path / "suite", *words)
    assert code == 2 and message in errors[-1] and not (tmp_path / "suite" / "results").exists()
