"""Where a run starts: from fresh weights, from another run's weights, or from its own last checkpoint."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rove_jax import config, storage
from rove_jax.data import prepare
from rove_jax.errors import UsageError
from rove_jax.training import state
from rove_jax.training.checkpoints import FOLDER, Checkpoints
from rove_jax.training.record import Change
from rove_jax.training.run_folder import Origin
from rove_jax.training.setup import Setup


@dataclasses.dataclass(frozen=True)
class Start:
    """A state to go on from."""

    state: state.State
    step: int
    source: str
    """In words, for the log."""
    skipped: tuple[str, ...] = ()
    """Newer checkpoints that could not be used, and why, a line for each."""
    changes: tuple[Change, ...] = ()
    """What is read now and was not before, by permission."""


def find(setup: Setup, checkpoints: Checkpoints, origin: Origin, workdir: Path, allowed: Sequence[str] = ()) -> Start:
    """The state to go on from. Raises `UsageError` naming what does not fit the config, the data or the tokenizer, but
    for the fields that are `allowed` to change."""

    def read(step: int) -> tuple[state.State, list[Change]]:
        changed = origin.check(checkpoints.metadata(step), workdir, allowed)
        return checkpoints.restore(step, setup.target), changed

    newest = checkpoints.newest(read)
    if newest is not None:
        step, (found, changed), skipped = newest
        return Start(found, step, f"continues from step {step}", tuple(map(str, skipped)), tuple(changed))
    if setup.settings.training.init_from is not None:
        params, source, skipped = weights_of(setup.settings.training.init_from, setup, origin)
        return Start(state.from_weights(setup.optimizer, params, setup.target), 0, source, skipped)
    return Start(state.create(setup.settings, setup.optimizer, setup.target), 0, "starts from fresh weights")


def weights_of(folder: str, setup: Setup, origin: Origin) -> tuple[Any, str, tuple[str, ...]]:
    """The weights of the last whole checkpoint of another run, if they mean the same here; where they are from; and
    what was wrong with later ones.

    The variant may differ (RoPE weights are the start of a RoVE retrofit, the tree is the same), and so may frequency
    scaling and alpha. The tokenizer may not, nor the shapes, nor pairing, base and dims of a rotation that both have.
    """
    name = f"training.init_from = {folder!r}"

    def read(step: int) -> Any:
        metadata = source.metadata(step)
        if metadata["tokenizer_identity"] != origin.tokenizer_identity:
            raise UsageError(f"{name}: its tokenizer is not that of data.tokenizer")
        theirs = config.from_dict(config.Config, metadata["config"]).model
        difference = rotation_difference(theirs, setup.settings.model)
        if difference:
            raise UsageError(f"{name}: {difference}")
        return source.restore_params(step, setup.target.params)

    with origin_of(folder) as source:
        newest = source.newest(read)
    assert newest is not None, "there was one a moment ago"
    step, params, skipped = newest
    return params, f"starts from the weights of {folder} at step {step}", tuple(map(str, skipped))


def origin_of(folder: str) -> Checkpoints:
    """The checkpoints of `training.init_from`, of which there is at least one."""
    place = storage.place(folder)
    storage.check(place)
    fault = "no such folder" if not folder or not place.is_dir() else None
    if not fault and not (place / FOLDER).is_dir():
        fault = f"holds no {FOLDER}/, so it is no run"
    found = None if fault else Checkpoints(place)
    if found is None or not (found.losses or found.damaged):
        fault = fault or "no checkpoint is saved there"
        raise UsageError(f"training.init_from = {folder!r}: {fault}; give the folder of a run")
    return found


def check_sources(settings: config.Config) -> None:
    """Raise `UsageError` if what a run would read is not there. Makes nothing and reads little."""
    prepare.check(settings.data)
    if settings.training.init_from is not None:
        origin_of(settings.training.init_from).saver.close()


def rotation_difference(theirs: config.Model, ours: config.Model) -> str | None:
    """How the rotations of two models differ in what weights are learnt for; None if they do not."""
    for name, their, our in zip(("rotary", "value_rotary"), theirs.rotations, ours.rotations):
        if their is None or our is None:
            continue
        for field in ("pairing", "base", "dims"):
            before, now = (
                r.turned(m.head_dim) if field == "dims" else getattr(r, field)
                for r, m in ((their, theirs), (our, ours))
            )
            if before != now:
                return f"model.{name}.{field} is {before!r} there and {now!r} here; weights do not carry over"
    return None
