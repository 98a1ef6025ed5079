"""Batches of windows: which records step s gets is computed from (seed, s), and grain reads them ahead of the step.

Global example s * batch_size + i is row i of step s, and example e is record order[e % N] of epoch e // N, where N is
the number of windows and the order differs from epoch to epoch. So a batch may hold the end of one epoch and the start
of the next, no window is ever left out, and neither the number of processes nor the place of a restart matters. Of a
mixture every corpus has its own N and its own e, the number of examples dealt to it before (`mixture.deal`).
"""

from collections.abc import Iterator

import grain
import numpy as np

from rove_jax.data.prepared import Prepared, Windows
from rove_jax.errors import UsageError, require

READ_AHEAD = grain.ReadOptions(num_threads=2, prefetch_buffer_size=8)
"""Batches read before they are asked for, by threads: decoding is so little that processes would cost more."""
LAST_STEP = 2**40


def batch_at(
    prepared: Prepared,
    *,
    split: str,
    batch_size: int,
    seed: int,
    step: int,
    process_index: int = 0,
    process_count: int = 1,
) -> np.ndarray:
    """This process's rows of the batch of `step`: int32 [batch_size / process_count, context_length + 1].

    A pure function of its arguments. Process p holds rows p B / P up to (p + 1) B / P of the global batch.
    """
    windows = nonempty(prepared, split)
    rows = rows_of(batch_size, process_index, process_count)
    return windows.rows(windows.places(step * batch_size + np.arange(rows.start, rows.stop), seed))


def batches(
    prepared: Prepared,
    *,
    split: str,
    batch_size: int,
    seed: int,
    start_step: int,
    process_index: int = 0,
    process_count: int = 1,
) -> Iterator[np.ndarray]:
    """The arrays of `batch_at` for steps `start_step`, `start_step` + 1, ..., without end, read ahead by threads.

    What goes wrong while reading is raised by the `next` of the step concerned.
    """
    windows = nonempty(prepared, split)
    rows = rows_of(batch_size, process_index, process_count)

    def read(step: int) -> np.ndarray:
        return windows.rows(windows.places(int(step) * batch_size + np.arange(rows.start, rows.stop), seed))

    return iter(grain.MapDataset.range(start_step, LAST_STEP).map(read).to_iter_dataset(READ_AHEAD))


def validation_batches(
    prepared: Prepared,
    *,
    batch_size: int,
    tokens: int,
    process_index: int = 0,
    process_count: int = 1,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The same windows of the validation split at every call: the fewest that predict at least `tokens` tokens, or all.

    They are spread evenly over the split, so that few of them stand for all of it; of a mixture, each corpus has its
    weight among them as long as it has the windows. Yields this process's rows of each
    batch: windows int32 [batch_size / process_count, context_length + 1] and weights float32 [batch_size /
    process_count], 1 for a window and 0 for a row of zeros that fills up the last batch. Every process gets equally
    many batches.
    """
    windows = nonempty(prepared, "validation")
    rows = rows_of(batch_size, process_index, process_count)
    chosen = windows.spread(-(-tokens // prepared.context_length))
    for start in range(0, len(chosen), batch_size):
        mine = chosen[start : start + batch_size][rows.start : rows.stop]
        batch = np.zeros((len(rows), windows.length), np.int32)
        batch[: len(mine)] = windows.rows(mine)
        yield batch, (np.arange(len(rows)) < len(mine)).astype(np.float32)


def rows_of(batch_size: int, process_index: int, process_count: int) -> range:
    """The rows of a global batch that a process holds."""
    require(batch_size % process_count == 0, "batch_size", batch_size, f"must divide by {process_count} processes")
    rows = batch_size // process_count
    return range(process_index * rows, (process_index + 1) * rows)


def nonempty(prepared: Prepared, split: str) -> Windows:
    """The windows of `split`. Raises `UsageError` if there are none."""
    windows = prepared.windows(split)
    if not len(windows):
        raise UsageError(f"{prepared.path}: the {split} split has no windows")
    return windows
