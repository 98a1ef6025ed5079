"""Where the two papers meet: tokens that change places under a head whose scores alias, and what its output shows.

Equal scores mean equal weights, so a RoPE head, whose values know no position, gives the same output to the last bit.
A RoVE head turns each value by its distance, and does not.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Complex, Float, Integer

from rove_jax.analysis.product import channel_pairs, check_finite, qk_coefficients, rope_product
from rove_jax.analysis.quantization import quantize
from rove_jax.errors import require


class Rest(NamedTuple):
    """The other tokens that a head attends to, at least one."""

    scores: np.ndarray
    """float [R], before 1/sqrt(H)."""
    values: np.ndarray
    """complex [R, C], as `in_query_frame` returns them."""


class Swapped(NamedTuple):
    """Outputs of a head, complex [n, C] (see `in_query_frame`), before and after."""

    before: np.ndarray
    after: np.ndarray

    @property
    def change(self) -> np.ndarray:
        """||after - before||, float64 [n]."""
        return np.linalg.norm(self.after - self.before, axis=-1)

    @property
    def relative(self) -> np.ndarray:
        """The same over ||before||; 0 where nothing changes."""
        change = self.change
        return np.divide(change, np.linalg.norm(self.before, axis=-1), out=np.zeros_like(change), where=change > 0)

    def unseen(self, dtype: str) -> np.ndarray:
        """bool [n]: whether both are the same numbers in `dtype`."""
        return np.all(rounded(self.before, dtype) == rounded(self.after, dtype), axis=-1)


def rounded(x: np.ndarray, dtype: str) -> np.ndarray:
    """Real and imaginary parts rounded to `dtype`."""
    return quantize(np.real(x), dtype) + 1j * quantize(np.imag(x), dtype)


def in_query_frame(
    values: Float[np.ndarray, "*#batch H"],
    distances: Integer[np.ndarray, "*#batch"],
    frequencies: Float[np.ndarray, " h"] | None,
    pairing: str,
) -> Complex[np.ndarray, "..."]:
    """R_(-d) v: values as a query `distances` later receives them, as complex pairs and then, as they are, the channels
    that do not turn. complex128 [..., H - h]. frequencies None: values know no position (RoPE)."""
    values = np.asarray(values, np.float64)
    dims = values.shape[-1] // 2 * 2 if frequencies is None else 2 * len(frequencies)
    pairs = channel_pairs(values, pairing, dims)
    if frequencies is not None:
        pairs = pairs * np.exp(-1j * np.asarray(distances, np.float64)[..., None] * frequencies)
    rest = np.broadcast_to(values[..., dims:], (*pairs.shape[:-1], values.shape[-1] - dims))
    return np.concatenate([pairs, rest], axis=-1)


def head_output(
    scores: Float[np.ndarray, "n r"], values: Complex[np.ndarray, "n r C"], rest: Rest, scale: float
) -> Complex[np.ndarray, "n C"]:
    """sum_j softmax(scale scores)_j values_j over r tokens of interest and the rest: complex128 [n, C]."""
    known = rest.scores.max()
    shares = np.exp(scale * (rest.scores - known))
    # The largest of each trial, not of all: a trial that others change in the last bit would not be "exactly equal".
    top = np.maximum(scores.max(-1), known)
    weights, others = np.exp(scale * (scores - top[:, None])), np.exp(scale * (known - top))
    total = weights.sum(-1) + others * shares.sum()
    summed = np.einsum("nr,nrc->nc", weights, values) + others[:, None] * np.einsum("r,rc->c", shares, rest.values)
    return summed / total[:, None]


def swap_effect(
    query: Float[np.ndarray, " H"],
    keys: Float[np.ndarray, "r H"],
    values: Float[np.ndarray, "r H"],
    m1: Integer[np.ndarray, " n"] | int,
    m2: Integer[np.ndarray, " n"] | int,
    *,
    frequencies: Float[np.ndarray, " h"],
    value_frequencies: Float[np.ndarray, " h"] | None,
    pairing: str = "half",
    value_pairing: str | None = None,
    dtype: str = "bfloat16",
    scale: float | None = None,
    rest: Rest | None = None,
) -> Swapped:
    """The outputs of a head with two tokens at distances (m1, m2) and at (m2, m1); or one token at m1, and at m2.

    Args:
      query, keys, values: before rotation; r = 2 tokens change places, r = 1 moves.
      m1, m2: distances to the query, for n trials at once.
      frequencies, value_frequencies: of queries and keys, and of values; None is RoPE, the same again RoVE.
      pairing, value_pairing: the layout of queries and keys, and of values (None: the same).
      dtype: what scores are rounded to before the softmax, which is float64 (as are values and sums).
      scale: of the logits; None: 1/sqrt(H).
      rest: what else the head sees; None: one token of score 0 and value 0.
    """
    query, keys, values = (np.asarray(x, np.float64) for x in (query, keys, values))
    require(len(keys) in (1, 2) and len(keys) == len(values), "keys.shape", keys.shape, "must be one or two, as values")
    check_finite("values", values)
    m1, m2 = np.atleast_1d(m1), np.atleast_1d(m2)
    require(m1.shape == m2.shape, "m2.shape", m2.shape, f"must be that of m1, {m1.shape}")
    nearest = int(min(m1.min(initial=0), m2.min(initial=0)))
    require(nearest >= 0, "m1, m2", nearest, "must be at least 0")
    found = qk_coefficients(query, keys, pairing, 2 * len(frequencies))
    layout = value_pairing or pairing
    if rest is None:
        channels = in_query_frame(values[:1], np.zeros(1, int), value_frequencies, layout)
        rest = Rest(np.zeros(1), np.zeros_like(channels))

    def output(*distances: np.ndarray) -> np.ndarray:
        scores = [rope_product(z, frequencies, m, constant=c) for z, c, m in zip(found.z, found.constant, distances)]
        seen = [in_query_frame(v[None], m, value_frequencies, layout) for v, m in zip(values, distances)]
        channels = [np.broadcast_to(v, (len(m1), v.shape[-1])) for v in seen]
        known = Rest(quantize(rest.scores, dtype).astype(np.float64), rest.values)
        factor = query.shape[-1] ** -0.5 if scale is None else scale
        return head_output(quantize(np.stack(scores, -1), dtype).astype(float), np.stack(channels, -2), known, factor)

    pair = len(keys) == 2
    return Swapped(output(m1, m2) if pair else output(m1), output(m2, m1) if pair else output(m2))
