"""A run that stops and goes on is, bit for bit, the run that never stopped."""

import dataclasses
import functools
from pathlib import Path

import jax
import pytest
from tiny_runs import arrays, corpus, differing, keep_programs, rows, settings, train

from rove_jax import losses
from rove_jax.data import pipeline, prepare
from rove_jax.models import functional
from rove_jax.training import state
from rove_jax.training.checkpoints import Checkpoints

NUMBERS = ("step", "loss", "grad_norm", "learning_rate", "validation_loss")


@pytest.fixture(scope="module")
def cfg(tmp_path_factory):
    keep_programs(tmp_path_factory)
    return settings(corpus(tmp_path_factory.mktemp("corpus")))


@pytest.fixture(scope="module")
def straight(cfg, tmp_path_factory) -> Path:
    workdir = tmp_path_factory.mktemp("straight") / "run"
    assert train(cfg, workdir).finished
    return workdir


def in_parts(cfg, workdir: Path, stops) -> None:
    for stop in stops:
        result = train(settings(cfg.data, base=cfg, training={"stop_after": stop}), workdir)
        assert (result.step, result.finished) == (stop, stop == cfg.training.steps)


def test_the_runs_cross_the_end_of_an_epoch(cfg):
    windows = len(prepare.ensure(cfg.data).windows("train"))
    assert 4 < windows < cfg.training.steps * cfg.training.batch_size


@pytest.mark.parametrize("stops", [(3, 6), (1, 2, 3, 4, 5, 6)])
def test_stopping_changes_no_bit(cfg, straight, tmp_path, stops):
    in_parts(cfg, tmp_path / "run", stops)
    assert differing(arrays(cfg, tmp_path / "run", 6), arrays(cfg, straight, 6)) == set()
    assert rows(tmp_path / "run", *NUMBERS) == rows(straight, *NUMBERS)
    assert [row[0] for row in rows(straight, "step")] == [1, 2, 3, 4, 5, 6]


def test_the_comparison_sees_a_forgotten_optimizer_state(cfg, straight, tmp_path, monkeypatch):
    restore = Checkpoints.restore

    def forgetful(self, step, target):
        found = restore(self, step, target)
        return found._replace(optimizer=jax.tree.map(lambda leaf: leaf * 0, found.optimizer))

    monkeypatch.setattr(Checkpoints, "restore", forgetful)
    in_parts(cfg, tmp_path / "run", (3, 6))
    monkeypatch.undo()
    assert "params.embedding" in differing(arrays(cfg, tmp_path / "run", 6), arrays(cfg, straight, 6))


def test_the_comparison_sees_data_that_start_again(cfg, straight, tmp_path, monkeypatch):
    batches = pipeline.batches
    monkeypatch.setattr(pipeline, "batches", lambda prepared, **asked: batches(prepared, **{**asked, "start_step": 0}))
    in_parts(cfg, tmp_path / "run", (3, 6))
    assert "params.embedding" in differing(arrays(cfg, tmp_path / "run", 6), arrays(cfg, straight, 6))


def test_the_dropout_key_is_a_function_of_seed_and_step():
    def data(seed, step):
        return tuple(jax.random.key_data(state.dropout_key(seed, step)).tolist())

    keys = {(seed, step): data(seed, step) for seed in (0, 1) for step in (0, 1, 2)}
    assert len(set(keys.values())) == 6
    assert keys[1, 2] == tuple(jax.random.key_data(jax.jit(state.dropout_key, static_argnums=0)(1, 2)).tolist())
    assert tuple(jax.random.key_data(state.key(0, state.INITIAL_WEIGHTS)).tolist()) not in keys.values()


def test_dropout_differs_from_step_to_step_and_part_to_part(cfg):
    """The same windows at two steps, or in two parts, give different losses only through dropout."""
    params = functional.init(cfg.model, jax.random.key(0))
    tokens = jax.numpy.arange(34, dtype=jax.numpy.int32).reshape(2, 17)

    @functools.partial(jax.jit, static_argnums=0)
    def loss(model, key):
        return losses.next_token_loss(model, params, tokens, eot=256, segments=False, dropout_key=key)[0]

    keys = [jax.random.fold_in(state.dropout_key(0, step), part) for step in (0, 1) for part in (0, 1)]
    assert len({float(loss(cfg.model, key)) for key in keys}) == 4
    without = dataclasses.replace(cfg.model, dropout=0.0)
    assert len({float(loss(without, key)) for key in keys}) == 1
