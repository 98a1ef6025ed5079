"""Records on disk: `tf.train.Example` messages with one bytes feature, in ArrayRecord files, as TFDS lays them out.

One bytes feature, because decoding it needs neither TensorFlow nor a protobuf library: its bytes are the end of the
message. The content of a record is called its payload here.
"""

import functools
import hashlib
import os
import resource
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rove_jax.errors import RunError

FEATURE = "record"
DATASET = "rove_text"
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
    """Writes records, in order, into the new file `path`.

    A failed write (a full disk) raises `RunError`; what was written is then good for nothing and left to the caller.
    """

    def __init__(self, path: Path) -> None:
        from array_record.python.array_record_module import ArrayRecordWriter

        self.path = path
        self.digest = hashlib.sha256()
        self.count = self.bytes = 0
        # One record per compressed chunk: any record is then read without its neighbours.
        self.file = ArrayRecordWriter(str(path), "group_size:1")

    def write(self, payload: bytes) -> None:
        add_to(self.digest, payload)
        record = frame(len(payload)) + payload
        self.attempt("write", record)
        self.count += 1
        self.bytes += len(record)

    def attempt(self, method: str, *arguments: bytes) -> None:
        try:
            getattr(self.file, method)(*arguments)
        except RuntimeError as error:  # array_record's only error; its text begins with the operating system's
            raise RunError(
                f"{self.path.parent}: {first_clause(error)}; make room, or choose another folder with data.cache or "
                f"--out"
            ) from error

    def close(self) -> None:
        """Finish the file and see to it that it is on the disk."""
        self.attempt("close")
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def file_name(split: str, index: int, count: int) -> str:
    """The name of file `index` of the `count` files of a TFDS split."""
    return f"{DATASET}-{split}.array_record-{index:05d}-of-{count:05d}"


class Reader:
    """The records of one TFDS split by index. Files are opened when first read."""

    def __init__(self, folder: Path, split: str, shards: Sequence[Sequence[Any]]) -> None:
        """shards: name and number of records of each file; what else there is of one is not looked at."""
        self.folder, self.split = folder, split
        self.shards = [Shard(str(folder / name), count) for name, count, *_ in shards]
        self.count = sum(shard.take for shard in self.shards)

    def __len__(self) -> int:
        return self.count

    @functools.cached_property
    def source(self) -> Any:
        # grain's class of this name only adds metrics to it, and takes half a second to import.
        from array_record.python.array_record_data_source import ArrayRecordDataSource

        stay_open(len(self.shards))
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


def stay_open(files: int) -> None:
    """Let this process have so many more files open at once, if the system permits it: a reader keeps its own."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY:
        most = soft + files if hard == resource.RLIM_INFINITY else min(soft + files, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def first_clause(error: Exception) -> str:
    """What array_record says went wrong, without the trail of places it adds after semicolons."""
    return str(error).partition(";")[0]


def add_to(digest: Any, payload: bytes) -> None:
    """Add a payload to the hash of its split: its size as 8 bytes, lowest first, then itself."""
    digest.update(len(payload).to_bytes(8, "little") + payload)


def digest(folder: Path, split: str, name: str, count: int) -> str:
    """The hash (hexadecimal) of the payloads of the `count` records of a file. Raises `RunError` if it is damaged."""
    found, reader = hashlib.sha256(), Reader(folder, split, [(name, count)])
    for start in range(0, count, 1024):
        for record in reader.read(range(start, min(start + 1024, count))):
            add_to(found, payload(record))
    return found.hexdigest()


def combine(digests: Sequence[str]) -> str:
    """The hash of a split, of those of its files in order, all in hexadecimal; of a single file it is the file's."""
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()


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
