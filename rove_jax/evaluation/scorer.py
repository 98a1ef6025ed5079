"""Negative log-likelihood of every token of a text: the one place where evaluations score tokens."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from rove_jax import attention, losses
from rove_jax.config import Model
from rove_jax.models import functional

LOGITS_LIMIT = 2**25
"""Bytes of logits at once: less than in training, where a smaller part would cost a gradient of the table as well."""

TOKENS_PER_BATCH = 16_384
"""Tokens in one forward pass when no batch size is given."""


def token_nlls(
    cfg: Model,
    params: dict,
    sequences: Sequence[np.ndarray],
    *,
    length: int,
    batch_size: int | None = None,
    advance: Callable[[int], object] = lambda scored: None,
) -> list[np.ndarray]:
    """-ln p(sequence[i + 1] | sequence[: i + 1]) in nats, for every i of every sequence, in the order given.

    Args:
        cfg: the model, its frequency scaling chosen; `attention` may still be "auto".
        params: the parameters of `cfg`.
        sequences: integer arrays of 2 to `length` + 1 tokens. The first token of each is context only.
        length: T, the context every sequence is padded to, so that one compilation serves all of them.
        batch_size: rows per forward pass; None fits about `TOKENS_PER_BATCH` tokens.
        advance: told how many sequences each batch finished (a progress bar's `update`).

    Returns:
        One float32 array of len(sequence) - 1 values per sequence. Sums over them belong in float64.
    """
    if not sequences:
        return []
    rows = batch_rows(len(sequences), length, batch_size)
    model = compute_config(cfg, params, batch=rows, length=length)
    nlls = []
    for first in range(0, len(sequences), rows):
        batch = sequences[first : first + rows]
        # Attention is causal, so what stands right of a sequence cannot reach it; the padded scores are cut off below.
        tokens_bt = np.zeros((rows, length + 1), np.int32)
        for row, sequence in zip(tokens_bt, batch):
            row[: len(sequence)] = sequence
        nll_bt = np.asarray(batch_nll(model, params, tokens_bt))
        nlls += [row[: len(sequence) - 1].copy() for row, sequence in zip(nll_bt, batch)]
        advance(len(batch))
    return nlls


@functools.partial(jax.jit, static_argnums=0)
def batch_nll(cfg: Model, params: dict, tokens_bt: jax.Array) -> jax.Array:
    """[B, T+1] int32 tokens -> [B, T] float32 nats. The logits are reduced chunk by chunk, never held whole."""
    hidden_btd = functional.apply(cfg, params, tokens_bt[:, :-1]).hidden
    return losses.token_nll(cfg, params, hidden_btd, tokens_bt[:, 1:], LOGITS_LIMIT)


def batch_rows(count: int, length: int, batch_size: int | None = None) -> int:
    """Rows per batch for `count` sequences: as few batches as the largest batch allows, evenly filled."""
    largest = batch_size or max(1, TOKENS_PER_BATCH // length)
    batches = -(-count // largest)
    return -(-count // batches)


def compute_config(cfg: Model, params: dict, *, batch: int, length: int, masked: bool = False) -> Model:
    """`cfg` with what the forward pass leaves open settled, for the device that `params` are on.

    The attention backend is chosen anew, whatever the run was trained with: they all compute the same, and an
    evaluation may run on another device and reads other lengths. `masked`: it must take positions and segments.
    """
    device = next(iter(jnp.asarray(jax.tree.leaves(params)[0]).devices()))
    sizes = (batch, length, length, cfg.query_heads, cfg.kv_heads, cfg.head_dim)
    call = attention.Call(*sizes, cfg.dtype, window=cfg.window, aligned=not masked, segments=masked)
    choice = attention.resolve("auto", call, attention.Target.device(device))
    # One compiled layer: an evaluation compiles once per length and scaling, and runs each program a few times.
    # Not with a cache on a TPU, where XLA copies it into the loop and back (jax 0.12, compiled for v5e).
    scan = not (masked and device.platform == "tpu")
    return replace(cfg, attention=choice.backend, dropout=0.0, remat="none", scan_layers=scan)
