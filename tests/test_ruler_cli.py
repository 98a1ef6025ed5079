"""`python -m eval ruler` and `index` on a trained run, from the words a person types to the files that come out."""

import gzip
import json
import math

import jax
import numpy as np
import pytest
import tiny_runs

from rove_jax import zoo
from rove_jax.cli import eval as command
from rove_jax.data import tokenizers
from rove_jax.evaluation.index_task import make_index_task
from rove_jax.models import functional

pytestmark = pytest.mark.slow  # a run is trained, and the engine's programs are compiled
CACHE_OPTIONS = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with the run `rove`."""
    folder = tmp_path_factory.mktemp("runs")
    kept = {name: getattr(jax.config, name) for name in CACHE_OPTIONS}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        tiny_runs.keep_programs(tmp_path_factory)
        cfg = tiny_runs.settings(
            tiny_runs.corpus(folder),
            model={"dropout": 0.0},
            training={"steps": 2, "accumulation": 1, "validation_every": 100},
        )
        tiny_runs.train(cfg, folder / "rove")
        yield folder
    for name, value in kept.items():
        jax.config.update(name, value)


@pytest.fixture
def run(capsys):
    """Runs a command: (exit code, stdout, stderr)."""

    def call(*words) -> tuple[int, str, str]:
        code = command.main([str(word) for word in words])
        return code, *capsys.readouterr()

    return call


@pytest.fixture(scope="module")
def expected(trained):
    """The nats of every token of a text after a prompt, from the whole forward pass of the model."""
    loaded = zoo.load_model(trained / "rove")
    forward = jax.jit(
        lambda tokens_bt: functional.unembed(
            loaded.config.model, loaded.params, functional.apply(loaded.config.model, loaded.params, tokens_bt).hidden
        )
    )

    def nats(prompt, text):
        context, answer = [256, *prompt.encode()], list(text.encode())
        tokens = np.zeros((1, 192), np.int32)
        tokens[0, : len(context) + len(answer)] = context + answer
        logits = np.asarray(forward(tokens), np.float64)[0, :, :257]
        lines = logits[len(context) - 1 :][: len(answer)]
        return [math.log(np.exp(line).sum()) - line[token] for line, token in zip(lines, answer)]

    return nats


def test_ruler_scores_the_answers_of_its_samples_and_goes_on_where_it_stopped(trained, run, expected, tmp_path):
    out, kept = tmp_path / "ruler.json", tmp_path / "kept"
    words = ["ruler", "--workdir", trained / "rove", "--lengths", 160, "--tasks", "niah_multikey_2", "cwe", "qa_1"]
    words += ["--samples", 3, "--cache", kept, "--out", out]
    code, said, _ = run(*words)
    assert code == 0 and f"Written: {out}" in said and "made-up questions" in said
    document = json.loads(out.read_text())
    assert document["kind"] == "ruler" and document["settings"]["seed"] == 42 and document["provenance"]["step"] == 2
    names = ["niah_multikey_2_small", "cwe_small", "qa_1_standin_small"]
    assert [(row["task"], row["form"], row["samples"]) for row in document["results"]] == [
        (name, "small", 3) for name in names
    ]
    assert document["results"][2]["questions"] == "standin_1_small"
    head, *lines = out.with_suffix(".jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert len(records) == 9
    for name, row in zip(names, document["results"]):
        [path] = kept.glob(f"{name}-*")
        assert row["samples_file"] == path.name
        samples = [json.loads(line)[-1] for line in gzip.decompress(path.read_bytes()).splitlines()[1:]]
        means = []
        for item, record in zip(samples, [record for record in records if record["task"] == name]):
            nats = expected(item["prompt"], f" {item['references'][0]}")
            means.append(np.mean(nats))
            assert record["nats"] == pytest.approx(sum(nats), rel=1e-4) and record["nll"] == pytest.approx(
                means[-1], rel=1e-4
            )
            wrong = expected(item["prompt"], f" {item['distractor']}")
            assert record["distractor_nll"] == pytest.approx(np.mean(wrong), rel=1e-4)
            if item["floor"] is not None:
                bare = expected(item["floor"], f" {item['references'][0]}")
                assert record["floor_nll"] == pytest.approx(np.mean(bare), rel=1e-4)
        assert row["nll"] == pytest.approx(np.mean(means), rel=1e-4)
    # Stopped in the middle of a line: what is there is not scored again (it is marked here), the rest is as before.
    marked = json.dumps({**records[0], "nll": records[0]["nll"] + 9})
    out.with_suffix(".jsonl").write_text("\n".join([head, marked, *lines[1:5]])[:-9])
    assert run(*words)[0] == 0
    first, *others = json.loads(out.read_text())["results"]
    assert first["nll"] == pytest.approx(document["results"][0]["nll"] + 3, rel=1e-5)
    for one, other in zip(document["results"][1:], others):
        assert one["nll"] == pytest.approx(other["nll"], rel=1e-5) and one["samples"] == other["samples"]
    code, _, err = run(*words, "--seed", 1)
    assert code == 2 and "made with seed = 42, not 1" in err and len(err.splitlines()) == 1
    # A model that writes: greedy text is looked through for the outputs.
    out = tmp_path / "generated.json"
    assert run(*words[:-1], out, "--generate", "--tasks", "niah_multikey_2")[0] == 0
    [row] = json.loads(out.read_text())["results"]
    assert row["match"] == 0 and row["nll"] == pytest.approx(document["results"][0]["nll"], rel=1e-5)
    assert "generated" in out.with_suffix(".jsonl").read_text()


@pytest.mark.parametrize(
    "words, said",
    [
        (["--lengths", 80, "--tasks", "qa_2"], "--lengths = 80: too short for qa_2 (at least"),
        (["--lengths", 10], "--lengths = 10: must lie between 64"),
        (["--lengths", 256, "--tasks", "niah"], "--tasks = 'niah': must be one of niah_single_1"),
        (["--lengths", 256, 256], "--lengths = (256, 256): must differ"),
        (["--lengths", 256, "--samples", 0], "--samples = 0: must be at least 1"),
        (["--lengths", 400, "--tasks", "qa_1", "--squad", "none.json"], "--squad = 'none.json'"),
        (["--lengths", 400, "--haystack", "none"], "'none'"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(trained, run, tmp_path, words, said):
    code, out, err = run("ruler", "--workdir", trained / "rove", *words, "--out", tmp_path / "x.json")
    assert code == 2 and said in err and len(err.splitlines()) == 1 and not out


def test_index_asks_for_the_kth_element(trained, run, expected, tmp_path):
    out = tmp_path / "index.json"
    words = ["index", "--workdir", trained / "rove", "--lengths", 96, 160, "--samples", 4, "--out", out]
    code, said, _ = run(*words)
    assert code == 0 and f"Written: {out}" in said and out.with_suffix(".png").read_bytes()[:4] == b"\x89PNG"
    document = json.loads(out.read_text())
    found = [(row["variant"], row["length"]) for row in document["results"]]
    assert found == [("list", 96), ("list", 160), ("numbered", 96), ("numbered", 160)]
    tokenizer = tokenizers.ByteTokenizer()
    for row in document["results"]:
        task = make_index_task(row["n_items"], n_samples=4, tokenizer=tokenizer, variant=row["variant"])
        prompts = [tokenizer.decode(prompt) for prompt in task.prompts]
        table = np.array([[expected(prompt, str(value))[0] for value in range(4)] for prompt in prompts])
        assert row["picked"] == table.argmin(axis=1).tolist() and row["answers"] == task.answers.tolist()
        assert row["nll"] == pytest.approx(table[np.arange(4), task.answers].mean(), rel=1e-4)
    code, _, err = run(*words[:4], 20, "--out", out)
    assert code == 2 and "--lengths = 20: two items of" in err and len(err.splitlines()) == 1
