"""Checkpoints of a run: what is in one, which are kept, and what is refused when one is read.

A checkpoint is `checkpoints/STEP/`, written by Orbax under another name and renamed when whole, with the items `params`
(the tree of weights), `optimizer` (its arrays by path) and `metadata` (JSON: step, config, data fingerprint, tokenizer
identity, versions, validation loss).
"""

import dataclasses
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from rove_jax.errors import RunError, UsageError
from rove_jax.training.state import State

FOLDER = "checkpoints"
FORMAT = 1
"""Raised when older code could misread what newer code writes."""

SPARE = 2**20
"""Bytes that a checkpoint takes beyond its arrays, at most."""

WRITE_FAULTS = (OSError, ValueError, RuntimeError)
"""What a failed write comes out of Orbax as: tensorstore reports a full disk as a ValueError."""


@dataclasses.dataclass
class Retention:
    """Keeps the `latest` newest checkpoints and, by a rule of its own, the one with the lowest validation loss."""

    latest: int
    losses: dict[int, float] = dataclasses.field(default_factory=dict)
    """Validation loss by step, of those checkpoints that have one."""

    def best(self) -> int | None:
        return min(self.losses, key=lambda step: (self.losses[step], step), default=None)

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        """Orbax's protocol of a preservation policy."""
        del context
        newest = {info.step for info in checkpoints[-self.latest :]}
        kept = [info.step in newest or info.step == self.best() for info in checkpoints]
        self.losses = {
            info.step: self.losses[info.step]
            for info, keep in zip(checkpoints, kept)
            if keep and info.step in self.losses
        }
        return kept


