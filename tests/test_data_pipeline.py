"""The order of the data: a pure function of (seed, step), the same for any number of processes and any restart."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rove_jax.config import Data
from rove_jax.data import order, pipeline, prepare, sources
from rove_jax.errors import RunError, UsageError

LENGTH = 8
RECORDS = 20


@pytest.fixture(scope="module")
def twenty(tmp_path_factory):
    """20 windows for training (two documents of 80 bytes) and 6 for validation (one of 50)."""
    folder = tmp_path_factory.mktemp("twenty")
    rng = np.random.default_rng(0)
    names = ["0.txt", "1.txt", "2.txt"]
    held_out = sources.hashed_out(names)
    assert len(held_out) == 1
    for name in names:
        size = 50 if name in held_out else 80
        (folder / name).write_bytes(bytes(rng.integers(97, 123, size).tolist()))
    dataset = prepare.ensure(
        Data(source="files", path=str(folder), context_length=LENGTH, cache=str(folder.parent / "cache"))
    )
    assert (len(dataset.windows("train")), len(dataset.windows("validation"))) == (RECORDS, 6)
    return dataset


# The permutation


@pytest.mark.parametrize("size", [*range(1, 40), 97, 128, 1000, 4097])
def test_each_epoch_is_a_permutation(size):
    found = order.records(np.arange(3 * size), size=size, seed=5).reshape(3, size)
    assert (np.sort(found, axis=1) == np.arange(size)).all()


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = [order.records(np.arange(4 * RECORDS), size=RECORDS, seed=seed).reshape(4, -1) for seed in range(20)]
    assert len({tuple(one) for seed in orders for one in seed}) == 80
    assert not (orders[0][0] == np.arange(RECORDS)).all()


def test_the_order_depends_on_nothing_but_its_arguments():
    everything = order.records(np.arange(100), size=RECORDS, seed=1)
    for n in (0, 19, 20, 57, 99):
        assert order.records(np.array([n]), size=RECORDS, seed=1) == everything[n]
    assert (
        order.records(np.array([[57, 3], [20, 99]]), size=RECORDS, seed=1).ravel() == everything[[57, 3, 20, 99]]
    ).all()


def test_the_order_is_the_same_in_every_version():
    """Runs resume by it: a change here is a change of what every seed means, and of `prepared.FORMAT`."""
    assert order.records(np.arange(6), size=20, seed=7).tolist() == [10, 13, 18, 9, 3, 19]
    assert order.records(np.arange(78, 84), size=81, seed=-1).tolist() == [58, 59, 29, 46, 17, 32]


def test_every_record_comes_first_equally_often():
    """4000 seeds over 20 records: chi-squared with 19 degrees of freedom is below 43.8 but for 1 in 1000."""
    first = [order.records(np.array([0]), size=RECORDS, seed=seed)[0] for seed in range(4000)]
    counts = np.bincount(first, minlength=RECORDS)
    assert ((counts - 200) ** 2 / 200).sum() < 43.8


# Batches


@pytest.mark.parametrize("batch_size", [4, 8, 12])
def test_row_i_of_step_s_is_record_s_b_plus_i_of_its_epoch(twenty, batch_size):
    windows = twenty.windows("train")
    for step in range(12):
        batch = pipeline.batch_at(twenty, split="train", batch_size=batch_size, seed=3, step=step)
        assert batch.shape == (batch_size, LENGTH + 1)
        assert batch.dtype == np.int32
        for i in range(batch_size):
            epoch, place = divmod(step * batch_size + i, RECORDS)
            whole = order.records(np.arange(epoch * RECORDS, (epoch + 1) * RECORDS), size=RECORDS, seed=3)
            assert (batch[i] == windows[whole[place]]).all()


def test_two_epochs_in_batches_that_do_not_divide_hold_every_window_twice(twenty):
    """5 steps of 8 are two epochs of 20; step 2 holds the end of one and the start of the other."""
    found = np.concatenate([pipeline.batch_at(twenty, split="train", batch_size=8, seed=0, step=s) for s in range(5)])
    expected = twenty.windows("train").rows(np.arange(RECORDS))
    for epoch in (found[:RECORDS], found[RECORDS:]):
        assert sorted(map(tuple, epoch)) == sorted(map(tuple, expected))
    assert (found[:RECORDS] != found[RECORDS:]).any()


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_the_global_batch_is_the_same_for_any_number_of_processes(twenty, processes):
    alone = pipeline.batches(twenty, split="train", batch_size=8, seed=0, start_step=0)
    parts = [
        pipeline.batches(
            twenty, split="train", batch_size=8, seed=0, start_step=0, process_index=p, process_count=processes
        )
        for p in range(processes)
    ]
    for _ in range(6):
        assert (np.concatenate([next(part) for part in parts]) == next(alone)).all()


def test_a_restart_after_any_step_goes_on_as_if_nothing_had_happened(twenty):
    straight = [
        next_batch
        for next_batch, _ in zip(pipeline.batches(twenty, split="train", batch_size=6, seed=2, start_step=0), range(25))
    ]
    assert len({batch.tobytes() for batch in straight}) == 25
    for start in range(21):
        again = pipeline.batches(twenty, split="train", batch_size=6, seed=2, start_step=start)
        for step in range(start, min(start + 5, 25)):
            assert (next(again) == straight[step]).all()


def test_processes_must_divide_the_batch(twenty):
    with pytest.raises(UsageError, match="batch_size = 8: must divide by 3 processes"):
        pipeline.batches(twenty, split="train", batch_size=8, seed=0, start_step=0, process_count=3)


# Validation


def test_validation_takes_the_same_spread_windows_each_time(twenty):
    windows = twenty.windows("validation")
    first, second = (list(pipeline.validation_batches(twenty, batch_size=2, tokens=3 * LENGTH - 1)) for _ in range(2))
    assert [(batch.tolist(), weights.tolist()) for batch, weights in first] == [
        (batch.tolist(), weights.tolist()) for batch, weights in second
    ]
    (one, ones), (two, twos) = first
    assert (one == windows.rows([0, 2])).all()
    assert (two[0] == windows[4]).all()
    assert ones.tolist() == [1, 1]
    assert twos.tolist() == [1, 0], "the row that fills up the batch has no weight"
    assert ones.dtype == np.float32
    assert (two[1] == 0).all()


def test_validation_without_enough_windows_takes_each_once(twenty):
    windows = twenty.windows("validation")
    parts = list(pipeline.validation_batches(twenty, batch_size=4, tokens=10**6))
    rows = np.concatenate([batch for batch, _ in parts])
    weights = np.concatenate([weights for _, weights in parts])
    assert (rows[weights == 1] == windows.rows(np.arange(6))).all()
    assert weights.sum() == 6


@pytest.mark.parametrize("processes", [2, 4])
def test_validation_batches_are_shared_out_alike(twenty, processes):
    alone = list(pipeline.validation_batches(twenty, batch_size=4, tokens=10**6))
    shares = [
        list(pipeline.validation_batches(twenty, batch_size=4, tokens=10**6, process_index=p, process_count=processes))
        for p in range(processes)
    ]
    assert {len(share) for share in shares} == {len(alone)}
    for n, (batch, weights) in enumerate(alone):
        assert (np.concatenate([share[n][0] for share in shares]) == batch).all()
        assert (np.concatenate([share[n][1] for share in shares]) == weights).all()


# What goes wrong


def test_a_damaged_record_stops_the_step_that_reads_it(twenty, tmp_path):
    for path in twenty.path.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    shard = tmp_path / twenty.manifest["shards"]["train_windows"][0][0]
    content = bytearray(shard.read_bytes())
    content[300] ^= 1
    shard.write_bytes(content)
    damaged = prepare.ensure(Data(context_length=LENGTH, prepared=str(tmp_path)))
    batches = pipeline.batches(damaged, split="train", batch_size=1, seed=0, start_step=0)
    with pytest.raises(RunError, match="train_windows cannot be read"):
        for _ in range(RECORDS):
            next(batches)


FAILS = """
import sys
from rove_jax.config import Data
from rove_jax.data import pipeline, prepare
dataset = prepare.ensure(Data(context_length=8, prepared=sys.argv[1]))
for step, batch in enumerate(pipeline.batches(dataset, split="train", batch_size=4, seed=0, start_step=0)):
    if step == 3:
        raise SystemExit("stopped in step 3")
"""


def test_the_reading_threads_do_not_hold_a_failed_process(twenty):
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run(
        [sys.executable, "-c", FAILS, str(twenty.path)], cwd=root, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr == "stopped in step 3\n"
