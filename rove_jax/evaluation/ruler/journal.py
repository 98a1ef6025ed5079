"""Records of samples, a line each, written as they come, so that a run that was stopped goes on."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rove_jax.errors import RunError


class Journal:
    """The file of one evaluation: a line with what it is of, then the records.

    Lines of another evaluation are dropped, and a line that was not written to its end. Raises `RunError` where the
    file cannot be written.
    """

    def __init__(self, path: Path, of: dict[str, Any]) -> None:
        self.path = path
        head = json.dumps({"of": of}, sort_keys=True)
        self.records: list[dict[str, Any]] = []
        try:
            lines = path.read_text("utf-8").splitlines(keepends=True) if path.exists() else []
            if lines and lines[0] == head + "\n":
                self.records = [json.loads(line) for line in lines[1:] if line.endswith("\n")]
            path.parent.mkdir(parents=True, exist_ok=True)
            draft = path.with_name(f".{path.name}.{os.getpid()}")
            draft.write_text(head + "\n" + "".join(json.dumps(record) + "\n" for record in self.records), "utf-8")
            os.replace(draft, path)
            self.file = path.open("a", encoding="utf-8")
        except (OSError, ValueError) as error:
            raise RunError(f"{path}: {error}; delete it to begin anew") from error

    def add(self, records: Iterable[dict[str, Any]]) -> None:
        """Put records behind the others, on the disk when this returns."""
        records = list(records)
        try:
            self.file.write("".join(json.dumps(record, allow_nan=False) + "\n" for record in records))
            self.file.flush()
        except OSError as error:
            raise RunError(f"{self.path}: {error.strerror}") from error
        self.records += records

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
