"""How sure a measured number is: 95% intervals of shares, means, perplexities, and of what two models differ by."""

import math
from collections.abc import Sequence

import numpy as np

RESAMPLES = 1000
Z = 1.959963984540054
"""97.5% of the normal distribution lie below."""


def quantile(freedom: int) -> float:
    """The same of Student's t, by its degrees of freedom."""
    from scipy import stats  # half a second to import, for this function alone

    return float(stats.t.ppf(0.975, freedom))


def wilson(correct: int | float, samples: int, z: float = Z) -> tuple[float, float]:
    """The 95% interval of a share (Wilson 1927), which stays within 0 and 1 and is right near them."""
    share, square = correct / samples, z * z / samples
    middle = (share + square / 2) / (1 + square)
    half = z * math.sqrt(share * (1 - share) / samples + square / (4 * samples)) / (1 + square)
    return max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))


def paired(first: Sequence[bool], second: Sequence[bool]) -> tuple[float, tuple[float, float]]:
    """(share of `second` less that of `first`, its 95% interval) where both answered the same questions.

    Newcombe 1998, "Improved confidence intervals for the difference between binomial proportions based on paired data",
    method 10: Wilson's intervals of both shares, joined with the correlation of the answers. It is right near 0 and 1,
    where all answers are alike.
    """
    a, b = np.asarray(first, bool), np.asarray(second, bool)
    count = len(a)
    both, neither = int((a & b).sum()), int((~a & ~b).sum())
    left, right = int(a.sum()), int(b.sum())
    margins = left * right * (count - left) * (count - right)
    shared = both * neither - (left - both) * (right - both)
    if shared > 0:
        shared = max(0.0, shared - count / 2)
    correlation = shared / math.sqrt(margins) if margins else 0.0
    (low_a, high_a), (low_b, high_b) = wilson(left, count), wilson(right, count)
    share_a, share_b = left / count, right / count

    def joined(one: float, other: float) -> float:
        return math.sqrt(max(0.0, one * one - 2 * correlation * one * other + other * other))

    difference = share_b - share_a
    down, up = joined(share_b - low_b, high_a - share_a), joined(high_b - share_b, share_a - low_a)
    return difference, (difference - down, difference + up)


def combined(
    values: Sequence[float], intervals: Sequence[tuple[float, float]], weights: Sequence[float]
) -> tuple[float, float]:
    """95% interval of sum(weight * value) of independent values, weights positive, from the 95% interval of each.

    Zou and Donner 2008, "Construction of confidence limits about effect measures: a general approach": the distances
    from each value to its bounds add in squares, down and up apart, so that bounds need not lie around it evenly.
    """
    total = sum(weight * value for weight, value in zip(weights, values))
    low, high = np.array(intervals, np.float64).T
    scale = np.array(weights, np.float64)
    at = np.array(values, np.float64)
    down, up = (float(np.sqrt(np.sum((scale * away) ** 2))) for away in (at - low, high - at))
    return total - down, total + up


def bootstrap(sums: np.ndarray, counts: np.ndarray, baseline: np.ndarray | None = None) -> list[float] | None:
    """95% interval of exp(sum / count) when documents are drawn anew; None for fewer than two documents.

    Args:
        sums: NLL of each document. counts: scored tokens of each.
        baseline: NLL of each under another model, on the same tokens: the interval is of the ratio of perplexities.

    The bounds of a plain bootstrap are too near each other where documents are few: they hold 90% at ten of them, 77%
    at three. So their distances from the estimate are stretched, by Student's t over the normal quantile and by
    sqrt(n / (n - 1)) (Hesterberg 2015, "What Teachers Should Know About the Bootstrap", on narrowness bias).
    """
    count = len(sums)
    if count < 2:
        return None
    # RandomState's stream is frozen across NumPy versions, so the interval is a function of the data alone.
    draws = np.random.RandomState(0).randint(count, size=(RESAMPLES, count))
    difference = sums if baseline is None else sums - baseline
    means = difference[draws].sum(axis=1) / counts[draws].sum(axis=1)
    estimate = difference.sum() / counts.sum()
    stretch = quantile(count - 1) / Z * math.sqrt(count / (count - 1))
    return [float(bound) for bound in np.exp(estimate + stretch * (np.quantile(means, [0.025, 0.975]) - estimate))]


def student(values: Sequence[float]) -> list[float] | None:
    """95% interval of the mean that few independent values, such as one of each seed, are drawn around (Student 1908).

    None for fewer than two. Two or three values say little about how they scatter: expect wide intervals.
    """
    if len(values) < 2:
        return None
    half = quantile(len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values))
    return [float(np.mean(values) - half), float(np.mean(values) + half)]
