"""Aliasing: distances, or tokens, whose scores a dtype or a tolerance cannot tell apart. By sorting, never [T, T]."""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import ndtr, ndtri

from rove_jax.analysis.pairs import Pairs, alike_pairs, check_scores, grouped_pairs, groups, held, near_pairs, one_way
from rove_jax.analysis.product import check_finite
from rove_jax.analysis.quantization import FRACTION_BITS, bin_probabilities, dtype_name
from rove_jax.errors import require


class Aliasing(NamedTuple):
    """Pairs of distances with the same score."""

    pairs: int
    positions: int
    """How many distances are in some pair."""
    partner: np.ndarray
    """bool [T]: which."""

    @property
    def share(self) -> float:
        """P(a distance has a partner)."""
        return self.positions / len(self.partner)


class Expected(NamedTuple):
    """What a normal variable would give."""

    pairs: float
    partner: float
    """P(a distance has a partner)."""


class TokenAliasing(NamedTuple):
    """Distances at which two keys have the same score."""

    count: int
    positions: np.ndarray
    """int [count]."""


def position_aliasing(
    scores: Float[np.ndarray, " T"], dtype: str | None = None, *, tolerance: float | None = None
) -> Aliasing:
    """Pairs m1 != m2 with S(m1) = S(m2) in `dtype`, or with |S(m1) - S(m2)| <= `tolerance` (theorem 2). O(T log T)."""
    one_way(dtype, tolerance)
    if dtype is not None:  # counted without sorting
        group = groups(scores, dtype)
        sizes = np.bincount(group)
        partner = sizes[group] > 1
        return Aliasing(int((sizes * (sizes - 1) // 2).sum()), int(partner.sum()), partner)
    assert tolerance is not None
    order, ends = near_pairs(scores, tolerance)
    begins = np.diff(ends, prepend=0) > 0
    partner = np.zeros(len(order), bool)
    partner[order] = begins | np.append(False, begins[:-1])
    return Aliasing(int(ends[-1]), int(partner.sum()), partner)


def expected_position_aliasing(
    mean: float,
    sd: float,
    length: int,
    dtype: str | None = None,
    *,
    tolerance: float | None = None,
    edges: str = "midpoints",
) -> Expected:
    """`position_aliasing` of `length` independent draws of a normal variable.

    Rounded: C(M, 2) sum_b P_b^2 pairs, and a partner with sum_b P_b (1 - (1 - P_b)^(M-1)); `edges` of bins as in
    `bin_probabilities`. Within a tolerance: C(M, 2) (2 Phi(eps / (sqrt(2) sd)) - 1) pairs, since a difference has twice
    the variance.
    """
    one_way(dtype, tolerance)
    require(length >= 1, "length", length, "must be at least 1")
    pairs = length * (length - 1) / 2
    if dtype is not None:
        p, count = bin_probabilities(mean, sd, FRACTION_BITS[dtype_name(dtype)], edges)
        some = -np.expm1((length - 1) * np.log1p(-np.minimum(p, 1 - 1e-12)))
        return Expected(float(pairs * (count * p**2).sum()), float((count * p * some).sum()))
    assert tolerance is not None
    require(sd > 0, "sd", sd, "must be above 0")
    at = ndtri((np.arange(20_000) + 0.5) / 20_000)
    near = ndtr(at + tolerance / sd) - ndtr(at - tolerance / sd)
    partner = np.mean(-np.expm1((length - 1) * np.log1p(-np.minimum(near, 1 - 1e-12))))
    return Expected(float(pairs * (2 * ndtr(tolerance / (math.sqrt(2) * sd)) - 1)), float(partner))


def closed_position_aliasing(h: int, base: float, length: int, tolerance: float) -> float:
    """C(M, 2) eps sqrt(2 ln B / (pi h ln M)): pairs within a small eps, amplitudes 1. Grows with M and with B.

    It is `expected_position_aliasing` for the asymptotic variance h log_B(M) / 2, which no phase changes.
    """
    require(h >= 1, "h", h, "must be at least 1")
    require(base > 1, "base", base, "must be above 1")
    require(length >= 2, "length", length, "must be at least 2")
    one_way(None, tolerance)
    pairs = length * (length - 1) / 2
    return pairs * tolerance * math.sqrt(2 * math.log(base) / (math.pi * h * math.log(length)))


def listed_pairs(group: Int[np.ndarray, " T"]) -> Int[np.ndarray, "n 2"]:
    """Every pair m1 < m2 of equal `group`, sorted: int64 [n, 2]. Raises `UsageError` beyond MOST_PAIRS of them."""
    return grouped_pairs(group).listed()


def pair_map(
    scores: Float[np.ndarray, " T"], dtype: str | None, bins: int, *, tolerance: float | None = None
) -> Int[np.ndarray, "b b"]:
    """How many aliasing pairs have m1 in each of `bins` parts of the range and m2 > m1 in each: int64 [bins, bins]."""
    require(bins >= 1, "bins", bins, "must be at least 1")
    counts = np.zeros(bins**2, np.int64)
    for pairs in alike_pairs(scores, dtype, tolerance).chunks():
        place = pairs * bins // len(scores)
        counts += np.bincount(place[:, 0] * bins + place[:, 1], minlength=bins**2)
    return counts.reshape(bins, bins)


def pair_distances(
    scores: Float[np.ndarray, " T"], dtype: str | None, bins: int, *, tolerance: float | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """How far apart aliasing pairs are: (pairs with |m1 - m2| in each bin, all pairs there are in it), int64 [bins].

    Where the two are proportional, aliasing does not depend on how near the positions are.
    """
    require(bins >= 1, "bins", bins, "must be at least 1")
    count = len(scores)
    found, every = np.zeros(bins, np.int64), np.zeros(bins, np.int64)
    for pairs in alike_pairs(scores, dtype, tolerance).chunks():
        found += np.bincount((pairs[:, 1] - pairs[:, 0]) * bins // count, minlength=bins)
    gaps = np.arange(1, count)
    np.add.at(every, gaps * bins // count, count - gaps)
    return found, every


def joint_pairs(first: Float[np.ndarray, " T"], second: Float[np.ndarray, " T"], dtype: str) -> Pairs:
    """Pairs at which both keys alias, S1(m1) = S1(m2) and S2(m1) = S2(m2): to count, or to draw some of."""
    require(np.shape(first) == np.shape(second), "second.shape", np.shape(second), f"must be {np.shape(first)}")
    one, other = groups(first, dtype), groups(second, dtype)
    return grouped_pairs(np.unique(one * (other.max() + 1) + other, return_inverse=True)[1].reshape(-1))


def attention_invariance(
    first: Float[np.ndarray, " T"], second: Float[np.ndarray, " T"], dtype: str
) -> Int[np.ndarray, "n 2"]:
    """Pairs m1 < m2 at which both keys alias, S1(m1) = S1(m2) and S2(m1) = S2(m2): int64 [n, 2], sorted.

    Tokens with these keys at m1 and m2 may change places: the weights of a head stay to the last bit, and so does its
    output, where values know no position. Raises `UsageError` beyond MOST_PAIRS; `joint_pairs` counts and draws any
    number.
    """
    return joint_pairs(first, second, dtype).listed()


def expected_attention_invariance(pairs: tuple[float | int, float | int], length: int, correlation: float) -> float:
    """Jointly aliasing pairs of two keys that have so many each: p1 p2 / C(M, 2) / sqrt(1 - correlation^2), of their
    scores over all distances. Close to, and a few percent above, what is counted."""
    require(-1 < correlation < 1, "correlation", correlation, "must lie between -1 and 1")
    require(length >= 2, "length", length, "must be at least 2")
    return pairs[0] * pairs[1] / (length * (length - 1) / 2) / math.sqrt(1 - correlation**2)


def same_scores(
    first: Float[np.ndarray, "*batch T"],
    second: Float[np.ndarray, "*batch T"],
    dtype: str | None = None,
    *,
    tolerance: float | np.ndarray | None = None,
) -> Bool[np.ndarray, "*batch T"]:
    """Where two keys score the same in `dtype`, or within `tolerance`, a number or one for each batch index."""
    one_way(dtype, tolerance)
    require(np.shape(first) == np.shape(second), "second.shape", np.shape(second), f"must be {np.shape(first)}")
    if dtype is not None:
        return held(first, dtype) == held(second, dtype)
    check_finite("scores", first)
    check_finite("scores", second)
    gap = np.abs(np.asarray(first, np.float64) - np.asarray(second, np.float64))
    return gap <= np.asarray(tolerance, np.float64)[..., None]


def token_aliasing(
    first: Float[np.ndarray, " T"],
    second: Float[np.ndarray, " T"],
    dtype: str | None = None,
    *,
    tolerance: float | None = None,
) -> TokenAliasing:
    """Distances at which two keys score the same in `dtype`, or within `tolerance` (theorem 4)."""
    check_scores(first)
    positions = np.flatnonzero(same_scores(first, second, dtype, tolerance=tolerance))
    return TokenAliasing(len(positions), positions)


def token_aliasing_bound(h: int, length: int, fraction_bits: int) -> float:
    """sqrt(2 / pi) 2^-f sqrt(h) M: a bound of the distances at which tokens alias within 2^-f h, a dtype's resolution
    at a score of h (theorem 4; equal amplitudes). The constant is inferred: it gives the 5 % and 1.6 thousand of the
    paper at h = 64 and M = 32,768 in bfloat16, and is no quotation from it.
    """
    require(h >= 1, "h", h, "must be at least 1")
    require(length >= 1, "length", length, "must be at least 1")
    require(fraction_bits in range(24), "fraction_bits", fraction_bits, "must be a whole number in 0..23")
    return math.sqrt(2 / math.pi) * 2.0**-fraction_bits * math.sqrt(h) * length


def expected_token_aliasing(h: int, base: float, length: int, tolerance: float) -> float:
    """M 2 eps / sqrt(2 pi h x) exp(-h (1 - x)^2 / (2 x)), x = log_B M: equal amplitudes, uniform phases against the
    phase-aligned key, for M up to B."""
    require(h >= 1, "h", h, "must be at least 1")
    require(base > 1, "base", base, "must be above 1")
    one_way(None, tolerance)
    require(2 <= length <= base, "length", length, f"must lie in 2..{base:g}, the base")
    x = math.log(length) / math.log(base)
    return length * 2 * tolerance / math.sqrt(2 * math.pi * h * x) * math.exp(-h * (1 - x) ** 2 / (2 * x))
