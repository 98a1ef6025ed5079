"""Which checkpoints stay: the last, the best and every so many, by rules that know nothing of each other."""

import itertools

import pytest
from tiny_runs import changed, corpus, keep_programs, saved_steps, settings, train

from rove_jax.config import Training
from rove_jax.errors import UsageError
from rove_jax.training.checkpoints.retention import best, kept
from rove_jax.training.validation import Validation


@pytest.mark.parametrize(
    "losses, last, every, expected",
    [
        ({}, 2, None, set()),
        ({1: None, 2: None, 3: None}, 2, None, {2, 3}),
        ({1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0, 5: 5.0}, 2, None, {1, 4, 5}),
        ({1: 5.0, 2: 4.0, 3: 3.0}, 1, None, {3}),
        ({1: 1.0, 2: 1.0, 3: 2.0}, 1, None, {1, 3}),
        ({10: None, 20: None, 30: None, 40: None, 50: None}, 1, 20, {20, 40, 50}),
        ({10: 1.0, 20: None, 30: None, 40: None, 50: None}, 2, 20, {10, 20, 40, 50}),
    ],
)
def test_each_rule_keeps_its_own(losses, last, every, expected):
    for order in itertools.islice(itertools.permutations(losses), 24):
        assert kept({step: losses[step] for step in order}, last=last, every=every) == expected


def test_the_best_is_the_earlier_of_equals_and_none_without_a_loss():
    assert best({3: 1.0, 2: 1.0, 1: 2.0}) == 2 and best({1: None}) is None


@pytest.mark.parametrize("every", [0, 15, 5])
def test_what_is_never_saved_cannot_be_kept(every):
    with pytest.raises(UsageError, match=f"training.keep_every = {every}: must be a multiple of checkpoint_every = 10"):
        Training(checkpoint_every=10, keep_every=every)


@pytest.mark.slow
def test_a_run_keeps_every_tenth_the_best_and_the_last(tmp_path, tmp_path_factory, monkeypatch):
    """21 steps, saved every 5, with a validation loss that only gets worse."""
    keep_programs(tmp_path_factory)
    worsening = itertools.count(1.0)
    monkeypatch.setattr(Validation, "loss", lambda self, params: next(worsening))
    every = {
        "steps": 21,
        "checkpoint_every": 5,
        "validation_every": 3,
        "keep_last": 2,
        "keep_every": 10,
        "log_every": 9,
    }
    cfg = changed(settings(corpus(tmp_path)), training=every)
    for stop in (11, None):
        result = train(changed(cfg, training={"stop_after": stop}), tmp_path / "run")
    assert (result.best_step, result.best_loss) == (3, 1.0)
    assert saved_steps(tmp_path / "run") == [3, 10, 20, 21]
