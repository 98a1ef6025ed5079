"""How sure a measured number is: 95% intervals of shares, of perplexities and their ratios, of means over seeds."""

import math
from collections.abc import Sequence

import numpy as np

RESAMPLES = 1000


def wilson(correct: int, samples: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """The 95% interval of a share (Wilson 1927), which stays within 0 and 1 and is right near them."""
    share, square = correct / samples, z * z / samples
    middle = (share + square / 2) / (1 + square)
    half = z * math.sqrt(share * (1 - share) / samples + square / (4 * samples)) / (1 + square)
    return max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))


def bootstrap(sums: np.ndarray, counts: np.ndarray, baseline: np.ndarray | None = None) -> list[float] | None:
    """95% interval of exp(sum / count) when documents are drawn anew; None for fewer than two documents.

    Args:
        sums: NLL of each document. counts: scored tokens of each.
        baseline: NLL of each under another model, on the same tokens: the interval is of the ratio of perplexities.
    """
    if len(sums) < 2:
        return None
    # RandomState's stream is frozen across NumPy versions, so the interval is a function of the data alone.
    draws = np.random.RandomState(0).randint(len(sums), size=(RESAMPLES, len(sums)))
    difference = sums if baseline is None else sums - baseline
    means = difference[draws].sum(axis=1) / counts[draws].sum(axis=1)
    return [float(bound) for bound in np.exp(np.quantile(means, [0.025, 0.975]))]


def student(values: Sequence[float]) -> list[float] | None:
    """95% interval of the mean that few independent values, such as one of each seed, are drawn around (Student 1908).

    None for fewer than two. Two or three values say little about how they scatter: expect wide intervals.
    """
    if len(values) < 2:
        return None
    from scipy import stats  # half a second to import, for this function alone

    half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values))
    return [float(np.mean(values) - half), float(np.mean(values) + half)]
