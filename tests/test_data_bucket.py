"""Parquet files in gs://, against a server that answers as the storage service does. Not tried on the real one."""

from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra: parquet)")

from reference import bucket
from reference import parquet as made

from rove_jax.config import Data
from rove_jax.data import build, parquet, prepared, shards, sources
from rove_jax.errors import RunError, UsageError


@pytest.fixture
def address(tmp_path, monkeypatch):
    """What comes after gs://anonymous@bucket/..., for a bucket that holds `tmp_path`/bucket."""
    monkeypatch.setattr(shards, "PIECE_BYTES", 1500)
    monkeypatch.setattr(parquet, "RETRY", 2)
    made.write(tmp_path / "bucket" / "files")
    with bucket.served(tmp_path / "bucket") as port:
        yield f"?endpoint_override=127.0.0.1:{port}&scheme=http"


def make(path: str, out: Path, *, skip: bool = False) -> prepared.Prepared:
    data = Data(source="parquet", path=path, context_length=16, held_out=0.3)
    source = sources.load(data)
    key = build.identify(source, build.tokenizers.load(data), 16)
    build.dataset(source, data, out, key=key, skip_damage=skip)
    return prepared.load(out, data)


def test_a_bucket_is_prepared_as_a_folder_is(address, tmp_path):
    make(str(tmp_path / "bucket" / "files"), tmp_path / "disk")
    make(f"gs://anonymous@bucket/files{address}", tmp_path / "cloud")
    one, other = ({path.name: path.read_bytes() for path in (tmp_path / out).iterdir()} for out in ("disk", "cloud"))
    assert one == other
    with pytest.raises(UsageError, match="gs://.*no such file or folder"):
        make(f"gs://anonymous@bucket/nothing{address}", tmp_path / "nothing")


@pytest.mark.slow
def test_a_bucket_that_does_not_answer_is_no_damage(address, tmp_path):
    """Or leaving damage out would leave out whatever the network lost."""
    path = f"gs://anonymous@bucket/files{address}"
    data = Data(source="parquet", path=path, context_length=16, held_out=0.3)
    source = sources.load(data)
    (tmp_path / "bucket" / bucket.FAULT).write_text("503")
    with pytest.raises(RunError, match="0.parquet row group 0: .*the same command goes on"):
        build.dataset(source, data, tmp_path / "out", key="k", skip_damage=True)
    with pytest.raises(UsageError, match="data.path = 'gs://"):
        make(path, tmp_path / "out")
    (tmp_path / "bucket" / bucket.FAULT).unlink()
    assert make(path, tmp_path / "out", skip=True).manifest["damaged"] == 0
