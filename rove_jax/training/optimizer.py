"""AdamW, or Muon for matrices; warm-up and cosine decay, gradient clipping, and weight decay on matrices only."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
import optax.contrib

from rove_jax import config


def learning_rate(optimizer: config.Optimizer, steps: int) -> Callable[[jax.typing.ArrayLike], jax.Array]:
    """The rate of update number `count` (from 0) of a run of `steps` updates, float32.

    Update k = count + 1 has the rate peak k / warmup_steps up to k = warmup_steps, and then follows half a cosine that
    reaches peak * final_lr_fraction at k = steps. Never 0 / 0: no warm-up, a run of one step and a run shorter than
    its warm-up are all defined.
    """
    warmup, decay = optimizer.warmup_steps, max(steps - optimizer.warmup_steps, 1)

    def rate(count: jax.typing.ArrayLike) -> jax.Array:
        k = jnp.asarray(count, jnp.float32) + 1.0
        progress = jnp.clip((k - warmup) / decay, 0.0, 1.0)
        cosine = 0.5 * (1.0 + jnp.cos(jnp.pi * progress))
        fraction = optimizer.final_lr_fraction
        after = fraction + (1.0 - fraction) * cosine
        return optimizer.peak_lr * jnp.where(k < warmup, k / max(warmup, 1), after)

    return rate


def decays(axes: tuple[str, ...]) -> bool:
    """Whether a parameter with these logical axes is a matrix, and so decays towards zero.

    A matrix maps the residual stream to something else, or back: "model" is one of its axes and, the stacking axis
    aside, not the only one. Counting dimensions would not do: with layers stacked, the bias of the query projection
    has three (layers, heads, head_dim), as many as an MLP matrix.
    """
    return "model" in axes and len(set(axes) - {"layers", "model"}) > 0


def over_axes(function: Callable[[tuple[str, ...]], Any], axes: Any) -> Any:
    """The tree of what `function` says of each parameter, from the tree of axis names."""
    return jax.tree.map(function, axes, is_leaf=lambda leaf: isinstance(leaf, tuple))


def decay_mask(axes: Any) -> Any:
    """The tree of bools that says which parameters decay, from the tree of axis names."""
    return over_axes(decays, axes)


def make(optimizer: config.Optimizer, steps: int, axes: Any) -> optax.GradientTransformation:
    """The optimizer of a run, after clipping by the global norm of the gradient.

    Rate, decay and clipping are the same for "adamw" and "muon": of the second, updates are as large.
    """
    clip, rate = optax.clip_by_global_norm(optimizer.clip_norm), learning_rate(optimizer, steps)
    if optimizer.name == "muon":
        decay = optax.add_decayed_weights(optimizer.weight_decay, decay_mask(axes))
        return optax.chain(clip, muon(optimizer, axes), decay, optax.scale_by_learning_rate(rate))
    adamw = optax.adamw(
        rate,
        b1=optimizer.beta1,
        b2=optimizer.beta2,
        eps=optimizer.epsilon,
        weight_decay=optimizer.weight_decay,
        mask=decay_mask(axes),
    )
    return optax.chain(clip, adamw)


UPDATE_RMS = 0.2
"""Root mean square of AdamW's updates, which Muon's are given too (Liu et al., arXiv 2502.16982, section 2.2)."""


def muon(optimizer: config.Optimizer, axes: Any) -> optax.GradientTransformation:
    """The direction of Muon (Jordan 2024) for the matrices of the layers, Adam's for the embedding and all vectors.

    A matrix of the model is one of [inputs, outputs] in each layer: heads and their channels are one axis of it, and
    layers are matrices of their own. An orthogonal update of [m, n] is scaled by UPDATE_RMS sqrt(max(m, n)).
    """

    def scaled(updates: Any, params: Any) -> Any:
        del params

        def scale(update: jax.Array, matrix: optax.contrib.MuonDimensionNumbers) -> jax.Array:
            sides = (side for side in matrix if not isinstance(side, int))
            sizes = (math.prod(update.shape[axis] for axis in side) for side in sides)
            return UPDATE_RMS * math.sqrt(max(sizes)) * update

        return jax.tree.map(scale, updates, matrices)

    matrices = over_axes(matrix_axes, axes)
    orthogonal = optax.contrib.scale_by_muon(beta=optimizer.momentum, weight_dimension_numbers=matrices)
    adam = optax.scale_by_adam(optimizer.beta1, optimizer.beta2, optimizer.epsilon)
    kinds = over_axes(lambda names: "adam" if isinstance(matrix_axes(names), optax.MaskedNode) else "muon", axes)
    return optax.partition({"muon": optax.chain(orthogonal, optax.stateless(scaled)), "adam": adam}, kinds)


def matrix_axes(names: tuple[str, ...]) -> optax.contrib.MuonDimensionNumbers | optax.MaskedNode:
    """Which axes of a parameter are the inputs of a matrix and which its outputs; a masked node if it is not a layer's.

    Such a matrix maps the residual stream to something else ("model" comes first), or back.
    """
    if not decays(names) or "layers" not in names:
        return optax.MaskedNode()
    inner = tuple(axis for axis, name in enumerate(names) if name not in ("layers", "model"))
    stream = (names.index("model"),)
    return optax.contrib.MuonDimensionNumbers(*((stream, inner) if stream < inner else (inner, stream)))
