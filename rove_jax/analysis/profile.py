"""The follow-up's measures of a query and a key (arXiv 2609.39929): position and meaning in a score."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Num

from rove_jax.analysis.inversion import position_inversion, token_inversion
from rove_jax.analysis.moments import frequency_split
from rove_jax.analysis.product import Rates, rope_product


class Profile(NamedTuple):
    """Of one or several pairs of a query and a key; every field [...] but `steps`, [..., M - 1]."""

    steps: np.ndarray
    """g(m) = |S(m + 1) - S(m)| / ||z||."""
    positional: Rates
    """The mean of g: how far a step of one moves the score."""
    semantic: Rates
    """1 - P(D(m) < 0), of the margin to another key; NaN without one."""
    high_share: Rates
    """r_H = ||z of high frequencies|| / ||z||."""
    order_error: Rates
    """P(S(far) > S(near)), near M + 1..2 M and far 2 M + 1..3 M; 1/2 is no order."""


def profiler(
    z: Num[np.ndarray, "*batch h"],
    frequencies: Float[np.ndarray, " h"],
    length: int,
    *,
    margin: Num[np.ndarray, "*batch h"] | None = None,
) -> Profile:
    """Measures over the distances 0..length - 1. `margin`: what `inversion.token_margin` returns for a second key."""
    norm = np.linalg.norm(z, axis=-1)
    steps = np.abs(np.diff(rope_product(z, frequencies, np.arange(length)), axis=-1)) / norm[..., None]
    high = frequency_split(frequencies, length).high
    semantic: Rates = np.full(norm.shape, np.nan)
    if margin is not None:
        semantic = 1.0 - token_inversion(margin, frequencies, length).probability
    return Profile(
        steps,
        steps.mean(-1),
        semantic,
        np.linalg.norm(np.where(high, z, 0), axis=-1) / norm,
        position_inversion(z, frequencies, length, scheme="near_far"),
    )


def expected_step(z: Num[np.ndarray, "*batch h"], frequencies: Float[np.ndarray, " h"]) -> Rates:
    """The root mean square of g over long windows: sqrt(1/2 sum |z|^2 4 sin^2(w / 2)) / ||z||, float64 [...]."""
    power = np.abs(z) ** 2
    return np.sqrt(0.5 * (power * 4 * np.sin(frequencies / 2) ** 2).sum(-1) / power.sum(-1))
