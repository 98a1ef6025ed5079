"""Folders that are read and folders that are written: links, suffixes, names, and what cannot be done is said first."""

import os
from pathlib import Path

import pytest
from reference import parquet as made

from rove_jax.config import Data
from rove_jax.data import build, prepare, prepared, sources
from rove_jax.data.documents import Text
from rove_jax.errors import RunError, UsageError

TEXT = "some words in a line\n" * 20
LOST = os.fsdecode(b"\xff.txt")
"""A name that is not UTF-8, as Python has it."""


@pytest.fixture
def folder(tmp_path) -> Path:
    """Three documents, of which one is elsewhere, and what is not to be read."""
    root = tmp_path / "texts"
    for name in ("a.txt", "B.TXT", "in ner/c.Md", ".hidden.txt", ".git/d.txt", "e.pdf"):
        (root / name).parent.mkdir(exist_ok=True, parents=True)
        (root / name).write_text(f"{name} {TEXT}")
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "f.txt").write_text(TEXT)
    (root / "link").symlink_to(tmp_path / "disk")
    return root


# Read


def test_a_folder_is_read_whatever_the_case_of_suffixes_and_through_links(folder):
    documents = [text for text in sources.files(folder).documents() if isinstance(text, Text)]
    assert sorted(text.id for text in documents) == ["B.TXT", "a.txt", "in ner/c.Md", "link/f.txt"]
    assert {text.text for text in documents if text.id == "link/f.txt"} == {TEXT}


def test_parquet_files_are_found_in_the_same_way(tmp_path):
    made.write(tmp_path / "disk", files=1)
    groups = made.write(tmp_path / "files", files=2, seed=1)
    (tmp_path / "files" / "0.parquet").rename(tmp_path / "files" / "0.PARQUET")
    (tmp_path / "files" / "part.parquet").symlink_to(tmp_path / "disk")
    (tmp_path / "files" / "_temporary").mkdir()
    made.write(tmp_path / "files" / "_temporary" / "0", files=1)
    for path in (f"{tmp_path}/files", f"file://{tmp_path}/files"):
        units = [unit.name for unit in sources.load(Data(source="parquet", path=path)).units]
        assert len(units) == 3 * len(groups["0.parquet"])
        assert {name.partition(" ")[0] for name in units} == {"0.PARQUET", "1.parquet", "part.parquet/0.parquet"}


def loop(folder, patch):
    (folder / "z").symlink_to(folder)
    return "z: a link to .*/texts, which would be read twice"


def second(folder, patch):
    (folder / "z").symlink_to(folder / "in ner")
    return "/texts/.*: a link to .*/texts/.*, which would be read twice"


def nothing(folder, patch):
    (folder / "z.txt").symlink_to(folder / "gone")
    return "z.txt: is not a file, or a link to nothing"


def pipe(folder, patch):
    os.mkfifo(folder / "z.txt")
    return "z.txt: is not a file, or a link to nothing"


