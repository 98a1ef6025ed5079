"""Scores as a dtype holds them: rounding, and how a normal variable falls on the numbers that there are."""

from typing import Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy.special import ndtr

from rove_jax.analysis.product import check_finite
from rove_jax.errors import require

Dtype = Literal["bfloat16", "float16", "float32"]
FRACTION_BITS = {"bfloat16": 7, "float16": 10, "float32": 23}
SHORT = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}

EDGES = ("midpoints", "steps")

FINEST = 12
"""Numbers of a binade are treated one by one up to 2^FINEST; more of them in so many groups of equal probabilities."""


class Bins(NamedTuple):
    """Probabilities of representable numbers: `counts[i]` of them have `probabilities[i]` each."""

    probabilities: np.ndarray
    counts: np.ndarray


def dtype_name(dtype: str) -> Dtype:
    """bfloat16, float16 or float32, from that or from bf16, fp16, fp32; raises `UsageError` for another."""
    name = SHORT.get(dtype, dtype)
    require(name in FRACTION_BITS, "dtype", dtype, f"must be one of {', '.join((*FRACTION_BITS, *SHORT))}")
    return name  # pyright: ignore[reportReturnType]


def quantize(x: Float[np.ndarray, "*shape"], dtype: str) -> Float[np.ndarray, "*shape"]:
    """`x` rounded to float32 and then to `dtype`, to nearest, ties to even, as float32."""
    with np.errstate(over="ignore"):  # to infinity, as the dtype has it
        return np.asarray(x).astype(np.float32).astype(jnp.dtype(dtype_name(dtype))).astype(np.float32)


def bin_probabilities(mean: float, sd: float, fraction_bits: int, edges: str = "midpoints") -> Bins:
    """P(a normal variable rounds to each number with `fraction_bits` explicit bits), for all numbers that matter.

    Those closer to 0 than 2^-24 of the largest of |mean| and sd are one bin, so exponents that a dtype runs out of do
    not come into it; nor do those beyond 9 sd.
    """
    require(0 < sd < np.inf, "sd", sd, "must be above 0 and finite")
    check_finite("mean", mean)
    require(edges in EDGES, "edges", edges, f"must be one of {', '.join(EDGES)}")
    require(0 <= fraction_bits <= 23, "fraction_bits", fraction_bits, "must lie in 0..23")
    top = np.ceil(np.log2(abs(mean) + 9 * sd))
    bottom = np.floor(np.log2(max(abs(mean), sd))) - 24
    groups = 2 ** min(fraction_bits, FINEST)
    binades = 2.0 ** np.arange(bottom, top)[:, None]
    starts = binades * (1 + np.arange(groups) / groups)
    # A number owns half a step on either side, and at the start of a binade half of the finer step below; a group of
    # numbers does so as a whole.
    half = np.broadcast_to(binades * 2.0**-fraction_bits / 2, starts.shape)
    below = np.where((starts == binades) & (edges == "midpoints"), half / 2, half)
    low, high = (starts - below).ravel(), (starts + binades / groups - half).ravel()
    positive, negative = (np.abs(ndtr((sign * high - mean) / sd) - ndtr((sign * low - mean) / sd)) for sign in (1, -1))
    zero = ndtr((low[0] - mean) / sd) - ndtr((-low[0] - mean) / sd)
    count = 2.0**fraction_bits / groups
    return Bins(
        np.concatenate([[zero], positive / count, negative / count]),
        np.concatenate([[1.0], np.full(2 * len(low), count)]),
    )
