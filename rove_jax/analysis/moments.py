"""Scores over a window of distances as a random variable: its exact and asymptotic moments, and how normal it is."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Num
from scipy.special import ndtr

from rove_jax.analysis.product import Rates, check_finite, check_pairs, rope_product
from rove_jax.errors import UsageError, require

TURNED = {"hlogBM": 1.0, "2pi": 2 * np.pi, "pi": np.pi}
"""Radians that a pair turns over the window, from which on it counts as high."""


class Split(NamedTuple):
    """Where high frequencies end."""

    boundary: float
    """lambda(M), a number of pairs, not rounded."""
    high: np.ndarray
    """bool [h]."""


class Moments(NamedTuple):
    """Of S(m), m uniform on a window: mean and variance [...], and those of its terms."""

    mean: np.ndarray
    variance: np.ndarray
    means: np.ndarray
    """[..., h]: of each term."""
    covariance: np.ndarray
    """[..., h, h]; its diagonal alone is much less than the variance, and not near it."""

    @property
    def sd(self) -> Rates:
        """Standard deviation [...]."""
        return np.sqrt(self.variance)


class NormalFit(NamedTuple):
    """A sample beside the normal distribution of its mean and standard deviation."""

    mean: float
    sd: float
    skew: float
    kurtosis: float
    """Excess: 0 for a normal distribution."""
    ks: float
    """The largest distance between the two distribution functions (Kolmogorov and Smirnov)."""


def frequency_split(frequencies: Float[np.ndarray, " h"], length: int, rule: str = "2pi") -> Split:
    """The pairs n < lambda, which turn by more than 1 (hlogBM), 2 pi or pi radians over `length` positions (Du et al.,
    section 2.1, leave the factor open).

    For w_n = B^(-n / h) the boundary is h log_B(length / radians); between scaled frequencies it is interpolated in
    log w, and beyond the last it goes on as between the last two.
    """
    require(rule in TURNED, "rule", rule, f"must be one of {', '.join(TURNED)}")
    require(length >= 1, "length", length, "must be at least 1")
    frequencies = np.asarray(frequencies, np.float64)
    require(bool(np.all(frequencies > 0)), "frequencies", frequencies.tolist(), "must all be above 0")
    level, heights = np.log(TURNED[rule] / length), np.log(frequencies)
    # Above, not at: n < lambda. Where lambda is a whole number (1,000 = 1e4^(6 / 8)), rounding must not decide.
    high = length * frequencies > TURNED[rule] * (1 + 1e-12)
    if len(heights) < 2:
        return Split(float(high.sum()), high)
    # log w falls with n; the last pair at or above the level (or the first pair) starts the piece the boundary is on.
    piece = int(np.clip(high.sum() - 1, 0, len(heights) - 2))
    fall = heights[piece] - heights[piece + 1]
    return Split(float(piece + (heights[piece] - level) / fall) if fall else float(high.sum()), high)


def split_product(
    z: Num[np.ndarray, "*batch h"],
    frequencies: Float[np.ndarray, " h"],
    distances: np.ndarray,
    high: Bool[np.ndarray, " h"],
) -> tuple[np.ndarray, np.ndarray]:
    """(S of the high pairs, S of the low ones), float64 [..., T] each; their sum is `rope_product`."""
    require(np.shape(high) == np.shape(frequencies), "high.shape", np.shape(high), f"must be {np.shape(frequencies)}")
    parts = (np.where(high, z, 0), np.where(high, 0, z))
    return rope_product(parts[0], frequencies, distances), rope_product(parts[1], frequencies, distances)


def window_moments(
    z: Num[np.ndarray, "*batch h"],
    frequencies: Float[np.ndarray, " h"],
    start: int,
    stop: int,
    method: str = "exact",
    rule: str = "2pi",
) -> Moments:
    """Moments of S(m) for m uniform on start..stop - 1, from z alone.

    exact: means over the window of exp(i w m) in closed form (a Dirichlet kernel), and from them the mean of each term
    and of each product of two. asymptotic: the mean is that of the low pairs at distance 0, and each high pair adds
    a^2 / 2 to the variance (Remark 2.1 of Du et al.; low and high by `rule` for a context of `stop`).
    """
    z, frequencies = check_pairs(z, frequencies)
    require(0 <= start < stop, "start, stop", (start, stop), "must be 0 <= start < stop")
    if method == "asymptotic":
        high = frequency_split(frequencies, stop, rule).high
        means = np.where(high, 0.0, np.real(z))
        each = np.where(high, np.abs(z) ** 2 / 2, 0.0)
        return Moments(means.sum(-1), each.sum(-1), means, each[..., None] * np.eye(len(frequencies)))
    if method != "exact":
        raise UsageError(f"method = {method!r}: must be exact or asymptotic")
    means = np.real(z * mean_turn(frequencies, start, stop))
    sums = mean_turn(frequencies[:, None] + frequencies, start, stop)
    gaps = mean_turn(frequencies[:, None] - frequencies, start, stop)
    left, right = z[..., :, None], z[..., None, :]
    products = 0.5 * np.real(left * right * sums + left * right.conj() * gaps)
    covariance = products - means[..., :, None] * means[..., None, :]
    # Of one distance, or of pairs that hardly turn, rounding may leave a little less than the 0 there is.
    return Moments(means.sum(-1), np.maximum(covariance.sum((-2, -1)), 0.0), means, covariance)


def mean_turn(frequencies: np.ndarray, start: int, stop: int) -> np.ndarray:
    """The mean of exp(i w m) over m = start..stop - 1, complex128 of the shape of `frequencies`.

    exp(i w (start + stop - 1) / 2) sin(N w / 2) / (N sin(w / 2)), N = stop - start: 1 at every multiple of 2 pi.
    """
    count = stop - start
    w = frequencies - 2 * np.pi * np.round(frequencies / (2 * np.pi))
    flat = np.abs(w) < 1e-300
    half = np.where(flat, 1.0, w / 2)
    return np.exp(1j * w * (start + stop - 1) / 2) * np.where(flat, 1.0, np.sin(count * half) / (count * np.sin(half)))


def normal_fit(scores: Float[np.ndarray, " T"]) -> NormalFit:
    """How normal a sample is. `scores` must not all be equal."""
    values = np.asarray(scores, np.float64)
    require(values.ndim == 1 and values.size > 0, "scores.shape", values.shape, "must have one axis, not empty")
    check_finite("scores", values)
    values = np.sort(values)
    mean, sd = float(values.mean()), float(values.std())
    require(sd > 0, "scores", mean, "are all this number; there is no normal distribution to fit")
    standard = (values - mean) / sd
    expected, count = ndtr(standard), len(values)
    above, below = np.arange(1, count + 1) / count - expected, expected - np.arange(count) / count
    return NormalFit(
        mean,
        sd,
        float(np.mean(standard**3)),
        float(np.mean(standard**4) - 3),
        float(max(above.max(), below.max())),
    )
