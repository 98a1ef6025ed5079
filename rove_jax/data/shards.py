"""The work of preparation in pieces: each is some units of a source, and becomes a file of records of every kind.

Nothing in a piece depends on another one or on who does it, so any number of workers, on one machine or many, write
the same files. A piece is finished when its entry is in the folder `PARTS`; files have unfinished names before, or are
in a folder of this machine, if they are to go to a bucket.
"""

import contextlib
import json
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rove_jax import storage
from rove_jax.config import Data
from rove_jax.data import prepared, records, tokenizers
from rove_jax.data.documents import LONG, Damage, Source, Split, Text, Unit
from rove_jax.data.prepared import Document
from rove_jax.data.windows import Packer
from rove_jax.errors import RunError

SPLITS: tuple[Split, ...] = ("train", "validation")
KINDS = tuple(f"{split}_{kind}" for split in SPLITS for kind in ("windows", "documents"))
COUNTS: tuple[str, ...] = ("documents", "empty", "text_bytes", "tokens", "windows", "dropped_tail", "long")
PARTS = "parts"
PIECE_BYTES = 2**27
"""Text in a piece: half a minute of work, and what a kill can cost."""
PIECES = 256
"""No more than these, so that a process can have a file of each open."""
NAMED = 20
"""So many damaged places of a piece are named in its entry; all are counted."""

Report = Callable[[int, int], None]
"""Called now and then with how many bytes of text, and tokens, have been done since the last time."""


@dataclass(frozen=True)
class Job:
    """All that decides the records of a dataset, and where they go; another process can be sent it."""

    source: Source
    data: Data
    """The tokenizer and the context length; the rest has gone into `source`."""
    folder: Path
    key: str
    pieces: Sequence[range]
    """The units of each piece, from `divide`."""
    skip_damage: bool = False
    """Leave out what cannot be read, and count it; otherwise it ends the work."""

    def entries(self) -> dict[int, dict[str, Any]]:
        """What the finished pieces came to. Those whose files are not whole are left out."""
        found, there = {}, storage.sizes(self.folder)
        for path in (self.folder / PARTS).glob("*.json"):
            entry = json.loads(path.read_text("utf-8"))
            whole = all(there.get(name) in (size, storage.WHOLE) for name, size in entry["files"].items())
            if entry["key"] == self.key and whole:
                found[int(path.stem)] = entry
        return found

    @contextlib.contextmanager
    def drafts(self) -> Iterator[Path]:
        """A folder on a disk for what is not finished, from which `storage.move` takes it."""
        if not storage.remote(self.folder):
            yield self.folder / PARTS
            return
        with tempfile.TemporaryDirectory(prefix="rove-prepare-") as folder:
            yield Path(folder)


