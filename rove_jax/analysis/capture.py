"""Queries, keys and values of a model as they are before rotation."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Integer, Shaped

from rove_jax.analysis.product import Rates, check_finite
from rove_jax.config import Model, Rotary
from rove_jax.errors import UsageError, require
from rove_jax.evaluation.scorer import compute_config
from rove_jax.models import functional
from rove_jax.rotary import frequencies


class Captured(NamedTuple):
    """float32 [L, B, T, N, H] each, before rotation; L and N are the layers and query heads asked for.

    Key and value of a query head are those of the key head that it reads, repeated where several read one.
    """

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    tokens: np.ndarray
    """int32 [B, T]."""
    layers: tuple[int, ...]
    heads: tuple[int, ...]


def capture_qkv(
    cfg: Model,
    params: dict,
    tokens_bt: Integer[np.ndarray, "B T"],
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> Captured:
    """What each of `layers` (None: all) computes for its query heads `heads` (None: all) on tokens [B, T]."""
    chosen = tuple(range(cfg.layers) if layers is None else layers)
    picked = tuple(range(cfg.query_heads) if heads is None else heads)
    for name, indices, count in (("layers", chosen, cfg.layers), ("heads", picked, cfg.query_heads)):
        require(bool(indices), name, indices, "must name at least one")
        require(len(set(indices)) == len(indices), name, indices, "must differ from each other")
        for index in indices:
            require(0 <= index < count, name, index, f"the model has 0 to {count - 1}")
    model = compute_config(cfg, params, batch=tokens_bt.shape[0], length=tokens_bt.shape[1])
    tokens = np.asarray(tokens_bt, np.int32)
    captured = _run(model, params, tokens)
    reads = np.array(picked) // (cfg.query_heads // cfg.kv_heads)
    found = {
        name: np.asarray(x, np.float32)[list(chosen)][..., list(picked) if name == "query" else reads, :]
        for name, x in captured.items()
    }
    return Captured(**found, tokens=tokens, layers=chosen, heads=picked)


@functools.partial(jax.jit, static_argnums=0)
def _run(cfg: Model, params: dict, tokens_bt: jax.Array) -> dict[str, jax.Array]:
    return functional.apply(cfg, params, tokens_bt, capture=("query", "key", "value")).captured


def score_rotation(cfg: Model) -> Rotary:
    """The rotation that makes scores a function of distance; raises `UsageError` if the model has none."""
    rotary = cfg.rotations[0]
    if rotary is None or not {"q", "k"} <= set(cfg.turns) or rotary.turned(cfg.head_dim) == 0 or rotary.alpha == 0:
        raise UsageError(f"model.variant = {cfg.variant!r}: does not turn both queries and keys; nothing to measure")
    return rotary


def value_frequencies(cfg: Model) -> Float[np.ndarray, " h"] | None:
    """Radians per position of the pairs of values; None where they do not turn, or not back with the output (RoPE)."""
    rotary = cfg.rotations[1]
    if rotary is None or not {"v", "o"} <= set(cfg.turns) or rotary.turned(cfg.head_dim) == 0 or rotary.alpha == 0:
        return None
    return frequencies(rotary, cfg.head_dim)


def value_pairing(cfg: Model) -> str:
    """Which channels of values form pairs."""
    rotary = cfg.rotations[1]
    return "half" if rotary is None else rotary.pairing


def effective_pairs(z: Shaped[np.ndarray, "*batch h"]) -> Rates:
    """(sum a^2)^2 / sum a^4 of amplitudes a = |z|: h where all are equal, 1 where one dominates, 0 where all are 0.

    float64 [...]. Theory takes h equal amplitudes; a head has as many frequencies as this.
    """
    require(np.ndim(z) > 0, "z.shape", np.shape(z), "must have an axis of pairs")
    check_finite("z", z)
    amplitude = np.abs(z).astype(np.float64)
    power = (amplitude / np.maximum(amplitude.max(-1, keepdims=True, initial=0.0), 1e-300)) ** 2
    return power.sum(-1) ** 2 / np.maximum((power**2).sum(-1), 1e-300)
