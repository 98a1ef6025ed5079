"""The checkpoints of a run: which there are, which are kept, how one is written, and what becomes of damaged ones.

`checkpoints/STEP/` is one checkpoint (see `stored`), written by Orbax, and seen by nobody before it is whole (`shelf`).
A folder that is found damaged is moved to `checkpoints/STEP.damaged` when the run goes on; nothing deletes it.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from tqdm import tqdm

from rove_jax import distributed, storage
from rove_jax.errors import RunError, UsageError
from rove_jax.training.checkpoints import retention
from rove_jax.training.checkpoints.digest import by_path
from rove_jax.training.checkpoints.retries import Retries
from rove_jax.training.checkpoints.saver import WRITE_FAULTS, Saver
from rove_jax.training.checkpoints.shelf import COMMIT, FOLDER, Shelf
from rove_jax.training.checkpoints.stored import FORMAT, Damaged, Stored, describe, first_line, sealed
from rove_jax.training.record import Identity
from rove_jax.training.state import State

Found = TypeVar("Found")

SETTLE, RETRY = 1, 2
"""What `Checkpoints.wish` may want."""


class Checkpoints:
    """The checkpoints of one run folder. Open for writing by one run at a time; any number may read."""

    def __init__(self, run_folder: Path, *, keep_last: int | None = None, keep_every: int | None = None) -> None:
        """For writing if `keep_last` is given: then leftovers of interrupted writes are cleared away.

        Raises `UsageError` if there is nothing to read, or a checkpoint of another format or of another run.
        """
        run_folder = storage.place(run_folder)
        storage.check(run_folder)
        self.shelf = Shelf(run_folder)
        self.folder = self.shelf.folder
        self.keep_last, self.keep_every = keep_last, keep_every
        if keep_last is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            if self.writer:
                self.shelf.clear()
        elif not self.folder.is_dir():
            raise UsageError(f"{run_folder}: holds no {FOLDER}/; give the folder of a training run")
        self.losses: dict[int, float | None] = {}
        """Validation loss, if any, by step of the checkpoints that are whole as far as is known."""
        self.damaged: dict[int, Damaged] = {}
        self.run = Identity(run_folder)
        for step in self.shelf.steps():
            try:
                metadata = self.stored(step).metadata()
            except Damaged as error:
                self.damaged[step] = error
                continue
            self.run.check(self.shelf[step], metadata)
            self.losses[step] = metadata["validation_loss"]
        self.before: list[Callable[[], object]] = []
        """Called by each write, before anything is written; the write fails if one of WRITE_FAULTS is raised."""
        self.saver = Saver()
        self.pending: tuple[int, float | None] | None = None
        """Step and validation loss of the checkpoint that is being written."""
        self.retries = Retries()
        self.failure = ""
        """What became of the last write that failed."""
        self.attempt: tuple[int, float | None] = (-1, None)
        """Step and validation loss of the last write begun."""

    @property
    def writer(self) -> bool:
        """Whether this process is the one that renames and deletes."""
        return self.keep_last is not None and jax.process_index() == 0

    def stored(self, step: int) -> Stored:
        return Stored(self.shelf[step])

    def steps(self) -> list[int]:
        """Steps of the whole checkpoints, ascending."""
        return sorted(self.losses)

    def latest(self) -> int | None:
        return max(self.losses, default=None)

    def best(self) -> int | None:
        """The step with the lowest validation loss among the checkpoints that have one; the earlier of equals."""
        return retention.best(self.losses)

    def best_loss(self) -> float | None:
        """The lowest validation loss, that of a checkpoint being written included."""
        known = self.losses | (dict([self.pending]) if self.pending else {})
        best = retention.best(known)
        return None if best is None else known[best]

    def metadata(self, step: int) -> dict[str, Any]:
        """What the checkpoint says of itself. Raises `UsageError` if there is none at `step`, `Damaged`."""
        if step in self.damaged:
            raise self.damaged[step]
        if step not in self.losses:
            there = ", ".join(map(str, self.steps())) or "none"
            raise UsageError(f"{self.folder / str(step)}: no such checkpoint; there are {there}")
        return self.stored(step).metadata()

    def newest(self, read: Callable[[int], Found]) -> tuple[int, Found, list[Damaged]] | None:
        """The newest step for which `read` does not raise `Damaged`, what it gave, and what was found of newer steps.

        None if there are no checkpoints. Raises `RunError` if there are and none is whole. Open for writing, skipped
        folders are moved aside, so that their steps can be written again.
        """
        skipped: dict[int, Damaged] = {}
        for step in sorted([*self.losses, *self.damaged], reverse=True):
            try:
                if step in self.damaged:
                    raise self.damaged[step]
                found = read(step)
            except Damaged as error:
                skipped[step] = error
                continue
            moved = {bad: self.set_aside(bad) for bad in skipped}
            return step, found, [Damaged(f"{error}{moved[bad]}") for bad, error in skipped.items()]
        if skipped:
            newest = next(iter(skipped.values()))
            advice = "mend one, or move them all away to start afresh"
            raise RunError(f"{self.folder}: no checkpoint is whole, of {len(skipped)}; {newest}; {advice}")
        return None

    def set_aside(self, step: int) -> str:
        """Forget a damaged step; open for writing, move its folder out of the way of a later save. Says where to."""
        self.losses.pop(step, None)
        self.damaged.pop(step, None)
        if not self.writer or not self.shelf.holds(step):
            return ""
        return f"; moved to {self.shelf.set_aside(step)}"

    def restore(self, step: int, target: State) -> State:
        """The state at `step`, in the shapes, dtypes and shardings of `target`, all equal to those stored."""
        self.metadata(step)
        moments = by_path(target.optimizer)
        found = self.stored(step).read({"params": target.params, "optimizer": moments})
        optimizer = jax.tree.unflatten(
            jax.tree.structure(target.optimizer), [found["optimizer"][name] for name in moments]
        )
        return State(found["params"], optimizer, jax.device_put(jnp.int32(step), target.step.sharding))

    def restore_params(self, step: int, target: Any) -> Any:
        """The weights alone, in the shapes, dtypes and shardings of `target`, all equal to those stored."""
        self.metadata(step)
        return self.stored(step).read({"params": target})["params"]

    def check_arrays(self, step: int) -> None:
        """Raise `Damaged` if any array at `step` is; they are read one by one."""
        for looked in self.stored(step).examine():
            if looked.fault:
                raise self.stored(step).damaged(looked.fault)

    @property
    def owed(self) -> bool:
        """Whether the last write failed, so that a state fit to be saved is to be, as soon as `wish` wants it."""
        return bool(self.retries.failures) and self.pending is None

    def save(self, state: State, metadata: dict[str, Any], validation_loss: float | None = None) -> None:
        """Write `state` in the background, once its arrays have been copied off the devices.

        The caller vouches that the state is finite. A write that fails, now or later, is told of in a line and leaves
        a save `owed`; after the last of its `retries` it raises `RunError`. All processes of a run call this, `settle`
        and `finish` at the same places, and find the same: a write fails in all or in none.
        """
        step = int(state.step)
        self.settle()
        if step in self.losses:
            return
        self.attempt = (step, validation_loss)
        items = {"params": state.params, "optimizer": by_path(state.optimizer)}
        about = {"format": FORMAT, "step": step, "validation_loss": validation_loss, **metadata}
        values = sealed({**about, "arrays": describe(items)})
        try:
            self.saver.save(self.shelf[step], items, values, lambda: self.prepare(step, state))
        except RunError:
            raise
        except WRITE_FAULTS as error:
            self.failed(step, error)
        else:
            self.pending = (step, validation_loss)

    def wish(self) -> int:
        """What this process would have all of them do next about a write: SETTLE it, since it has come to its end here,
        or RETRY, since there is one owed and the pause is over. 0: nothing. At the price of a look at the disk; into a
        bucket, where that costs more, it is not looked by a process that is alone."""
        if self.pending:
            last = None if self.shelf.remote else self.shelf[self.pending[0]] / COMMIT
            return SETTLE if self.saver.ended(last) else 0
        return RETRY if self.retries.due() else 0

    def settle(self) -> None:
        """Return when the write in the background has come to an end. Raises as `save`."""
        if self.pending is None:
            return
        (step, loss), self.pending = self.pending, None
        try:
            self.saver.wait()
        except WRITE_FAULTS as error:
            self.failed(step, error)
        else:
            self.retries.succeeded()
            self.losses[step] = loss
            self.delete_old()

    def finish(self, state: State, metadata: dict[str, Any], hurried: Callable[[], object] = lambda: False) -> None:
        """Return when everything is on disk: a save that is owed is made of `state`, the last one, as long as there are
        `retries`, whose pauses are short once the run is `hurried`. Raises as `save`."""
        self.settle()
        while self.owed:
            self.retries.wait(hurried)
            step, loss = self.attempt
            self.save(state, metadata, loss if step == int(state.step) else None)
            self.settle()

    def failed(self, step: int, error: BaseException) -> None:
        distributed.meet("write given up")  # none of them writes to its folder any more
        if self.writer:
            self.shelf.clear()
        self.failure = f"{self.folder}: writing step {step} failed ({first_line(error)}); {self.kept()}"
        if not self.retries.failed():
            raise RunError(self.failure) from error
        if jax.process_index() == 0:
            say(f"{self.failure}; {self.retries}")

    def delete_old(self) -> None:
        """Delete what no rule keeps."""
        assert self.keep_last is not None, "open for reading"
        for step in self.losses.keys() - retention.kept(self.losses, last=self.keep_last, every=self.keep_every):
            del self.losses[step]
            if self.writer:
                self.shelf.delete(step)

    def prepare(self, step: int, state: State) -> None:
        """Make way for a checkpoint. Raises `OSError` if there is no room for it, or what `before` raises."""
        for call in self.before:
            call()
        self.set_aside(step)
        if self.writer:
            self.shelf.check_room(sum(leaf.nbytes for leaf in jax.tree.leaves(state)))

    def kept(self) -> str:
        """In words, what there is to go on from."""
        latest = self.latest()
        return "no checkpoint was saved before" if latest is None else f"the last good checkpoint is step {latest}"

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            self.settle()
            if self.owed and kind is None:
                raise RunError(self.failure)
        except RunError:
            if kind is None:  # else what ends the run already is the better explanation
                raise
        finally:
            self.saver.close()


def say(line: str) -> None:
    """Print to stderr, above a progress bar if there is one."""
    tqdm.write(line, file=sys.stderr)
