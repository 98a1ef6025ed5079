"""Source + tokenizer -> a TFDS dataset in ArrayRecord form that appears in its folder whole or not at all."""

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from rove_jax import storage
from rove_jax.config import Data, fingerprint
from rove_jax.data import records, tokenizers, workers
from rove_jax.data.documents import Source
from rove_jax.data.lock import locked
from rove_jax.data.prepared import FORMAT, MANIFEST
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
from rove_jax.distributed import screen
from rove_jax.errors import RunError, UsageError
from rove_jax.storage import bucket

CLAIM = "job"
"""The object in PARTS, in a bucket, that says for which job the folder is: there is no lock that could."""

OTHER_WORK = "is the unfinished work on another dataset; delete it, or choose another --out"

Execute = Callable[[Job, Sequence[int], Report], None]
"""Does the pieces of a job with these numbers."""


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


def dataset(
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
    finished. In a bucket the work is done in the folder itself, which is no dataset before its manifest is there, last
    of all; others who do the same work at the same time come to the same files.

    Returns how fast it went, in words, if there was something to do. Raises `UsageError` for a folder that nothing can
    be renamed to, before the work, and `RunError` if the disk, or the bucket, takes no more.
    """
    if (folder / MANIFEST).is_file():
        return None
    if storage.remote(folder):
        return in_bucket(Job(source, data, folder, key, divide(source.units), skip_damage), execute, progress)
    folder = folder.resolve()  # a link is nothing that a folder could be renamed to
    if folder.is_mount() or folder == Path.cwd():
        where = "a mount point" if folder.is_mount() else "the folder you are in"
        raise UsageError(f"{folder}: is {where}, which a new folder cannot replace; choose one inside, {folder}/data")
    if str(folder).encode("utf-8", "replace").decode() != str(folder):
        raise UsageError(f"{folder}: its name is not in UTF-8; choose another folder")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder, progress):
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


def in_bucket(job: Job, execute: Execute, progress: bool) -> str | None:
    """As `dataset`, into a bucket."""
    storage.check(job.folder, writes=True)
    try:
        held = storage.sizes(job.folder)
        if held and PARTS not in held:
            raise UsageError(f"{job.folder}: exists and holds something else; choose another folder")
        if bucket.claim(job.folder / PARTS / CLAIM, job.key) != job.key or finished(job):
            raise UsageError(f"{job.folder}: {OTHER_WORK}")
        said = fill(job, execute, progress)
        storage.remove(job.folder / PARTS)
        return said
    except OSError as error:
        advice = "the same command goes on from what is finished"
        raise RunError(f"{job.folder}: cannot be written ({error.strerror or error}); {advice}") from error


def finished(job: Job) -> bool:
    """Whether all is done but the renaming. Raises `UsageError` if the folder is that of an unfinished other job."""
    marks = [*(job.folder / PARTS).glob("*.json"), *job.folder.glob(MANIFEST)]
    if any(json.loads(mark.read_text("utf-8"))["key"] != job.key for mark in marks):
        raise UsageError(f"{job.folder}: {OTHER_WORK}")
    return (job.folder / MANIFEST).is_file()


def fill(job: Job, execute: Execute, progress: bool) -> str:
    """Do what is left of a job and write its manifest. Returns how fast it went."""
    done, local = job.entries(), not storage.remote(job.folder)
    if not done and local:
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
            **screen(),
        ) as bar:
            execute(job, todo, reporter(bar))
        seconds = time.monotonic() - began
        entries = job.entries()
        for piece in todo:
            if piece not in entries:
                raise RunError(f"{job.folder}: part {piece} was not finished; the same command goes on")
        finish(job, [entries[piece] for piece in range(len(sizes))])
    finally:
        if local and not job.entries() and not (job.folder / MANIFEST).is_file():
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
    `fingerprint` (of all of them); `damaged` (places left out), `damage` (some of them); `files` (size of each file);
    `digest` (of all that precedes).
    """
    data = job.data
    counts = {split: {name: sum(e["splits"][split][name] for e in entries) for name in COUNTS} for split in SPLITS}
    for split in SPLITS:
        if not counts[split]["windows"]:
            storage.remove(job.folder / PARTS)
            apart = f" in {len(job.source.units):,} row groups" if len(job.source.units) > 1 else ""
            share = ", a larger data.held_out" if split == "validation" else ""
            raise UsageError(
                f"{job.source.name}: the {split} split has {counts[split]['tokens']:,} tokens{apart}, too few for one "
                f"window of {data.context_length + 1}; give more text{share} or a smaller data.context_length"
            )
    shards = {kind: [entry["shards"][kind] for entry in entries] for kind in KINDS}
    tokenizer = tokenizers.load(data)
    sizes: dict[str, tuple[Sequence[int], int]]
    sizes = {k: ([count for _, count, _ in shards[k]], sum(entry["bytes"][k] for entry in entries)) for k in KINDS}
    files = {name: size for entry in entries for name, size in entry["files"].items()}
    about = f"{job.source.name} as {tokenizer.name} tokens: windows of {data.context_length + 1}, and whole documents"
    with job.drafts() as drafts, tempfile.TemporaryDirectory(dir=drafts) as metadata:
        for name in files:
            Path(metadata, name).touch()  # TFDS takes the name of the dataset from those of its files
        records.write_metadata(Path(metadata), sizes, about)
        for path in [path for path in Path(metadata).iterdir() if path.name not in files]:
            files[path.name] = path.stat().st_size
            storage.move(path, job.folder / path.name)
    hashes = {kind: records.combine([digest for _, _, digest in shards[kind]]) for kind in KINDS}
    dtype = token_dtype(tokenizer.vocab).str
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
        "files": dict(sorted(files.items())),
    }
    with job.drafts() as drafts:
        write_json(job.folder / MANIFEST, manifest | {"digest": fingerprint(manifest)}, drafts)
