"""A folder in a bucket in the hands of one process, which an object says that is written again and again.

Nobody has to know what time it is elsewhere: a holder that has not written for PATIENCE times as long as it said it
would take, as whoever waits for it has seen, is dead, or will find at its next write that the folder is no longer its.
"""

import json
import os
import socket
import sys
import threading
import time
from pathlib import Path

from rove_jax.errors import RunError, UsageError
from rove_jax.storage import bucket

PATIENCE = 3
"""Writes that a holder may miss."""


class Lease:
    """The object `path`, held from when this is made until `close`."""

    def __init__(self, path: Path, *, seconds: float) -> None:
        """Take it, waiting if its holder may have died. seconds: between two writes.

        Raises `UsageError` if its holder lives, `OSError` if the storage does not let us.
        """
        self.path, self.seconds, self.count = path, seconds, 0
        self.me = {
            "host": socket.gethostname(),
            "process": os.getpid(),
            "seconds": seconds,
            "id": os.urandom(8).hex(),
        }
        self.generation = bucket.REFUSED
        while self.generation == bucket.REFUSED:
            self.write(self.abandoned().generation)
        self.lost = False
        self.ended = threading.Event()
        self.lock = threading.Lock()
        self.thread = threading.Thread(target=self.keep, name="lease", daemon=True)
        self.thread.start()

    def abandoned(self) -> bucket.Found:
        """What is at `path` once it is nobody's."""
        found = bucket.read(self.path)
        if found.content is None:
            return found
        try:
            holder = json.loads(found.content)
            of, patience = f"process {holder['process']} on {holder['host']}", PATIENCE * float(holder["seconds"])
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"{self.path}: does not say who is at work in its folder; delete it if nobody is"
            ) from error
        line = f"waiting up to {patience:g} s to see whether {of}, which has {self.path.parent}, is alive"
        print(line, file=sys.stderr, flush=True)
        end = time.monotonic() + patience
        while time.monotonic() < end:
            time.sleep(min(holder["seconds"] / 2, patience))
            now = bucket.read(self.path)
            if now.content is None:
                return now
            if now.generation != found.generation:
                raise UsageError(
                    f"{self.path.parent}: another process is training in it ({of}); wait for it or stop it"
                )
        return found

    def write(self, condition: bytes | None = None) -> None:
        """Write that we are here; `generation` is REFUSED if someone else has written since."""
        self.count += 1
        content = json.dumps({**self.me, "count": self.count}).encode()
        self.generation = bucket.write(self.path, content, self.generation if condition is None else condition)
        if self.generation == bucket.REFUSED:  # or it was our own write, whose answer was lost
            found = bucket.read(self.path)
            self.generation = found.generation if found.content == content else bucket.REFUSED

    def keep(self) -> None:
        while not self.ended.wait(self.seconds):
            try:
                self.renew()
            except OSError:
                pass  # it is tried again, and `check` says so if it matters

    def renew(self) -> None:
        """Write, unless it has been found lost."""
        with self.lock:
            if not self.lost and not self.ended.is_set():
                self.write()
                self.lost = self.generation == bucket.REFUSED

    def check(self) -> None:
        """Raise `RunError` if the folder is no longer ours, `OSError` if that cannot be found out: to be asked before
        anything is written to it."""
        self.renew()
        if self.lost:
            raise RunError(
                f"{self.path.parent}: another process has taken this folder over, since this one did not reach it for "
                f"{PATIENCE * self.seconds:g} s or its {self.path.name} was deleted; what that one writes is whole"
            )

    def close(self) -> None:
        """Give it up. A storage that does not answer is left to find out by itself."""
        self.ended.set()
        self.thread.join()
        if not self.lost:
            try:
                bucket.write(self.path, None, self.generation)
            except OSError:
                pass
