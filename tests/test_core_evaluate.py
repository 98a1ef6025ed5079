"""CORE of a model whose scores are known, from the words a person types to the records."""

import json
from dataclasses import replace

import core_rows
import jax
import numpy as np
import pytest
from reference import core as oracle

from rove_jax import config, sharding
from rove_jax.cli import eval as command
from rove_jax.evaluation import engine, packing, runs
from rove_jax.evaluation.core import evaluate, protocols
from rove_jax.evaluation.core.tasks import TASKS
from rove_jax.models import functional
from rove_jax.training.run_folder import Origin

MODEL = config.Model(layers=1, width=16, query_heads=1, kv_heads=1, head_dim=16, mlp_width=16, vocab=257)
TRAINED = 64
BY_LABEL = {task.label: task for task in TASKS}


def logits(tokens) -> np.ndarray:
    """A model that looks at the last token only: without blocks, in float64."""
    hidden = TABLE[list(tokens)].astype(np.float64)
    hidden -= hidden.mean(axis=1, keepdims=True)
    hidden /= np.sqrt((hidden**2).mean(axis=1, keepdims=True) + MODEL.norm_epsilon)
    return hidden @ TABLE[: MODEL.vocab].astype(np.float64).T


TABLE = np.random.RandomState(1).normal(0, 0.7, (MODEL.padded_vocab, MODEL.width)).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return core_rows.write(tmp_path_factory.mktemp("data"))


@pytest.fixture(autouse=True)
def opened(monkeypatch, tmp_path):
    """What `--workdir` opens: a run of that model."""
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), functional.abstract(MODEL))
    params = {**zeros, "embedding": TABLE, "norm": {**zeros["norm"], "scale": np.ones(MODEL.width, np.float32)}}
    cfg = config.Config(model=MODEL, data=config.Data(context_length=TRAINED))
    run = runs.Run(tmp_path / "run", cfg, params, 3, core_rows.Words(), Origin("data", "words"))
    monkeypatch.setattr(runs, "open_run", lambda workdir, step: run)
    # Few shapes on one device, because compiling is what these tests take.
    one = sharding.make_mesh(config.Mesh(data=1))
    monkeypatch.setattr(sharding, "make_mesh", lambda sizes, devices=None: one)
    monkeypatch.setattr(packing, "ROW", 256)
    monkeypatch.setitem(engine.TOKENS_PER_BATCH, "cpu", 256)
    monkeypatch.setattr(engine, "FEWEST_SCORED", 128)
    return run


@pytest.fixture
def measure(folder, tmp_path, capsys):
    """Runs the command: (exit code, the result or the last line of stderr, the records, what was printed)."""

    def call(*words, out="core.json"):
        code = command.main(
            ["core", "--workdir", "run", "--data", str(folder), "--out", str(tmp_path / out), *map(str, words)]
        )
        printed, errors = capsys.readouterr()
        if code:
            return code, errors.splitlines()[-1], [], printed
        lines = (tmp_path / out).with_suffix(".records.jsonl").read_text().splitlines()
        records = [one for line in lines[1:] if "task" in (one := json.loads(line))]
        return code, json.loads((tmp_path / out).read_text()), records, printed

    return call


def expected(protocol: str, label: str):
    """[(row, category's name if that matters, answer, means)] by the oracle."""
    task, rows, words = BY_LABEL[label], core_rows.ROWS[label], core_rows.Words()
    shots = min(task.shots, len(rows) - 1)
    if protocol == "nanochat":
        asked = [
            oracle.nanochat(task.kind, task.delimiter, rows, place, shots, words.encode, words.eot)
            for place in range(len(rows))
        ]
    else:
        groups = [rows]
        if label == "jeopardy":
            groups = [[row for row in rows if row["category"] == name] for name in ("rivers", "hills")]
        asked = [
            pair
            for group in groups
            for pair in oracle.foundry(task.kind, task.delimiter, group, task.shots, words.encode)
        ]
    return task, asked


@pytest.mark.parametrize("protocol", ["nanochat", "foundry"])
def test_answers_equal_the_oracle(measure, protocol):
    code, document, records, printed = measure("--protocol", protocol)
    assert code == 0
    [result] = document["results"]
    shares, differing, by_sum = {}, 0, 0
    for label, rows in core_rows.ROWS.items():
        task, asked = expected(protocol, label)
        mine = [one for one in records if one["task"] == label]
        assert len(mine) == len(asked) == len(rows)
        for one, (_, prompts) in zip(mine, asked):
            if one["unlike"]:
                differing += 1
                continue
            answer, means = oracle.answer(task.kind, prompts, logits)
            np.testing.assert_allclose(one["mean"], means, atol=2e-5)
            assert (one["prediction"] if task.choices else one["correct"]) == answer
            assert one["spans"] == [[start, end] for _, start, end in prompts]
            np.testing.assert_allclose(
                one["sum"], np.array(means) * [end - start for _, start, end in prompts], rtol=1e-5
            )
            by_sum += bool(task.choices) and int(np.argmin(one["sum"])) != answer
        shares[label] = [one["correct"] for one in mine]
    assert differing == (2 if protocol == "nanochat" else 0) and by_sum > 0, "control: sums would answer otherwise"
    for one in result["tasks"]:
        right = shares[one["task"]]
        if one["task"] == "jeopardy" and protocol == "foundry":
            right = [np.mean(right[:2]), np.mean(right[2:])]
        np.testing.assert_allclose(one["accuracy"], np.mean(right), rtol=1e-12)
        assert one["file"]["unlike"]
    odd = {one["task"]: [(row["row"], row["why"]) for row in one["odd"]] for one in result["tasks"]}
    assert odd["winograd"] == odd["jeopardy"] == [] and {row for row, _ in odd["arc_easy"]} == {0, 1, 2, 4}
    assert "unlike the published task's, rows 1, 4: 3 choices instead of 4" in printed
    assert "core" not in result and len(result["missing"]) == 22 - 5 and "squad" in result["missing"]
    value = np.mean([one["centered"]["v1"] for one in result["tasks"]])
    np.testing.assert_allclose(result["core_partial"], value, rtol=1e-12)
    assert f"core_partial v1 (chosen): {value:+.4f}" in printed and "no file for" in printed
    assert document["provenance"]["step"] == 3 and document["settings"]["protocol"] == protocol


