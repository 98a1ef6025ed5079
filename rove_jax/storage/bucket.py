"""Paths of Google Cloud Storage by tensorstore, whose client writes the arrays of checkpoints as well.

It is installed anyway, tries again what may succeed, tells of a bucket that does not answer, and can write on a
condition. gcsfs, which `epath` would take for gs://, keeps lists of objects that others may have changed, and takes a
folder that may not be read for one that is not there.
"""

import errno
import functools
import io
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import fsspec
import tensorstore
from etils import epath

RETRIES = {"max_retries": 6, "initial_delay": "1s", "max_delay": "32s"}
"""For about a minute. What Orbax writes itself, tensorstore tries 32 times, for a quarter of an hour."""

REFUSED = b""
"""The generation that tensorstore gives a write whose condition was not met."""


FORBIDDEN = ("PERMISSION_DENIED", "UNAUTHENTICATED")
SILENT = ("ABORTED", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "UNAVAILABLE")
"""What tensorstore's errors begin with, if they are not about what is in an object, but about reaching it."""


class Found(NamedTuple):
    """An object as it was read."""

    content: bytes | None
    """None if there is no such object."""
    generation: bytes
    """What it, or its absence, is known by: a condition for `write`."""


def path(name: str) -> epath.Path:
    """gs://BUCKET/NAME as an `epath.Path` that is served by this module."""
    os.environ.setdefault("EPATH_USE_TF", "false")  # else TensorFlow would serve it wherever it is installed
    fsspec.register_implementation("gcs", Bucket, clobber=True)
    return epath.Path(name)


def read(path: Any) -> Found:
    """An object. Raises `OSError`."""
    result = call(str(path), lambda store, key: store.read(key))
    return Found(result.value if result.state == "value" else None, result.stamp.generation)


def write(path: Any, content: bytes | None, condition: bytes) -> bytes:
    """Write an object, or delete it, if it still is of the generation `condition`; its new one, or REFUSED."""
    return call(str(path), lambda store, key: store.write(key, content, if_equal=condition)).generation


def claim(path: Any, content: str) -> str:
    """Write an object unless there is one; what it holds."""
    found = read(path)
    if found.content is None and write(path, content.encode(), found.generation) == REFUSED:
        found = read(path)
    return content if found.content is None else found.content.decode()


def probe(path: Any, *, writes: bool) -> None:
    """Raise the `OSError` of a place in which one may not read, or not write or delete; nothing is left there.

    tensorstore lists a bucket that does not exist as an empty one; only an unconditional write says that it is none.
    """
    listed(f"{path}/.probe", below)
    if writes:
        name = str(path / f".probe-{os.urandom(8).hex()}")
        call(name, lambda store, key: store.write(key, b""))
        call(name, lambda store, key: store.write(key, None))


def split(name: str) -> tuple[str, str]:
    """The bucket and what follows it, of gs://BUCKET/NAME with or without the gs://."""
    bucket, _, key = name.removeprefix("gcs://").removeprefix("gs://").partition("/")
    return bucket, key.rstrip("/")


@functools.lru_cache
def store(bucket: str) -> tensorstore.KvStore:
    """A bucket."""
    context = tensorstore.Context({"gcs_request_retries": RETRIES})
    return tensorstore.KvStore.open({"driver": "gcs", "bucket": bucket}, context=context).result()


def only(key: str) -> tensorstore.KvStore.KeyRange:
    """The name `key` itself."""
    return tensorstore.KvStore.KeyRange(key, f"{key}\0")


def below(key: str) -> tensorstore.KvStore.KeyRange | None:
    """The names in a folder: those that begin with `key` and /, which 0 follows in ASCII; all, if it is a bucket."""
    return tensorstore.KvStore.KeyRange(f"{key}/", f"{key}0") if key else None


def call(name: str, operation: Callable[[tensorstore.KvStore, str], Any]) -> Any:
    """What an operation on a bucket and a name in it comes to. Raises an `OSError` of the kind that a disk raises."""
    bucket, key = split(name)
    try:
        return operation(store(bucket), key).result()
    except ValueError as error:  # tensorstore's for all that goes wrong
        kind, _, what = str(error).partition(": ")
        what = what.partition(" [http_")[0].partition(" [curl_")[0].partition("\n")[0]
        if kind == "NOT_FOUND":
            raise FileNotFoundError(errno.ENOENT, "no such bucket", name) from error
        if kind in FORBIDDEN:
            raise PermissionError(errno.EACCES, f"not permitted ({what or kind})", name) from error
        if kind in SILENT:
            raise OSError(errno.EIO, f"the storage does not answer ({what})", name) from error
        raise


