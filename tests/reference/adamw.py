"""AdamW with clipping, and its learning rate, in float64 NumPy, one array at a time."""

import math

import numpy as np


def learning_rate(k: int, *, peak: float, final_fraction: float, warmup: int, steps: int) -> float:
    """Of update k = 1 .. steps: up a straight line to update `warmup`, then down half a cosine to update `steps`."""
    if k < warmup:
        return peak * k / warmup
    turned = math.pi * (k - warmup) / (steps - warmup) if steps > warmup else 0.0
    return peak * (final_fraction + (1 - final_fraction) * (1 + math.cos(turned)) / 2)


def train(
    weights: dict[str, np.ndarray],
    gradients: list[dict[str, np.ndarray]],
    rates: list[float],
    *,
    decayed: set[str],
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
    clip_norm: float,
) -> dict[str, np.ndarray]:
    """The weights after one update per entry of `gradients`, with the rate of the same entry of `rates`."""
    weights = {name: value.astype(np.float64) for name, value in weights.items()}
    first = {name: np.zeros_like(value) for name, value in weights.items()}
    second = {name: np.zeros_like(value) for name, value in weights.items()}
    for t, (gradient, rate) in enumerate(zip(gradients, rates), start=1):
        norm = math.sqrt(sum(float((g.astype(np.float64) ** 2).sum()) for g in gradient.values()))
        for name, g in gradient.items():
            g = g.astype(np.float64) * min(1.0, clip_norm / norm)
            first[name] = beta1 * first[name] + (1 - beta1) * g
            second[name] = beta2 * second[name] + (1 - beta2) * g * g
            step = first[name] / (1 - beta1**t) / (np.sqrt(second[name] / (1 - beta2**t)) + epsilon)
            if name in decayed:
                step = step + weight_decay * weights[name]
            weights[name] = weights[name] - rate * step
    return weights
