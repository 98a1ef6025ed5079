"""Where folders lie: on a disk, or in a bucket of Google Cloud Storage, named gs://BUCKET/...

A folder on a disk is a `pathlib.Path`. One in a bucket is an `epath.Path`, which has the same methods and which Orbax
takes; what it does there is done by `bucket`. A bucket has neither locks nor appends nor renames, and its folders are
no more than the first words of the names of objects; but an object appears whole or not at all, and may be written on
the condition that it has not changed (`lease`).
"""

import os
import re
import shutil
from pathlib import Path
from typing import Any

from rove_jax.errors import RunError, UsageError

Place = Any
"""A `pathlib.Path`, or an `epath.Path` in a bucket: what is common to both is used of it."""


def place(name: str | os.PathLike) -> Path:
    """The folder or file `name`; a name that `Path` has made gs:/ of is understood.

    Raises `UsageError` for a store of another kind, and for a name that is no UTF-8, as tensorstore has it.
    """
    text = re.sub("^gs:/+", "gs://", str(name))
    scheme, found, rest = text.partition(":/")
    if found and scheme.isalnum() and len(scheme) > 1:
        if scheme != "gs":
            advice = "give gs://BUCKET/... or a folder on a disk or on a file system that is mounted"
            raise UsageError(f"{scheme}://{rest.lstrip('/')}: no such kind of storage is known here; {advice}")
        if not re.fullmatch("gs://[a-z0-9][a-z0-9._-]+[a-z0-9](/.+)", text.rstrip("/")):
            raise UsageError(f"{text}: give gs://BUCKET/FOLDER, a bucket and a folder in it")
        from rove_jax.storage import bucket

        return bucket.path(text.rstrip("/"))  # pyright: ignore[reportReturnType]
    path = Path(text).expanduser()
    try:
        os.path.realpath(path).encode()
    except UnicodeEncodeError as error:
        advice = "rename it, or set LC_ALL to a locale of UTF-8"
        raise UsageError(f"{ascii(text)}: its name is not UTF-8 here; {advice}") from error
    return path


def remote(path: Place) -> bool:
    """Whether a path from `place` is in a bucket."""
    return str(path).startswith("gs://")


def check(path: Place, *, writes: bool = False) -> None:
    """Raise `UsageError` if `path` is in a bucket in which one may not read, or, if one `writes`, not write, or which
    does not exist; `RunError` if the storage does not answer. Leaves nothing there. A disk is not looked at."""
    if not remote(path):
        return
    from rove_jax.storage import bucket

    try:
        bucket.probe(path, writes=writes)
    except FileNotFoundError as error:
        raise UsageError(f"{path}: there is no such bucket; create it, or give another one") from error
    except PermissionError as error:
        advice = "log in by `gcloud auth application-default login`, or give the machine's account the role"
        role = "storage.objectUser" if writes else "storage.objectViewer"
        raise UsageError(f"{path}: {error.strerror}; {advice} {role}") from error
    except OSError as error:
        raise RunError(f"{path}: {error.strerror}") from error


def absolute(path: Path) -> Path:
    """The same without `.`, `..` and links; in a bucket there are none."""
    return path if remote(path) else path.resolve()


WHOLE = -1
"""The size of an object: it is there whole or not at all, so nobody asks."""


def sizes(folder: Path) -> dict[str, int]:
    """The files of a folder with their sizes in bytes, in a bucket WHOLE; none, if there is no folder."""
    if not folder.is_dir():
        return {}
    if remote(folder):
        return {entry.name: WHOLE for entry in folder.iterdir()}
    return {entry.name: entry.stat().st_size for entry in folder.iterdir() if entry.is_file()}


def move(draft: Path, target: Path) -> None:
    """Put a file of a disk at `target`, on the same disk or in a bucket, whole or not at all."""
    if remote(target):
        target.write_bytes(draft.read_bytes())
        draft.unlink()
    else:
        draft.replace(target)


def remove(folder: Place) -> None:
    """Delete a folder with all that is in it."""
    folder.rmtree() if remote(folder) else shutil.rmtree(folder)


def replace(path: Path, content: str | bytes) -> None:
    """Write a file so that at every moment it holds either what it held or `content`."""
    data = content.encode() if isinstance(content, str) else content
    if remote(path):
        path.write_bytes(data)
        return
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        draft.write_bytes(data)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def store(path: Place) -> dict[str, Any]:
    """A folder as tensorstore has it: in parts, since a name with % or ? is not what it says in a URL."""
    if not remote(path):
        return {"driver": "file", "path": f"{path}/"}
    from rove_jax.storage import bucket

    name, key = bucket.split(str(path))
    return {"driver": "gcs", "bucket": name, "path": f"{key}/", "gcs_request_retries": bucket.RETRIES}
