"""CORE's files, accuracies and records: what is read, what is averaged, and how a measurement goes on."""

import json
import shutil
import zipfile

import core_rows
import numpy as np
import pytest
from reference import ruler as oracle

from rove_jax.errors import UsageError
from rove_jax.evaluation.core import files, report, scoring
from rove_jax.evaluation.core.protocols import Example, Prompt
from rove_jax.evaluation.core.tasks import TASKS
from rove_jax.evaluation.engine import Score

BY_LABEL = {task.label: task for task in TASKS}


def right(task: str, share: float, count: int, category: str = "") -> list[dict]:
    return [{"task": task, "correct": place < share * count, "category": category, "mean": [1.0], "spans": [[1, 2]],
             "truncated": [0], "unlike": "", "row": place} for place in range(count)]  # fmt: skip


def results(share) -> list[dict]:
    """A result for every task, `share(task)` of whose answers are right, out of a thousand."""
    return [scoring.task_result(task, right(task.label, share(task), 1000), 10) for task in TASKS]


def test_a_uniform_guess_scores_what_is_known():
    found = results(lambda task: task.chance)
    assert scoring.aggregate(found, "v1")["core"] == pytest.approx(-0.0007, abs=5e-5)
    assert scoring.aggregate(found, "v2")["core"] == pytest.approx(-0.0260, abs=5e-5)
    by_label = {one["task"]: one["centered"]["v1"] for one in found}
    assert by_label["bigbench_language_identification"] == pytest.approx(0.1749, abs=5e-5)
    assert by_label["boolq"] == pytest.approx(-0.3158, abs=5e-5)
    # The majority letter in the two tasks that v2 was changed for.
    most = {"commonsense_qa": 0.403, "boolq": 0.622}
    found = results(lambda task: most.get(task.label, task.chance))
    assert scoring.aggregate(found, "v1")["core"] == pytest.approx(0.0225, abs=2e-4)
    assert scoring.aggregate(found, "v2")["core"] == pytest.approx(0.0002, abs=2e-4)


@pytest.mark.parametrize("baselines", ["v1", "v2"])
def test_the_baseline_is_zero_and_all_right_is_one(baselines):
    assert scoring.aggregate(results(lambda task: task.baseline(baselines)), baselines)["core"] == pytest.approx(
        0, abs=1e-9
    )
    assert scoring.aggregate(results(lambda task: 1.0), baselines)["core"] == 1.0


def test_some_tasks_are_never_called_core():
    found = results(lambda task: 1.0)
    assert "core" in scoring.aggregate(found, "v1")
    for left_out in range(len(TASKS)):
        partial = scoring.aggregate(found[:left_out] + found[left_out + 1 :], "v1")
        assert "core" not in partial and partial["core_partial"] == 1.0 and partial["tasks"] == 21


def test_categories_count_alike_and_errors_are_binomial():
    records = right("jeopardy", 0.5, 10, "a") + right("jeopardy", 0.25, 1000, "b")
    found = scoring.task_result(BY_LABEL["jeopardy"], records[::-1], 1)
    assert found["accuracy"] == pytest.approx(0.375), "not the share of all, which is 0.2525"
    np.testing.assert_allclose(found["standard_error"], np.sqrt(0.25 / 10 + 0.1875 / 1000) / 2, rtol=1e-12)
    assert found["outcomes"]["a"] == "1111100000" and found["categories"] == {"a": 0.5, "b": 0.25}
    away = np.abs(np.subtract([oracle.wilson(5, 10), oracle.wilson(250, 1000)], [[0.5], [0.25]])) / 2
    wanted = 0.375 + np.array([-1, 1]) * np.hypot(*away)
    np.testing.assert_allclose(found["interval"], wanted, rtol=1e-7)


def test_answers_that_are_all_alike_have_an_interval_and_no_standard_error():
    one = scoring.task_result(BY_LABEL["piqa"], right("piqa", 0.0, 6), 1)
    assert one["standard_error"] is None and one["interval"] == pytest.approx(oracle.wilson(0, 6), abs=1e-7)
    mixed = [scoring.task_result(task, right(task.label, 0.5, 1000), 10) for task in TASKS]
    whole = scoring.aggregate(mixed, "v2")
    bases = np.array([task.v2 / 100 for task in TASKS])
    errors = np.sqrt(0.25 / 1000) / (1 - bases) / len(TASKS)
    np.testing.assert_allclose(whole["standard_error"], np.hypot.reduce(errors), rtol=1e-12)
    # Of a thousand answers, half of them right, Wilson's interval hardly differs from the binomial error's.
    half = 1.96 * whole["standard_error"]
    np.testing.assert_allclose(whole["interval"], [whole["core"] - half, whole["core"] + half], atol=0.003 * half)
    alike = scoring.aggregate([one, *(other for other in mixed if other["task"] != "piqa")], "v2")
    assert alike["standard_error"] is None and alike["interval"][1] - alike["interval"][0] > 2 * half


