"""Source + tokenizer -> a TFDS dataset in ArrayRecord form that appears in its folder whole or not at all."""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from rove_jax.config import Data, fingerprint
from rove_jax.data import documents, mixture, prepared, records, sources, tokenizers, workers
from rove_jax.data.documents import Source
from rove_jax.data.lock import locked
from rove_jax.data.prepared import FORMAT, MANIFEST, Prepared
from rove_jax.data.shards import (
    COUNTS,
    KINDS,
    NAMED,
    PARTS,
    SPLITS,
    Job,
    Maker,
    Report,
    divide,
    token_dtype,
    write_json,
)
from rove_jax.data.tokenizers import Tokenizer
from rove_jax.errors import RunError, UsageError

SMALL = 2**28
"""Bytes of text up to which a source is prepared without being asked: seconds, not hours."""

Execute = Callable[[Job, Sequence[int], Report], None]
"""Does the pieces of a job with these numbers."""


def ensure(data: Data, *, progress: bool = False) -> Prepared:
    """The prepared data that `data` asks for: the folder `data.prepared`, those of `data.mixture`, or one in the cache,
    made now if need be.

    The cache is keyed by the content of the source, the tokenizer's identity, the context length and the format, so a
    changed text is prepared anew. Any number of processes may call this at once: one prepares, the others wait.
    progress: show a bar on stderr. Raises `UsageError` (missing, damaged or too large) or `RunError` (disk full).
    """
    found = named(data)
    if found is not None:
        return found
    source, tokenizer = small_source(data), tokenizers.load(data)
    key = identify(source, tokenizer, data.context_length)
    folder = cache_folder(data) / f"{source.name}-{data.tokenizer}-{data.context_length}-{key}"
    if not (folder / MANIFEST).is_file():
        build(source, data, folder, key=key, progress=progress)
    return prepared.load(folder, data)


def named(data: Data) -> Prepared | None:
    """The prepared data whose folder or folders `data` names, opened; None if it names none."""
    if data.mixture:
        return mixture.load(data)
    return prepared.load(Path(data.prepared).expanduser(), data) if data.prepared is not None else None


def check(data: Data) -> None:
    """Raise the `UsageError` that `ensure` would raise for data that are not there. Makes nothing and reads little."""
    if named(data) is None:
        small_source(data)


def small_source(data: Data) -> Source:
    """The source that `data` names. Raises `UsageError` if it is not there, or too large to prepare unasked."""
    source = sources.load(data)
    size = documents.size(source)
    if size > SMALL:
        raise UsageError(
            f"data.source = {data.source!r}: {size / 1e6:,.0f} MB is too much to prepare on the way; "
            f"run {prepared.command(data, 'DIR')}, then set data.prepared to DIR"
        )
    return source


def cache_folder(data: Data) -> Path:
    """Where small sources are prepared: `data.cache`, or the user's cache folder."""
    if data.cache is not None:
        return Path(data.cache).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rove_jax" / "data"


def identify(source: Source, tokenizer: Tokenizer, context_length: int) -> str:
    """Sixteen hex digits that name what these three are prepared into."""
    return fingerprint([FORMAT, source.fingerprint(), tokenizer.identity, context_length])


def here(job: Job, pieces: Sequence[int], report: Report) -> None:
    """An `Execute`: in this process."""
    maker = Maker(job)
    for piece in pieces:
        maker.make(piece, report)


def spread(count: int) -> Execute:
    """An `Execute`: in `count` processes of this machine, or fewer if there are not so many pieces."""

    def execute(job: Job, pieces: Sequence[int], report: Report) -> None:
        processes = min(count, len(pieces))
        here(job, pieces, report) if processes <= 1 else workers.run(job, pieces, processes, report)

    return execute


