"""Parquet files: every row is where an independent loop puts it, and what cannot be read is named, never lost."""

import os
import sys
import types
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra: parquet)")

import pyarrow
import pyarrow.parquet
from reference import parquet as made

from rove_jax.cli import prepare as command
from rove_jax.config import Data
from rove_jax.data import build, documents, parquet, prepare, prepared, shards, sources
from rove_jax.errors import RunError, UsageError

LENGTH, SHARE = 16, 0.3


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Pieces of a few row groups, and training documents kept whole from 80 tokens on."""
    monkeypatch.setattr(shards, "PIECE_BYTES", 1500)
    monkeypatch.setattr(parquet.Parquet, "whole_from", 80)


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "files"


def data_of(folder: Path, **settings) -> Data:
    return Data(**{"source": "parquet", "path": str(folder), "context_length": LENGTH, "held_out": SHARE} | settings)


def make(folder: Path, *, skip: bool = False, **settings) -> prepared.Prepared:
    data = data_of(folder, **settings)
    out = folder.parent / "out"
    build.dataset(sources.load(data), data, out, key="k", skip_damage=skip)
    return prepared.load(out, data)


def check(dataset: prepared.Prepared, groups: made.Groups, share: float = SHARE) -> None:
    """All windows and documents of `dataset`, in order, are those of the oracle."""
    for split in ("train", "validation"):
        windows, whole = made.expected(groups, split, LENGTH, share, lambda tokens: tokens >= 80)
        found = dataset.windows(split)
        assert len(windows) > 5 and found.rows(range(len(found))).tolist() == windows
        kept = dataset.documents(split)
        read = [(one.id, bytes(one.tokens.tolist()).decode()) for one in map(kept.__getitem__, range(len(kept)))]
        assert len(whole) > 2 and read == whole
        assert kept.lengths().tolist() == [len(text.encode()) for _, text in whole]


def test_row_groups_are_packed_one_by_one_in_order(folder):
    groups = made.write(folder)
    dataset = make(folder)
    check(dataset, groups)
    assert len(dataset.manifest["shards"]["train_windows"]) > 2, "several pieces"
    rows = [row for file in groups.values() for group in file for row in group]
    counts = dataset.manifest["splits"]
    for split in counts:
        mine = [text.encode() for id, text in rows if text and made.side(id, SHARE) == split]
        assert counts[split]["documents"] == len(mine)
        assert counts[split]["text_bytes"] == sum(map(len, mine))
        assert counts[split]["tokens"] == sum(map(len, mine)) + len(mine)
    assert counts["train"]["empty"] + counts["validation"]["empty"] == 1
    assert dataset.manifest["damaged"] == 0
    prepared.verify(dataset)


def test_a_piece_has_neighbouring_units_and_no_more_pieces_than_can_be_open():
    units = [documents.Unit(str(n), size) for n, size in enumerate([700, 700, 700, 2000, 0, 100])]
    assert shards.divide(units) == [range(0, 3), range(3, 4), range(4, 6)]
    assert shards.divide([documents.Unit("damaged", 0)]) == [range(1)]
    many = shards.divide([documents.Unit(str(n), 1500) for n in range(10_000)])
    assert len(many) <= shards.PIECES + 1
    assert [unit for piece in many for unit in piece] == list(range(10_000))


def test_long_documents_are_counted_and_kept_whole(folder, monkeypatch):
    monkeypatch.setattr(shards, "LONG", 100)
    groups = made.write(folder)
    counts = make(folder).manifest["splits"]
    for split in counts:
        rows = [row for file in groups.values() for group in file for row in group if made.side(row[0], SHARE) == split]
        assert counts[split]["long"] == sum(len(text.encode()) >= 100 for _, text in rows) > 0


def test_by_default_one_document_in_200_is_held_out(folder):
    made.write(folder, files=1, groups=1, rows=3000)
    texts = list(sources.load(data_of(folder, held_out=None)).documents())
    held_out = [text.id for text in texts if text.split == "validation"]
    assert 3 <= len(held_out) <= 31, "15, give or take four standard deviations"
    assert held_out == [text.id for text in texts if made.side(text.id, 1 / 200) == "validation"]


def test_files_are_taken_by_name_hidden_ones_left_out_links_followed_and_a_single_one_alone(folder, tmp_path):
    groups = made.write(folder)
    (folder / "part").mkdir()
    (folder / "2.parquet").rename(tmp_path / "blob")
    (folder / "part" / "2.parquet").symlink_to(tmp_path / "blob")
    for name in (".hidden.parquet", "_temporary/0.parquet", "notes.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("x")
    groups["part/2.parquet"] = groups.pop("2.parquet")
    check(make(folder), groups)
    alone = sources.load(data_of(folder / "1.parquet"))
    assert [unit.name for unit in alone.units] == [f"1.parquet row group {n}" for n in range(3)]
    assert [text.id for text in alone.documents(2)] == [id for id, _ in groups["1.parquet"][2]]


def test_without_ids_a_document_is_known_by_its_file_and_row(folder):
    folder.mkdir()
    table = pyarrow.table({"body": ["a", "b", "c"]})
    pyarrow.parquet.write_table(table, folder / "x.parquet", row_group_size=2)
    source = sources.load(data_of(folder, text_feature="body"))
    assert [[(text.id, text.text) for text in source.documents(unit)] for unit in range(2)] == [
        [("x.parquet:0", "a"), ("x.parquet:1", "b")],
        [("x.parquet:2", "c")],
    ]


def test_the_fingerprint_follows_names_content_and_share_but_not_the_place(folder, tmp_path):
    made.write(folder)
    made.write(tmp_path / "copy")
    one = sources.load(data_of(folder)).fingerprint()
    assert sources.load(data_of(tmp_path / "copy")).fingerprint() == one
    assert sources.load(data_of(folder, held_out=None)).fingerprint() != one
    made.write(tmp_path / "copy", seed=1)
    assert sources.load(data_of(tmp_path / "copy")).fingerprint() != one
    (folder / "0.parquet").rename(folder / "00.parquet")
    assert sources.load(data_of(folder)).fingerprint() != one


# Damage


def cut(folder, groups):
    path = folder / "1.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    del groups["1.parquet"]
    return "1.parquet: cannot be read", 1


def empty(folder, groups):
    (folder / "1.parquet").write_bytes(b"")
    del groups["1.parquet"]
    return "1.parquet: cannot be read", 1


def overwrite_group(folder, groups):
    path = folder / "1.parquet"
    column = pyarrow.parquet.ParquetFile(path).metadata.row_group(1).column(1)
    start = column.dictionary_page_offset or column.data_page_offset
    content = bytearray(path.read_bytes())
    content[start : start + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    path.write_bytes(content)
    groups["1.parquet"][1] = []
    return "1.parquet row group 1: cannot be read", 1


def no_text(folder, groups):
    rows = groups["1.parquet"][1]
    rows[2] = (rows[2][0], None)
    made.write_file(folder / "1.parquet", groups["1.parquet"])
    return "1.parquet row 14: text is None, not a text", 1


def not_utf8(folder, groups):
    content = [
        [(id, b"caf\xe9" if (group, row) in ((0, 1), (2, 2)) else text.encode()) for row, (id, text) in enumerate(rows)]
        for group, rows in enumerate(groups["1.parquet"])
    ]
    made.write_file(folder / "1.parquet", content, pyarrow.binary())
    as_text(folder / "1.parquet")
    for group, row in ((0, 1), (2, 2)):
        groups["1.parquet"][group][row] = (groups["1.parquet"][group][row][0], None)
    return "1.parquet row 1: is not UTF-8 text", 2


def as_text(path: Path) -> None:
    """Make a file of bytes say that they are strings, which no check of the writer's is asked about."""
    table = pyarrow.parquet.ParquetFile(path)
    groups = [table.read_row_group(group) for group in range(table.num_row_groups)]
    schema = groups[0].schema.set(1, pyarrow.field("text", pyarrow.string()))
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        for group in groups:
            chunk = group["text"].combine_chunks()
            strings = pyarrow.Array.from_buffers(pyarrow.string(), len(chunk), chunk.buffers())
            writer.write_table(group.set_column(1, "text", strings))


