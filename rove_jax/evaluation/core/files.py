"""The task files in a folder or a zip, in any of the layouts in which they are published."""

import hashlib
import json
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rove_jax.errors import UsageError
from rove_jax.evaluation.core.tasks import TASKS, Task

FOLDERS = ("", "eval_data", "eval_bundle/eval_data", "local_data", "eval/local_data", "scripts/eval/local_data")
"""Where the folders of the tasks may lie: by themselves, in nanochat's bundle, in llm-foundry."""

UNREADABLE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError)
"""What `zipfile` raises for a damaged zip; RuntimeError for a password or a compression that it does not know."""

FIELDS = {
    "choice": {"query": str, "choices": list, "gold": int},
    "schema": {"context_options": list, "continuation": str, "gold": int},
    "continuation": {"context": str, "continuation": str},
}


@dataclass(frozen=True)
class TaskFile:
    """The rows of a task, and what they were read from."""

    rows: list[dict[str, Any]]
    """In the order of the file."""
    sha256: str
    unlike: str
    """How it is not the published file, in words; empty if it is, as far as is known."""


class Files:
    """Task files by the path that the table gives them."""

    def __init__(self, source: Path) -> None:
        """Raises `UsageError` if `source` is neither a folder nor a zip, or holds no task at all."""
        self.source, self.archive = source, None
        if source.is_file():
            if not zipfile.is_zipfile(source):
                raise UsageError(f"--data = {str(source)!r}: is a file but no zip; give the bundle's zip or its folder")
            try:
                self.archive = zipfile.ZipFile(source)
            except UNREADABLE as error:
                raise UsageError(f"--data = {str(source)!r}: cannot be read ({error}); fetch it again") from error
        elif not source.is_dir():
            raise UsageError(f"--data = {str(source)!r}: no such folder or zip; give nanochat's or llm-foundry's data")

    def find(self, file: str) -> bytes | None:
        """The content of `file`, None if it is not there."""
        if self.archive is not None:
            names = [name for name in self.archive.namelist() if f"/{name}".endswith(f"/{file}")]
            try:
                return self.archive.read(min(names, key=len)) if names else None
            except UNREADABLE as error:
                raise UsageError(f"{self.source}: {error}; fetch it again, or give its folder") from error
        for folder in FOLDERS:
            path = self.source / folder / file
            try:
                if path.is_file():
                    return path.read_bytes()
            except OSError as error:
                raise UsageError(f"{path}: cannot be read ({error.strerror})") from error
        return None

    def digest(self) -> str:
        """SHA-256 of the files of all tasks that are there."""
        found = {task.file: hashlib.sha256(content).hexdigest() for task in TASKS if (content := self.find(task.file))}
        return hashlib.sha256(json.dumps(found).encode()).hexdigest()

    def load(self, task: Task) -> TaskFile | None:
        """The rows of `task`; None if its file is missing. Raises `UsageError` naming a line that is no row of it."""
        content = self.find(task.file)
        if content is None:
            return None
        rows = []
        # Split at newlines alone: text may hold others of Python's line ends.
        for number, line in enumerate(content.split(b"\n"), start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise UsageError(f"{task.file}, line {number}: no JSON ({error})") from error
            wrong = complaint(row, task)
            if wrong:
                raise UsageError(f"{task.file}, line {number}: {wrong}")
            rows.append(row)
        if not rows:
            raise UsageError(f"{task.file}: is empty; fetch it again")
        found, unlike = hashlib.sha256(content).hexdigest(), ""
        if len(rows) != task.rows:
            unlike = f"{len(rows)} rows instead of {task.rows}"
        elif task.sha256 not in (None, found):
            unlike = f"sha256 {found[:16]} instead of {str(task.sha256)[:16]}"
        return TaskFile(rows, found, unlike)


def complaint(row: Any, task: Task) -> str:
    """What is wrong with a row of `task`, in words; empty if nothing is."""
    if not isinstance(row, dict):
        return "is no object"
    for name, kind in FIELDS[task.kind].items():
        if type(row.get(name)) is not kind:  # true is no int here
            return f"field {name!r} is missing or no {kind.__name__}"
    if not isinstance(row.get("category", ""), str):
        return "field 'category' is no str"
    choices = row.get("choices", row.get("context_options"))
    if choices is not None and not all(isinstance(choice, str) and choice for choice in choices):
        return "an empty choice, or one that is no text"
    if choices is not None and not 0 <= row["gold"] < len(choices):
        return f"gold = {row['gold']}: there are {len(choices)} choices"
    return ""


def remark(row: dict[str, Any], task: Task) -> str:
    """What a row of `task` has that no published one should, though it can be scored; empty if nothing."""
    found, choices = [], row.get("choices", row.get("context_options")) or []
    if task.choices and len(choices) != task.choices:
        found.append(f"{len(choices)} choices instead of {task.choices}")
    scored = choices if task.kind == "choice" else [row["continuation"]]
    if not all(text.strip() for text in scored):
        found.append("what is scored has no text but white space")
    if task.label == "jeopardy" and not row.get("category", "").strip():
        found.append("no category")
    return "; ".join(found)
