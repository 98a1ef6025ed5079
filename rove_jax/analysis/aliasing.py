"""Aliasing: distances, or tokens, whose scores a dtype or a tolerance cannot tell apart. By sorting, never [T, T]."""

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int
from scipy.special import ndtr, ndtri

from rove_jax.analysis.quantization import FRACTION_BITS, bin_probabilities, dtype_name, quantize
from rove_jax.errors import UsageError, require

MOST_PAIRS = 2**27
"""Pairs that are listed one by one; beyond, say so rather than run for hours."""


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


def one_way(dtype: str | None, tolerance: float | None) -> None:
    """Raise `UsageError` unless exactly one of the two is given, and a tolerance is none below 0."""
    if (dtype is None) == (tolerance is None):
        raise UsageError(f"dtype = {dtype!r}, tolerance = {tolerance!r}: give one of the two")
    require(tolerance is None or tolerance >= 0, "tolerance", tolerance, "must be at least 0")


def groups(scores: Float[np.ndarray, " T"], dtype: str) -> Int[np.ndarray, " T"]:
    """A number for each distance, the same where the scores are the same in `dtype`: int64 [T], small ones."""
    values = quantize(scores, dtype)
    require(bool(np.isfinite(values).all()), "scores", float(np.max(np.abs(scores))), f"are not all finite in {dtype}")
    if dtype_name(dtype) == "float32":
        return np.unique(values, return_inverse=True)[1].reshape(-1)
    # The bits themselves: no sorting. Adding 0 makes -0 and 0 one number.
    return (values + 0.0).astype(jnp.dtype(dtype_name(dtype))).view(np.uint16).astype(np.int64)