class Checkpoints:
    """The checkpoints of one run folder. Open for writing by one run at a time; any number may read."""

    def __init__(self, run_folder: Path, *, keep_last: int | None = None) -> None:
        """For writing if `keep_last` is given: then leftovers of interrupted writes are cleared away."""
        writes = keep_last is not None
        self.folder = run_folder.resolve() / FOLDER
        if not writes and not self.folder.is_dir():
            raise UsageError(f"{run_folder}: holds no {FOLDER}/; give the folder of a training run")
        if writes and self.folder.is_dir():
            # Here and not by Orbax, whose thread for it outlives a command that fails early, and prints a traceback.
            for leftover in ocp.utils.tmp_checkpoints(self.folder):
                shutil.rmtree(leftover.get(), ignore_errors=True)
        self.retention = Retention(keep_last or 1)
        self.manager = ocp.CheckpointManager(
            self.folder,
            options=ocp.CheckpointManagerOptions(
                create=writes,
                preservation_policy=self.retention if writes else None,
                async_options=ocp.AsyncOptions(timeout_secs=24 * 3600),
            ),
            item_handlers={
                "params": ocp.StandardCheckpointHandler(),
                "optimizer": ocp.StandardCheckpointHandler(),
                "metadata": ocp.JsonCheckpointHandler(),
            },
        )
        for step in self.steps():
            loss = self.metadata(step).get("validation_loss")
            if loss is not None:
                self.retention.losses[step] = loss

    def steps(self) -> list[int]:
        """Steps of the whole checkpoints, ascending."""
        whole = (
            step for step in self.manager.all_steps() if (self.folder / str(step) / "metadata" / "metadata").is_file()
        )
        return sorted(whole)

    def latest(self) -> int | None:
        return max(self.steps(), default=None)

    def best(self) -> int | None:
        """The step with the lowest validation loss among the checkpoints that have one; the earlier of equals."""
        return self.retention.best()

    def best_loss(self) -> float | None:
        best = self.best()
        return None if best is None else self.retention.losses[best]

    def metadata(self, step: int) -> dict[str, Any]:
        """What the checkpoint says of itself. Raises `UsageError` if there is none at `step`, or of another format."""
        if step not in self.steps():
            there = ", ".join(map(str, self.steps())) or "none"
            raise UsageError(f"{self.folder / str(step)}: no such checkpoint; there are {there}")
        where = self.folder / str(step)
        try:
            values = json.loads((where / "metadata" / "metadata").read_text())
            stored = values.get("format")
        except (OSError, ValueError, AttributeError) as error:
            raise RunError(f"{where}: cannot be read ({first_line(error)}); move it away to use another one") from error
        if stored != FORMAT:
            raise UsageError(f"{where}: format {stored!r}; this version reads {FORMAT}")
        return values

    def save(self, state: State, metadata: dict[str, Any], validation_loss: float | None = None) -> None:
        """Write `state` in the background, once its arrays have been copied off the devices.

        The caller vouches that the state is finite. Raises `RunError` if this or an earlier write fails.
        """
        step = int(state.step)
        if step in self.steps():
            return
        if validation_loss is not None:
            self.retention.losses[step] = validation_loss
        values = {"format": FORMAT, "step": step, "validation_loss": validation_loss, **metadata}
        items = ocp.args.Composite(
            params=ocp.args.StandardSave(state.params),
            optimizer=ocp.args.StandardSave(by_path(state.optimizer)),
            metadata=ocp.args.JsonSave(values),
        )
        self.check_space(state)
        self.guard(lambda: self.manager.save(step, args=items, force=True))

    def wait(self) -> None:
        """Return when everything saved is on disk; raises `RunError` if it could not be."""
        self.guard(self.manager.wait_until_finished)

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            self.guard(self.manager.close)
        except RunError:
            if kind is None:  # else what ends the run already is the better explanation
                raise

    def check_space(self, state: State) -> None:
        """Raise `RunError` if the disk has no room for `state`: one line beforehand, not a hundred failing writers."""
        bytes_needed = round(1.1 * sum(leaf.nbytes for leaf in jax.tree.leaves(state))) + SPARE
        free = shutil.disk_usage(self.folder).free
        if free < bytes_needed:
            self.wait()
            needs = f"step {int(state.step)} needs {bytes_needed / 1e6:,.1f} MB, {free / 1e6:,.1f} MB are free"
            raise RunError(f"{self.folder}: no space for a checkpoint ({needs}); {self.kept()}")

    def guard(self, write: Callable[[], Any]) -> None:
        try:
            write()
        except WRITE_FAULTS as error:
            raise RunError(
                f"{self.folder}: writing a checkpoint failed ({first_line(error)}); {self.kept()}"
            ) from error

    def kept(self) -> str:
        """In words, what there is to go on from."""
        latest = self.latest()
        return "no checkpoint was saved before" if latest is None else f"the last good checkpoint is step {latest}"

    def restore(self, step: int, target: State) -> State:
        """The state at `step`, in the shapes, dtypes and shardings of `target`, all equal to those stored."""
        moments = by_path(target.optimizer)
        found = self.read(step, {"params": target.params, "optimizer": moments})
        optimizer = jax.tree.unflatten(
            jax.tree.structure(target.optimizer), [found["optimizer"][name] for name in moments]
        )
        return State(found["params"], optimizer, jax.device_put(jnp.int32(step), target.step.sharding))

    def restore_params(self, step: int, target: Any) -> Any:
        """The weights alone, in the shapes, dtypes and shardings of `target`, all equal to those stored."""
        return self.read(step, {"params": target})["params"]

    def read(self, step: int, targets: dict[str, Any]) -> Any:
        where = self.folder / str(step)
        self.metadata(step)
        try:
            stored = self.manager.item_metadata(step)
            for item, target in targets.items():
                difference = first_difference(stored[item].tree, target)
                if difference:
                    raise UsageError(f"{where}: {item} {difference}")
            items = {item: ocp.args.StandardRestore(target) for item, target in targets.items()}
            return self.manager.restore(step, args=ocp.args.Composite(**items))
        except UsageError:
            raise
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise RunError(
                f"{where}: cannot be read ({first_line(error)}); move it away to use an earlier one"
            ) from error


def by_path(tree: Any) -> dict[str, Any]:
    """The leaves of a tree by their path, in the tree's order: `{"1.0.mu.embedding": ...}`."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def first_difference(stored: Any, wanted: Any) -> str | None:
    """How the first leaf (by path) that is not the same array type in both trees differs; None if there is none.

    Orbax itself refuses other shapes in some calls and casts other dtypes without a word in all of them.
    """
    have, want = (
        {name: f"{jnp.dtype(leaf.dtype).name}{list(leaf.shape)}" for name, leaf in by_path(tree).items()}
        for tree in (stored, wanted)
    )
    for name in sorted(have | want):
        if have.get(name) != want.get(name):
            return f"{name}: stored is {have.get(name, 'nothing')}, wanted is {want.get(name, 'nothing')}"
    return None


def first_line(error: BaseException) -> str:
    """An error in one line, however much Orbax says."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:200]}" if text else type(error).__name__