def numbers(folder, groups):
    made.write_file(
        folder / "1.parquet", [[(id, 7) for id, _ in rows] for rows in groups["1.parquet"]], pyarrow.int64()
    )
    del groups["1.parquet"]
    return "1.parquet: column text is int64, not text", 1


@pytest.mark.parametrize("damage", [cut, empty, overwrite_group, no_text, not_utf8, numbers])
def test_damage_is_named_and_ends_the_work_or_is_left_out_and_counted(folder, damage):
    groups = made.write(folder)
    says, count = damage(folder, groups)
    with pytest.raises(RunError, match="--on-damage skip") as caught:
        make(folder)
    assert str(caught.value).startswith(says) and "\n" not in str(caught.value)
    assert not (folder.parent / "out").exists()
    dataset = make(folder, skip=True)
    check(dataset, groups)
    assert dataset.manifest["damaged"] == count
    where, what = dataset.manifest["damage"][0]
    assert f"{where}: {what}".startswith(says)


def test_of_much_damage_some_is_named_and_all_counted(folder):
    groups = made.write(folder, files=6)
    for file in groups.values():
        for rows in file[1:]:
            rows[:8] = [(id, None) for id, _ in rows[:8]]
    for name, file in groups.items():
        made.write_file(folder / name, file)
    dataset = make(folder, skip=True)
    check(dataset, groups)
    assert dataset.manifest["damaged"] == 6 * 2 * 8
    assert len(dataset.manifest["damage"]) == shards.NAMED


