"""Records beside a result file, a line each, written as they come, so that an evaluation that was stopped goes on."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rove_jax.errors import RunError, UsageError
from rove_jax.evaluation import results


class Journal:
    """The file of one evaluation: a line with what it is of, then the records."""

    def __init__(self, path: Path, of: dict[str, Any]) -> None:
        """Open `path`, or begin it. A line that was not written to its end is dropped.

        Raises:
            UsageError: the file is of something else, which is named.
            RunError: it is damaged, or cannot be written.
        """
        self.path, of = path, json.loads(json.dumps(of))
        try:
            text = path.read_text("utf-8") if path.exists() else ""
            head, *lines = text.splitlines(keepends=True) or [""]
            found = json.loads(head)["of"] if head.endswith("\n") else of
            self.records = [json.loads(line) for line in lines if line.endswith("\n")]
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise RunError(f"{path}: is no file of records, or damaged ({error}); remove it to begin anew") from error
        for name in {**of, **found}:
            if of.get(name) != found.get(name):
                raise UsageError(
                    f"{path}: its records were made with {name} = {found.get(name)!r}, not {of.get(name)!r}; choose "
                    "another --out, or remove it"
                )
        lines = [{"of": of}, *self.records]
        results.write(path, "".join(json.dumps(line) + "\n" for line in lines))
        try:
            self.file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise RunError(f"{path}: {error.strerror}") from error

    def add(self, records: Iterable[dict[str, Any]]) -> None:
        """Put records behind the others, on the disk when this returns."""
        records = list(records)
        try:
            self.file.write("".join(json.dumps(record, allow_nan=False) + "\n" for record in records))
            self.file.flush()
            os.fsync(self.file.fileno())
        except OSError as error:
            raise RunError(f"{self.path}: {error.strerror}") from error
        self.records += records

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
