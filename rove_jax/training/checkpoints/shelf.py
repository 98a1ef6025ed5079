"""Where the checkpoints of a run lie, each in a folder named by its step: what differs between a disk and a bucket.

On a disk a folder is written under another name and renamed when it is whole, and so is one set aside or deleted. A
bucket knows no renaming: there a folder has its name at once, and is whole when COMMIT is in it, which is written last
and deleted first; one that is set aside is copied, object by object.
"""

import contextlib
import errno
import itertools
import os
import shutil
import tempfile
from pathlib import Path

from etils import epath

from rove_jax import storage

FOLDER = "checkpoints"

COMMIT = "commit_success.txt"
"""What Orbax writes last."""

SPARE = 2**20
"""Bytes that a checkpoint takes beyond its arrays, at most."""


class Shelf:
    """The checkpoints of the run in a folder, by step."""

    def __init__(self, run_folder: Path) -> None:
        self.folder = epath.Path(storage.absolute(run_folder)) / FOLDER
        self.remote = storage.remote(run_folder)

    def __getitem__(self, step: int) -> epath.Path:
        return self.folder / str(step)

    def entries(self) -> list[epath.Path]:
        """The folders whose names are those of checkpoints."""
        found = self.folder.iterdir() if self.folder.is_dir() else []
        return [entry for entry in found if entry.name.isdecimal() and str(int(entry.name)) == entry.name]

    def finished(self, entry: epath.Path) -> bool:
        """Whether a folder with the name of a checkpoint was whole once."""
        return not self.remote or (entry / COMMIT).exists()

    def steps(self) -> list[int]:
        """Steps of the checkpoints that were whole once."""
        return [int(entry.name) for entry in self.entries() if self.finished(entry)]

    def holds(self, step: int) -> bool:
        """Whether there is something with the name of a checkpoint, be it a dangling link."""
        return there(self[step])

    def clear(self) -> None:
        """Remove what an interrupted write or deletion has left, by us and not by Orbax, whose thread for it outlives a
        command that fails early and prints a traceback. What cannot be removed is in nobody's way."""
        if self.remote:
            with contextlib.suppress(OSError):
                for leftover in self.entries():
                    if not self.finished(leftover):
                        leftover.rmtree()
        else:
            for leftover in [*self.folder.glob("*.orbax-checkpoint-tmp*"), *self.folder.glob("*.deleting*")]:
                shutil.rmtree(leftover, ignore_errors=True)

    def set_aside(self, step: int) -> str:
        """Move a folder out of the way of a later write; its new name."""
        return renamed(self[step], "damaged").name

    def delete(self, step: int) -> None:
        """Delete a checkpoint so that no half of it ever counts as one."""
        if self.remote:
            with contextlib.suppress(OSError):
                (self[step] / COMMIT).unlink()
                self[step].rmtree()
        else:
            shutil.rmtree(renamed(self[step], "deleting"), ignore_errors=True)

    def check_room(self, bytes_of_arrays: int) -> None:
        """Raise `OSError` if the disk has no room for a checkpoint of so many bytes, or takes no files: one line
        beforehand, not a hundred failing writers. A bucket is never full."""
        if self.remote:
            return
        bytes_needed = round(1.1 * bytes_of_arrays) + SPARE
        free = shutil.disk_usage(self.folder).free
        if free < bytes_needed:
            needs = f"{bytes_needed / 1e6:,.1f} MB needed, {free / 1e6:,.1f} MB free"
            raise OSError(errno.ENOSPC, f"no space for a checkpoint: {needs}")
        tempfile.TemporaryFile(dir=self.folder).close()


def there(where: epath.Path) -> bool:
    """Whether there is something, be it a dangling link."""
    return where.exists() if storage.remote(where) else os.path.lexists(where)


def renamed(where: epath.Path, ending: str) -> epath.Path:
    """Rename `where` to the first of STEP.ENDING, STEP.ENDING1, ... that is free: what NFS still holds cannot be
    deleted and keeps its name."""
    names = (where.with_name(f"{where.name}.{ending}{number or ''}") for number in itertools.count())
    return where.rename(next(name for name in names if not there(name)))
