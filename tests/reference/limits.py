"""Scores, pairs and swaps by brute force, in float64 NumPy: a matrix per distance, a loop over pairs, [T, T] arrays.
Shares no code with the project."""

import numpy as np
from reference.attention import rotation


def score(query: np.ndarray, key: np.ndarray, frequencies: np.ndarray, at: int, distance: int, pairing: str) -> float:
    """The dot product of a query turned to position at + distance and a key turned to position at."""
    turn = [rotation(np.asarray(frequencies) * t, len(query), pairing) for t in (at + distance, at)]
    return float((turn[0] @ query) @ (turn[1] @ key))


def wave(amplitudes: np.ndarray, phases: np.ndarray, frequencies: np.ndarray, m: np.ndarray) -> np.ndarray:
    """sum_n a_n cos(m w_n + phi_n), one term after the other."""
    total = np.zeros(len(m))
    for a, phase, w in zip(amplitudes, phases, frequencies):
        total += a * np.cos(m * w + phase)
    return total


def inverted(near: np.ndarray, far: np.ndarray) -> float:
    """The share of all pairs in which the far score is larger, from the matrix of them."""
    return float(np.mean(far[None, :] > near[:, None]))


def pairs_within(scores: np.ndarray, tolerance: float) -> np.ndarray:
    """[n, 2]: all m1 < m2 whose scores differ by at most `tolerance`, from the matrix of differences."""
    close = np.abs(scores[:, None] - scores[None, :]) <= tolerance
    return np.argwhere(np.triu(close, 1))


def bfloat16(x: np.ndarray) -> np.ndarray:
    """float64 -> float32 -> bfloat16 to nearest, ties to even, by the bits."""
    bits = np.asarray(x, np.float64).astype(np.float32).view(np.uint32).astype(np.uint64)
    kept = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return (kept << 16).astype(np.uint32).view(np.float32).astype(np.float64)


def head(
    query: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    distances: np.ndarray,
    frequencies: np.ndarray,
    *,
    value_frequencies: np.ndarray | None,
    pairing: str = "half",
) -> np.ndarray:
    """Output of a query on keys at `distances` before it, scores rounded to bfloat16: float64 [H]."""
    size = len(query)
    turns = [rotation(-np.asarray(frequencies) * d, size, pairing) for d in distances]
    scores = bfloat16(np.array([query @ turn @ key for turn, key in zip(turns, keys)]))
    weights = np.exp(scores / np.sqrt(size))
    out = np.zeros(size)
    for weight, value, d in zip(weights, values, distances):
        turned = value if value_frequencies is None else rotation(-value_frequencies * d, size, pairing) @ value
        out += weight / weights.sum() * turned
    return out
