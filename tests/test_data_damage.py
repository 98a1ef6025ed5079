"""Preparation that is killed or finds no room, and datasets that are missing or damaged: one line, no halves."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from reference import text as oracle

from rove_jax.config import Data
from rove_jax.data import build, prepare, prepared, sources
from rove_jax.errors import RunError, UsageError

LENGTH = 16


@pytest.fixture(scope="module")
def books(tmp_path_factory):
    folder = tmp_path_factory.mktemp("books")
    texts = oracle.write_books(folder)
    data = Data(source="files", path=str(folder), context_length=LENGTH, cache=str(folder.parent / "cache"))
    return texts, data, prepare.ensure(data)


def one_line(error: BaseException) -> str:
    assert "\n" not in str(error)
    return str(error)


# Interrupted


KILLED = """
import os, signal, sys
from rove_jax.config import Data
from rove_jax.data import build, sources
real = sources.TextFiles.documents
def documents(self, unit=0):
    for n, text in enumerate(real(self)):
        if n == 25:
            os.kill(os.getpid(), signal.SIGKILL)
        yield text
source = sources.load(Data(source="files", path=sys.argv[1]))
key = source.fingerprint
sources.TextFiles.documents = documents
source.fingerprint = lambda: "x"
from pathlib import Path
build.dataset(source, Data(context_length=16), Path(sys.argv[2]), key="k")
"""


def test_a_killed_preparation_leaves_nothing_that_is_accepted(books, tmp_path):
    _, data, dataset = books
    folder = tmp_path / "out"
    done = subprocess.run([sys.executable, "-c", KILLED, data.path, str(folder)], env=environment())
    assert done.returncode == -signal.SIGKILL
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [".out.lock", ".out.partial"], "the kill came while it was writing"
    with pytest.raises(UsageError, match="no prepared dataset"):
        prepared.load(folder, data)
    source = sources.load(data)
    build.dataset(source, data, folder, key="k")
    assert prepared.load(folder, data).fingerprint == dataset.fingerprint
    assert [path.name for path in tmp_path.iterdir()] == ["out"], "what the killed one left is cleared away"


def environment(**more: str) -> dict[str, str]:
    root = str(Path(__file__).resolve().parent.parent)
    return os.environ | {"PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])} | more


LIMITED = """
import resource, sys
from rove_jax.cli import prepare
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
sys.exit(prepare.main(sys.argv[1:]))
"""


def test_a_full_disk_is_one_line_and_leaves_nothing(books, tmp_path):
    """A limit on the size of files fails writes as a full disk does, and needs no disk to fill."""
    _, data, _ = books
    arguments = ["files", "--path", str(data.path), "--window", "17", "--out", str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, *arguments],
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: ")
    assert "File too large" in done.stderr.splitlines()[-1]
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_one_line(books, tmp_path):
    _, data, _ = books
    (tmp_path / "file").write_text("")
    data = Data(source="files", path=data.path, context_length=LENGTH, cache=str(tmp_path / "file"))
    with pytest.raises(RunError, match="cannot be written.*data.cache") as caught:
        prepare.ensure(data)
    one_line(caught.value)


def test_a_folder_of_something_else_is_left_alone(books, tmp_path):
    _, data, _ = books
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(UsageError, match="holds something else"):
        build.dataset(sources.load(data), data, tmp_path, key="k")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


# Missing and damaged datasets


def copy(dataset, tmp_path) -> Path:
    for path in dataset.path.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def test_a_missing_dataset_is_named_with_the_command_that_makes_it(tmp_path):
    data = Data(source="sotu", context_length=64, prepared=str(tmp_path / "nowhere"))
    with pytest.raises(UsageError) as caught:
        prepare.ensure(data)
    message = one_line(caught.value)
    command = "rove-prepare sotu --tokenizer bytes --window 65 --out {}"
    for part in ("'sotu'", str(tmp_path / "nowhere"), "ArrayRecord", command.format(tmp_path / "nowhere")):
        assert part in message


def truncate(folder, shard):
    shard.write_bytes(shard.read_bytes()[:-1])


def unlist(folder, shard):
    (folder / "manifest.json").write_text('{"format": ')


def age(folder, shard):
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"format": 0}))


def edit(folder, shard):
    text = (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text(text.replace('"eot": 256', '"eot": 255'))


@pytest.mark.parametrize(
    "damage, says",
    [
        (edit, "damaged: was changed"),
        (truncate, "damaged: has [0-9]+ bytes and should have [0-9]+"),
        (lambda folder, shard: shard.unlink(), "damaged: is missing"),
        (unlist, "damaged"),
        (age, "has format 0"),
        (lambda folder, shard: (folder / "manifest.json").write_text("[]"), "has format None"),
    ],
)
def test_damage_is_seen_at_the_start(books, tmp_path, damage, says):
    _, data, dataset = books
    folder = copy(dataset, tmp_path)
    damage(folder, folder / dataset.manifest["shards"]["train_windows"][0][0])
    with pytest.raises(UsageError, match=says + ".*with: rove-prepare files --path ") as caught:
        prepared.load(folder, data)
    one_line(caught.value)
    # A recipe that names the folder need not name what it was made from, which is `sotu` then.
    named = dataclasses.replace(data, source="sotu", path=None, prepared=str(folder))
    made = "" if damage is unlist or says.endswith("None") else r", from books\d+"
    with pytest.raises(UsageError, match=f"{says}.*with the rove-prepare command that made it{made}$"):
        prepare.ensure(named)


def test_a_changed_byte_is_seen_when_it_is_read(books, tmp_path):
    _, data, dataset = books
    prepared.verify(dataset)
    folder = copy(dataset, tmp_path)
    shard = folder / dataset.manifest["shards"]["train_windows"][0][0]
    content = bytearray(shard.read_bytes())
    content[200] ^= 1  # in one of the first records
    shard.write_bytes(content)
    damaged = prepared.load(folder, data)
    with pytest.raises(RunError, match="cannot be read.*prepare it again") as caught:
        for n in range(len(damaged.windows("train"))):
            damaged.windows("train")[n]
    one_line(caught.value)
    with pytest.raises(RunError):
        prepared.verify(damaged)


def test_verify_compares_with_the_manifest(books, tmp_path):
    _, data, dataset = books
    manifest = prepared.load(copy(dataset, tmp_path), data).manifest
    manifest["shards"]["train_documents"][0][2] = "0" * 64
    with pytest.raises(RunError, match="train_documents.array_record-00000-of-00001: differs"):
        prepared.verify(prepared.Prepared(tmp_path, manifest))


@pytest.mark.parametrize("field, value", [("context_length", 32), ("tokenizer", "gpt2")])
def test_a_dataset_of_other_settings_is_refused(books, field, value):
    _, _, dataset = books
    data = Data(**({"source": "sotu", "context_length": LENGTH, "prepared": str(dataset.path)} | {field: value}))
    with pytest.raises(UsageError, match=f"data.{field} = {value!r}"):
        prepare.ensure(data)