def build(
    source: Source,
    data: Data,
    folder: Path,
    *,
    key: str,
    skip_damage: bool = False,
    execute: Execute = here,
    progress: bool = False,
) -> str | None:
    """Prepare `source` into `folder`, which must be new or empty; if another process does so meanwhile, use its work.

    The work is done in a hidden folder beside it and renamed when it is on the disk, so a process that is killed at
    any moment leaves nothing that could be taken for a dataset. The next one goes on from the pieces that were
    finished. Returns how fast it went, in words, if there was something to do.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder.parent / f".{folder.name}.lock", progress):
            if (folder / MANIFEST).is_file():
                return None
            if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
                raise UsageError(f"{folder}: exists and holds something else; choose another folder")
            partial = folder.parent / f".{folder.name}.partial"
            job = Job(source, data, partial, key, divide(source.units), skip_damage)
            said = None
            if not finished(job):
                said = fill(job, execute, progress)
            shutil.rmtree(partial / PARTS, ignore_errors=True)
            partial.rename(folder)
            return said
    except OSError as error:
        raise RunError(
            f"{folder}: cannot be written ({error.strerror or error}); choose another folder with data.cache or --out"
        ) from error


def finished(job: Job) -> bool:
    """Whether all is done but the renaming. Raises `UsageError` if the folder is that of an unfinished other job."""
    marks = [*(job.folder / PARTS).glob("*.json"), *job.folder.glob(MANIFEST)]
    if any(json.loads(mark.read_text("utf-8"))["key"] != job.key for mark in marks):
        raise UsageError(f"{job.folder}: is the unfinished work on another dataset; delete it, or choose another --out")
    return (job.folder / MANIFEST).is_file()


def fill(job: Job, execute: Execute, progress: bool) -> str:
    """Do what is left of a job and write its manifest. Returns how fast it went."""
    done = job.entries()
    if not done:
        shutil.rmtree(job.folder, ignore_errors=True)
    (job.folder / PARTS).mkdir(parents=True, exist_ok=True)
    for draft in (job.folder / PARTS).glob("*.array_record-*"):
        draft.unlink()
    sizes = [sum(job.source.units[unit].bytes for unit in piece) for piece in job.pieces]
    todo = [piece for piece in range(len(sizes)) if piece not in done]
    began = time.monotonic()
    try:
        with tqdm(
            desc=f"preparing {job.source.name}",
            total=sum(sizes),
            initial=sum(sizes[piece] for piece in done),
            unit="B",
            unit_scale=True,
            disable=not progress,
        ) as bar:
            execute(job, todo, reporter(bar))
        seconds = time.monotonic() - began
        entries = job.entries()
        for piece in todo:
            if piece not in entries:
                raise RunError(f"{job.folder}: part {piece} was not finished; the same command goes on")
        finish(job, [entries[piece] for piece in range(len(sizes))])
    finally:
        if not job.entries() and not (job.folder / MANIFEST).is_file():
            shutil.rmtree(job.folder, ignore_errors=True)
    new = [counts for piece in todo for counts in entries[piece]["splits"].values()]
    megabytes, tokens = sum(c["text_bytes"] for c in new) / 1e6, sum(c["tokens"] for c in new)
    rates = f"{megabytes / seconds:,.1f} MB/s, {tokens / seconds:,.0f} tokens/s"
    return f"{megabytes:,.1f} MB of text, {tokens:,} tokens in {seconds:,.1f} s: {rates}"


def reporter(bar: tqdm) -> Report:
    """Moves a bar over bytes, with the rate of tokens beside it."""
    began, tokens = time.monotonic(), 0

    def report(more_bytes: int, more_tokens: int) -> None:
        nonlocal tokens
        tokens += more_tokens
        bar.set_postfix_str(f"{tokens / max(time.monotonic() - began, 1e-3):,.0f} tokens/s", refresh=False)
        bar.update(more_bytes)

    return report


def finish(job: Job, entries: Sequence[dict[str, Any]]) -> None:
    """Write the metadata of TFDS and the manifest of pieces that are all done.

    Manifest: `format`; `key`; `source`; `tokenizer` (name), `tokenizer_identity`, `vocab`, `eot`, `token_dtype`;
    `context_length`; `splits` (per split: documents, empty documents left out, UTF-8 bytes of text, tokens with each
    document's end of text, windows, tokens dropped at the end of units, documents of `shards.LONG` tokens and more);
    `shards` (per kind of record: file, count, SHA-256 of the payloads), `hashes` (per kind: of those of its files) and
    `fingerprint` (of all of them); `damaged` (places left out), `damage` (some of them); `files` (size of each file).
    """
    data, folder = job.data, job.folder
    counts = {split: {name: sum(e["splits"][split][name] for e in entries) for name in COUNTS} for split in SPLITS}
    for split in SPLITS:
        if not counts[split]["windows"]:
            shutil.rmtree(folder / PARTS)
            raise UsageError(
                f"{job.source.name}: the {split} split has {counts[split]['tokens']} tokens, too few for one window of "
                f"{data.context_length + 1}; give more text or a smaller data.context_length"
            )
    shards = {kind: [entry["shards"][kind] for entry in entries] for kind in KINDS}
    tokenizer = tokenizers.load(data)
    records.write_metadata(
        folder,
        {k: ([count for _, count, _ in shards[k]], sum(entry["bytes"][k] for entry in entries)) for k in KINDS},
        f"{job.source.name} as {tokenizer.name} tokens: windows of {data.context_length + 1}, and whole documents",
    )
    hashes = {kind: records.combine([digest for _, _, digest in shards[kind]]) for kind in KINDS}
    dtype = token_dtype(tokenizer.vocab).str
    files = {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.is_file()}
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "key": job.key,
        "source": job.source.name,
        "tokenizer": tokenizer.name,
        "tokenizer_identity": tokenizer.identity,
        "vocab": tokenizer.vocab,
        "eot": tokenizer.eot,
        "token_dtype": dtype,
        "context_length": data.context_length,
        "splits": counts,
        "shards": shards,
        "hashes": hashes,
        "fingerprint": fingerprint([hashes, dtype, data.context_length]),
        "damaged": sum(entry["damaged"] for entry in entries),
        "damage": [damage for entry in entries for damage in entry["damage"]][:NAMED],
        "files": files,
    }
    write_json(folder / MANIFEST, manifest)


def verify(dataset: Prepared) -> None:
    """Read every record and compare with the hashes in the manifest. Raises `RunError` at the first difference."""
    for kind, shards in dataset.manifest["shards"].items():
        for name, count, wanted in shards:
            found = records.Reader(dataset.path, kind, [(name, count)])
            digest = hashlib.sha256()
            for start in range(0, count, 1024):
                for record in found.read(range(start, min(start + 1024, count))):
                    records.add_to(digest, records.payload(record))
            if digest.hexdigest() != wanted:
                raise RunError(
                    f"{dataset.path / name}: differs from its manifest; delete the folder and prepare it again"
                )