def position_aliasing(
    scores: Float[np.ndarray, " T"], dtype: str | None = None, *, tolerance: float | None = None
) -> Aliasing:
    """Pairs m1 != m2 with S(m1) = S(m2) in `dtype`, or with |S(m1) - S(m2)| <= `tolerance`. O(T log T)."""
    one_way(dtype, tolerance)
    if dtype is not None:
        group = groups(scores, dtype)
        sizes = np.bincount(group)
        partner = sizes[group] > 1
        return Aliasing(int((sizes * (sizes - 1) // 2).sum()), int(partner.sum()), partner)
    assert tolerance is not None
    order = np.argsort(scores, kind="stable")
    ordered = np.asarray(scores, np.float64)[order]
    reach = np.searchsorted(ordered, ordered + tolerance, side="right") - np.arange(len(ordered)) - 1
    close = np.diff(ordered) <= tolerance
    partner = np.zeros(len(ordered), bool)
    partner[order] = np.append(close, False) | np.append(False, close)
    return Aliasing(int(reach.sum()), int(partner.sum()), partner)


def expected_position_aliasing(
    mean: float, sd: float, length: int, dtype: str | None = None, *, tolerance: float | None = None
) -> Expected:
    """`position_aliasing` of `length` independent draws of a normal variable.

    Rounded: C(M, 2) sum_b P_b^2 pairs, and a partner with sum_b P_b (1 - (1 - P_b)^(M-1)). Within a tolerance:
    C(M, 2) (2 Phi(eps / (sqrt(2) sd)) - 1) pairs, since a difference has twice the variance.
    """
    one_way(dtype, tolerance)
    pairs = length * (length - 1) / 2
    if dtype is not None:
        p, count = bin_probabilities(mean, sd, FRACTION_BITS[dtype_name(dtype)])
        some = -np.expm1((length - 1) * np.log1p(-np.minimum(p, 1 - 1e-12)))
        return Expected(float(pairs * (count * p**2).sum()), float((count * p * some).sum()))
    assert tolerance is not None
    at = ndtri((np.arange(20_000) + 0.5) / 20_000)
    near = ndtr(at + tolerance / sd) - ndtr(at - tolerance / sd)
    partner = np.mean(-np.expm1((length - 1) * np.log1p(-np.minimum(near, 1 - 1e-12))))
    return Expected(float(pairs * (2 * ndtr(tolerance / (math.sqrt(2) * sd)) - 1)), float(partner))


def listed_pairs(group: Int[np.ndarray, " T"]) -> Int[np.ndarray, "n 2"]:
    """Every pair m1 < m2 of equal `group`, sorted: int64 [n, 2]. Raises `UsageError` beyond MOST_PAIRS of them."""
    sizes = np.bincount(group)
    total = int((sizes * (sizes - 1) // 2).sum())
    require(total <= MOST_PAIRS, "pairs", total, f"more than {MOST_PAIRS}; shorten the range of distances")
    order = np.argsort(group, kind="stable")
    rank = np.empty(len(group), np.int64)  # place within the own group, counted from its end
    rank[order] = np.cumsum(sizes)[group[order]] - np.arange(len(group)) - 1
    found, left = [], np.arange(len(group))
    lag = 1
    while True:
        left = left[rank[order[left]] >= lag]
        if not len(left):
            break
        found.append(np.stack([order[left], order[left + lag]], -1))
        lag += 1
    pairs = np.concatenate(found) if found else np.zeros((0, 2), np.int64)
    return pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]


def pair_map(scores: Float[np.ndarray, " T"], dtype: str, bins: int) -> Int[np.ndarray, "b b"]:
    """How many aliasing pairs have m1 in each of `bins` parts of the range and m2 > m1 in each: int64 [bins, bins]."""
    pairs = listed_pairs(groups(scores, dtype))
    place = pairs * bins // len(scores)
    return np.bincount(place[:, 0] * bins + place[:, 1], minlength=bins**2).reshape(bins, bins)


def pair_distances(scores: Float[np.ndarray, " T"], dtype: str, bins: int) -> tuple[np.ndarray, np.ndarray]:
    """How far apart aliasing pairs are: (pairs with |m1 - m2| in each bin, all pairs there are in it), int64 [bins].

    Where the two are proportional, aliasing does not depend on how near the positions are.
    """
    count = len(scores)
    pairs = listed_pairs(groups(scores, dtype))
    found = np.bincount((pairs[:, 1] - pairs[:, 0]) * bins // count, minlength=bins)
    gaps = np.arange(1, count)
    every = np.zeros(bins, np.int64)
    np.add.at(every, gaps * bins // count, count - gaps)
    return found, every


def attention_invariance(
    first: Float[np.ndarray, " T"], second: Float[np.ndarray, " T"], dtype: str
) -> Int[np.ndarray, "n 2"]:
    """Pairs m1 < m2 at which both keys alias, S1(m1) = S1(m2) and S2(m1) = S2(m2): int64 [n, 2], sorted.

    Tokens with these keys at m1 and m2 may change places: the weights of a head stay to the last bit, and so does its
    output, where values know no position.
    """
    one, other = groups(first, dtype), groups(second, dtype)
    return listed_pairs(np.unique(one * (other.max() + 1) + other, return_inverse=True)[1].reshape(-1))


def expected_attention_invariance(pairs: tuple[float | int, float | int], length: int, correlation: float) -> float:
    """Jointly aliasing pairs of two keys that have so many each: p1 p2 / C(M, 2) / sqrt(1 - correlation^2), of their
    scores over all distances. Close to, and a few percent above, what is counted."""
    require(-1 < correlation < 1, "correlation", correlation, "must lie between -1 and 1")
    return pairs[0] * pairs[1] / (length * (length - 1) / 2) / math.sqrt(1 - correlation**2)


def token_aliasing(
    first: Float[np.ndarray, " T"],
    second: Float[np.ndarray, " T"],
    dtype: str | None = None,
    *,
    tolerance: float | None = None,
) -> TokenAliasing:
    """Distances at which two keys score the same in `dtype`, or within `tolerance`."""
    one_way(dtype, tolerance)
    if dtype is not None:
        same = quantize(first, dtype) == quantize(second, dtype)
    else:
        same = np.abs(np.asarray(first, np.float64) - np.asarray(second, np.float64)) <= tolerance
    positions = np.flatnonzero(same)
    return TokenAliasing(len(positions), positions)


def token_aliasing_bound(h: int, length: int, fraction_bits: int) -> float:
    """sqrt(2 / pi) 2^-f sqrt(h) M: a bound of the distances at which tokens alias within 2^-f h, a dtype's
    resolution at a score of h. The constant is derived to fit the paper's numbers, and no quotation from it."""
    return math.sqrt(2 / math.pi) * 2.0**-fraction_bits * math.sqrt(h) * length


def expected_token_aliasing(h: int, base: float, length: int, tolerance: float) -> float:
    """M 2 eps / sqrt(2 pi h x) exp(-h (1 - x)^2 / (2 x)), x = log_B M: equal amplitudes, uniform phases against the
    phase-aligned key, for M up to B."""
    x = math.log(length) / math.log(base)
    require(0 < x <= 1, "length", length, f"must lie in 2..{base:g}, the base")
    return length * 2 * tolerance / math.sqrt(2 * math.pi * h * x) * math.exp(-h * (1 - x) ** 2 / (2 * x))
