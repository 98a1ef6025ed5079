"""A prepared dataset on disk, opened for reading: windows for training, whole documents for long contexts."""

import json
import shlex
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rove_jax import storage
from rove_jax.config import Data, fingerprint
from rove_jax.data import order
from rove_jax.data.fetch import cache_folder, fetch
from rove_jax.data.records import Reader, digest, frame, payload
from rove_jax.errors import RunError, UsageError

FORMAT = 3
"""Changes whenever equal sources would be prepared into other records or another manifest; others are refused."""
MANIFEST = "manifest.json"
HEAD = struct.Struct("<I")
"""What a document's record begins with: the size of its id."""
READ = 256
"""Documents read at once when all are looked at."""


class Document(NamedTuple):
    """A whole document: its id in the source, and its tokens, int32 [T], with no end of text."""

    id: str
    tokens: np.ndarray


class Prepared:
    """A folder that preparation finished. `manifest` says what is in it; see `build.finish` for its keys.

    One in a bucket is read from copies in `cache`, which are made kind by kind when they are first asked for.
    """

    def __init__(self, path: Path, manifest: dict[str, Any], cache: Path | None = None) -> None:
        self.path, self.manifest, self.cache = path, manifest, cache

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the decoded records, in order: equal fingerprints train equally."""
        return self.manifest["fingerprint"]

    @property
    def context_length(self) -> int:
        return self.manifest["context_length"]

    def windows(self, split: str) -> "Windows":
        """The windows of `split`, "train" or "validation"."""
        return Windows(self, split)

    def documents(self, split: str) -> "Documents":
        """The whole documents of `split`, "train" or "validation". For training a source of parquet files has long
        ones alone, of `parquet.LONG` tokens and more; else there is every one."""
        return Documents(self, split)

    def about(self, examples: int) -> str:
        """What there is to train on, and how often a run of so many examples reads it."""
        counts = self.manifest["splits"]["train"]
        amount = f"{counts['documents']:,} documents, {counts['tokens']:,} tokens"
        return f"{self.path}: {amount}, read {examples / counts['windows']:.2g} times"

    def reader(self, name: str) -> Reader:
        """The records of the TFDS split `name`, such as "train_windows"."""
        shards = self.manifest["shards"]
        if name not in shards:
            raise UsageError(f"{self.path}: no records {name!r}; it has {', '.join(shards)}")
        return Reader(self.disk(name), name, shards[name])

    def disk(self, kind: str) -> Path:
        """The folder on a disk with the files of the TFDS split `kind`."""
        return self.path if self.cache is None else fetch(self.path, self.manifest, kind, self.cache)


class Windows:
    """Training windows by index: int32 [context_length + 1] each."""

    def __init__(self, dataset: Prepared, split: str) -> None:
        self.reader = dataset.reader(f"{split}_windows")
        self.dtype = np.dtype(dataset.manifest["token_dtype"])
        self.length = dataset.context_length + 1
        self.frame = frame(self.length * self.dtype.itemsize)

    def __len__(self) -> int:
        return len(self.reader)

    def __getitem__(self, index: int) -> np.ndarray:
        return self.rows([index])[0]

    def places(self, examples: np.ndarray, seed: int) -> np.ndarray:
        """The index of the window that each training example is, int64, same shape; see `order.records`."""
        return order.records(examples, size=len(self), seed=seed)

    def spread(self, count: int) -> np.ndarray:
        """The indices of `count` windows, or of all if there are fewer, evenly spread over them: int64."""
        count = min(count, len(self))
        return np.arange(count) * len(self) // max(count, 1)

    def rows(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """The windows at `indices`, int32 [len(indices), context_length + 1]; one read for all of them."""
        rows = np.empty((len(indices), self.length), np.int32)
        size = len(self.frame) + self.length * self.dtype.itemsize
        for row, record in zip(rows, self.reader.read(indices)):
            if len(record) != size or not record.startswith(self.frame):
                raise RunError(f"{self.reader.folder}: a record is no window of {self.length} tokens; prepare it again")
            row[:] = np.frombuffer(record, self.dtype, offset=len(self.frame))
        return rows


class Documents:
    """Whole documents by index."""

    def __init__(self, dataset: Prepared, split: str) -> None:
        self.reader = dataset.reader(f"{split}_documents")
        self.dtype = np.dtype(dataset.manifest["token_dtype"])

    def __len__(self) -> int:
        return len(self.reader)

    def __getitem__(self, index: int) -> Document:
        return unpack(payload(self.reader.read([index])[0]), self.dtype)

    def lengths(self) -> np.ndarray:
        """How many tokens each document has, int32 [len]: all are read, many at once, but none is made an array."""
        found = np.empty(len(self), np.int32)
        for start in range(0, len(self), READ):
            stop = min(start + READ, len(self))
            for index, record in zip(range(start, stop), self.reader.read(range(start, stop))):
                content = payload(record)
                found[index] = (len(content) - HEAD.size - HEAD.unpack_from(content)[0]) // self.dtype.itemsize
        return found


def pack(document: Document, dtype: np.dtype) -> bytes:
    """The payload of a document: the size of its id (uint32), the id in UTF-8, the tokens; little-endian."""
    id = document.id.encode("utf-8", "surrogateescape")
    return HEAD.pack(len(id)) + id + document.tokens.astype(dtype).tobytes()


def unpack(content: bytes, dtype: np.dtype) -> Document:
    """The document that `pack` made `content` of."""
    start = HEAD.size + HEAD.unpack_from(content)[0]
    id = content[HEAD.size : start].decode("utf-8", "surrogateescape")
    return Document(id, np.frombuffer(content, dtype, offset=start).astype(np.int32))


def load(folder: Path, data: Data) -> Prepared:
    """Open the dataset in `folder`. Raises `UsageError` if it is missing, damaged or not what `data` asks for.

    Damage is looked for by the sizes of the files alone (what was cut short or lost); `verify` reads it all.
    """
    how = f"prepare it with: {command(data, folder)}"
    of = "" if data.mixture else f" of {data.source!r}"
    storage.check(folder)
    try:
        manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
    except OSError as error:
        raise UsageError(
            f"{folder}: no prepared dataset{of} here ({MANIFEST} cannot be read: {error.strerror}), in "
            f"ArrayRecord form with {data.tokenizer} tokens and windows of {data.context_length}; {how}"
        ) from error
    except ValueError as error:
        raise UsageError(f"{folder / MANIFEST}: damaged ({error}); delete the folder and {again({}, data)}") from error
    manifest = manifest if isinstance(manifest, dict) else {}
    version, how = manifest.get("format"), again(manifest, data)
    if version != FORMAT:
        raise UsageError(f"{folder}: has format {version}, and this version reads {FORMAT}; delete it and {how}")
    digest = manifest.pop("digest", None)
    if digest != fingerprint(manifest):
        raise UsageError(f"{folder / MANIFEST}: damaged: was changed after it was written; delete the folder and {how}")
    there = storage.sizes(folder)
    for name, size in manifest["files"].items():
        if there.get(name) not in (size, storage.WHOLE):
            state = f"has {there[name]} bytes" if name in there else "is missing"
            raise UsageError(f"{folder / name}: damaged: {state} and should have {size}; delete the folder and {how}")
    for field, wanted in (("context_length", data.context_length), ("tokenizer", data.tokenizer)):
        if manifest[field] != wanted:
            raise UsageError(
                f"data.{field} = {wanted!r}: {folder} was prepared with {manifest[field]!r}; change one, or choose "
                f"another folder and {how}"
            )
    return Prepared(folder, manifest, cache_folder(data) if storage.remote(folder) else None)


def again(manifest: dict[str, Any], data: Data) -> str:
    """What to do to have a dataset once more that said `manifest` of itself, or nothing that can be read."""
    source = manifest.get("source") if data.prepared or data.mixture else data.source
    if source != data.source:  # of a recipe that names a dataset, the source need not be what it was made from
        return f"prepare it with the rove-prepare command that made it{f', from {source}' if source else ''}"
    return f"prepare it with: {command(data, 'DIR')}"


def command(data: Data, folder: Path | str) -> str:
    """The command that prepares what `data` asks for into `folder`; for a part of a mixture, from some SOURCE."""
    words = ["rove-prepare", "SOURCE" if data.mixture else data.source]
    source = () if data.mixture else ("path", "text_feature", "held_out")
    for field in (*source, "tokenizer", "tokenizer_path"):
        value = getattr(data, field)
        if value is not None and (field != "text_feature" or value != Data.text_feature):
            words += [f"--{field.replace('_', '-')}", str(value)]
    return shlex.join([*words, "--window", str(data.context_length + 1), "--out", str(folder)])


def verify(dataset: Prepared) -> None:
    """Read every record and compare with the hashes in the manifest. Raises `RunError` at the first difference."""
    for kind, shards in dataset.manifest["shards"].items():
        folder = dataset.disk(kind)
        for name, count, wanted in shards:
            if digest(folder, kind, name, count) != wanted:
                raise RunError(
                    f"{dataset.path / name}: differs from its manifest; delete the folder and prepare it again"
                )
