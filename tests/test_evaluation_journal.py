"""Records beside a result: what is on the disk after a kill at any byte, and what is refused."""

from pathlib import Path

import pytest

from rove_jax.errors import RunError, UsageError
from rove_jax.evaluation.journal import Journal


def test_a_journal_goes_on_from_any_byte(tmp_path):
    path, of = tmp_path / "new" / "records.jsonl", {"protocol": "nanochat", "tasks": ("x", "y")}
    with Journal(path, of) as journal:
        start = path.read_bytes()
        journal.add([{"row": 1}, {"row": 2}])
        two = path.read_bytes()  # there before the file is closed
        journal.add([{"row": 3}])
    whole = path.read_bytes()
    for size in range(len(start), len(whole)):
        path.write_bytes(whole[:size])
        with Journal(path, of) as journal:
            known = [record["row"] for record in journal.records]
            assert known == [1, 2, 3][: whole[:size].count(b"\n") - 1]
            journal.add({"row": row} for row in (1, 2, 3)[len(known) :])
        assert path.read_bytes() == whole
    for size in range(len(start)):  # not even what it is of
        path.write_bytes(whole[:size])
        with Journal(path, of) as journal:
            assert journal.records == []
    assert two.count(b"\n") == 3


def test_records_of_something_else_are_refused_and_left(tmp_path):
    path = tmp_path / "records.jsonl"
    with Journal(path, {"a": 1}) as journal:
        journal.add([{"index": 0}])
    whole = path.read_text()
    with pytest.raises(UsageError, match=r"records.jsonl: its records were made with a = 1, not 2; .*remove it"):
        Journal(path, {"a": 2})
    assert path.read_text() == whole
    for damaged in (whole.replace('"index": 0', '"ind'), "[]\n", "\n", "what\n", whole + "3\n", "one line of mine"):
        path.write_text(damaged)
        with pytest.raises(RunError, match="records.jsonl.*remove it"):
            Journal(path, {"a": 1})
        assert path.read_text() == damaged


def test_two_do_not_write_one_file(tmp_path):
    path = tmp_path / "records.jsonl"
    with Journal(path, {"a": 1}) as journal:
        with pytest.raises(UsageError, match=r"records.jsonl: another process is writing it"):
            Journal(path, {"a": 1})
        journal.add([{"index": 0}])
        with pytest.raises(RunError, match="not finite"):
            journal.add([{"index": 1}, {"nll": float("nan")}])
    with Journal(path, {"a": 1}) as journal:  # the lock went with the first one
        assert journal.records == [{"index": 0}]


def test_a_full_disk_is_one_line(tmp_path, monkeypatch):
    path = tmp_path / "records.jsonl"
    with (
        Journal(path, {"a": 1}) as journal,
        open("/dev/full", "ab", buffering=0) as full,
        monkeypatch.context() as patch,
    ):
        patch.setattr(journal, "file", full)
        with pytest.raises(RunError, match="records.jsonl: No space left on device"):
            journal.add([{"index": 0}])
        assert journal.records == []


def test_a_bucket_takes_no_records():
    with pytest.raises(UsageError, match="gs:/bucket/records.jsonl: records are added to a file on a disk"):
        Journal(Path("gs://bucket/records.jsonl"), {"a": 1})