def closed(folder, patch):
    scandir = os.scandir

    def refuses(path):
        if str(path).endswith("in ner"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    patch.setattr(os, "scandir", refuses)
    return "in ner: Permission denied"


@pytest.mark.parametrize("happens", [loop, second, nothing, pipe, closed])
def test_nothing_is_left_out_or_read_twice_in_silence(folder, monkeypatch, happens):
    says = happens(folder, monkeypatch)
    with pytest.raises(UsageError, match=says) as caught:
        sources.files(folder)
    assert "\n" not in str(caught.value)


def test_names_that_are_not_utf8_or_very_long_are_no_obstacle(folder):
    for name in (LOST, "x" * 200 + ".txt"):
        (folder / "a.txt").rename(folder / name)
        data = Data(source="files", path=str(folder / name), context_length=8, cache=str(folder.parent / "cache"))
        dataset = prepare.ensure(data)
        assert dataset.documents("train")[0].id == name
        (folder / name).rename(folder / "a.txt")


def test_a_file_that_changes_during_the_work_ends_it(tmp_path):
    made.write(tmp_path, files=1)
    source = sources.load(Data(source="parquet", path=str(tmp_path)))
    assert list(source.documents(0))
    made.write(tmp_path, files=1, seed=1)
    with pytest.raises(RunError, match="0.parquet row group 0: the file has changed since"):
        list(source.documents(0))


@pytest.mark.parametrize("name", ["text", "id"])
def test_a_column_that_is_there_twice_is_named(tmp_path, name):
    import pyarrow
    import pyarrow.parquet

    texts = pyarrow.array(["one", "two"])
    table = pyarrow.Table.from_arrays([texts, texts, texts], names=["text", "id", name])
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(UsageError, match=f"a.parquet: column {name} is there 2 times"):
        sources.load(Data(source="parquet", path=str(tmp_path)))


@pytest.mark.parametrize(
    "source, settings, says",
    [
        ("sotu", {"path": "x"}, "data.path = 'x': source sotu has no use for it"),
        ("sotu", {"held_out": 0.5}, "data.held_out = 0.5: source sotu has no use for it"),
        ("files", {"path": "x", "text_feature": "body"}, "data.text_feature = 'body': source files has no use for it"),
        ("fineweb-edu", {"path": ""}, "data.path = '': is empty"),
        ("files", {"path": "gs://a/b"}, "data.path = 'gs://a/b': text files are read from a disk"),
    ],
)
def test_a_setting_that_would_be_ignored_is_refused(source, settings, says):
    with pytest.raises(UsageError) as caught:
        sources.load(Data(source=source, **settings))
    assert str(caught.value).startswith(says)


# Written


def fill(folder: Path, out: Path) -> prepared.Prepared:
    data = Data(source="files", path=str(folder), context_length=8)
    build.dataset(sources.load(data), data, out, key="k")
    return prepared.load(out, data)


@pytest.mark.parametrize("there", [True, False])
def test_a_link_is_a_place_for_a_dataset(folder, there):
    if there:
        (folder.parent / "target").mkdir()
    (folder.parent / "out").symlink_to(folder.parent / "target")
    assert fill(folder, folder.parent / "out").documents("train")
    assert (folder.parent / "out").is_symlink() and (folder.parent / "target" / "manifest.json").is_file()


def test_what_cannot_become_a_dataset_is_said_before_the_work(folder, monkeypatch):
    monkeypatch.setattr(build, "fill", lambda *arguments: pytest.fail("the work has begun"))
    with pytest.raises(UsageError, match="its name is not in UTF-8"):
        fill(folder, folder / LOST)
    (folder.parent / "here").mkdir()
    monkeypatch.chdir(folder.parent / "here")
    with pytest.raises(UsageError, match="here: is the folder you are in.*choose one inside"):
        fill(folder, Path())
    monkeypatch.setattr(Path, "is_mount", lambda path: path.name == "out")
    with pytest.raises(UsageError, match="out: is a mount point.*choose one inside"):
        fill(folder, folder.parent / "out")


def test_a_finished_dataset_needs_no_lock(folder, monkeypatch):
    one = fill(folder, folder.parent / "out")
    monkeypatch.setattr(build, "locked", lambda *arguments: pytest.fail("as in a folder that is read only"))
    assert fill(folder, folder.parent / "out").fingerprint == one.fingerprint


def test_what_is_too_little_is_said_with_what_would_be_more(tmp_path):
    made.write(tmp_path / "files", files=1, groups=2)
    for share, says in (
        (1e-9, "the validation split has 0 tokens in 2 row groups.*a larger data.held_out"),
        (1 - 1e-9, "the train split has 0 tokens in 2 row groups, .* give more text or a smaller data.context_length"),
    ):
        data = Data(source="parquet", path=str(tmp_path / "files"), context_length=8, held_out=share)
        with pytest.raises(UsageError, match=says):
            build.dataset(sources.load(data), data, tmp_path / "out", key="k")
        assert [path.name for path in tmp_path.iterdir()] == ["files"]
