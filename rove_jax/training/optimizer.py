"""AdamW with warm-up and cosine decay, gradient clipping, and weight decay on matrices only."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

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


def decay_mask(axes: Any) -> Any:
    """The tree of bools that says which parameters decay, from the tree of axis names."""
    return jax.tree.map(decays, axes, is_leaf=lambda leaf: isinstance(leaf, tuple))


def make(optimizer: config.Optimizer, steps: int, axes: Any) -> optax.GradientTransformation:
    """AdamW (Loshchilov and Hutter, arXiv 1711.05101) after clipping by the global norm of the gradient."""
    return optax.chain(
        optax.clip_by_global_norm(optimizer.clip_norm),
        optax.adamw(
            learning_rate(optimizer, steps),
            b1=optimizer.beta1,
            b2=optimizer.beta2,
            eps=optimizer.epsilon,
            weight_decay=optimizer.weight_decay,
            mask=decay_mask(axes),
        ),
    )
