"""Inversions: a far position that scores above a near one, and two tokens whose order turns with distance."""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Complex, Float, Num
from scipy.special import ndtr

from rove_jax.analysis.moments import window_moments
from rove_jax.analysis.product import Rates, added_constant, check_alike, check_finite, check_pairs, rope_product
from rove_jax.errors import UsageError, require


class TokenInversion(NamedTuple):
    """How often the token that scores higher at distance 0 scores lower."""

    probability: Rates
    """[...]: over all distances."""
    first_flip: np.ndarray | None
    """int [...]: the first distance at which the order is the other way, -1 if none. Empirical only."""
    running: np.ndarray | None
    """[..., M]: the share of inverted distances among the first m + 1. Empirical only."""


def windows(length: int, scheme: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """The near and the far window, first and last + 1 each. halves: [0, M/2) and [M/2, M) (Du et al., theorem 1), the
    near one with the middle if M is odd; near_far: M + 1..2 M and 2 M + 1..3 M (the follow-up's order error)."""
    if scheme == "halves":
        require(length >= 2, "length", length, "must be at least 2 to have halves")
        middle = (length + 1) // 2
        return (0, middle), (middle, length)
    if scheme == "near_far":
        require(length >= 1, "length", length, "must be at least 1")
        return (length + 1, 2 * length + 1), (2 * length + 1, 3 * length + 1)
    raise UsageError(f"scheme = {scheme!r}: must be halves or near_far")


def inverted_share(near: Float[np.ndarray, "*batch T"], far: Float[np.ndarray, "*batch S"]) -> Rates:
    """The share of pairs (one of `near`, one of `far`) in which the far one is strictly larger: float64 [...].

    By sorting, O(T log T): no [T, S] array. `near` and `far` have the same leading axes.
    """
    near, far = np.asarray(near), np.asarray(far)
    fits = near.ndim > 0 and near.shape[:-1] == far.shape[:-1] and near.size > 0 and far.size > 0
    require(fits, "near.shape, far.shape", (near.shape, far.shape), "must differ in the last axis alone, not be empty")
    check_finite("scores", near)
    check_finite("scores", far)
    batch = near.shape[:-1]
    rows = zip(near.reshape(-1, near.shape[-1]), far.reshape(-1, far.shape[-1]))
    # Both sorted: looking sorted values up in order stays in the caches, and is several times as fast.
    below = [np.searchsorted(np.sort(one), np.sort(other), side="left").sum() for one, other in rows]
    return np.array(below, np.float64).reshape(batch) / (near.shape[-1] * far.shape[-1])


def inverted_halves(scores: Float[np.ndarray, "*batch M"]) -> Rates:
    """P(S(m1) < S(m2)), m1 in the near and m2 in the far half of scores at the distances 0..M - 1: float64 [...]."""
    scores = np.asarray(scores)
    require(scores.ndim > 0, "scores.shape", scores.shape, "must have an axis of distances")
    near, far = windows(scores.shape[-1], "halves")
    return inverted_share(scores[..., slice(*near)], scores[..., slice(*far)])


def below_zero(mean: Rates, sd: Rates) -> Rates:
    """P(a normal variable < 0), Phi(-mean / sd). Where sd is 0 it is its mean, and 0 is not below 0."""
    mean, sd = np.asarray(mean, np.float64), np.asarray(sd, np.float64)
    return np.where(sd > 0, ndtr(-mean / np.where(sd > 0, sd, 1.0)), mean < 0)[()]


def position_inversion(
    z: Num[np.ndarray, "*batch h"],
    frequencies: Float[np.ndarray, " h"],
    length: int,
    *,
    scheme: str = "halves",
    method: str = "empirical",
    base: float | None = None,
) -> Rates:
    """P(S(m1) < S(m2)) for m1 near and m2 far, the same query and key (Du et al., theorem 1): float64 [...].

    1/2 means that the score says nothing about which is nearer. (Channels that do not turn add the same to both.)
    empirical: over all pairs of distances. normal: both scores normal, with the exact moments of their windows. closed:
    for equal amplitudes and phases 0 (the most decaying ones), `closed_position_inversion`, which reads nothing of `z`
    but its number of pairs, and needs the `base`. `inverted_halves` takes scores instead of z.
    """
    z, frequencies = check_pairs(z, frequencies)
    if method == "closed":
        require(scheme == "halves", "scheme", scheme, "the closed form is for halves")
        if base is None:
            raise UsageError("base = None: the closed form needs the base of the frequencies")
        share = closed_position_inversion(len(frequencies), base, length)
        return np.full(np.shape(z)[:-1], share)
    near, far = windows(length, scheme)
    if method == "empirical":
        return inverted_share(*(rope_product(z, frequencies, np.arange(*window)) for window in (near, far)))
    if method != "normal":
        raise UsageError(f"method = {method!r}: must be empirical, normal or closed")
    at_near, at_far = (window_moments(z, frequencies, *window) for window in (near, far))
    return below_zero(at_near.mean - at_far.mean, np.sqrt(at_near.variance + at_far.variance))


def closed_position_inversion(h: int, base: float, length: int) -> float:
    """Phi(-2 ln 2 sqrt(h) / sqrt(ln M ln B)): equal amplitudes, phases 0. Grows with M and with B, to 1/2.

    The means of the halves differ by 2 h log_B 2 whatever M, and their variances add up to h log_B M.
    """
    require(h >= 1, "h", h, "must be at least 1")
    require(length >= 2, "length", length, "must be at least 2")
    require(base > 1, "base", base, "must be above 1")
    return float(ndtr(-2 * math.log(2) * math.sqrt(h) / math.sqrt(math.log(length) * math.log(base))))


def token_margin(z1: Num[np.ndarray, "*batch h"], z2: Num[np.ndarray, "*batch h"]) -> Complex[np.ndarray, "*batch h"]:
    """z of D(m) = S1(m) - S2(m) for two keys of one query, with the sign that makes D(0) at least 0: complex128.

    Where some channels do not turn, D(0) holds their part too: take z1 - z2, and the difference of the two constants,
    to `token_inversion`, which turns both about if need be.
    """
    z1, z2 = np.asarray(z1, np.complex128), np.asarray(z2, np.complex128)
    check_alike("z2.shape", z2, z1)
    margin = z1 - z2
    check_finite("z1 - z2", margin)
    return np.where(np.real(margin).sum(-1, keepdims=True) < 0, -margin, margin)


def inverted_order(
    first: Float[np.ndarray, "*batch M"], second: Float[np.ndarray, "*batch M"]
) -> Bool[np.ndarray, "*batch M"]:
    """Where the scores of two keys, at the distances 0..M - 1, are the other way about than at distance 0."""
    fits = np.shape(first) == np.shape(second) and np.size(first) > 0
    require(fits, "second.shape", np.shape(second), f"must be {np.shape(first)}, not empty")
    check_finite("scores", first)
    check_finite("scores", second)
    return np.where(first[..., :1] < second[..., :1], first > second, first < second)


def phase_aligned_reference(z: Num[np.ndarray, "*batch h"]) -> Complex[np.ndarray, "*batch h"]:
    """The key that theory compares with (theorem 3): the same amplitudes, phases 0. complex128."""
    return np.abs(z).astype(np.complex128)


def token_inversion(
    margin: Num[np.ndarray, "*batch h"],
    frequencies: Float[np.ndarray, " h"],
    length: int,
    *,
    method: str = "empirical",
    constant: float | np.ndarray = 0.0,
    base: float | None = None,
) -> TokenInversion:
    """The share of distances m in 0..length - 1 at which D(m) has the other sign than D(0) (Du et al., theorem 3).

    `margin`: z1 - z2, of either sign (`token_margin`). `constant`: what channels that do not turn add to D, of the same
    sign. empirical: counted. normal: Phi(-mean / sd) with exact moments. closed: `closed_token_inversion`, which reads
    nothing of `margin` but its number of pairs, and needs the `base`.
    """
    margin, frequencies = check_pairs(margin, frequencies)
    require(length >= 1, "length", length, "must be at least 1")
    if method == "closed":
        if base is None:
            raise UsageError("base = None: the closed form needs the base of the frequencies")
        share = closed_token_inversion(len(frequencies), base, length)
        return TokenInversion(np.full(margin.shape[:-1], share), None, None)
    added = added_constant(constant, margin.shape[:-1])
    if method == "normal":
        moments = window_moments(margin, frequencies, 0, length)
        sign = np.where(np.real(margin).sum(-1) + added < 0, -1.0, 1.0)
        return TokenInversion(below_zero(sign * (moments.mean + added), moments.sd), None, None)
    if method != "empirical":
        raise UsageError(f"method = {method!r}: must be empirical, normal or closed")
    difference = rope_product(margin, frequencies, np.arange(length), constant=added)
    flipped = inverted_order(difference, np.zeros_like(difference))
    running = np.cumsum(flipped, -1) / np.arange(1, length + 1)
    return TokenInversion(running[..., -1], np.where(flipped.any(-1), flipped.argmax(-1), -1), running)


def closed_token_inversion(h: int, base: float, length: int) -> float:
    """Phi(-sqrt(h) (1 - x) / sqrt(x)), x = log_B M, 1/2 from M = B on: equal amplitudes, uniform phases against the
    phase-aligned key. Grows with M and falls with B."""
    require(h >= 1, "h", h, "must be at least 1")
    require(base > 1, "base", base, "must be above 1")
    require(length >= 1, "length", length, "must be at least 1")
    x = math.log(length) / math.log(base)
    return 0.5 if x >= 1 else float(ndtr(-math.sqrt(h) * (1 - x) / math.sqrt(x))) if x > 0 else 0.0
