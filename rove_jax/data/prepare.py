"""Source + tokenizer -> a TFDS dataset in ArrayRecord form that appears in its folder whole or not at all."""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from rove_jax.config import Data, fingerprint
from rove_jax.data import prepared, records, sources, tokenizers
from rove_jax.data.documents import Source, Split
from rove_jax.data.prepared import FORMAT, MANIFEST, Document, Prepared
from rove_jax.data.tokenizers import Tokenizer
from rove_jax.data.windows import Packer
from rove_jax.errors import RunError, UsageError

SPLITS: tuple[Split, ...] = ("train", "validation")
SMALL = 2**28
"""Bytes of text up to which a source is prepared without being asked: seconds, not hours."""


def ensure(data: Data, *, progress: bool = False) -> Prepared:
    """The prepared dataset that `data` asks for: the folder `data.prepared`, or one in the cache, made now if need be.

    The cache is keyed by the content of the source, the tokenizer's identity, the context length and the format, so a
    changed text is prepared anew. Any number of processes may call this at once: one prepares, the others wait.
    progress: show a bar on stderr. Raises `UsageError` (missing, damaged or too large) or `RunError` (disk full).
    """
    if data.prepared is not None:
        return prepared.load(Path(data.prepared).expanduser(), data)
    source, tokenizer = sources.load(data), tokenizers.load(data)
    if source.bytes > SMALL:
        raise UsageError(
            f"data.source = {data.source!r}: {source.bytes / 1e6:,.0f} MB is too much to prepare on the way; "
            f"run {prepared.command(data, 'DIR')}, then set data.prepared to DIR"
        )
    key = identify(source, tokenizer, data.context_length)
    folder = cache_folder(data) / f"{source.name}-{data.tokenizer}-{data.context_length}-{key}"
    if not (folder / MANIFEST).is_file():
        build(source, tokenizer, data.context_length, folder, key=key, progress=progress)
    return prepared.load(folder, data)


def cache_folder(data: Data) -> Path:
    """Where small sources are prepared: `data.cache`, or the user's cache folder."""
    if data.cache is not None:
        return Path(data.cache).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rove_jax" / "data"


def identify(source: Source, tokenizer: Tokenizer, context_length: int) -> str:
    """Sixteen hex digits that name what these three are prepared into."""
    return fingerprint([FORMAT, source.fingerprint(), tokenizer.identity, context_length])


def build(
    source: Source,
    tokenizer: Tokenizer,
    context_length: int,
    folder: Path,
    *,
    key: str,
    progress: bool = False,
) -> None:
    """Prepare `source` into `folder`, which must be new or empty; if another process does so meanwhile, use its work.

    The work is done in a hidden folder beside it and renamed when it is on the disk, so a process that is killed at
    any moment leaves nothing that could be taken for a dataset; the next one clears it away.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = folder.parent / f".{folder.name}.partial"
        with locked(folder.parent / f".{folder.name}.lock", progress):
            if (folder / MANIFEST).is_file():
                return
            if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
                raise UsageError(f"{folder}: exists and holds something else; choose another folder")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            try:
                write(source, tokenizer, context_length, partial, key, progress)
                partial.rename(folder)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise RunError(
            f"{folder}: cannot be written ({error.strerror}); choose another folder with data.cache or --out"
        ) from error


@contextlib.contextmanager
def locked(path: Path, progress: bool) -> Iterator[None]:
    """Hold the lock file `path`. The system frees it when a process dies, however it dies."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if progress:
                    print(f"waiting for another process, which prepares {path.parent}", file=sys.stderr)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if names(path, descriptor):
                try:
                    yield
                finally:
                    path.unlink(missing_ok=True)
                return
        finally:
            os.close(descriptor)


def names(path: Path, descriptor: int) -> bool:
    """Whether `path` still is the open file: who holds a lock deletes its file, and those who waited hold nothing."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def write(
    source: Source,
    tokenizer: Tokenizer,
    context_length: int,
    folder: Path,
    key: str,
    progress: bool,
) -> None:
    """Write all files of the dataset into the empty `folder`, the manifest last.

    Manifest: `format`; `key`; `source`; `tokenizer` (name), `tokenizer_identity`, `vocab`, `eot`, `token_dtype`;
    `context_length`; `splits` (per split: documents, empty documents left out, UTF-8 bytes of text, tokens with each
    document's end of text, windows, tokens dropped at the end); `shards` (per kind of record: file, count), `hashes`
    (per kind: SHA-256 of the payloads) and `fingerprint` (of all of them); `files` (size of each file).
    """
    dtype = np.dtype("<u2" if tokenizer.vocab <= 2**16 else "<u4")
    packers = {split: Packer(context_length, dtype) for split in SPLITS}
    counts = {split: {"documents": 0, "empty": 0, "text_bytes": 0} for split in SPLITS}
    names = [f"{split}_{kind}" for split in SPLITS for kind in ("windows", "documents")]
    writers = {name: records.Writer(folder, name) for name in names}
    for text in tqdm(source.documents(), f"preparing {source.name}", len(source), disable=not progress, unit="doc"):
        tokens = tokenizer.encode(text.text)
        if not len(tokens):
            counts[text.split]["empty"] += 1
            continue
        counts[text.split]["documents"] += 1
        counts[text.split]["text_bytes"] += len(text.text.encode("utf-8", "replace"))
        writers[f"{text.split}_documents"].write(prepared.pack(Document(text.id, tokens), dtype))
        for window in packers[text.split].add(np.append(tokens, tokenizer.eot)):
            writers[f"{text.split}_windows"].write(window.tobytes())
    for split, packer in packers.items():
        if not packer.windows:
            raise UsageError(
                f"{source.name}: the {split} split has {packer.tokens} tokens, too few for one window of "
                f"{context_length + 1}; give more text or a smaller data.context_length"
            )
        counts[split] |= {"tokens": packer.tokens, "windows": packer.windows, "dropped_tail": packer.dropped}
    shards = {name: writer.close() for name, writer in writers.items()}
    records.write_metadata(
        folder,
        {name: ([shard.take for shard in shards[name]], writer.bytes) for name, writer in writers.items()},
        f"{source.name} as {tokenizer.name} tokens: windows of {context_length + 1}, and whole documents",
    )
    hashes = {name: writer.digest.hexdigest() for name, writer in writers.items()}
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "key": key,
        "source": source.name,
        "tokenizer": tokenizer.name,
        "tokenizer_identity": tokenizer.identity,
        "vocab": tokenizer.vocab,
        "eot": tokenizer.eot,
        "token_dtype": dtype.str,
        "context_length": context_length,
        "splits": counts,
        "shards": shards,
        "hashes": hashes,
        "fingerprint": fingerprint([hashes, dtype.str, context_length]),
        "files": {path.name: path.stat().st_size for path in sorted(folder.iterdir())},
    }
    with (folder / MANIFEST).open("w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def verify(dataset: Prepared) -> None:
    """Read every record and compare with the hashes in the manifest. Raises `RunError` at the first difference."""
    for name, wanted in dataset.manifest["hashes"].items():
        found = records.Reader(dataset.path, name, dataset.manifest["shards"][name])
        digest = hashlib.sha256()
        for start in range(0, len(found), 1024):
            for record in found.read(range(start, min(start + 1024, len(found)))):
                records.add_to(digest, records.payload(record))
        if digest.hexdigest() != wanted:
            raise RunError(f"{dataset.path}: {name} differs from its manifest; delete the folder and prepare it again")
