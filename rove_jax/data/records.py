"""Records on disk: `tf.train.Example` messages with one bytes feature, in ArrayRecord files, as TFDS lays them out.

One bytes feature, because decoding it needs neither TensorFlow nor a protobuf library: its bytes are the end of the
message. The content of a record is called its payload here.
"""

import functools
import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rove_jax.errors import RunError

FEATURE = "record"
DATASET = "rove_text"
SHARD_BYTES = 2**30
"""A file is closed when it holds this much."""
EXAMPLE, FEATURES, KEY, VALUE, BYTES_LIST, ITEM = 0x0A, 0x0A, 0x0A, 0x12, 0x0A, 0x0A
"""Protobuf tags (field number x 8 + wire type 2) on the way from an Example down to its bytes."""


@functools.lru_cache
def frame(size: int) -> bytes:
    """What precedes a payload of `size` bytes in a serialized `tf.train.Example` with the one feature `record`."""
    bytes_list = bytes([ITEM]) + varint(size)
    value = bytes([BYTES_LIST]) + varint(len(bytes_list) + size) + bytes_list
    entry = bytes([KEY]) + varint(len(FEATURE)) + FEATURE.encode()
    entry += bytes([VALUE]) + varint(len(value) + size) + value
    features = bytes([FEATURES]) + varint(len(entry) + size) + entry
    return bytes([EXAMPLE]) + varint(len(features) + size) + features


def varint(value: int) -> bytes:
    """Base 128, lowest digits first, the high bit set on all but the last."""
    digits = []
    while value >= 128:
        digits.append(value & 127 | 128)
        value >>= 7
    return bytes([*digits, value])


def payload(record: bytes) -> bytes:
    """The payload of a record. Raises `RunError` if the record is not of this form."""
    # The frame is a few bytes longer for each power of 128 in the size; its own length settles which one it was.
    for length in range(len(frame(0)), len(frame(len(record))) + 1):
        size = len(record) - length
        if size >= 0 and record.startswith(frame(size)) and len(frame(size)) == length:
            return record[length:]
    raise RunError(f"a record of {len(record)} bytes is not an Example with the one bytes feature {FEATURE!r}")


class Shard(NamedTuple):
    """A file of records, whole, in the form of TFDS's file instructions."""

    filename: str
    examples_in_shard: int

    @property
    def skip(self) -> int:
        return 0

    @property
    def take(self) -> int:
        return self.examples_in_shard


class Writer:
    """Writes the records of one TFDS split, in order, into as many files as they need.

    A failed write (a full disk) raises `RunError`; what was written is then good for nothing and left to the caller.
    """

    def __init__(self, folder: Path, split: str, shard_bytes: int = SHARD_BYTES) -> None:
        self.folder, self.split, self.shard_bytes = folder, split, shard_bytes
        self.digest = hashlib.sha256()
        self.counts: list[int] = []
        self.bytes = 0
        self.room = 0
        self.file: Any = None

    def write(self, payload: bytes) -> None:
        if self.room <= 0:
            self.next_shard()
        add_to(self.digest, payload)
        record = frame(len(payload)) + payload
        self.attempt("write", record)
        self.counts[-1] += 1
        self.bytes += len(record)
        self.room -= len(record)

    def next_shard(self) -> None:
        from array_record.python.array_record_module import ArrayRecordWriter

        self.end_shard()
        # One record per compressed chunk: any record is then read without its neighbours.
        self.file = ArrayRecordWriter(str(self.folder / f"{self.split}.{len(self.counts)}"), "group_size:1")
        self.counts.append(0)
        self.room = self.shard_bytes

    def end_shard(self) -> None:
        if self.file is not None:
            self.attempt("close")
            self.file = None

    def attempt(self, method: str, *arguments: bytes) -> None:
        try:
            getattr(self.file, method)(*arguments)
        except RuntimeError as error:  # array_record's only error; its text begins with the operating system's
            raise RunError(
                f"{self.folder}: {first_clause(error)}; make room, or choose another folder with data.cache or --out"
            ) from error

    def close(self) -> list[Shard]:
        """Finish the files, name them as TFDS does (which needs their number), put them on disk and return them."""
        self.end_shard()
        shards = []
        for index, count in enumerate(self.counts):
            path = self.folder / f"{self.split}.{index}"
            name = f"{DATASET}-{self.split}.array_record-{index:05d}-of-{len(self.counts):05d}"
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            path.rename(self.folder / name)
            shards.append(Shard(name, count))
        return shards


class Reader:
    """The records of one TFDS split by index. Files are opened when first read."""

    def __init__(self, folder: Path, split: str, shards: Sequence[tuple[str, int]]) -> None:
        self.folder, self.split = folder, split
        self.shards = [Shard(str(folder / name), count) for name, count in shards]
        self.count = sum(shard.take for shard in self.shards)

    def __len__(self) -> int:
        return self.count

    @functools.cached_property
    def source(self) -> Any:
        # grain's class of this name only adds metrics to it, and takes half a second to import.
        from array_record.python.array_record_data_source import ArrayRecordDataSource

        shards: Any = self.shards  # a read-only form of its protocol FileInstruction, which spares it counting records
        return ArrayRecordDataSource(shards)

    def read(self, indices: Iterable[int]) -> Sequence[bytes]:
        """The records at `indices`, each in [0, len). Raises `RunError` where a file is damaged or has gone."""
        wanted = [int(index) for index in indices]
        for index in wanted:
            if not 0 <= index < self.count:
                raise IndexError(f"record {index} of {self.count}")
        try:
            return self.source.__getitems__(wanted) if wanted else []
        except (RuntimeError, IndexError, ValueError) as error:  # what array_record makes of a file it cannot read
            raise RunError(
                f"{self.folder}: {self.split} cannot be read ({first_clause(error)}); "
                f"delete the folder and prepare it again"
            ) from error


def first_clause(error: Exception) -> str:
    """What array_record says went wrong, without the trail of places it adds after semicolons."""
    return str(error).partition(";")[0]


def add_to(digest: Any, payload: bytes) -> None:
    """Add a payload to the hash of its split: its size as 8 bytes, lowest first, then itself."""
    digest.update(len(payload).to_bytes(8, "little") + payload)


def write_metadata(folder: Path, splits: dict[str, tuple[Sequence[int], int]], description: str) -> None:
    """Write the `dataset_info.json` and `features.json` by which TFDS knows the dataset.

    splits: split name -> (records per file, bytes in all).
    """
    import tensorflow_datasets as tfds  # a third of a second, which reading does not pay

    tfds.folder_dataset.write_metadata(
        data_dir=str(folder),
        features=tfds.features.FeaturesDict({FEATURE: tfds.features.Scalar(dtype=np.object_)}),  # TFDS's word for bytes
        split_infos=[
            tfds.core.SplitInfo(name=name, shard_lengths=list(counts), num_bytes=size)
            for name, (counts, size) in splits.items()
        ],
        version="1.0.0",
        description=description,
        check_data=False,  # which would read through TensorFlow
    )
