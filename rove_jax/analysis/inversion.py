"""Inversions: a far position that scores above a near one, and two tokens whose order turns with distance."""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Complex, Float, Num
from scipy.special import ndtr

from rove_jax.analysis.moments import window_moments
from rove_jax.analysis.product import Rates, rope_product
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
    """The near and the far window, first and last + 1 each. halves: [0, M/2) and [M/2, M) (Du et al., theorem 1);
    near_far: M + 1..2 M and 2 M + 1..3 M (the follow-up's order error)."""
    if scheme == "halves":
        require(length >= 2, "length", length, "must be at least 2 to have halves")
        return (0, length // 2), (length // 2, length)
    if scheme == "near_far":
        return (length + 1, 2 * length + 1), (2 * length + 1, 3 * length + 1)
    raise UsageError(f"scheme = {scheme!r}: must be halves or near_far")


def inverted_share(near: Float[np.ndarray, "*batch T"], far: Float[np.ndarray, "*batch S"]) -> Rates:
    """The share of pairs (one of `near`, one of `far`) in which the far one is strictly larger: float64 [...].

    By sorting, O(T log T): no [T, S] array.
    """
    batch = near.shape[:-1]
    rows = zip(near.reshape(-1, near.shape[-1]), far.reshape(-1, far.shape[-1]))
    # Both sorted: looking sorted values up in order stays in the caches, and is several times as fast.
    below = [np.searchsorted(np.sort(one), np.sort(other), side="left").sum() for one, other in rows]
    return np.array(below, np.float64).reshape(batch) / (near.shape[-1] * far.shape[-1])


def position_inversion(
    z: Num[np.ndarray, "*batch h"],
    frequencies: Float[np.ndarray, " h"],
    length: int,
    *,
    scheme: str = "halves",
    method: str = "empirical",
    base: float | None = None,
) -> Rates:
    """P(S(m1) < S(m2)) for m1 near and m2 far, the same query and key: float64 [...].

    1/2 means that the score says nothing about which is nearer. empirical: over all pairs of distances. normal: both
    scores normal, with the exact moments of their windows. closed: for equal amplitudes and phases 0 (the most decaying
    ones), `closed_position_inversion`, which reads nothing of `z` but its number of pairs, and needs the `base`.
    """
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
    return ndtr(-(at_near.mean - at_far.mean) / np.sqrt(at_near.variance + at_far.variance))


def closed_position_inversion(h: int, base: float, length: int) -> float:
    """Phi(-2 ln 2 sqrt(h) / sqrt(ln M ln B)): equal amplitudes, phases 0. Grows with M and with B, to 1/2.

    The means of the halves differ by 2 h log_B 2 whatever M, and their variances add up to h log_B M.
    """
    require(length >= 2, "length", length, "must be at least 2")
    require(base > 1, "base", base, "must be above 1")
    return float(ndtr(-2 * math.log(2) * math.sqrt(h) / math.sqrt(math.log(length) * math.log(base))))


def token_margin(z1: Num[np.ndarray, "*batch h"], z2: Num[np.ndarray, "*batch h"]) -> Complex[np.ndarray, "*batch h"]:
    """z of D(m) = S1(m) - S2(m) for two keys of one query, with the sign that makes D(0) at least 0: complex128."""
    margin = np.asarray(z1, np.complex128) - np.asarray(z2, np.complex128)
    return np.where(np.real(margin).sum(-1, keepdims=True) < 0, -margin, margin)


def phase_aligned_reference(z: Num[np.ndarray, "*batch h"]) -> Complex[np.ndarray, "*batch h"]:
    """The key that theory compares with: the same amplitudes, phases 0."""
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
    """The share of distances 0..length - 1 at which D(m) < 0, for D(0) > 0 (what `token_margin` returns).

    empirical: counted. normal: Phi(-mean / sd) with exact moments. closed: `closed_token_inversion`, for which `base`
    is needed. `constant`: what channels that do not turn add to D.
    """
    if method == "closed":
        if base is None:
            raise UsageError("base = None: the closed form needs the base of the frequencies")
        share = closed_token_inversion(len(frequencies), base, length)
        return TokenInversion(np.full(np.shape(margin)[:-1], share), None, None)
    if method == "normal":
        moments = window_moments(margin, frequencies, 0, length)
        return TokenInversion(ndtr(-(moments.mean + constant) / moments.sd), None, None)
    if method != "empirical":
        raise UsageError(f"method = {method!r}: must be empirical, normal or closed")
    flipped = rope_product(margin, frequencies, np.arange(length), constant=constant) < 0
    running = np.cumsum(flipped, -1) / np.arange(1, length + 1).reshape((1,) * (flipped.ndim - 1) + (-1,))
    return TokenInversion(running[..., -1], np.where(flipped.any(-1), flipped.argmax(-1), -1), running)


def closed_token_inversion(h: int, base: float, length: int) -> float:
    """Phi(-sqrt(h) (1 - x) / sqrt(x)), x = log_B M, 1/2 from M = B on: equal amplitudes, uniform phases against the
    phase-aligned key. Grows with M and falls with B."""
    require(base > 1, "base", base, "must be above 1")
    x = math.log(length) / math.log(base)
    return 0.5 if x >= 1 else float(ndtr(-math.sqrt(h) * (1 - x) / math.sqrt(x))) if x > 0 else 0.0