def test_the_mean_decides_and_the_first_of_equal_choices():
    def score(*nats: float) -> Score:
        return Score(np.array(nats, np.float32), np.array([value < 1 for value in nats]))

    prompts = [Prompt([0, 1, 2, 3], 2)] * 3
    task = BY_LABEL["arc_easy"]
    one = scoring.record(task, 1, Example(7, [3], ""), prompts, [score(3.0), score(2.0, 2.5), score(2.5)], [0, 0, 4])
    assert one["prediction"] == 1 and one["correct"], "the sum would have chosen the last"
    assert one["sum"] == [3.0, 4.5, 2.5] and one["mean"] == [3.0, 2.25, 2.5] and one["spans"] == 3 * [[2, 4]]
    equal = scoring.record(task, 1, Example(7, [], ""), prompts[:2], [score(2.0), score(2.0)], [0, 0])
    assert equal["prediction"] == 0 and not equal["correct"]
    assert scoring.task_result(task, [one, equal], 3)["ties"] == 1
    for nats, correct in (((0.5, 0.9), True), ((0.5, 1.1), False)):
        one = scoring.record(BY_LABEL["jeopardy"], None, Example(7, [], "x"), prompts[:1], [score(*nats)], [0])
        assert one["correct"] is correct and one["prediction"] is None


@pytest.mark.parametrize("layout", ["", "eval_data", "eval_bundle/eval_data", "local_data", "scripts/eval/local_data"])
def test_folders_and_zips_of_either_publisher_are_read(tmp_path, layout):
    core_rows.write(tmp_path / "data" / layout)
    whole = shutil.make_archive(str(tmp_path / "bundle"), "zip", tmp_path / "data")
    for source in (tmp_path / "data", tmp_path / "bundle.zip"):
        found = files.Files(source)
        loaded = found.load(BY_LABEL["winograd"])
        assert loaded is not None and loaded.rows == core_rows.SCHEMAS
        assert loaded.unlike == "3 rows instead of 273"
        assert found.load(BY_LABEL["copa"]) is None
    assert zipfile.is_zipfile(whole)


