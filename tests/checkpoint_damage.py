"""Checkpoints made for a test, and ways to damage them and the disk under them."""

import contextlib
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import jax.numpy as jnp

from rove_jax.training.checkpoints import FOLDER, Checkpoints
from rove_jax.training.state import State


def at(current: State, step: int) -> State:
    """`current`, as if it were that of another step."""
    return current._replace(step=jnp.int32(step))


def saved(folder: Path, current: State, record: dict, losses: dict[int, float | None], **keep: int) -> None:
    """Save `current` at each step of `losses`, one call of the run for each."""
    for step, loss in losses.items():
        with Checkpoints(folder, **{"keep_last": 2, **keep}) as checkpoints:
            checkpoints.save(at(current, step), record, loss)


def place(workdir: Path, step: int) -> Path:
    """The folder of a checkpoint."""
    return workdir / FOLDER / str(step)


def data_file(workdir: Path, step: int) -> Path:
    """The largest file of a checkpoint: array data."""
    return max(
        (path for path in place(workdir, step).rglob("*") if path.is_file()), key=lambda path: path.stat().st_size
    )


def flip(path: Path, *, at: float = 0.5) -> None:
    """Flip one bit of a file."""
    content = bytearray(path.read_bytes())
    content[int(at * len(content))] ^= 4
    path.write_bytes(content)


DAMAGES = {
    "a flipped bit": lambda workdir, step: flip(data_file(workdir, step)),
    "a cut file": lambda workdir, step: data_file(workdir, step).write_bytes(b"x"),
    "an empty file": lambda workdir, step: data_file(workdir, step).write_bytes(b""),
    "a lost file": lambda workdir, step: data_file(workdir, step).unlink(),
    "a lost item": lambda workdir, step: shutil.rmtree(place(workdir, step) / "optimizer"),
    "a flipped bit of metadata": lambda workdir, step: flip(place(workdir, step) / "metadata" / "metadata"),
    "no metadata": lambda workdir, step: shutil.rmtree(place(workdir, step) / "metadata"),
    "an empty folder": lambda workdir, step: (shutil.rmtree(place(workdir, step)), place(workdir, step).mkdir()),
    "a file instead": lambda workdir, step: (shutil.rmtree(place(workdir, step)), place(workdir, step).write_text("x")),
    "a link to a disk that is gone": lambda workdir, step: (
        shutil.rmtree(place(workdir, step)),
        place(workdir, step).symlink_to("/gone/with/it"),
    ),
    "another step's": lambda workdir, step: (
        shutil.rmtree(place(workdir, step)),
        shutil.copytree(place(workdir, step - 1), place(workdir, step)),
    ),
}
"""What can become of a checkpoint: (run folder, step) -> None."""


@contextlib.contextmanager
def disk_takes_no_more() -> Iterator[None]:
    """No file may grow beyond 10 kB: metadata fit, arrays do not, which their writers learn in the background."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
