"""Runs small enough to train in a test: their text, their settings, and how two of them are compared."""

import dataclasses
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from rove_jax import config, distributed
from rove_jax.training import loop, setup
from rove_jax.training.checkpoints import Checkpoints
from rove_jax.training.checkpoints.digest import by_path
from rove_jax.training.metrics import read_rows

SETTINGS = config.Config(
    model=config.Model(
        layers=2, width=16, query_heads=2, kv_heads=2, head_dim=8, mlp_width=32, dropout=0.1, scan_layers=True
    ),
    data=config.Data(source="files", context_length=16, path="set by `settings`"),
    optimizer=config.Optimizer(peak_lr=1e-2, warmup_steps=2),
    training=config.Training(
        steps=6,
        batch_size=4,
        accumulation=2,
        log_every=1,
        validation_every=2,
        validation_tokens=64,
        checkpoint_every=100,
    ),
    mesh=config.Mesh(data=1),
)
"""Dropout and accumulation on, and 6 batches of 4 windows are more than one epoch of `corpus`."""


def corpus(folder: Path) -> config.Data:
    """Write a text of 13 training and 13 validation windows of 16 bytes, and return the `Data` that reads it."""
    draw = np.random.RandomState(0)
    words = "we the people of the union report to congress the state of this great nation and its laws".split()
    text = folder / "text"
    text.mkdir()
    for index in range(2):
        (text / f"{index}.txt").write_text(" ".join(draw.choice(words, 48)))
    return dataclasses.replace(SETTINGS.data, path=str(text), cache=str(folder / "prepared"))


def settings(data: config.Data, *, base: config.Config = SETTINGS, **parts: Any) -> config.Config:
    """`base` on `data`, with fields replaced: `settings(data, training={"steps": 3}, seed=1)`."""
    replaced = {
        name: dataclasses.replace(getattr(base, name), **value) if isinstance(value, dict) else value
        for name, value in parts.items()
    }
    return dataclasses.replace(base, data=data, **replaced)


def changed(cfg: config.Config, **parts: Any) -> config.Config:
    """`cfg` with fields replaced."""
    return settings(cfg.data, base=cfg, **parts)


def train(cfg: config.Config, workdir: Path, **options: Any) -> loop.Result:
    """`loop.run`, silent."""
    return loop.run(cfg, workdir, say=lambda line: None, **options)


def arrays(cfg: config.Config, workdir: Path, step: int) -> dict[str, np.ndarray]:
    """Every array of a checkpoint by its path."""
    with Checkpoints(workdir) as checkpoints:
        state = checkpoints.restore(step, setup.make(cfg).target)
    return {name: np.asarray(leaf) for name, leaf in by_path(state._asdict()).items()}


def saved_steps(workdir: Path) -> list[int]:
    """Steps of the checkpoints of a run."""
    with Checkpoints(workdir) as checkpoints:
        return checkpoints.steps()


def differing(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> set[str]:
    """Names of the arrays that are not the same bits of the same type in both."""
    return {
        name
        for name in left | right
        if name not in left
        or name not in right
        or left[name].dtype != right[name].dtype
        or left[name].tobytes() != right[name].tobytes()
    }


def rows(workdir: Path, *names: str) -> list[tuple]:
    """Columns `names` of the run's metrics."""
    return [tuple(row.get(name) for name in names) for row in read_rows(workdir / "metrics.jsonl")]


def keep_programs(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep compiled programs for the rest of the tests, in one place for all workers: runs differ in little."""
    folder = tmp_path_factory.getbasetemp()
    distributed.keep_compiled(str((folder.parent if os.environ.get("PYTEST_XDIST_WORKER") else folder) / "programs"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