def test_what_is_no_task_file_is_refused_in_one_line(tmp_path):
    with pytest.raises(UsageError, match="no such folder or zip"):
        files.Files(tmp_path / "nothing")
    (tmp_path / "file").write_text("text")
    with pytest.raises(UsageError, match="but no zip"):
        files.Files(tmp_path / "file")
    task = BY_LABEL["openbook_qa"]
    path = core_rows.write(tmp_path) / task.file
    good = core_rows.CHOICES[0]
    for bad, words in (
        ("{", "no JSON"),
        ("[]", "is no object"),
        (json.dumps({**good, "gold": 2}), "gold = 2: there are 2 choices"),
        (json.dumps({**good, "choices": ["a", ""]}), "an empty choice"),
        (json.dumps({"query": "?", "gold": 0}), "field 'choices' is missing"),
        (json.dumps({**good, "gold": True}), "field 'gold' is missing or no int"),
        (json.dumps({**good, "category": [1]}), "field 'category' is no str"),
    ):
        path.write_text(f"{json.dumps(good)}\n\n{bad}\n")
        with pytest.raises(UsageError, match=f"openbook_qa.jsonl, line 3: {words}"):
            files.Files(tmp_path).load(task)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content, directory: content[: directory - 1] + content[directory:],  # no longer where the end says
        lambda content, directory: content.replace(content[60:100], bytes(40)),  # what was packed
        lambda content, directory: with_field(content, directory, 6, 8, 1),  # a password
        lambda content, directory: with_field(content, directory, 8, 10, 97),  # an unknown compression
    ],
)
def test_a_damaged_zip_is_refused_in_one_line(tmp_path, damage):
    task = BY_LABEL["copa"]
    with zipfile.ZipFile(tmp_path / "bundle.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(task.file, "".join(f"{number} " for number in range(400)))
    content = (tmp_path / "bundle.zip").read_bytes()
    (tmp_path / "bundle.zip").write_bytes(damage(content, content.find(b"PK\x01\x02")))
    with pytest.raises(UsageError, match="fetch it again"):
        files.Files(tmp_path / "bundle.zip").load(task)


def with_field(content: bytes, directory: int, local: int, central: int, value: int) -> bytes:
    """A zip of one file with a byte of its two headers set."""
    changed = bytearray(content)
    changed[local] = changed[directory + central] = value
    return bytes(changed)


def test_a_file_of_the_right_length_with_other_rows_is_named(test_data, tmp_path):
    task = BY_LABEL["copa"]
    content = (test_data / "core" / task.file).read_text()
    (tmp_path / task.file).parent.mkdir()
    for text, unlike in ((content, ""), (content.replace("The man", "The boy", 1), "sha256 ")):
        (tmp_path / task.file).write_text(text)
        loaded = files.Files(tmp_path).load(task)
        assert loaded is not None and loaded.unlike.startswith(unlike) and bool(loaded.unlike) == bool(unlike)


def test_the_table_is_that_of_the_manifest(test_data):
    manifest = json.loads((test_data / "core" / "manifest.json").read_text())
    kinds = {"multiple_choice": "choice", "schema": "schema", "language_modeling": "continuation"}
    assert [one["label"] for one in manifest] == [task.label for task in TASKS]
    for one, task in zip(manifest, TASKS):
        assert (one["file"], kinds[one["type"]], one["num_fewshot"]) == (task.file, task.kind, task.shots)
        assert (one["continuation_delimiter"], one["baseline_v1"], one["baseline_v2"]) == (
            task.delimiter,
            task.v1,
            task.v2,
        )
        assert one.get("rows", task.rows) == task.rows and one.get("sha256") == task.sha256


def test_the_notes_name_all_that_is_not_the_published_measurement():
    task = scoring.task_result(BY_LABEL["copa"], right("copa", 0.5, 20), 1)
    task |= {"file": {"sha256": "", "unlike": "20 rows instead of 100"}, "truncated": 3, "ties": 2}
    task["unlike"] = [{"row": row, "why": "empty"} for row in range(12)]
    task["odd"] = [{"row": 7, "why": "3 choices instead of 2"}]
    found = report.notes({"missing": ["squad"], "not_asked": [], "tasks": [task]})
    assert found == [
        "no file for squad",
        "copa: not the published file (20 rows instead of 100)",
        "17 rows with prompts longer than the training length, read whole: copa 17",
        "3 rows with prompts longer than the training length, cut: copa 3",
        "copa: not scored as the reference does, rows 0, 1, 2, 3, 4, 5, 6, 7 and 4 more: empty",
        "copa: unlike the published task's, row 7: 3 choices instead of 2",
        "2 ties, decided for the first choice: copa 2",
    ]
    other = task | {"task": "piqa", "truncated": 0, "overlong": 1, "ties": 0, "unlike": [], "odd": []}
    found = report.notes({"missing": [], "not_asked": ["squad"] * 20, "tasks": [task, other]})
    assert found[0] == "20 of 22 tasks not asked for"
    assert "18 rows with prompts longer than the training length, read whole: copa 17, piqa 1" in found


def test_rows_that_no_published_task_has_are_remarked_on():
    white, many = "what is scored has no text but white space", "3 choices instead of 2"
    for label, row, why in (
        ("copa", {"query": "q", "choices": ["a", "b"], "gold": 0}, ""),
        ("copa", {"query": "", "choices": ["a", "b", "c"], "gold": 0}, many),
        ("copa", {"query": "q", "choices": ["a", " \n"], "gold": 0}, white),
        ("winograd", {"context_options": ["a", "b", " "], "continuation": "", "gold": 0}, f"{many}; {white}"),
        ("squad", {"context": "", "continuation": "a"}, ""),
        ("squad", {"context": "c", "continuation": "\u3000"}, white),
        ("jeopardy", {"context": "c", "continuation": "a"}, "no category"),
        ("jeopardy", {"context": "c", "continuation": "a", "category": "x"}, ""),
    ):
        assert files.remark(row, BY_LABEL[label]) == why
