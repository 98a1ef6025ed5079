"""Pairs of distances with equal scores, in a dtype or within a tolerance: numbered, drawn or listed. By sorting."""

from collections.abc import Iterator
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from rove_jax.analysis.product import check_finite
from rove_jax.analysis.quantization import dtype_name, quantize
from rove_jax.errors import UsageError, require

MOST_PAIRS = 2**27
"""Pairs that are listed one by one; more take more memory than they are worth."""

CHUNK = 2**22
"""Pairs that are counted into bins at once."""


class Pairs(NamedTuple):
    """All pairs of distances with the same score, numbered and not written down: there may be half as many as M^2."""

    order: np.ndarray
    """int [T]: distances, those with the same score beside each other."""
    ends: np.ndarray
    """int [T]: how many pairs begin at the first i + 1 of `order`; a pair is one of them and one soon after it."""

    @property
    def count(self) -> int:
        """How many there are."""
        return int(self.ends[-1])

    def at(self, numbers: Int[np.ndarray, " n"]) -> Int[np.ndarray, "n 2"]:
        """(m1, m2), m1 < m2, of the pairs with these numbers in 0..count - 1: int64 [n, 2]."""
        first = np.searchsorted(self.ends, numbers, side="right")
        begin = np.append(0, self.ends)[first]
        return np.sort(np.stack([self.order[first], self.order[first + 1 + numbers - begin]], -1), axis=-1)

    def chunks(self) -> Iterator[Int[np.ndarray, "n 2"]]:
        """All of them, CHUNK at a time."""
        for first in range(0, self.count, CHUNK):
            yield self.at(np.arange(first, min(first + CHUNK, self.count)))

    def listed(self) -> Int[np.ndarray, "n 2"]:
        """All of them, sorted; raises `UsageError` beyond MOST_PAIRS."""
        require(
            self.count <= MOST_PAIRS, "pairs", self.count, f"more than {MOST_PAIRS}; shorten the range of distances"
        )
        pairs = self.at(np.arange(self.count))
        return pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]


def one_way(dtype: str | None, tolerance: float | np.ndarray | None) -> None:
    """Raise `UsageError` unless exactly one of the two is given, and a tolerance is none below 0."""
    if (dtype is None) == (tolerance is None):
        raise UsageError(f"dtype = {dtype!r}, tolerance = {tolerance!r}: give one of the two")
    require(tolerance is None or bool(np.all(np.asarray(tolerance) >= 0)), "tolerance", tolerance, "must be at least 0")


def check_scores(scores: np.ndarray) -> None:
    """Raise `UsageError` unless these are scores at one distance or more."""
    shape = np.shape(scores)
    require(len(shape) == 1 and shape[0] > 0, "scores.shape", shape, "must have one axis, not empty")
    check_finite("scores", scores)


def held(scores: Float[np.ndarray, "*batch T"], dtype: str) -> Float[np.ndarray, "*batch T"]:
    """`quantize`d scores; raises `UsageError` where they leave the range of `dtype` (all infinite ones are equal)."""
    require(np.size(scores) > 0, "scores.shape", np.shape(scores), "must not be empty")
    check_finite("scores", scores)
    values = quantize(scores, dtype)
    require(bool(np.isfinite(values).all()), "scores", float(np.max(np.abs(scores))), f"are not all finite in {dtype}")
    return values


def groups(scores: Float[np.ndarray, " T"], dtype: str) -> Int[np.ndarray, " T"]:
    """A number for each distance, the same where the scores are the same in `dtype`: int64 [T], small ones."""
    check_scores(scores)
    values = held(scores, dtype)
    if dtype_name(dtype) == "float32":
        return np.unique(values, return_inverse=True)[1].reshape(-1)
    # The bits themselves: no sorting. Adding 0 makes -0 and 0 one number.
    return (values + 0.0).astype(jnp.dtype(dtype_name(dtype))).view(np.uint16).astype(np.int64)


def grouped_pairs(group: Int[np.ndarray, " T"]) -> Pairs:
    """The pairs within each `group`."""
    order = np.argsort(group, kind="stable")
    return Pairs(order, np.cumsum(np.cumsum(np.bincount(group))[group[order]] - np.arange(len(group)) - 1))


def near_pairs(scores: Float[np.ndarray, " T"], tolerance: float) -> Pairs:
    """The pairs with |S(m1) - S(m2)| <= `tolerance`, as float64 has it."""
    check_scores(scores)
    order = np.argsort(scores, kind="stable")
    ordered = np.asarray(scores, np.float64)[order]
    # By bisection on the difference itself: looking up ordered + tolerance, which is rounded, misses pairs that are
    # exactly so far apart.
    place = np.arange(len(ordered))
    last, beyond = place.copy(), np.full(len(ordered), len(ordered))
    while np.any(beyond - last > 1):
        middle = (last + beyond) // 2
        within = ordered[middle] - ordered <= tolerance
        last, beyond = np.where(within, middle, last), np.where(within, beyond, middle)
    return Pairs(order, np.cumsum(last - place))


def alike_pairs(scores: Float[np.ndarray, " T"], dtype: str | None = None, tolerance: float | None = None) -> Pairs:
    """The pairs with equal scores in `dtype`, or with scores within `tolerance`."""
    one_way(dtype, tolerance)
    if dtype is not None:
        return grouped_pairs(groups(scores, dtype))
    assert tolerance is not None
    return near_pairs(scores, tolerance)