def test_files_without_the_column_are_a_wrong_setting(folder):
    made.write(folder)
    with pytest.raises(UsageError, match="0.parquet: no column 'txt', its texts are id, text; did you mean text?"):
        sources.load(data_of(folder, text_feature="txt"))


# The command


def test_the_command_says_what_it_left_out_and_how_fast_it_was(folder, capsys):
    groups = made.write(folder)
    cut(folder, groups)
    words = ["parquet", "--path", str(folder), "--window", "17", "--held-out", "0.3", "--workers", "1"]
    words += ["--out", str(folder.parent / "out")]
    assert command.main(words) == 1
    assert "1.parquet: cannot be read" in capsys.readouterr().err.splitlines()[-1]
    assert command.main([*words, "--on-damage", "skip"]) == 0
    printed = capsys.readouterr().out
    assert "1 damaged places" in printed and "1.parquet: cannot be read" in printed
    assert "MB/s" in printed and "tokens/s" in printed
    check(prepared.load(folder.parent / "out", data_of(folder)), groups)


def hub(monkeypatch, download) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(snapshot_download=download))


def test_fineweb_edu_comes_from_a_folder_or_from_the_hub(folder, monkeypatch, capsys):
    """The hub itself is out of reach of a test: its client is replaced."""
    groups = made.write(folder / "sample" / "10BT")
    made.write(folder / "data", seed=1)  # of another download
    asked = []
    hub(monkeypatch, lambda *words, **options: asked.append((words, options)) or str(folder))
    words = ["fineweb-edu", "--window", "17", "--held-out", "0.3", "--workers", "1", "--out"]
    assert command.main([*words, str(folder.parent / "hub")]) == 0
    (repository,), options = asked.pop()
    assert (repository, options["allow_patterns"]) == ("HuggingFaceFW/fineweb-edu", "sample/10BT/*.parquet")
    data = data_of(folder, source="fineweb-edu")
    check(prepared.load(folder.parent / "hub", data), groups)
    assert command.main([*words, str(folder.parent / "disk"), "--path", str(folder / "sample" / "10BT")]) == 0
    assert not asked, "nothing is downloaded when a path is given"
    one, other = ((folder.parent / out / "manifest.json").read_bytes() for out in ("disk", "hub"))
    assert one == other
    with pytest.raises(UsageError, match="data.prepared.*rove-prepare fineweb-edu .* --out DIR"):
        prepare.ensure(Data(source="fineweb-edu"))


def test_without_network_or_package_the_download_says_so(tmp_path, monkeypatch, capsys):
    def fails(*words, **options):
        raise ConnectionError("no route to host\nand more")

    hub(monkeypatch, fails)
    assert command.main(["fineweb-edu", "--out", str(tmp_path / "out")]) == 1
    assert "cannot be downloaded (no route to host)" in capsys.readouterr().err.splitlines()[-1]
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert command.main(["fineweb-edu", "--out", str(tmp_path / "out")]) == 2
    assert "pip install huggingface_hub" in capsys.readouterr().err.splitlines()[-1]
    assert not os.listdir(tmp_path)


def test_without_pyarrow_the_install_is_named(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "rove_jax.data.parquet")
    monkeypatch.setattr("rove_jax.data.parquet", None, raising=False)
    monkeypatch.delattr("rove_jax.data.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match="pip install pyarrow"):
        sources.load(data_of(tmp_path))
