"""One update: accumulation that divides once, one trace, and a loss that is what it says."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_runs import SETTINGS, keep_programs, settings

from rove_jax import losses, sharding
from rove_jax.training import setup, state, step

EOT = 256
PLAIN = {"dropout": 0.0}
SEGMENTS = dataclasses.replace(SETTINGS.data, segments=True)


@pytest.fixture(scope="module", autouse=True)
def programs(tmp_path_factory):
    keep_programs(tmp_path_factory)


def tokens(rows: int, *, seed: int = 0) -> np.ndarray:
    """Rows in which documents end at different rates, so that parts of a batch have different numbers of targets."""
    draw = np.random.RandomState(seed)
    found = draw.randint(0, 256, (rows, 17)).astype(np.int32)
    for row in range(rows):
        found[row, draw.rand(17) < row / rows * 0.6] = EOT
    return found


def weights(cfg):
    """Initial weights."""
    made = setup.make(cfg)
    return state.create(cfg, made.optimizer, made.target).params


def one_update(parts: int, rows: np.ndarray):
    """(state after one update, its numbers) of a batch computed in `parts` parts, documents told apart."""
    cfg = settings(SEGMENTS, training={"batch_size": len(rows), "accumulation": parts}, model=PLAIN)
    made = setup.make(cfg)
    update = step.compile_update(cfg, made.model, EOT, made.optimizer, made.target, made.mesh)
    start = state.create(cfg, made.optimizer, made.target)
    return update(start, jax.device_put(rows, sharding.batch(made.mesh)))


def test_accumulation_divides_once():
    """Two parts with unequal numbers of targets are one batch; the mean of the means of the parts is another loss."""
    batch = tokens(8)
    whole, whole_numbers = one_update(1, batch)
    parted, parted_numbers = one_update(2, batch)
    for name in whole_numbers:
        np.testing.assert_allclose(parted_numbers[name], whole_numbers[name], rtol=2e-6)
    # Adam divides the gradient by its own size, so the moments are compared, not the weights.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-6), parted.optimizer, whole.optimizer)
    assert int(parted.step) == int(whole.step) == 1

    cfg = settings(SEGMENTS, model=PLAIN)
    params = weights(cfg)
    score = jax.jit(lambda rows: losses.next_token_loss(cfg.model, params, rows, eot=EOT, segments=True))
    sums = [jax.device_get(score(batch[part::2])) for part in range(2)]
    assert sums[0][1] != sums[1][1]
    once = sum(loss for loss, _ in sums) / sum(weight for _, weight in sums)
    np.testing.assert_allclose(whole_numbers["loss"], once, rtol=1e-6)
    assert abs(once - np.mean([loss / weight for loss, weight in sums])) > 1e-5


def test_a_batch_without_targets_is_finite():
    after, numbers = one_update(1, np.full((8, 17), EOT, np.int32))
    assert float(numbers["loss"]) == 0.0 and float(numbers["grad_norm"]) == 0.0
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(jax.device_get(after)))


def test_rows_that_fill_up_a_batch_do_not_count():
    cfg = settings(SETTINGS.data, model=PLAIN)
    params = weights(cfg)
    score = jax.jit(
        lambda tokens, rows: losses.next_token_loss(cfg.model, params, tokens, eot=EOT, segments=False, rows=rows)
    )
    batch = tokens(4)
    alone, filled = score(batch[:2], jnp.ones(2)), score(batch, jnp.array([1.0, 1.0, 0.0, 0.0]))
    np.testing.assert_allclose(filled, alone, rtol=1e-6)
    assert float(filled[1]) == 32.0
    assert abs(float(score(batch, jnp.ones(4))[0]) - float(alone[0])) > 1.0


def skipping(learning_rate_steps: int = 6):
    """(update, state at step 0, where batches lie, optimizer) under `on_nonfinite` "skip", dropout on."""
    cfg = settings(SEGMENTS, training={"batch_size": 8, "on_nonfinite": "skip", "steps": learning_rate_steps})
    made = setup.make(cfg)
    update = step.compile_update(cfg, made.model, EOT, made.optimizer, made.target, made.mesh)
    return update, lambda: state.create(cfg, made.optimizer, made.target), sharding.batch(made.mesh)


def spoilt(before):
    """The state with a weight that is not finite, so that the loss and the gradient are not either."""
    scale = jax.tree.leaves(before.params)[0]
    leaves, tree = jax.tree.flatten(before.params)
    return before._replace(params=jax.tree.unflatten(tree, [scale.at[(0,) * scale.ndim].set(jnp.nan), *leaves[1:]]))


def test_a_step_that_is_not_finite_is_skipped_and_the_data_go_on():
    update, start, where = skipping()
    batch = jax.device_put(tokens(8), where)
    before = jax.device_get(spoilt(start()))
    after, numbers = jax.device_get(update(spoilt(start()), batch))
    assert not np.isfinite(numbers["loss"]) and int(numbers["skipped_steps"]) == 1
    assert int(after.step) == 1 and int(step.applied(after.optimizer)) == 0
    for old, new in zip(jax.tree.leaves(before[:2]), jax.tree.leaves(after[:2]), strict=True):
        assert old.tobytes() == new.tobytes()


def test_after_a_skipped_step_the_rate_goes_on_where_it_was_and_dropout_does_not():
    """One update from step 0, and one from step 1 with nothing learnt: equal rates, other dropout, one step skipped."""
    update, start, where = skipping()
    batch = jax.device_put(tokens(8), where)
    _, first = update(start(), batch)
    late = start()._replace(step=jnp.int32(1))
    after, second = update(late, batch)
    assert float(first["learning_rate"]) == float(second["learning_rate"]) == pytest.approx(0.5e-2)
    assert float(first["loss"]) != float(second["loss"])
    assert (int(first["skipped_steps"]), int(second["skipped_steps"])) == (0, 1)
    assert int(after.step) - int(step.applied(after.optimizer)) == 1


def test_a_step_that_is_finite_is_the_same_under_either_policy():
    update, start, where = skipping()
    after, numbers = update(start(), jax.device_put(tokens(8), where))
    cfg = settings(SEGMENTS, training={"batch_size": 8})
    made = setup.make(cfg)
    plain = step.compile_update(cfg, made.model, EOT, made.optimizer, made.target, made.mesh)
    other, others = plain(start(), jax.device_put(tokens(8), where))
    for name in others:
        np.testing.assert_allclose(numbers[name], others[name], rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-6), after, other)
    assert "skipped_steps" not in others
