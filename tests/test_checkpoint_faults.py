"""Checkpoints that are damaged, and writes that fail: what is skipped, what is refused, what is tried again."""

import contextlib
import errno
import itertools
import json
import logging
import os
import resource

import jax
import numpy as np
import pytest
from checkpoint_damage import DAMAGES, at, data_file, disk_takes_no_more, flip, place, saved
from tiny_runs import SETTINGS, changed, corpus, keep_programs, saved_steps, settings, train

from rove_jax import config, zoo
from rove_jax.errors import RunError, UsageError
from rove_jax.training import loop, setup, state
from rove_jax.training.checkpoints import Checkpoints, Damaged, manager, retries, shelf, stored

CFG = settings(SETTINGS.data, training={"batch_size": 8})
RECORD = {"config": config.to_dict(CFG), "data_fingerprint": "d", "tokenizer_identity": "t"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    keep_programs(tmp_path_factory)
    return setup.make(CFG)


@pytest.fixture(scope="module")
def fresh(made):
    return state.create(CFG, made.optimizer, made.target)


@pytest.fixture
def lines(monkeypatch):
    """What is said on stderr. The pauses between tries are short."""
    found = []
    monkeypatch.setattr(manager, "say", found.append)
    monkeypatch.setattr(zoo, "say", found.append)
    monkeypatch.setattr(retries, "PAUSES", (0.1, 0.1, 0.1))
    return found


def newest(checkpoints, made):
    """Step, state, and what was skipped."""
    found = checkpoints.newest(lambda step: checkpoints.restore(step, made.target))
    assert found is not None
    return found


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_skipped_said_and_moved_aside(tmp_path, made, fresh, lines, damage):
    saved(tmp_path, fresh, RECORD, {1: None, 2: None})
    DAMAGES[damage](tmp_path, 2)
    with Checkpoints(tmp_path) as checkpoints:  # as an evaluation opens it: nothing is moved
        step, _, skipped = newest(checkpoints, made)
    assert step == 1 and len(skipped) == 1 and os.path.lexists(place(tmp_path, 2))
    assert str(skipped[0]).startswith(f"{place(tmp_path, 2)}: damaged: ")
    with Checkpoints(tmp_path, keep_last=2) as checkpoints:
        step, found, skipped = newest(checkpoints, made)
        assert (step, len(skipped)) == (1, 1)
        jax.tree.map(np.testing.assert_array_equal, found.params, fresh.params)
        checkpoints.save(at(fresh, 2), RECORD)
    assert saved_steps(tmp_path) == [1, 2]
    assert str(skipped[0]).endswith("; moved to 2.damaged") and os.path.lexists(tmp_path / "checkpoints" / "2.damaged")
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.restore(2, made.target)


def test_what_was_moved_aside_stays_and_is_no_checkpoint(tmp_path, made, fresh):
    saved(tmp_path, fresh, RECORD, {1: None})
    for _ in range(2):
        saved(tmp_path, fresh, RECORD, {2: None})
        flip(data_file(tmp_path, 2))
        with Checkpoints(tmp_path, keep_last=2) as checkpoints:
            newest(checkpoints, made)
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["1", "2.damaged", "2.damaged1"]


def test_without_a_whole_checkpoint_nothing_starts_afresh(tmp_path, made, fresh):
    saved(tmp_path, fresh, RECORD, {1: None, 2: None})
    for step in (1, 2):
        flip(data_file(tmp_path, step))
    with Checkpoints(tmp_path, keep_last=2) as checkpoints:
        with pytest.raises(RunError, match="no checkpoint is whole, of 2; .*/2: damaged: params"):
            newest(checkpoints, made)
    with pytest.raises(RunError, match="no checkpoint is whole, of 2"):
        zoo.load_model(tmp_path)
    assert saved_steps(tmp_path) == [1, 2], "nothing was moved"


def test_a_model_is_the_last_whole_one_but_one_that_is_named_is_refused(tmp_path, fresh, lines):
    saved(tmp_path, fresh, RECORD, {1: 2.0, 2: 1.0})
    flip(data_file(tmp_path, 2))
    assert zoo.load_model(tmp_path).step == 1
    assert len(lines) == 1 and "2: damaged: params.embedding is not what was saved" in lines[0]
    for named in (2, "best"):
        with pytest.raises(Damaged, match="2: damaged: params.embedding is not what was saved"):
            zoo.load_model(tmp_path, step=named)


def test_what_may_not_be_read_is_not_taken_for_damaged(tmp_path, made, fresh, monkeypatch):
    saved(tmp_path, fresh, RECORD, {1: None, 2: None})

    def refused(*_, **__):
        raise ValueError("PERMISSION_DENIED: Error opening file")

    monkeypatch.setattr(stored.tensorstore, "open", refused)
    with Checkpoints(tmp_path, keep_last=2) as checkpoints, pytest.raises(RunError, match="2: .* may not be read by"):
        newest(checkpoints, made)
    assert saved_steps(tmp_path) == [1, 2]


def test_another_config_is_refused_not_skipped(tmp_path, fresh):
    """Nothing is wrong with the checkpoint, so an older one is no better."""
    saved(tmp_path, fresh, RECORD, {1: None, 2: None})
    wider = setup.make(settings(CFG.data, base=CFG, model={"query_heads": 4, "kv_heads": 4, "head_dim": 4})).target
    with Checkpoints(tmp_path, keep_last=2) as checkpoints:
        with pytest.raises(UsageError, match=r"2: params blocks.attention.key.bias: stored is float32\[2, 2, 8\]"):
            checkpoints.newest(lambda step: checkpoints.restore(step, wider))
    assert saved_steps(tmp_path) == [1, 2]


def test_without_digests_the_flipped_bit_would_come_through(tmp_path, made, fresh, monkeypatch):
    """What the digests are for: no other layer looks at the bits."""
    saved(tmp_path, fresh, RECORD, {1: None})
    flip(data_file(tmp_path, 1))
    file = place(tmp_path, 1) / "metadata" / "metadata"
    said = json.loads(file.read_text())["arrays"]
    told = {f"{item}.{path}": digest for item in said for path, (_, digest) in said[item].items()}
    monkeypatch.setattr(stored, "digests", lambda arrays: {name: told[name] for name in arrays})
    with Checkpoints(tmp_path) as checkpoints:
        found = checkpoints.restore(1, made.target).params
    same = jax.tree.map(lambda left, right: bool((left == right).all()), found, fresh.params)
    assert not all(jax.tree.leaves(same))


def test_a_write_that_fails_in_the_background_is_said_and_tried_again(tmp_path, fresh, lines):
    saved(tmp_path, fresh, RECORD, {1: None})
    with Checkpoints(tmp_path, keep_last=2) as checkpoints:
        with disk_takes_no_more():
            checkpoints.save(at(fresh, 2), RECORD, 0.5)
            checkpoints.settle()
        assert len(lines) == 1 and "writing step 2 failed" in lines[0] and "try" in lines[0], lines
        assert checkpoints.owed and (checkpoints.latest(), checkpoints.best()) == (1, None)
        checkpoints.finish(at(fresh, 2), RECORD)
        assert not checkpoints.owed and (checkpoints.best(), checkpoints.best_loss()) == (2, 0.5)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["1", "2"]
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.check_arrays(2)


def test_a_disk_that_takes_no_more_ends_the_run_after_three_tries(tmp_path, fresh, lines):
    saved(tmp_path, fresh, RECORD, {1: None})
    with disk_takes_no_more(), pytest.raises(RunError, match="step 2 failed .*; the last good checkpoint is step 1"):
        with Checkpoints(tmp_path, keep_last=2) as checkpoints:
            checkpoints.save(at(fresh, 2), RECORD)
            checkpoints.finish(at(fresh, 2), RECORD)
    assert [line[-8:] for line in lines] == ["(1 of 3)", "(2 of 3)", "(3 of 3)"]
    assert saved_steps(tmp_path) == [1] and not place(tmp_path, 2).exists()


def test_after_a_write_that_failed_nothing_is_told_of_it_behind_the_last_line(
    tmp_path, fresh, lines, caplog, monkeypatch
):
    """asyncio tells of a future when it is collected, which is after the checkpoints have been closed."""

    def collected() -> int:
        before = len(caplog.records)
        logging.getLogger("asyncio").error("exception was never retrieved", exc_info=ValueError("no space"))
        return len(caplog.records) - before

    monkeypatch.setattr(logging.getLogger("asyncio"), "filters", [])  # of tests before this one
    saved(tmp_path, fresh, RECORD, {1: None})
    assert collected() == 1
    with disk_takes_no_more(), contextlib.suppress(KeyError), Checkpoints(tmp_path, keep_last=2) as checkpoints:
        checkpoints.save(at(fresh, 2), RECORD)
        raise KeyError
    assert len(lines) == 1 and collected() == 0


def test_what_could_not_be_deleted_is_in_nobody_s_way(tmp_path, fresh, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(shelf.shutil, "rmtree", lambda *_, **__: None)
        saved(tmp_path, fresh, RECORD, {1: None, 2: None}, keep_last=1)
        saved(tmp_path, fresh, RECORD, {1: None}, keep_last=2)
        saved(tmp_path, fresh, RECORD, {3: None}, keep_last=1)
        names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
        assert names == ["1.deleting", "1.deleting1", "2.deleting", "3"]
    saved(tmp_path, fresh, RECORD, {4: None}, keep_last=1)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["4"]


def test_success_forgets_earlier_failures(tmp_path, fresh, lines):
    with Checkpoints(tmp_path, keep_last=9) as checkpoints:
        for step in range(1, 6):
            with disk_takes_no_more():
                checkpoints.save(at(fresh, step), RECORD)
                checkpoints.settle()
            checkpoints.finish(at(fresh, step), RECORD)
    assert [line[-8:] for line in lines] == ["(1 of 3)"] * 5
    assert saved_steps(tmp_path) == [1, 2, 3, 4, 5]


@pytest.fixture(scope="module")
def cfg(tmp_path_factory):
    keep_programs(tmp_path_factory)
    return settings(corpus(tmp_path_factory.mktemp("corpus")))


def test_a_run_goes_on_from_the_last_whole_step_and_says_so(cfg, tmp_path):
    short = changed(cfg, training={"checkpoint_every": 2, "validation_every": 0, "stop_after": 4, "keep_last": 3})
    train(short, tmp_path)
    flip(data_file(tmp_path, 4))
    said = []
    result = loop.run(short, tmp_path, say=said.append)
    assert (result.trained, result.step) == (2, 4), "a run is not done if what it came to is damaged"
    assert any(line.startswith("skipped") and "checkpoints/4: damaged: " in line for line in said), said
    assert saved_steps(tmp_path) == [2, 4]
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.check_arrays(4)


def test_training_goes_on_between_two_tries_on_a_full_disk_and_not_for_ever(cfg, tmp_path, lines, monkeypatch):
    tried = []

    def full(self, step, state):
        tried.append(step)
        raise OSError(errno.ENOSPC, "no space at all")

    monkeypatch.setattr(Checkpoints, "prepare", full)
    every = {"steps": 10**6, "checkpoint_every": 1, "validation_every": 0, "log_every": 10**6}
    with pytest.raises(
        RunError, match="writing step [0-9]+ failed .*no space at all.*; no checkpoint was saved before"
    ):
        train(changed(cfg, training=every), tmp_path)
    assert len(tried) == 4 and len(lines) == 3
    assert all(later > before + 1 for before, later in itertools.pairwise(tried)), "no pause between them"


def test_a_failed_write_is_made_good_by_a_later_step(cfg, tmp_path, lines, monkeypatch):
    """The disk is full when step 2 is saved, and until that is noticed."""
    limits = contextlib.ExitStack()
    save = Checkpoints.save

    def first_on_a_full_disk(self, state, *rest):
        if int(state.step) == 2:
            limits.enter_context(disk_takes_no_more())
        save(self, state, *rest)

    monkeypatch.setattr(Checkpoints, "save", first_on_a_full_disk)
    monkeypatch.setattr(manager, "say", lambda line: (limits.close(), lines.append(line)))
    every = {"checkpoint_every": 2, "validation_every": 0, "keep_last": 9}
    assert train(changed(cfg, training=every), tmp_path).finished
    assert len(lines) == 1 and "writing step 2 failed" in lines[0]
    assert 2 not in saved_steps(tmp_path) and {4, 6} <= set(saved_steps(tmp_path))
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
