"""What the suite takes for measured: the same job on the same checkpoint, of files that have not changed since."""

import json
from pathlib import Path

import core_rows
import pytest

from rove_jax.cli import eval as command
from rove_jax.cli import suite
from rove_jax.evaluation.core.tasks import TASKS


def contents(*words) -> dict[str, str]:
    parsed = command.parser().parse_args([*map(str, words), "--workdir", "run", "--out", "out.json"])
    return suite.contents_of(words[0], parsed)


def changes(path: Path, *words) -> None:
    """The contents of a job change with a file, and only with its content."""
    before = contents(*words)
    assert len(before) == 1
    path.touch()
    assert contents(*words) == before
    path.write_text(path.read_text() + " ")
    assert contents(*words) != before and contents(*words).keys() == before.keys()


def test_the_files_behind_a_jobs_options_are_known_by_content(tmp_path):
    data = core_rows.write(tmp_path / "data")
    [file] = [data / task.file for task in TASKS if task.label == "winograd"]
    changes(file, "core", "--data", data)
    before = contents("core", "--data", data)
    (data / "notes.txt").write_text("no task reads this")
    assert contents("core", "--data", data) == before
    text = tmp_path / "books" / "a.txt"
    text.parent.mkdir()
    text.write_text("a text")
    (text.parent / "b.txt").write_text("another")
    ruler = ("ruler", "--lengths", 128)
    for option in ("--squad", "--hotpotqa", "--haystack"):
        changes(text, *ruler, option, text)
    changes(text, *ruler, "--haystack", text.parent)
    changes(text, "perplexity", "--text", text.parent)
    (text.parent / "manifest.json").write_text("{}")
    changes(text.parent / "manifest.json", "perplexity", "--text", text.parent)
    for words in (ruler, ("perplexity", "--text", "tfds:a"), ("index", "--lengths", 64), (*ruler, "--squad", "none")):
        assert contents(*words) == {}


@pytest.mark.parametrize("records", ["core.records.jsonl", "core.jsonl"])
def test_what_begins_anew_keeps_no_records_of_other_files(tmp_path, records):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / records).write_text("old")
    done = {"results/core.json": {}, "results/index.json": {}}
    suite.begin_anew(done, "results/core.json", tmp_path)
    assert not (tmp_path / "results" / records).exists()
    assert json.loads((tmp_path / suite.MANIFEST).read_text()) == done == {"results/index.json": {}}
