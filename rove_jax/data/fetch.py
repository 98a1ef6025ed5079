"""Shards of a prepared dataset in a bucket, brought to a disk of this machine: array_record reads no other place."""

import concurrent.futures
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from rove_jax.config import Data
from rove_jax.data import records
from rove_jax.data.lock import locked
from rove_jax.distributed import screen
from rove_jax.errors import RunError

AT_A_TIME = 4
"""Files that are in memory at once."""


def cache_folder(data: Data) -> Path:
    """Where small sources are prepared, and what is fetched is kept: `data.cache`, or the user's cache folder."""
    if data.cache is not None:
        return Path(data.cache).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rove_jax" / "data"


def fetch(source: Path, manifest: dict[str, Any], kind: str, cache: Path) -> Path:
    """The folder in `cache` with the files of one kind of the dataset in `source`, which are fetched now if need be.

    Any number of processes may ask for them: one fetches, the others wait. A file is there when it is what `manifest`
    says, record by record. Raises `RunError` if it is not, if the storage does not answer or if the disk is full.
    """
    folder = cache / f"{source.name}-{manifest['fingerprint']}"
    shards, sizes = manifest["shards"][kind], manifest["files"]

    def missing() -> list[Sequence[Any]]:
        files = [(folder / name, sizes[name]) for name, *_ in shards]
        return [
            shard for shard, (file, size) in zip(shards, files) if not (file.is_file() and file.stat().st_size == size)
        ]

    if not missing():
        return folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder, progress=True):
            wanted = missing()
            with (
                tqdm(
                    desc=f"fetching {kind}", total=sum(sizes[name] for name, *_ in wanted), unit="B", unit_scale=True,
                    disable=None, leave=False, **screen(),
                ) as bar,
                concurrent.futures.ThreadPoolExecutor(AT_A_TIME) as pool,
            ):  # fmt: skip
                for _ in pool.map(lambda shard: fetch_one(source, folder, kind, shard, bar.update), wanted):
                    pass
    except OSError as error:
        raise RunError(
            f"{source}: cannot be fetched to {folder} ({error.strerror or error}); see data.cache"
        ) from error
    return folder


def fetch_one(source: Path, folder: Path, kind: str, shard: Sequence[Any], report: Callable[[int], object]) -> None:
    """Fetch one file, given by its name, number of records and hash of their payloads."""
    name, count, wanted = shard
    draft = folder / f"{name}.{os.getpid()}"
    try:
        try:
            content = (source / name).read_bytes()
        except FileNotFoundError as error:
            raise RunError(f"{source / name}: is missing; delete the dataset and prepare it again") from error
        draft.write_bytes(content)
        try:
            found = records.digest(folder, kind, draft.name, count)
        except RunError:
            found = "none"
        if found != wanted:
            raise RunError(f"{source / name}: differs from its manifest; delete the dataset and prepare it again")
        draft.replace(folder / name)
    finally:
        draft.unlink(missing_ok=True)
    report(len(content))
