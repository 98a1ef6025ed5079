"""Preparation: what is on the disk is exactly the text, in TFDS's form, and appears whole or not at all."""

import hashlib
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reference import text as oracle

from rove_jax.config import Data
from rove_jax.data import build, prepare, records, sources, tokenizers
from rove_jax.errors import RunError, UsageError

LENGTH = 16
EOT = 256


@pytest.fixture(scope="module")
def books(tmp_path_factory):
    folder = tmp_path_factory.mktemp("books")
    texts = oracle.write_books(folder)
    data = Data(source="files", path=str(folder), context_length=LENGTH, cache=str(folder.parent / "cache"))
    return texts, data, prepare.ensure(data)


def one_line(error: BaseException) -> str:
    assert "\n" not in str(error)
    return str(error)


# What is in it


def test_every_token_of_every_document_is_in_its_place(books):
    texts, _, dataset = books
    seen = []
    for split in ("train", "validation"):
        documents = dataset.documents(split)
        found = [documents[n] for n in range(len(documents))]
        for document in found:
            assert document.tokens.dtype == np.int32
            assert bytes(document.tokens.tolist()).decode() == texts[document.id]
        seen += [document.id for document in found]
        tokens = oracle.stream([document.tokens.tolist() for document in found], EOT)
        windows = dataset.windows(split)
        expected = oracle.windows(tokens, LENGTH)
        assert [windows[n].tolist() for n in range(len(windows))] == expected
        assert windows.rows([2, 0, 2]).tolist() == [expected[2], expected[0], expected[2]]
        assert windows[0].dtype == np.int32
        counts = dataset.manifest["splits"][split]
        assert counts["documents"] == len(found)
        assert counts["tokens"] == len(tokens)
        assert counts["windows"] == len(expected)
        assert counts["dropped_tail"] == len(tokens) - (len(expected) * LENGTH + 1)
        assert counts["text_bytes"] == len(tokens) - len(found)
    assert sorted(seen) == sorted(id for id, text in texts.items() if text)
    assert sum(counts["empty"] for counts in dataset.manifest["splits"].values()) == 1


def test_indices_outside_are_refused(books):
    windows = books[2].windows("train")
    for index in (len(windows), -1):
        with pytest.raises(IndexError):
            windows[index]
    with pytest.raises(UsageError, match="no records 'test_windows'; it has train_windows"):
        books[2].windows("test")


def test_tfds_reads_the_dataset_and_writes_the_same_bytes(books):
    import tensorflow_datasets as tfds

    _, _, dataset = books
    builder: Any = tfds.builder_from_directory(str(dataset.path))
    assert builder.info.file_format is tfds.core.FileFormat.ARRAY_RECORD
    assert list(builder.info.features) == [records.FEATURE]
    source = builder.as_data_source(split="train_windows")
    assert len(source) == len(dataset.windows("train"))
    assert np.frombuffer(source[3][records.FEATURE], "<u2").tolist() == dataset.windows("train")[3].tolist()
    # 128, 16,384 and 2,097,152 are where the lengths inside a message take one byte more.
    for size in [*range(140), *range(16_330, 16_390), *range(2_097_120, 2_097_156, 5)]:
        content = bytes(size)
        message = builder.info.features.serialize_example({records.FEATURE: content})
        assert records.frame(size) + content == message
        assert records.payload(message) == content


def test_a_record_of_another_form_is_refused():
    message = records.frame(5) + b"hello"
    for wrong in (message[:-1], message + b"x", b"", b"hello"):
        with pytest.raises(RunError, match="not an Example"):
            records.payload(wrong)


def test_several_files_read_as_one(tmp_path):
    contents = [bytes([n]) * 50 for n in range(11)]
    shards = []
    for index, part in enumerate((contents[:3], [], contents[3:10], contents[10:])):
        writer = records.Writer(tmp_path / records.file_name("train_windows", index, 4))
        for content in part:
            writer.write(content)
        writer.close()
        shards.append((writer.path.name, writer.count, writer.digest.hexdigest()))
    assert [count for _, count, _ in shards] == [3, 0, 7, 1]
    reader = records.Reader(tmp_path, "train_windows", shards)
    assert len(reader) == 11
    assert [records.payload(record) for record in reader.read([10, 0, 3, 2])] == [contents[n] for n in (10, 0, 3, 2)]


def test_the_hash_of_a_split_is_that_of_its_files():
    one, two = "1" * 64, "2" * 64
    assert records.combine([one]) == one
    assert records.combine([one, two]) == hashlib.sha256((one + two).encode()).hexdigest()
    assert records.combine([two, one]) != records.combine([one, two])


# Which documents validate


def test_a_document_keeps_its_side_when_others_come_and_go():
    ids = [f"{n}.txt" for n in range(400)]
    held_out = sources.hashed_out(ids)
    assert 8 <= len(held_out) <= 36, "a twentieth of 400, give or take four standard deviations"
    assert sources.hashed_out(ids[:200]) == held_out & set(ids[:200])
    assert sources.hashed_out(reversed(ids)) == held_out


@pytest.mark.parametrize("count", [2, 3, 5])
def test_few_documents_leave_no_side_empty(count):
    for start in range(50):
        held_out = sources.hashed_out([f"{n}.txt" for n in range(start, start + count)])
        assert 1 <= len(held_out) < count


