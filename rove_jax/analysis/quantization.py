"""Scores as a dtype holds them: rounding, and how a normal variable falls on the numbers that there are."""

from typing import Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy.special import ndtr

from rove_jax.errors import require

Dtype = Literal["bfloat16", "float16", "float32"]
FRACTION_BITS = {"bfloat16": 7, "float16": 10, "float32": 23}
SHORT = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}

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


def bin_probabilities(mean: float, sd: float, fraction_bits: int) -> Bins:
    """P(a normal variable rounds to each number with `fraction_bits` explicit bits), for all numbers that matter.

    Those closer to 0 than 2^-24 of the largest of |mean| and sd are one bin, so exponents that a dtype runs out of do
    not come into it; nor do those beyond 9 sd.
    """
    require(sd > 0, "sd", sd, "must be above 0")
    require(0 <= fraction_bits <= 23, "fraction_bits", fraction_bits, "must lie in 0..23")
    top = np.ceil(np.log2(abs(mean) + 9 * sd))
    bottom = np.floor(np.log2(max(abs(mean), sd))) - 24
    steps = 2 ** min(fraction_bits, FINEST)
    binades = 2.0 ** np.arange(bottom, top)
    starts = (binades[:, None] * (1 + np.arange(steps) / steps)).ravel()
    # A number owns half a step on either side; a group of numbers in one binade does so as a whole.
    step = np.repeat(binades, steps) * 2.0**-fraction_bits
    edges = np.append(starts - np.where(starts == np.repeat(binades, steps), step / 4, step / 2), 2.0**top)
    positive, negative = (np.diff(ndtr((sign * edges - mean) / sd)) * sign for sign in (1, -1))
    zero = ndtr((edges[0] - mean) / sd) - ndtr((-edges[0] - mean) / sd)
    count = 2.0**fraction_bits / steps
    return Bins(
        np.concatenate([[zero], positive / count, negative / count]),
        np.concatenate([[1.0], np.full(2 * len(starts), count)]),
    )
