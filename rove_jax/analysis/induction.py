"""Induction heads as they form: two layers of attention alone, trained on random strings that repeat."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Int

from rove_jax.analysis.circuits import induction_score, previous_token_score
from rove_jax.analysis.mixer import attention_weights
from rove_jax.config import Model
from rove_jax.models import functional

ATTENTION_ONLY = Model(
    layers=2, width=64, query_heads=4, kv_heads=4, head_dim=16, mlp_width=1, vocab=32, vocab_multiple=32,
    bias=False, scan_layers=True,
)  # fmt: skip
"""Its MLPs are set to 0 and stay so."""

CONTEXT, BATCH, RATE = 64, 32, 3e-3
PERIODS = (12, 32)
"""Of training strings, drawn for each one: first and last + 1. Strings are measured at `MEASURED`."""
MEASURED = 24


class Formation(NamedTuple):
    """What a run of training showed, one entry per measurement."""

    steps: list[int]
    loss: list[float]
    """Nats per token of a second occurrence; ln 32 = 3.47 is chance."""
    induction: list[float]
    """Of the best head of layer 1."""
    previous_token: list[float]
    """Of the best head of layer 0."""


def repeated(chance: np.random.Generator, rows: int, periods: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """(tokens int32 [B, CONTEXT + 1] that repeat, their periods int32 [B])."""
    period = chance.integers(*periods, rows).astype(np.int32)
    block = chance.integers(0, ATTENTION_ONLY.vocab, (rows, periods[1])).astype(np.int32)
    at = np.arange(CONTEXT + 1)[None] % period[:, None]
    return np.take_along_axis(block, at, axis=1), period


def loss(cfg: Model, params: Any, tokens: Int[Array, "B T"], period: Int[Array, " B"]) -> Array:
    """Mean nats of the tokens that have stood there one period before."""
    logits = functional.unembed(cfg, params, functional.apply(cfg, params, tokens[:, :-1]).hidden)[..., : cfg.vocab]
    nll = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
    known = (jnp.arange(tokens.shape[1] - 1)[None] + 1 > period[:, None]).astype(nll.dtype)
    return (nll * known).sum() / known.sum()


def without_mlp(tree: Any) -> Any:
    """The parameters, or their gradient, with those of the MLPs set to 0."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: jnp.zeros_like(leaf) if any(getattr(key, "key", "") == "mlp" for key in path) else leaf, tree
    )


def fresh(cfg: Model, seed: int) -> Any:
    """Weights N(0, 1 / D), scales 1: larger than `functional.init` draws them, so that heads form in few steps."""
    chance = np.random.default_rng(seed)

    def drawn(path: tuple, leaf: jax.ShapeDtypeStruct) -> Array:
        scale = path[-1].key == "scale"
        return jnp.asarray(np.ones(leaf.shape) if scale else chance.normal(0, cfg.width**-0.5, leaf.shape), jnp.float32)

    return jax.tree_util.tree_map_with_path(drawn, functional.abstract(cfg))


def train(variant: str, *, steps: int, seed: int, every: int = 25) -> Formation:
    """Train with `variant` for `steps` updates and measure before the first, every `every` and at the end.

    rope and rove of one seed start from the same weights and see the same strings.
    """
    cfg = Model(**{**vars(ATTENTION_ONLY), "variant": variant})
    params = without_mlp(fresh(cfg, seed))
    optimizer = optax.adam(RATE)
    state = optimizer.init(params)

    @jax.jit
    def update(params: Any, state: Any, tokens: Array, period: Array) -> tuple[Any, Any]:
        gradient = without_mlp(jax.grad(functools.partial(loss, cfg))(params, tokens, period))
        change, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, change), state

    @jax.jit
    def measure(params: Any, tokens: Array, period: Array) -> tuple[Array, dict[str, Array]]:
        captured = functional.apply(cfg, params, tokens[:, :-1], capture=("query", "key")).captured
        return loss(cfg, params, tokens, period), captured

    chance, held_out = np.random.default_rng(seed), repeated(np.random.default_rng(10_000), BATCH, (MEASURED, 25))
    found = Formation([], [], [], [])
    for step in range(steps + 1):
        if step % every == 0 or step == steps:
            nats, captured = measure(params, *held_out)
            query, key = (np.moveaxis(np.asarray(captured[name]), 3, 2) for name in ("query", "key"))
            weights = attention_weights(cfg, query, key)
            found.steps.append(step)
            found.loss.append(float(nats))
            found.induction.append(float(induction_score(weights[1], MEASURED).mean(0).max()))
            found.previous_token.append(float(previous_token_score(weights[0]).mean(0).max()))
        if step < steps:
            params, state = update(params, state, *repeated(chance, BATCH, PERIODS))
    return found
