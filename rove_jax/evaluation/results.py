"""Result files: one schema for every evaluation, with what is needed to tell where the numbers came from.

```
{"schema": 1, "kind": "perplexity",
 "provenance": {"run", "checkpoint", "step", "steps" (of the whole run), "training_tokens" (up to this step),
                "config" (what decides what is learnt), "config_hash", "weights", "data_fingerprint", "tokenizer",
                "tokenizer_identity", "training_length", "parameters", "variant", "versions", "device", "command",
                "created"},
 "settings": {...},          the protocol, every field of it
 "results": [...]}           one record per measurement
```
"""

import datetime
import json
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax

from rove_jax import storage
from rove_jax.distributed import is_writer
from rove_jax.errors import RunError, UsageError, require
from rove_jax.training.run_folder import versions

SCHEMA = 1
PARTS = {"kind": str, "provenance": dict, "settings": dict, "results": list}
"""What a document has, beside the schema."""
SAME = ("step", "config_hash", "weights", "data_fingerprint", "tokenizer_identity")
"""Provenance that makes two results of the same settings interchangeable."""


def document(kind: str, provenance: dict, settings: dict, results: list[dict]) -> dict:
    """A result document; what made it and where is added to `provenance` here, unless that says so itself."""
    made = {
        "versions": versions(),
        "device": jax.devices()[0].device_kind,
        "command": command(),
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    return {
        "schema": SCHEMA,
        "kind": kind,
        "provenance": {**made, **provenance},
        "settings": json.loads(json.dumps(settings)),  # tuples as the lists they will be when read back
        "results": results,
    }


def command() -> str:
    """The command line of this process, as a person would type it."""
    program = Path(sys.argv[0])
    words = ["python", "-m", program.parent.name] if program.name == "__main__.py" else [program.name]
    return shlex.join([*words, *sys.argv[1:]])


def write(path: Path, content: dict | str | bytes) -> None:
    """Write JSON, text or bytes to `path` so that it holds the old content or the new, never a part."""
    if isinstance(content, dict):
        try:
            content = json.dumps(content, indent=1, allow_nan=False) + "\n"
        except ValueError as error:
            raise RunError(f"{path}: not written, a number is not finite; the model may be damaged") from error
    path = storage.place(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        storage.replace(path, content)
    except OSError as error:
        raise RunError(f"{path}: {error.strerror}") from error


def check_writable(path: Path, name: str) -> None:
    """Raise `UsageError` naming the option unless a file can be put at `path`, at most in place of a result: to be
    asked before the long part."""
    path = storage.place(path)
    storage.check(path, writes=True)
    if path.is_dir():
        raise UsageError(f"{name} = {str(path)!r}: is a folder; give the path of a file")
    if storage.remote(path):
        return
    if path.suffix == ".json" and path.is_file() and path.stat().st_size:
        with path.open("rb") as file:
            if b'"schema"' not in file.read(99):
                raise UsageError(f"{name} = {str(path)!r}: is a file, and no result of ours; choose another place")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        in_the_way = isinstance(error, FileExistsError | NotADirectoryError)
        why = "a file lies where its folder would be" if in_the_way else error.strerror
        raise UsageError(f"{name} = {str(path)!r}: cannot be written there ({why}); choose another place") from error


def beside(path: Path, suffix: str, name: str, what: str) -> Path:
    """Where `what` goes: `path` with another suffix. Raises if both are one, and as `check_writable` does for both, in
    the first process, which writes."""
    writes = is_writer()
    if writes:
        check_writable(path, name)
    other = path.with_suffix(suffix)
    require(other != path, name, str(path), f"is where the {what} go; end it in .json")
    if writes:
        check_writable(other, name)
    return other


def read(path: Path) -> dict[str, Any]:
    """A result document from disk; raises `UsageError` if it is none, or of another schema."""
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise UsageError(f"{path}: no such file; name one that an evaluation wrote") from error
    except OSError as error:
        raise UsageError(f"{path}: not a result file ({error.strerror}); name one that an evaluation wrote") from error
    except ValueError as error:
        raise UsageError(f"{path}: not a result file ({error}); name one that an evaluation wrote") from error
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise UsageError(f"{path}: not a result file of schema {SCHEMA}; evaluate the run again")
    missing = [name for name, kind in PARTS.items() if not isinstance(found.get(name), kind)]
    if missing:
        raise UsageError(f"{path}: has no {missing[0]}; evaluate the run again")
    return found


def find(folder: Path, kind: str, provenance: dict, settings: dict) -> tuple[dict, Path] | None:
    """A result in `folder` measured with `settings` on the checkpoint, data and tokenizer of `provenance`, if any."""
    wanted = json.loads(json.dumps(settings))
    for path in sorted(folder.glob(f"{kind}-*.json")):
        try:
            found = read(path)
        except UsageError:
            continue  # written by another version: as good as absent
        same = all(found["provenance"].get(name) == provenance[name] for name in SAME)
        if found["kind"] == kind and found["settings"] == wanted and same:
            return found, path
    return None