def test_documents_that_would_all_be_held_out_leave_one_for_training():
    share = {id: hashlib.sha256(id.encode()).digest() for id in map(str, range(200))}
    both = [id for id in share if share[id][0] < 256 // 20][:2]
    assert len(both) == 2, "two ids in the lowest twentieth"
    assert sources.hashed_out(both) == {min(both, key=share.__getitem__)}


def test_a_single_file_is_cut_at_a_line(tmp_path):
    text = "".join(f"line {n}\n" for n in range(100))
    (tmp_path / "book.txt").write_text(text)
    for path in (tmp_path, tmp_path / "book.txt"):
        train, held_out = sources.load(Data(source="files", path=str(path))).documents()
        assert (train.split, held_out.split) == ("train", "validation")
        assert train.text + held_out.text == text
        assert held_out.text.startswith("line 9")
        assert 0.09 < len(held_out.text) / len(text) < 0.12


@pytest.mark.parametrize(
    "make, says",
    [
        (lambda folder: None, "no such file or folder"),
        (lambda folder: folder.mkdir(), "no .txt or .md file"),
        (lambda folder: folder.write_bytes(b"caf\xe9"), "byte 3 is not UTF-8"),
        (lambda folder: folder.write_text("short"), "the train split has 5 tokens, too few for one window of 17"),
    ],
)
def test_what_is_wrong_with_the_text_is_said(tmp_path, make, says):
    make(tmp_path / "text")
    data = Data(source="files", path=str(tmp_path / "text"), context_length=LENGTH, cache=str(tmp_path / "cache"))
    with pytest.raises(UsageError, match=says) as caught:
        prepare.ensure(data)
    one_line(caught.value)
    assert not list(tmp_path.glob("cache/*")), "nothing half-written"


# The cache


def test_the_key_follows_content_tokenizer_and_length_but_not_the_place(books, tmp_path):
    texts, data, dataset = books
    oracle.write_books(tmp_path / "copy")
    tokenizer = tokenizers.load(data)

    def key(path, tokenizer=tokenizer, length=LENGTH):
        return build.identify(sources.load(Data(source="files", path=str(path))), tokenizer, length)

    other = tokenizers.ByteTokenizer()
    other.identity = "another"
    assert key(tmp_path / "copy") == dataset.manifest["key"]
    assert key(tmp_path / "copy", length=LENGTH + 1) != dataset.manifest["key"]
    assert key(tmp_path / "copy", tokenizer=other) != dataset.manifest["key"]
    (tmp_path / "copy" / "00.txt").rename(tmp_path / "copy" / "00a.txt")
    assert key(tmp_path / "copy") != dataset.manifest["key"]
    (tmp_path / "copy" / "00a.txt").rename(tmp_path / "copy" / "00.txt")
    with (tmp_path / "copy" / "00.txt").open("a") as file:
        file.write("!")
    assert key(tmp_path / "copy") != dataset.manifest["key"]


def test_a_second_call_reads_what_the_first_prepared(books, monkeypatch):
    _, data, dataset = books
    monkeypatch.setattr(build, "dataset", None)
    again = prepare.ensure(data)
    assert (again.path, again.fingerprint) == (dataset.path, dataset.fingerprint)


def test_the_fingerprint_is_that_of_the_records(books, tmp_path):
    _, data, dataset = books
    same = prepare.ensure(Data(source="files", path=data.path, context_length=LENGTH, cache=str(tmp_path)))
    assert same.fingerprint == dataset.fingerprint
    oracle.write_books(tmp_path / "other", seed=1)
    other = prepare.ensure(
        Data(source="files", path=str(tmp_path / "other"), context_length=LENGTH, cache=str(tmp_path))
    )
    assert other.fingerprint != dataset.fingerprint


def test_threads_that_ask_at_once_prepare_once(books, tmp_path, monkeypatch):
    _, data, dataset = books
    data = Data(source="files", path=data.path, context_length=LENGTH, cache=str(tmp_path))
    written, found, fill = [], [], build.fill
    monkeypatch.setattr(build, "fill", lambda *arguments: (written.append(1), fill(*arguments)))
    threads = [threading.Thread(target=lambda: found.append(prepare.ensure(data))) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(written) == 1
    assert [one.fingerprint for one in found] == [dataset.fingerprint] * 5
    assert [path.name for path in tmp_path.iterdir()] == [found[0].path.name], "no lock or partial folder stays"


def test_a_large_source_is_not_prepared_on_the_way(books, tmp_path, monkeypatch):
    _, data, _ = books
    monkeypatch.setattr(prepare, "SMALL", 1000)
    data = Data(source="files", path=data.path, context_length=LENGTH, cache=str(tmp_path))
    with pytest.raises(UsageError, match=r"too much.*rove-prepare files --path .* --window 17 --out DIR"):
        prepare.ensure(data)


LIMITED = """
import resource, sys
from pathlib import Path
from rove_jax.data import records
folder = Path(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
if len(sys.argv) > 2:
    records.stay_open = lambda files: None
reader = records.Reader(folder, "train_windows", [(records.file_name("train_windows", n, 100), 1) for n in range(100)])
print([records.payload(record)[0] for record in reader.read(range(100))] == list(range(100)))
"""


def test_more_files_than_a_process_may_open_at_first(tmp_path):
    for index in range(100):
        writer = records.Writer(tmp_path / records.file_name("train_windows", index, 100))
        writer.write(bytes([index]) * 20)
        writer.close()
    root = Path(__file__).resolve().parent.parent
    words = [sys.executable, "-c", LIMITED, str(tmp_path)]
    done, not_raised = (
        subprocess.run([*words, *more], cwd=root, capture_output=True, text=True) for more in ([], ["x"])
    )
    assert done.stdout == "True\n", done.stderr
    assert not_raised.returncode, "the limit is one"