def test_a_killed_measurement_goes_on(measure, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluate, "BLOCK", 8)  # several blocks
    counts: list[int] = []
    score = engine.Engine.score

    def counted(self, requests, *given, **named):
        counts.append(len(requests))
        return score(self, requests, *given, **named)

    monkeypatch.setattr(engine.Engine, "score", counted)
    _, whole, records, _ = measure("--max-examples", 2)
    assert len(counts) == 3
    path = tmp_path / "core.records.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:8])[:-20])  # six examples, and a part of the seventh
    counts.clear()
    _, again, found, _ = measure("--max-examples", 2)
    assert again["results"] == whole["results"]
    left = [one for one in records if one not in [json.loads(line) for line in lines[1:7]]]
    assert sum(counts) == sum(len(one["mean"]) for one in left) and len(left) == len(records) - 6
    for one, other in zip(found, records, strict=True):
        for name in ("mean", "sum"):
            np.testing.assert_allclose(one.pop(name), other.pop(name), atol=1e-4)
        assert one == other
    counts.clear()
    measure("--max-examples", 2, "--baselines", "v2")
    assert counts == [], "another headline needs no forward pass"
    code, error, *_ = measure("--max-examples", 3)
    assert code == 2 and "max_examples = 2, not 3" in error
    for line, words in (
        (lines[4], "is there twice"),
        ("{}\n", "no example"),
        ('{"task": "copa", "row": 99}\n', "no exam"),
    ):
        path.write_text("".join(lines) + line)
        code, error, *_ = measure("--max-examples", 2)
        assert code == 1 and f"damaged: line {len(lines) + 1} is " in error and words in error


def test_the_first_records_come_soon():
    examples = [(BY_LABEL[label], row) for label in ("arc_easy", "jeopardy") for row in range(600)]
    made = list(evaluate.blocks(examples, 50, 500))
    assert [one for block in made for one in block] == examples
    sizes = [sum(max(task.choices, 1) for task, _ in block) for block in made]
    assert sizes[:6] == [52, 100, 200, 400, 500, 500] and max(sizes) < 504 and sum(sizes) == 600 * 5
    assert [len(block) for block in evaluate.blocks(examples[:3], 50, 500)] == [3]
    assert evaluate.FIRST * 10 <= evaluate.BLOCK


def test_truncated_prompts_are_counted_and_scored_from_their_last_tokens(measure):
    _, document, records, printed = measure("--tasks", "arc_easy", "--overlong", "truncate")
    [task] = document["results"][0]["tasks"]
    assert task["truncated"] == task["overlong"] == len(core_rows.CHOICES), "four shots are more than 64 tokens"
    assert "5 rows with prompts longer than the training length, cut: arc_easy 5" in printed
    for one in records:
        assert one["truncated"] == [max(0, end - TRAINED) for _, end in one["spans"]]
    # This model looks at the last token alone, so truncation must not change a score.
    _, _, whole, printed = measure("--tasks", "arc_easy", out="whole.json")
    assert "read whole" in printed
    for one, other in zip(records, whole):
        np.testing.assert_allclose(one["mean"], other["mean"], atol=1e-5)
        assert other["truncated"] == [0] * len(other["truncated"])


def test_a_uniform_model_chooses_the_first(measure, opened, monkeypatch):
    nothing = replace(opened, params=jax.tree.map(np.zeros_like, opened.params))
    monkeypatch.setattr(runs, "open_run", lambda workdir, step: nothing)
    _, document, records, _ = measure()
    for one in records:
        assert one["prediction"] in (0, None)
        np.testing.assert_allclose(one["mean"], np.log(MODEL.vocab), rtol=1e-6)
    found = {one["task"]: one for one in document["results"][0]["tasks"]}
    assert found["arc_easy"]["accuracy"] == 3 / 5 and found["winograd"]["accuracy"] == 1 / 3
    assert found["jeopardy"]["accuracy"] == 0 and found["arc_easy"]["ties"] == 5


def test_wrong_arguments_are_one_line(measure, tmp_path):
    for words, line in (
        (("--tasks", "arc_esay"), "--tasks = 'arc_esay': no such task; did you mean arc_easy?"),
        (("--tasks", "copa", "copa"), "--tasks = 'copa copa': name each once"),
        (("--max-examples", 0), "--max-examples = 0: must be at least 1"),
        (("--tasks", "copa"), "holds no file such as commonsense_reasoning/copa.jsonl; give the folder above it"),
    ):
        code, error, *_ = measure(*words)
        assert code == 2 and line in error, error
    code = command.main(["core", "--workdir", "run", "--data", "data", "--out", "gs://bucket/core.json"])
    assert code == 2
    (tmp_path / "core.json").mkdir()
    code, error, *_ = measure()
    assert code == 2 and "--out" in error


def test_equal_choices_have_equal_scores_to_the_bit(measure):
    _, document, records, _ = measure("--tasks", "openbook_qa")
    twice = next(one for one in records if one["row"] == 1)
    assert twice["mean"][0] == twice["mean"][1] != twice["mean"][2]
    assert protocols.common([[1, 2], [1, 3]]) == 1
    assert document["results"][0]["not_asked"]