def divide(units: Sequence[Unit]) -> list[range]:
    """Neighbouring units put together until they have `PIECE_BYTES`, or more if it were more than `PIECES` pieces."""
    enough = max(PIECE_BYTES, sum(unit.bytes for unit in units) // PIECES)
    pieces, start, held = [], 0, 0
    for index, unit in enumerate(units):
        held += unit.bytes
        if held >= enough or index + 1 == len(units):
            pieces.append(range(start, index + 1))
            start, held = index + 1, 0
    return pieces


class Maker:
    """Does pieces of a job, one after another."""

    def __init__(self, job: Job) -> None:
        self.job = replace(job, folder=storage.place(job.folder))  # in a process that has not known of gs:// yet
        self.tokenizer = tokenizers.load(job.data)
        self.dtype = token_dtype(self.tokenizer.vocab)

    def make(self, piece: int, report: Report) -> dict[str, Any]:
        """Write the files of a piece and its entry, which is returned.

        Entry: `key`; `splits` (per split what `COUNTS` names); `shards` (per kind: file, records, SHA-256 of their
        payloads), `bytes` (per kind), `files` (name and size); `damaged` (how many), `damage` (the first of them).
        Raises `RunError` for damage that is not to be left out, or if the disk takes no more.
        """
        with self.job.drafts() as folder:
            entry = self.write(piece, folder, report)
            write_json(self.job.folder / PARTS / f"{piece:05d}.json", entry, folder)
        return entry

    def write(self, piece: int, folder: Path, report: Report) -> dict[str, Any]:
        """Write the files of a piece by way of `folder`; its entry."""
        mark = secrets.token_hex(4)  # someone else may be at the same piece: one who was believed dead
        names = {kind: records.file_name(kind, piece, len(self.job.pieces)) for kind in KINDS}
        drafts = {kind: folder / f"{names[kind]}.{mark}" for kind in KINDS}
        try:
            writers = {kind: records.Writer(draft) for kind, draft in drafts.items()}
            entry = self.fill(piece, writers, report)
            for writer in writers.values():
                writer.close()
            entry["shards"] = {k: (names[k], w.count, w.digest.hexdigest()) for k, w in writers.items()}
            entry["bytes"] = {kind: writer.bytes for kind, writer in writers.items()}
            entry["files"] = {names[kind]: draft.stat().st_size for kind, draft in drafts.items()}
            for kind, draft in drafts.items():
                storage.move(draft, self.job.folder / names[kind])
        finally:
            for draft in drafts.values():
                draft.unlink(missing_ok=True)
        return entry

    def fill(self, piece: int, writers: dict[str, records.Writer], report: Report) -> dict[str, Any]:
        """Read, tokenize and pack the units of a piece; its entry but for what its files came to."""
        counts = {split: dict.fromkeys(COUNTS, 0) for split in SPLITS}
        damage: list[Damage] = []
        damaged = 0
        for unit in self.job.pieces[piece]:
            packers = {split: Packer(self.job.data.context_length, self.dtype) for split in SPLITS}
            for item in self.job.source.documents(unit):
                if isinstance(item, Damage):
                    if not self.job.skip_damage:
                        raise RunError(f"{item.where}: {item.what}; mend it, or leave it out with --on-damage skip")
                    damaged += 1
                    damage += [item] if damaged <= NAMED else []
                else:
                    report(*self.add(item, counts[item.split], packers[item.split], writers))
            for split, packer in packers.items():
                counts[split]["windows"] += packer.windows
                counts[split]["dropped_tail"] += packer.dropped
        return {"key": self.job.key, "splits": counts, "damaged": damaged, "damage": damage}

    def add(
        self, text: Text, counts: dict[str, int], packer: Packer, writers: dict[str, records.Writer]
    ) -> tuple[int, int]:
        """Tokenize and write one document; how many bytes and tokens it has."""
        tokens = self.tokenizer.encode(text.text)
        if not len(tokens):
            counts["empty"] += 1
            return 0, 0
        bytes = len(text.text.encode("utf-8", "replace"))
        counts["documents"] += 1
        counts["text_bytes"] += bytes
        counts["tokens"] += len(tokens) + 1
        counts["long"] += len(tokens) >= LONG
        if text.split == "validation" or len(tokens) >= self.job.source.whole_from:
            writers[f"{text.split}_documents"].write(prepared.pack(Document(text.id, tokens), self.dtype))
        for window in packer.add(np.append(tokens, self.tokenizer.eot)):
            writers[f"{text.split}_windows"].write(window.tobytes())
        return bytes, len(tokens) + 1


def token_dtype(vocab: int) -> np.dtype:
    """How tokens are stored."""
    return np.dtype("<u2" if vocab <= 2**16 else "<u4")


def write_json(path: Path, values: dict[str, Any], drafts: Path) -> None:
    """Write a JSON file that is there whole, and on the disk, or not at all: by way of the folder `drafts`."""
    draft = drafts / f"{path.name}.{secrets.token_hex(4)}"
    with draft.open("w", encoding="utf-8") as file:
        json.dump(values, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    storage.move(draft, path)
