"""Records of examples beside a result file, one JSON object a line, task by task, so that a run can go on."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rove_jax.errors import UsageError


class Journal:
    """The first line says what the records are of; after the records of a task, a line says that they are all."""

    def __init__(self, path: Path, identity: dict[str, Any]) -> None:
        """Open `path`, or begin it. What follows the last finished task, left by a run that was killed, is cut off.

        Raises `UsageError` if the file is of something else.
        """
        self.path, self.tasks = path, {}
        identity = json.loads(json.dumps(identity))
        content = path.read_bytes() if path.is_file() else b""
        first, newline, rest = content.partition(b"\n")
        if not newline:  # nothing, or not even the first line
            self.begin(identity)
            return
        found = parsed(first)
        if not isinstance(found, dict) or found.get("kind") != "core-records":
            raise UsageError(f"{path}: is no file of records; choose another --out")
        differing = sorted(name for name in {*found["of"], *identity} if found["of"].get(name) != identity.get(name))
        if differing:
            name = differing[0]
            raise UsageError(
                f"{path}: its records were made with {name} = {found['of'].get(name)!r}, not "
                f"{identity.get(name)!r}; choose another --out, or remove it"
            )
        whole, records = len(first) + 1, []
        place = whole
        for line in rest.split(b"\n")[:-1]:
            place += len(line) + 1
            one = parsed(line)
            if one is None:
                break
            if "finished" in one:
                self.tasks[one["finished"]] = records
                whole, records = place, []
            else:
                records.append(one)
        if whole < len(content):
            with path.open("r+b") as file:
                file.truncate(whole)

    def begin(self, identity: dict[str, Any]) -> None:
        """Write the first line."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps({"schema": 1, "kind": "core-records", "of": identity}) + "\n")

    def append(self, task: str, records: Sequence[dict[str, Any]]) -> None:
        """Add a finished task; it is on disk when this returns."""
        lines = [json.dumps(one, allow_nan=False) for one in (*records, {"finished": task})]
        with self.path.open("a") as file:
            file.write("\n".join(lines) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.tasks[task] = list(records)


def parsed(line: bytes) -> Any:
    """The JSON of a line; None if it is none."""
    try:
        return json.loads(line)
    except ValueError:
        return None
