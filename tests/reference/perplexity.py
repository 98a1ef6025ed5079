"""Perplexity token by token in float64: which context each token has is written down per token, not per window."""

from collections.abc import Callable

import numpy as np


def first_token(place: int, length: int, mode: str, stride: int) -> int:
    """Index of the first text token that the token at `place` is predicted with, in windows of `length` tokens."""
    if mode == "first_n":
        return 0
    if mode in ("nonoverlap", "same_text"):
        return place - place % length
    late = max(0, place + 1 - length)  # how far the token lies beyond the first window
    return stride * int(np.ceil(late / stride))


def negative_log_likelihood(logits: np.ndarray, target: int) -> float:
    logits = np.asarray(logits, np.float64)
    top = logits.max()
    return float(top + np.log(np.exp(logits - top).sum()) - logits[target])


def token_nlls(
    next_logits: Callable[[list[int]], np.ndarray],
    tokens: list[int],
    length: int,
    mode: str,
    stride: int,
    prefix: str,
    eot: int,
) -> list[tuple[int, int, float]]:
    """(target, position of its predictor in the window, nats) for each token that is scored, in order."""
    text = [eot, *tokens] if prefix != "none" else list(tokens)
    scored = []
    count = len(text) - 1
    for place in range(min(count, length) if mode == "first_n" else count):
        start = first_token(place, length, mode, stride)
        context = text[start : place + 1]
        if prefix == "window":
            context = [eot, *context[1:]]
        target = text[place + 1]
        scored.append((target, len(context) - 1, negative_log_likelihood(next_logits(context), target)))
    return scored


def perplexity(nlls: list[float]) -> float:
    return float(np.exp(np.sum(nlls) / len(nlls)))


def mean_of_means(parts: list[list[float]]) -> float:
    """exp of the unweighted mean of the parts' means."""
    return float(np.exp(sum(sum(part) / len(part) for part in parts) / len(parts)))


def bits_per_byte(scored: list[tuple[int, int, float]], sizes: dict[int, int]) -> float:
    """Nats of the tokens that stand for bytes, in bits, over those bytes."""
    counted = [(sizes[target], nats) for target, _, nats in scored if sizes[target]]
    return sum(nats for _, nats in counted) / np.log(2) / sum(size for size, _ in counted)
