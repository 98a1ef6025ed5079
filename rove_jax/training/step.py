"""One update, and one batch of validation, as compiled functions."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from rove_jax import config, losses, sharding
from rove_jax.training import optimizer as schedules
from rove_jax.training.state import State, dropout_key, shardings

Update = Callable[[State, jax.Array], tuple[State, dict[str, jax.Array]]]
"""(state, tokens [B, T + 1]) to (state, numbers)."""


def update(
    settings: config.Config,
    model: config.Model,
    eot: int,
    optimizer: optax.GradientTransformation,
    placed: Any,
    state: State,
    tokens_bt: jax.Array,
) -> tuple[State, dict[str, jax.Array]]:
    """One AdamW update from int32 tokens [B, T + 1]. Returns the new state and float32 scalars.

    The batch is computed in `training.accumulation` parts; losses and gradients are summed over the parts and divided
    once, by the number of scored tokens of the whole batch, so that parts with fewer of them do not count for more.
    `model` is the model as computed (backend resolved), `placed` the shardings of the parameters.

    With `training.on_nonfinite` "skip", a loss or gradient that is not finite leaves weights and optimizer as they are.
    """
    parts = settings.training.accumulation
    step_key = dropout_key(settings.seed, state.step)

    def summed_loss(params: Any, tokens_bt: jax.Array, part: jax.Array) -> tuple[jax.Array, jax.Array]:
        part_key = jax.random.fold_in(step_key, part) if model.dropout > 0 else None
        segments = settings.data.segments
        return losses.next_token_loss(model, params, tokens_bt, eot=eot, segments=segments, dropout_key=part_key)

    def part_sums(part: jax.Array, tokens_bt: jax.Array) -> Any:
        (loss, weight), gradient = jax.value_and_grad(summed_loss, has_aux=True)(state.params, tokens_bt, part)
        return loss, weight, jax.lax.with_sharding_constraint(gradient, placed)

    def add_part(sums: Any, part_tokens: tuple[jax.Array, jax.Array]) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, sums, part_sums(*part_tokens)), None

    if parts == 1:
        loss, weight, gradient = part_sums(jnp.int32(0), tokens_bt)
    else:
        nothing = (jnp.float32(0), jnp.float32(0), jax.tree.map(jnp.zeros_like, state.params))
        # Rows are dealt to the parts in turn, which leaves every row on its device.
        dealt_abt = tokens_bt.reshape(-1, parts, tokens_bt.shape[1]).swapaxes(0, 1)
        (loss, weight, gradient), _ = jax.lax.scan(add_part, nothing, (jnp.arange(parts), dealt_abt))

    # A batch without one scored token changes nothing but the moments and the decay.
    count = jnp.maximum(weight, 1.0)
    gradient = jax.tree.map(lambda leaf: leaf / count, gradient)
    changes, moments = optimizer.update(gradient, state.optimizer, state.params)
    after = State(optax.apply_updates(state.params, changes), moments, state.step + 1)
    rate = schedules.learning_rate(settings.optimizer, settings.training.steps)
    metrics = {
        "loss": loss / count,
        "grad_norm": optax.tree.norm(gradient),
        "learning_rate": rate(applied(state.optimizer)),
    }
    if settings.training.on_nonfinite == "skip":
        finite = jnp.isfinite(metrics["loss"]) & jnp.isfinite(metrics["grad_norm"])
        after = jax.tree.map(lambda new, old: jnp.where(finite, new, old), after, state)._replace(step=after.step)
        metrics["skipped_steps"] = after.step - applied(after.optimizer)
    # If all of these are finite, so is the new state: its moments come from the gradient, its weights are in the norm.
    return after, {**metrics, "parameter_norm": optax.tree.norm(after.params)}


def applied(optimizer: Any) -> jax.Array:
    """How many updates an optimizer's state has taken in, int32 scalar: the clock of the learning rate.

    `State.step`, the clock of data and dropout, is ahead of it by the steps that were skipped.
    """
    counts = optax.tree.get_all_with_path(optimizer, "count")
    return counts[0][1]  # each part of a chain keeps the same one


def compile_update(
    settings: config.Config,
    model: config.Model,
    eot: int,
    optimizer: optax.GradientTransformation,
    target: State,
    mesh: jax.sharding.Mesh,
) -> Update:
    """`update`, traced and compiled once, ahead of its first call. The state given to it is donated."""
    placed = shardings(target)

    def step(state: State, tokens_bt: jax.Array) -> tuple[State, dict[str, jax.Array]]:
        return update(settings, model, eot, optimizer, placed.params, state, tokens_bt)

    shape = (settings.training.batch_size, settings.data.context_length + 1)
    tokens = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=sharding.batch(mesh))
    jitted = jax.jit(step, donate_argnums=0, out_shardings=(placed, sharding.replicated(mesh)))
    # The mesh tells attention the platform, and how to lay kernels over the devices.
    with jax.set_mesh(mesh):
        return jitted.lower(target, tokens).compile()
