"""The follow-up's measures of a query and a key (arXiv 2609.39929): position and meaning in a score."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Num

from rove_jax.analysis.inversion import position_inversion, token_inversion
from rove_jax.analysis.moments import frequency_split
from rove_jax.analysis.product import Rates, check_pairs, rope_product
from rove_jax.errors import require


class Profile(NamedTuple):
    """Of one or several pairs of a query and a key; every field [...] but `steps`, [..., M - 1]."""

    steps: np.ndarray
    """g(m) = |S(m + 1) - S(m)| / ||z||."""
    positional: Rates
    """The mean of g: how far a step of one moves the score."""
    semantic: Rates
    """1 - P(D(m) has the other sign than D(0)), of the margin to another key; NaN without one."""
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
    constant: float | np.ndarray = 0.0,
) -> Profile:
    """Measures over the distances 0..length - 1, from z alone (before 1/sqrt(H), which no field depends on).

    `margin`, `constant`: of a second key, as `inversion.token_inversion` takes them. High frequencies turn at least
    once over `length`.
    """
    z, frequencies = check_pairs(z, frequencies)
    require(length >= 2, "length", length, "must be at least 2")
    steps = step_sizes(rope_product(z, frequencies, np.arange(length)), z)
    semantic: Rates = np.full(np.shape(z)[:-1], np.nan)
    if margin is not None:
        semantic = 1.0 - token_inversion(margin, frequencies, length, constant=constant).probability
    return Profile(
        steps,
        steps.mean(-1),
        semantic,
        high_share(z, frequencies, length),
        position_inversion(z, frequencies, length, scheme="near_far"),
    )


def step_sizes(scores: Float[np.ndarray, "*batch M"], z: Num[np.ndarray, "*batch h"]) -> Float[np.ndarray, "*batch m"]:
    """g(m) = |S(m + 1) - S(m)| / ||z|| of scores at the distances 0..M - 1: [..., M - 1]."""
    return np.abs(np.diff(scores, axis=-1)) / np.asarray(nonzero_norm(z))[..., None]


def high_share(z: Num[np.ndarray, "*batch h"], frequencies: Float[np.ndarray, " h"], length: int) -> Rates:
    """r_H, the share of ||z|| in pairs that turn at least once over `length`: float64 [...]."""
    return np.linalg.norm(np.where(frequency_split(frequencies, length).high, z, 0), axis=-1) / nonzero_norm(z)


def expected_step(z: Num[np.ndarray, "*batch h"], frequencies: Float[np.ndarray, " h"]) -> Rates:
    """The root mean square of g over long windows: sqrt(1/2 sum |z|^2 4 sin^2(w / 2)) / ||z||, float64 [...]."""
    z, frequencies = check_pairs(z, frequencies)
    return np.sqrt(2 * np.sum((np.abs(z) * np.sin(frequencies / 2)) ** 2, axis=-1)) / nonzero_norm(z)


def nonzero_norm(z: np.ndarray) -> Rates:
    """||z||, float64 [...]; raises `UsageError` if one is 0, for there is nothing to measure by."""
    norm = np.linalg.norm(z, axis=-1)
    require(bool(np.all(norm > 0)), "||z||", 0.0, "the query or the key is 0 in every channel that turns")
    return norm