def listed(name: str, wanted: Callable[[str], tensorstore.KvStore.KeyRange | None]) -> list[str]:
    """The names in a bucket in the range that is `wanted` of the name there, in order. Raises `OSError`.

    A list that one may not have is an empty one to tensorstore (0.1.86), so what is empty is looked at twice: without
    the right to list, the storage refuses to read what is not there.
    """
    found = call(name, lambda store, key: store.list(wanted(key)))
    if not found:
        call(name, lambda store, key: store.read(f"{key}/.absent"))
    return sorted(key.decode() for key in found)


def unanswered(error: Exception) -> bool:
    """Whether what tensorstore said is about reaching an object or a file, and says nothing of what is in it."""
    return any(word in str(error) for word in FORBIDDEN + SILENT)


class Upload(io.BytesIO):
    """An object that is written when it is closed."""

    def __init__(self, bucket: "Bucket", name: str) -> None:
        super().__init__()
        self.bucket, self.object = bucket, name

    def close(self) -> None:
        if not self.closed:
            content = self.getvalue()
            super().close()
            self.bucket.pipe_file(self.object, content)


class Bucket(fsspec.AbstractFileSystem):
    """What `epath` asks of gs://. Nothing is remembered, and only what is not there is said to be not there."""

    protocol = ("gcs", "gs")

    def keys(self, path: str) -> list[str]:
        """Objects below a folder, as paths from there, in order."""
        key = split(path)[1]
        return [name[len(key) + 1 if key else 0 :] for name in listed(path, below)]

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        del options
        name = "/".join(filter(None, split(path)))
        if split(path)[1] and listed(path, only):
            return {"name": name, "type": "file", "size": None}
        if self.keys(path):
            return {"name": name, "type": "directory", "size": 0}
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def exists(self, path: str, **options: Any) -> bool:
        try:
            self.info(path, **options)
        except FileNotFoundError:
            return False
        return True

    def isdir(self, path: str) -> bool:
        return bool(self.keys(path))

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        del options
        found = {}
        for name in self.keys(path):
            first, deeper, _ = name.partition("/")
            found[first] = {
                "name": "/".join((*filter(None, split(path)), first)),
                "type": "directory" if deeper else "file",
                "size": 0 if deeper else None,
            }
        if not found:
            found[""] = self.info(path)
        return list(found.values()) if detail else [entry["name"] for entry in found.values()]

    def _open(self, path: str, mode: str = "rb", *arguments: Any, **options: Any) -> Any:
        del arguments, options
        if mode not in ("rb", "wb"):
            raise OSError(errno.EINVAL, f"objects cannot be opened as {mode!r}", path)
        return io.BytesIO(self.cat_file(path)) if mode == "rb" else Upload(self, path)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        del options
        found = call(path, lambda store, key: store.read(key))
        if found.state != "value":
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return found.value[start:end]

    def pipe_file(self, path: str, value: bytes, mode: Any = "overwrite", **options: Any) -> None:
        del mode, options
        call(path, lambda store, key: store.write(key, value))

    def cp_file(self, path1: str, path2: str, **options: Any) -> None:
        del options
        self.pipe_file(path2, self.cat_file(path1))

    def rm_file(self, path: str) -> None:
        call(path, lambda store, key: store.write(key, None))

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        del maxdepth
        if recursive:
            call(path, lambda store, key: store.delete_range(below(key) or only(key)))
        else:
            self.rm_file(path)

    def mv(self, path1: str, path2: str, recursive: bool = False, **options: Any) -> None:
        """Object by object: what is interrupted leaves all that there was in its old place, or is in its new one."""
        del recursive, options
        for name in self.keys(path1):
            self.cp_file(f"{path1}/{name}", f"{path2}/{name}")
        self.rm(path1, recursive=True)

    def mkdir(self, path: str, create_parents: bool = True, **options: Any) -> None:
        """Nothing: a folder is there with what is in it."""

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Nothing, likewise."""
