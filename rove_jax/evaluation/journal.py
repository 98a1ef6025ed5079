"""Records beside a result file, a line each, written as they come, so that an evaluation that was stopped goes on."""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rove_jax import storage
from rove_jax.distributed import is_writer
from rove_jax.errors import RunError, UsageError
from rove_jax.evaluation.processes import of_first


class Journal:
    """The file of one evaluation: a line with what it is of, then the records."""

    def __init__(self, path: Path, of: dict[str, Any]) -> None:
        """Open `path`, or begin it. A line that was not written to its end is dropped.

        Raises:
            UsageError: the file is of something else, which is named, or another process is writing it.
            RunError: it is damaged, or cannot be written.
        """
        self.path = path
        if storage.remote(storage.place(path)):
            raise UsageError(f"{path}: records are added to a file on a disk; give a path there")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.file = path.open("ab+", buffering=0)
        except OSError as error:
            raise RunError(f"{path}: {error.strerror}") from error
        try:
            self.records = self.opened(json.loads(json.dumps(of)))
        except BaseException:
            self.file.close()
            raise

    def opened(self, of: dict[str, Any]) -> list[dict[str, Any]]:
        """Lock the file, and return the records that it holds. The system lets go of it when the process ends."""
        head = json.dumps({"of": of}).encode() + b"\n"
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.file.seek(0)
            text = self.file.read()
            whole = text[: text.rfind(b"\n") + 1]
            if whole:
                first, *lines = whole.splitlines()
                found, records = dict(json.loads(first)["of"]), [dict(json.loads(line)) for line in lines]
            elif head.startswith(text):
                found, records = of, []
            else:
                raise ValueError("begins otherwise")
        except BlockingIOError as error:
            raise UsageError(
                f"{self.path}: another process is writing it; wait for it, or choose another --out"
            ) from error
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise RunError(
                f"{self.path}: is no file of records, or damaged ({error}); remove it to begin anew"
            ) from error
        for name in {**of, **found}:
            if of.get(name) != found.get(name):
                raise UsageError(
                    f"{self.path}: its records were made with {name} = {found.get(name)!r}, not {of.get(name)!r}; "
                    "choose another --out, or remove it"
                )
        try:
            self.file.truncate(len(whole))
            self.write(b"" if whole else head)
        except OSError as error:
            raise RunError(f"{self.path}: {error.strerror}") from error
        return records

    def write(self, data: bytes) -> None:
        """Put bytes at the end, on the disk when this returns. There is no buffer that closing would write again."""
        while data:
            data = data[self.file.write(data) :]
        os.fsync(self.file.fileno())

    def add(self, records: Iterable[dict[str, Any]]) -> None:
        """Put records behind the others, on the disk when this returns. Raises `RunError` if it cannot be, or if a
        number of theirs is not finite."""
        records = list(records)
        try:
            text = "".join(json.dumps(record, allow_nan=False) + "\n" for record in records)
        except ValueError as error:
            raise RunError(f"{self.path}: the model gives a likelihood that is not finite") from error
        try:
            self.write(text.encode())
        except OSError as error:
            raise RunError(f"{self.path}: {error.strerror}") from error
        self.records += records

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


class Copy:
    """A journal in a process that has no file: the records of the first one, and those added since."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def add(self, records: Iterable[dict[str, Any]]) -> None:
        """Put records behind the others."""
        self.records += records


@contextlib.contextmanager
def joint_journal(path: Path, of: dict[str, Any]) -> Iterator[Journal | Copy]:
    """The same records in all processes, of which each calls this and adds the same: the first one has the file.

    Raises as `Journal` does, in the first process.
    """
    with Journal(path, of) if is_writer() else contextlib.nullcontext(Copy()) as kept:
        kept.records = of_first(kept.records)
        yield kept
