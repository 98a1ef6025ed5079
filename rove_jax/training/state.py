"""What training changes: parameters, optimizer state and the number of updates done."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from rove_jax import config, sharding
from rove_jax.models import functional

INITIAL_WEIGHTS, DROPOUT = 0, 1
"""Numbers of the independent streams of random keys of a run."""


COEFFICIENTS = 3
"""How many numbers an optimizer may keep that follow no parameter: those of Muon's polynomial."""


class State(NamedTuple):
    """A pytree, donated to each update and given back by it."""

    params: Any
    optimizer: Any
    step: Any
    """Updates done, int32 scalar."""


def key(seed: int, stream: int) -> jax.Array:
    """The key of one of the streams of randomness of a run."""
    return jax.random.fold_in(jax.random.key(seed), stream)


def dropout_key(seed: int, step: jax.typing.ArrayLike) -> jax.Array:
    """The dropout key of the update after `step` updates: a pure function of both, so no checkpoint holds a key."""
    return jax.random.fold_in(key(seed, DROPOUT), step)


def fresh(settings: config.Config, optimizer: optax.GradientTransformation, seed_key: jax.Array) -> State:
    """The state at step 0. Traceable."""
    params = functional.init(settings.model, seed_key)
    return State(params, optimizer.init(params), jnp.zeros((), jnp.int32))


def abstract(settings: config.Config, optimizer: optax.GradientTransformation, mesh: jax.sharding.Mesh) -> State:
    """Shapes, dtypes and shardings of the state, without making it.

    What the optimizer keeps for a parameter lies where the parameter lies; everything else it keeps must be scalars or
    a few coefficients.
    """
    params = functional.abstract(settings.model)
    placed = sharding.parameters(functional.axes(settings.model), params, mesh)
    whole = sharding.replicated(mesh)

    def place(leaf: jax.ShapeDtypeStruct, where: jax.sharding.Sharding) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where)

    def place_number(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        if math.prod(leaf.shape) > COEFFICIENTS:
            raise ValueError(f"an optimizer leaf of shape {leaf.shape} follows no parameter; it has no sharding")
        return place(leaf, whole)

    def follow(leaf: Any, where: jax.sharding.Sharding) -> Any:
        # An optimizer of a part of the parameters has masked nodes in place of the others.
        return leaf if isinstance(leaf, optax.MaskedNode) else place(leaf, where)

    moments = optax.tree.map_params(
        optimizer,
        follow,
        jax.eval_shape(optimizer.init, params),
        placed,
        transform_non_params=place_number,
        is_leaf=lambda leaf: isinstance(leaf, optax.MaskedNode),
    )
    return State(jax.tree.map(place, params, placed), moments, place(jax.ShapeDtypeStruct((), jnp.int32), whole))


def shardings(state: State) -> State:
    """The tree of shardings of an abstract (or real) state."""
    return jax.tree.map(lambda leaf: leaf.sharding, state)


def create(settings: config.Config, optimizer: optax.GradientTransformation, target: State) -> State:
    """The state at step 0 of a new run, made where it belongs: no parameter is ever whole on one device of many."""
    make = jax.jit(lambda seed_key: fresh(settings, optimizer, seed_key), out_shardings=shardings(target))
    return make(key(settings.seed, INITIAL_WEIGHTS))


def from_weights(optimizer: optax.GradientTransformation, params: Any, target: State) -> State:
    """The state at step 0 of a run that starts from given parameters."""
    moments = jax.jit(optimizer.init, out_shardings=shardings(target).optimizer)(params)
    return State(params, moments, jax.device_put(jnp.zeros((), jnp.int32), target.step.sharding))
