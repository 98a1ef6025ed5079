"""Where a run starts: from fresh weights, from another run's weights, or from its own last checkpoint."""

import dataclasses
from pathlib import Path
from typing import Any

from rove_jax import config
from rove_jax.data import prepared, sources
from rove_jax.errors import UsageError
from rove_jax.training import state
from rove_jax.training.checkpoint import Checkpoints
from rove_jax.training.plan import Plan
from rove_jax.training.run_folder import Origin


@dataclasses.dataclass(frozen=True)
class Start:
    """A state to go on from."""

    state: state.State
    step: int
    source: str
    """In words, for the log."""


def find(plan: Plan, checkpoints: Checkpoints, origin: Origin, workdir: Path) -> Start:
    """The state to go on from. Raises `UsageError` naming what does not fit the config, the data or the tokenizer."""
    latest = checkpoints.latest()
    if latest is not None:
        origin.check(checkpoints.metadata(latest), workdir)
        return Start(checkpoints.restore(latest, plan.target), latest, f"continues from step {latest}")
    if plan.settings.training.init_from is not None:
        params, source = weights_of(Path(plan.settings.training.init_from), plan, origin)
        return Start(state.from_weights(plan.optimizer, params, plan.target), 0, source)
    return Start(state.create(plan.settings, plan.optimizer, plan.target), 0, "starts from fresh weights")


def weights_of(folder: Path, plan: Plan, origin: Origin) -> tuple[Any, str]:
    """The weights of the last checkpoint of another run, if they mean the same here, and where they are from.

    The variant may differ (RoPE weights are the start of a RoVE retrofit, the tree is the same), and so may frequency
    scaling and alpha. The tokenizer may not, nor the shapes, nor pairing, base and dims of a rotation that both have.
    """
    if not folder.is_dir():
        raise UsageError(f"training.init_from = {str(folder)!r}: no such folder")
    with Checkpoints(folder) as source:
        latest = source.latest()
        if latest is None:
            raise UsageError(f"training.init_from = {str(folder)!r}: holds no finished checkpoint")
        metadata = source.metadata(latest)
        if metadata["tokenizer_identity"] != origin.tokenizer_identity:
            raise UsageError(f"training.init_from = {str(folder)!r}: its tokenizer is not that of data.tokenizer")
        theirs = config.from_dict(config.Config, metadata["config"]).model
        difference = rotation_difference(theirs, plan.settings.model)
        if difference:
            raise UsageError(f"training.init_from = {str(folder)!r}: {difference}")
        return source.restore_params(
            latest, plan.target.params
        ), f"starts from the weights of {folder} at step {latest}"


def check_sources(settings: config.Config) -> None:
    """Raise `UsageError` if what a run would read is not there. Makes nothing and reads little."""
    data, origin = settings.data, settings.training.init_from
    if data.prepared is None:
        sources.load(data)
    else:
        prepared.load(Path(data.prepared), data)
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
