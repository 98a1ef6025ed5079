"""Trained models by the folder of their run."""

from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax

from rove_jax import config, sharding, storage
from rove_jax.errors import UsageError
from rove_jax.models import functional
from rove_jax.training.checkpoints import Checkpoints, say
from rove_jax.training.run_folder import stored_config


class Loaded(NamedTuple):
    """A trained model and what is known of it."""

    config: config.Config
    """The run's, as stored in the checkpoint; its `evaluation` part is the one last asked for in the run folder."""
    params: Any
    """Plain nested dict of float32 arrays, for `rove_jax.models.functional`."""
    step: int
    metadata: dict[str, Any]
    """What the checkpoint says of itself: data fingerprint, tokenizer identity, versions, validation loss, ..."""


def load_model(
    path: str | Path, *, step: int | Literal["last", "best"] | None = None, mesh: jax.sharding.Mesh | None = None
) -> Loaded:
    """The model that the run in folder `path` had at a saved step (default: the last; "best": by validation loss).

    Weights go to one device, or over `mesh` by the table in `sharding`, wherever they were when they were saved. The
    last is the newest that is whole; damaged ones after it are named on stderr. Raises `UsageError` if there is no run
    or no such checkpoint, `RunError` if the one asked for, or every one, is damaged.
    """
    path = storage.place(path)
    storage.check(path)
    if not path.is_dir():
        raise UsageError(f"{path}: no such folder; give the folder of a training run")
    with Checkpoints(path) as checkpoints:

        def read(chosen: int) -> Loaded:
            metadata = checkpoints.metadata(chosen)
            asked = (stored_config(path) or {}).get("evaluation", metadata["config"]["evaluation"])
            settings = {**metadata["config"], "evaluation": asked}
            loaded = config.from_dict(config.Config, settings)
            return Loaded(loaded, checkpoints.restore_params(chosen, target(loaded.model, mesh)), chosen, metadata)

        if step in ("last", None):
            newest = checkpoints.newest(read)
            if newest is None:
                raise UsageError(f"{path}: no checkpoint is saved there")
            for reason in newest[2]:
                say(f"skipped: {reason}")
            return newest[1]
        chosen = checkpoints.best() if step == "best" else step
        if chosen is None:
            raise UsageError(f"{path}: no checkpoint with a validation loss is saved there")
        if not isinstance(chosen, int):
            raise UsageError(f"step = {step!r}: must be last, best or the number of a saved step")
        return read(chosen)


def target(model: config.Model, mesh: jax.sharding.Mesh | None) -> Any:
    """Shapes, dtypes and places of the parameters of `model`."""
    abstract = functional.abstract(model)
    if mesh is None:
        one = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        placed = jax.tree.map(lambda leaf: one, abstract)
    else:
        placed = sharding.parameters(functional.axes(model), abstract, mesh)
    return jax.tree.map(
        lambda leaf, where: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where), abstract, placed
    )
