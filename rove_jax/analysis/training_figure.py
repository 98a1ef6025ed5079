"""Loss over the steps of training, from the metrics that runs have written."""

from collections.abc import Sequence
from pathlib import Path

from rove_jax.analysis.picture import Picture
from rove_jax.errors import UsageError
from rove_jax.training import metrics

FIELDS = {"loss": "training loss", "validation_loss": "loss on held-out text"}

LEAST_SPAN = 0.5
"""Nats that an axis spans at least, so that small differences look small."""


def training(workdirs: Sequence[Path], labels: Sequence[str]) -> Picture:
    """Training and validation loss of several runs; `UsageError` for a folder without metrics."""
    picture = Picture(list(FIELDS.values()))
    for style, (workdir, label) in enumerate(zip(workdirs, labels)):
        if not (workdir / metrics.FILE).is_file():
            raise UsageError(f"{workdir}: no {metrics.FILE}; name a run folder")
        rows = metrics.read_rows(workdir / metrics.FILE)
        for panel, field in enumerate(FIELDS):
            there = [row for row in rows if row.get(field) is not None]
            steps, values = [row["step"] for row in there], [row[field] for row in there]
            picture.line(panel, label, steps, values, style, marked=field == "validation_loss")
    for panel in range(len(FIELDS)):
        picture.dress(panel, "step", "nats per token")
        low, high = picture.axes[panel].get_ylim()
        middle, half = (low + high) / 2, max(high - low, LEAST_SPAN) / 2
        picture.axes[panel].set_ylim(middle - half, middle + half)
    return picture
