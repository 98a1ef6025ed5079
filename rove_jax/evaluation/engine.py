"""Requests in, scores out: how likely a model finds given continuations of given contexts."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rove_jax.config import Model
from rove_jax.evaluation.scorer import compute_config
from rove_jax.models import functional

SHORTEST = 32
TOKENS_PER_BATCH = 16_384


class Request(NamedTuple):
    """What is to be scored."""

    context: np.ndarray
    """int32 tokens, at least one; end-of-text stands for an empty one."""
    continuation: np.ndarray
    """int32 tokens, at least one: those that are scored."""


class Score(NamedTuple):
    """How likely the model finds each token of a continuation after what stands before it."""

    nlls: np.ndarray
    """float32 [len(continuation)], nats. Sums over them belong in float64."""
    greedy: np.ndarray
    """bool, same length: is the token the most likely one (the first of them)."""


class Engine:
    """Scores requests with one model, whatever their number, order and lengths."""

    def __init__(self, cfg: Model, params: dict, *, batch_size: int | None = None, mesh: Any = None) -> None:
        self.cfg, self.params, self.batch_size = cfg, params, batch_size

    def score(
        self, requests: Sequence[Request], advance: Callable[[int], object] = lambda done: None
    ) -> list[Score]:
        """A score for each request, in their order. Nothing is cut off: see `fit` for those that are too long."""
        scores: list[Any] = [None] * len(requests)
        sizes = [len(r.context) + len(r.continuation) - 1 for r in requests]
        buckets: dict[int, list[int]] = {}
        for place in sorted(range(len(requests)), key=sizes.__getitem__):
            buckets.setdefault(max(SHORTEST, 1 << (sizes[place] - 1).bit_length()), []).append(place)
        for length, places in buckets.items():
            rows = self.batch_size or max(1, TOKENS_PER_BATCH // length)
            rows = min(rows, 1 << (len(places) - 1).bit_length())
            model = compute_config(self.cfg, self.params, batch=rows, length=length)
            for first in range(0, len(places), rows):
                part = places[first : first + rows]
                tokens_bt = np.zeros((rows, length + 1), np.int32)
                for row, place in zip(tokens_bt, part):
                    row[: sizes[place] + 1] = np.concatenate(requests[place])
                nll_bt, greedy_bt = map(np.asarray, likelihoods(model, self.params, tokens_bt))
                for row, place in enumerate(part):
                    which = slice(sizes[place] - len(requests[place].continuation), sizes[place])
                    scores[place] = Score(nll_bt[row, which], greedy_bt[row, which])
                advance(len(part))
        return scores


@functools.partial(jax.jit, static_argnums=0)
def likelihoods(cfg: Model, params: dict, tokens_bt: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Of [B, T+1] tokens all but the first: (nats, whether each is the most likely one), [B, T]."""
    hidden_btd = functional.apply(cfg, params, tokens_bt[:, :-1]).hidden

    def part(given: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        logits_bv = functional.unembed(cfg, params, given[0])
        nll_b = optax.softmax_cross_entropy_with_integer_labels(logits_bv, given[1])
        return nll_b, jnp.argmax(logits_bv, axis=-1) == given[1]

    nll_tb, greedy_tb = jax.lax.map(part, (hidden_btd.swapaxes(0, 1), tokens_bt[:, 1:].swapaxes(0, 1)), batch_size=None)
    return nll_tb.T, greedy_tb.T
