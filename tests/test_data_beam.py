"""Preparation by Apache Beam, on its local runner: the files that the workers of one machine write."""

import pytest

pytest.importorskip("apache_beam", reason="apache-beam is not installed (extra: beam)")

from reference import parquet as made

from rove_jax.cli import prepare as command
from rove_jax.config import Data
from rove_jax.data import prepared, shards

DATA = Data(source="parquet", path="anywhere", context_length=16)


@pytest.fixture
def words(tmp_path, monkeypatch) -> list[str]:
    """The command line that prepares files of several pieces, but for who does it and where to."""
    monkeypatch.setattr(shards, "PIECE_BYTES", 1500)
    made.write(tmp_path / "files")
    return ["parquet", "--path", str(tmp_path / "files"), "--window", "17", "--held-out", "0.3"]


def test_beam_writes_what_the_workers_write_and_tfds_reads_it(words, tmp_path, capsys):
    import tensorflow_datasets as tfds

    assert command.main([*words, "--workers", "2", "--out", str(tmp_path / "workers")]) == 0
    assert command.main([*words, "--beam", "runner=DirectRunner", "--out", str(tmp_path / "beam")]) == 0
    one, other = ({path.name: path.read_bytes() for path in (tmp_path / by).iterdir()} for by in ("workers", "beam"))
    assert one == other
    dataset = prepared.load(tmp_path / "beam", DATA)
    assert len(dataset.manifest["shards"]["train_windows"]) > 2
    source = tfds.builder_from_directory(str(tmp_path / "beam")).as_data_source(split="train_windows")
    assert len(source) == len(dataset.windows("train"))


def test_an_error_in_an_element_is_one_line_and_the_next_call_goes_on(words, tmp_path, capsys):
    whole = (tmp_path / "files" / "2.parquet").read_bytes()
    (tmp_path / "files" / "2.parquet").write_bytes(whole[:-1])
    beam = [*words, "--beam", "runner=DirectRunner", "--out", str(tmp_path / "out")]
    assert command.main(beam) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("error: ") and "2.parquet: cannot be read" in line
    assert not (tmp_path / "out").exists()
    assert command.main([*beam, "--on-damage", "skip"]) == 0
    assert prepared.load(tmp_path / "out", DATA).manifest["damaged"] == 1


def test_a_wrong_option_of_the_pipeline_is_said(words, tmp_path, capsys):
    assert command.main([*words, "--beam", "runner=NoSuchRunner", "--out", str(tmp_path / "out")]) == 2
    assert "NoSuchRunner" in capsys.readouterr().err.splitlines()[-1]
