"""Prepared datasets in gs://: the files of a disk, not there before they are whole, read from copies that are checked.

Against a server that answers as the storage service does. Not tried on the real one.
"""

import concurrent.futures
import dataclasses

import numpy as np
import pytest
from checkpoint_damage import flip
from reference import bucket as service
from test_data_workers import Scripted

from rove_jax import storage
from rove_jax.cli import prepare as command
from rove_jax.config import Data
from rove_jax.data import build, fetch, prepare, prepared, shards
from rove_jax.errors import RunError, UsageError

LENGTH = 16


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """The folder that is gs://bucket."""
    folder = tmp_path_factory.mktemp("cloud") / "bucket"
    with pytest.MonkeyPatch.context() as patch, service.reached(folder, patch):
        yield folder


def make(source, out, *, key="k", execute=build.here):
    build.dataset(source, Data(source="files", path="x", context_length=LENGTH), out, key=key, execute=execute)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def disk(tmp_path_factory):
    """Six pieces, prepared on a disk."""
    folder = tmp_path_factory.mktemp("disk")
    make(Scripted(folder), folder / "out")
    return folder / "out"


@pytest.fixture(scope="module")
def made(root, tmp_path_factory):
    """The same in a bucket, by two processes."""
    make(Scripted(tmp_path_factory.mktemp("marks")), storage.place("gs://bucket/made"), execute=build.spread(2))
    return root / "made"


@pytest.fixture
def data(made, tmp_path):
    """What a recipe says that is trained on it."""
    return Data(prepared="gs://bucket/made", context_length=LENGTH, cache=str(tmp_path / "cache"))


def test_the_files_are_those_of_a_disk(disk, made):
    assert contents(made) == contents(disk) and len(contents(made)) == 6 * len(shards.KINDS) + 3


def test_it_is_read_as_on_a_disk_and_by_any_number_of_processes_fetched_once(disk, data, monkeypatch, tmp_path):
    fetched = []
    one = fetch.fetch_one
    monkeypatch.setattr(fetch, "fetch_one", lambda *words: (fetched.append(words[3][0]), one(*words)))
    prepare.check(data)
    assert not (tmp_path / "cache").exists()  # looking at it fetches nothing

    def windows(_):
        return prepare.ensure(data).windows("train").rows(range(20))

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = list(pool.map(windows, range(4)))
    assert len(fetched) == 6 and all("train_windows" in name for name in fetched)
    there = prepared.load(disk, dataclasses.replace(data, prepared=None)).windows("train").rows(range(20))
    assert len({rows.tobytes() for rows in found}) == 1 and np.array_equal(found[0], there)
    mixed = dataclasses.replace(data, prepared=None, mixture=("gs://bucket/made=2", f"{disk}=1"))
    with pytest.raises(UsageError, match="has the records of gs://bucket/made"):
        prepare.ensure(mixed)
    mixed = dataclasses.replace(mixed, mixture=("gs://bucket/made=2",))
    assert np.array_equal(prepare.ensure(mixed).windows("train").rows(range(20)), there)
    prepared.verify(prepare.ensure(data))
    assert len(fetched) == 6 * len(shards.KINDS)


@pytest.mark.parametrize(
    "damage, kind, says",
    [
        (flip, RunError, "gs://bucket/made/rove_text-train_windows.*differs from its manifest"),
        (lambda path: path.write_bytes(b""), RunError, "gs://bucket/made/rove_text-train_windows.*differs from its"),
        (lambda path: path.unlink(), UsageError, "gs://bucket/made/rove_text-train_windows.*: damaged: is missing"),
        (lambda path: (path.parent / "manifest.json").unlink(), UsageError, "gs://bucket/made: no prepared dataset"),
    ],
)
def test_what_is_not_what_was_made_is_not_read(made, data, tmp_path, damage, kind, says):
    before = contents(made)
    try:
        damage(next(made.glob("*train_windows*-00003-*")))
        with pytest.raises(kind, match=says):
            prepare.ensure(data).windows("train")
    finally:
        for name, content in before.items():
            (made / name).write_bytes(content)
    assert not list((tmp_path / "cache").rglob("*-00003-of-*"))
    assert len(prepare.ensure(data).windows("train")) > 0


def test_work_that_ends_halfway_is_no_dataset_and_goes_on_from_there(root, disk, data, tmp_path):
    source, out = Scripted(tmp_path), storage.place("gs://bucket/half")

    def stops(job, pieces, report):
        build.here(job, pieces[:2], report)
        (root / service.FAULT).write_text("503 POST")
        build.here(job, pieces[2:], report)

    try:
        with pytest.raises(RunError, match="gs://bucket/half: cannot be written .*the same command goes on"):
            make(source, out, execute=stops)
    finally:
        (root / service.FAULT).unlink()
    with pytest.raises(UsageError, match="gs://bucket/half: no prepared dataset"):
        prepare.check(dataclasses.replace(data, prepared="gs://bucket/half"))
    with pytest.raises(UsageError, match="gs://bucket/half: is the unfinished work on another dataset"):
        make(source, out, key="another")
    (tmp_path / "log").unlink()
    make(source, out)
    assert [unit for unit, *_ in source.log()] == [2, 3, 4, 5]
    assert contents(root / "half") == contents(disk)


def test_the_command_prepares_once_and_only_into_a_folder_of_its_own(root, tmp_path, capsys):
    (tmp_path / "text").mkdir()
    for number in range(20):
        (tmp_path / "text" / f"{number}.txt").write_text("the state of the union " * 9)
    words = ["files", "--path", str(tmp_path / "text"), "--window", "17"]
    for _ in range(2):
        assert command.main([*words, "--out", "gs://bucket/by command", "--verify"]) == 0
        assert "gs://bucket/by command: text, bytes tokens" in capsys.readouterr().out
    (root / "taken").mkdir()
    (root / "taken" / "notes.txt").write_text("mine")
    for out, says in (("taken", "gs://bucket/taken: exists and holds something else"), ("", "give gs://BUCKET/FOLDER")):
        assert command.main([*words, "--out", f"gs://bucket/{out}"]) == 2
        assert says in capsys.readouterr().err
    assert command.main([*words, "--out", "gs://nobucket/data"]) == 2
    assert "gs://nobucket/data: there is no such bucket" in capsys.readouterr().err
    assert list(contents(root / "taken")) == ["notes.txt"]
