"""A lock between processes that a killed one lets go of."""

import contextlib
import fcntl
import os
import sys
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def locked(folder: Path, progress: bool) -> Iterator[None]:
    """Hold the lock file beside `folder`. The system frees it when a process dies, however it dies."""
    path = folder.parent / f".{folder.name}.lock"
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if progress:
                    print(f"waiting for another process, which prepares {folder}", file=sys.stderr)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if names(path, descriptor):
                try:
                    yield
                finally:
                    path.unlink(missing_ok=True)
                return
        finally:
            os.close(descriptor)


def names(path: Path, descriptor: int) -> bool:
    """Whether `path` still is the open file: who holds a lock deletes its file, and those who waited hold nothing."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
