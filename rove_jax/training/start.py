"""Where a run starts: from fresh weights, from another run's weights, or from its own last checkpoint."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rove_jax import config, storage
from rove_jax.data import prepare
from rove_jax.errors import UsageError
from rove_jax.training import state
from rove_jax.training.checkpoint import Checkpoints
from rove_jax.training.run_folder import Change, Origin
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
        params, source, skipped = weights_of(Path(setup.settings.training.init_from), setup, origin)
        return Start(state.from_weights(setup.optimizer, params, setup.target), 0, source, skipped)
    return Start(state.create(setup.settings, setup.optimizer, setup.target), 0, "starts from fresh weights")


def weights_of(folder: Path, setup: Setup, origin: Origin) -> tuple[Any, str, tuple[str, ...]]:
    """The weights of the last whole checkpoint of another run, if they mean the same here; where they are from; and
    what was wrong with later ones.

    The variant may differ (RoPE weights are the start of a RoVE retrofit, the tree is the same), and so may frequency
    scaling and alpha. The tokenizer may not, nor the shapes, nor pairing, base and dims of a rotation that both have.
    """
    name = f"training.init_from = {str(folder)!r}"
    folder = storage.place(folder)
    if not folder.is_dir():
        raise UsageError(f"{name}: no such folder")

    def read(step: int) -> Any:
        metadata = source.metadata(step)
        if metadata["tokenizer_identity"] != origin.tokenizer_identity:
            raise UsageError(f"{name}: its tokenizer is not that of data.tokenizer")
        theirs = config.from_dict(config.Config, metadata["config"]).model
        difference = rotation_difference(theirs, setup.settings.model)
        if difference:
            raise UsageError(f"{name}: {difference}")
        return source.restore_params(step, setup.target.params)

    with Checkpoints(folder) as source:
        newest = source.newest(read)
    if newest is None:
        raise UsageError(f"{name}: holds no finished checkpoint")
    step, params, skipped = newest
    return params, f"starts from the weights of {folder} at step {step}", tuple(map(str, skipped))


def check_sources(settings: config.Config) -> None:
    """Raise `UsageError` if what a run would read is not there. Makes nothing and reads little."""
    prepare.check(settings.data)
    origin = settings.training.init_from
    if origin is not None:
        with Checkpoints(Path(origin)) as found:
            if found.latest() is None:
                raise UsageError(f"training.init_from = {origin!r}: holds no finished checkpoint")


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
