"""The rotation R_t: its frequencies, its angles at any position, and `rotate`, the one function that turns vectors."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int, Shaped

from rove_jax.config import Rotary
from rove_jax.errors import UsageError
from rove_jax.scaling import logit_scale, scaled_frequencies

__all__ = ["MAX_POSITION", "angles", "frequencies", "logit_scale", "rotate"]

MAX_POSITION = 2**20
"""Positions run from -MAX_POSITION to MAX_POSITION. Beyond, subtract one number from all of them: nothing changes."""

BLOCK = 1024
"""Position = BLOCK a + b: one table row per a, one per b."""


def frequencies(rotary: Rotary, head_dim: int) -> np.ndarray:
    """Radians per position of each turning pair, scaling and alpha included: float64 [turned dims / 2]."""
    return rotary.alpha * scaled_frequencies(rotary, rotary.turned(head_dim))


@functools.cache
def tables(rotary: Rotary, head_dim: int) -> tuple[np.ndarray, ...]:
    """(cos, sin) of BLOCK a, a = 0..MAX_POSITION / BLOCK, then of b, b = 0..BLOCK - 1: float32 [rows, pairs] each.

    Angles are formed in float64. A float32 product of position and frequency would be 2e-2 off at 2^20; these rows
    combined by angle addition stay within 2e-7.
    """
    per_position = frequencies(rotary, head_dim)
    coarse = np.arange(MAX_POSITION // BLOCK + 1)[:, None] * (BLOCK * per_position)
    fine = np.arange(BLOCK)[:, None] * per_position
    return tuple(f(angle).astype(np.float32) for angle in (coarse, fine) for f in (np.cos, np.sin))


@functools.partial(jax.jit, static_argnames=("rotary", "head_dim"))
def angles(positions: Int[Array, "*p"], rotary: Rotary, head_dim: int) -> tuple[Float[Array, "*p m"], ...]:
    """(cos, sin) of position x frequency, float32 [*positions, pairs], within 1e-6 of exact at every position.

    A traced position beyond MAX_POSITION + BLOCK gives NaN.
    """
    cos_a, sin_a, cos_b, sin_b = (jnp.asarray(t) for t in tables(rotary, head_dim))
    a, b = jnp.divmod(jnp.abs(positions), BLOCK)
    # Out of range fills with NaN, which is seen; a clipped index would be a silent wrong angle.
    cos_a, sin_a = (jnp.take(t, a, axis=0, mode="fill") for t in (cos_a, sin_a))
    cos_b, sin_b = (jnp.take(t, b, axis=0) for t in (cos_b, sin_b))
    sign = jnp.sign(positions).astype(jnp.float32)[..., None]
    return cos_a * cos_b - sin_a * sin_b, sign * (sin_a * cos_b + cos_a * sin_b)


def rotate(
    x: Float[Array, "... T N H"], positions: Shaped[Array, "..."], rotary: Rotary, *, inverse: bool = False
) -> Float[Array, "... T N H"]:
    """R_t x for each vector of `x` at its position t (RoVE, arXiv 2606.11275, Def. 3.1), or R_t^-1 x.

    Args:
      x: [..., T, N, H], any float dtype, which is kept; the arithmetic is float32.
      positions: int32 [T], or [..., T] with the leading axes of `x`. Concrete ones beyond +-MAX_POSITION are refused;
        traced ones cannot be checked, and are the caller's to keep in range.
      rotary: what turns; pair (x1, x2) becomes (x1 cos - x2 sin, x1 sin + x2 cos).
      inverse: turn back.
    """
    positions = checked_positions(positions)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise UsageError(f"x of dtype {x.dtype}: must be floats")
    if positions.shape not in (x.shape[-3:-2], x.shape[:-2]):
        raise UsageError(f"positions of shape {positions.shape}: must be {x.shape[-3:-2]} or {x.shape[:-2]}")
    if rotary.turned(x.shape[-1]) == 0 or rotary.alpha == 0.0:
        return x
    return turn(x, positions, rotary, inverse)


def checked_positions(positions: Shaped[Array, "..."] | Shaped[np.ndarray, "..."]) -> Int[Array, "..."]:
    """`positions` as int32; raises `UsageError` for what is no array of integers or, where concrete, out of range."""
    if not hasattr(positions, "dtype"):
        raise UsageError(f"positions of type {type(positions).__name__}: must be an array, such as jnp.arange(T)")
    if not jnp.issubdtype(positions.dtype, jnp.integer):
        raise UsageError(f"positions of dtype {positions.dtype}: must be integers")
    if not isinstance(positions, Tracer) and positions.size:
        flat = np.asarray(positions).astype(np.int64).ravel()
        worst = flat[np.abs(flat).argmax()]
        if abs(worst) > MAX_POSITION:
            raise UsageError(f"position {worst}: beyond +-{MAX_POSITION}; subtract one number from all positions")
    return jnp.asarray(positions, jnp.int32)


@functools.partial(jax.jit, static_argnames=("rotary", "inverse"))
def turn(x: Array, positions: Array, rotary: Rotary, inverse: bool) -> Array:
    """`rotate` after its checks. Jitted, so that a model lowers the tables once, not once per layer and use."""
    cos, sin = angles(positions, rotary, x.shape[-1])
    cos, sin = full_width(cos, sin, rotary, x.shape[-1])
    shape = (1,) * (x.ndim - 2 - positions.ndim) + positions.shape + (1, x.shape[-1])
    cos, sin = cos.reshape(shape), (-sin if inverse else sin).reshape(shape)
    # Of the platform that is compiled for; the other form leaves no trace in the program.
    forms = {"tpu": turn_by_product, "default": turn_by_padding}
    forms = {platform: functools.partial(form, rotary=rotary) for platform, form in forms.items()}
    return jax.lax.platform_dependent(x, cos, sin, **forms)


def full_width(cos: Array, sin: Array, rotary: Rotary, head_dim: int) -> tuple[Array, Array]:
    """(cos, signed sin) for every channel, from those of every pair: float32 [..., H]; 1 and 0 where nothing turns.

    The rotation is then x cos + (x, partners swapped) sin.
    """
    rest = [(0, 0)] * (cos.ndim - 1) + [(0, head_dim - rotary.turned(head_dim))]
    if rotary.pairing == "half":
        cos, sin = jnp.concatenate([cos, cos], -1), jnp.concatenate([-sin, sin], -1)
    else:
        cos, sin = (jnp.stack(pair, -1).reshape(*cos.shape[:-1], -1) for pair in ((cos, cos), (-sin, sin)))
    return jnp.pad(cos, rest, constant_values=1.0), jnp.pad(sin, rest)


def turn_by_padding(x: Array, cos: Array, sin: Array, *, rotary: Rotary) -> Array:
    """The form for CPUs and GPUs: partners are put in their place by two pads, which fuse into one pass.

    The transpose of a pad is a slice and that of a slice a pad, so the gradient is as fast: on two CPU cores 1.0 to 1.4
    times a copy in float32, where split and concatenate take 1.4 (jax 0.10) to 2.7 times (jax 0.12).
    """
    turning, dims = x.astype(jnp.float32), rotary.turned(x.shape[-1])
    rest, half = x.shape[-1] - dims, dims // 2
    if rotary.pairing == "half":
        first, second = turning[..., :half], turning[..., half:dims]
        to_first, to_second = (0, half + rest, 0), (half, rest, 0)
    else:
        first, second = turning[..., 0:dims:2], turning[..., 1:dims:2]
        to_first, to_second = (0, 1 + rest, 1), (1, rest, 1)
    places = [(0, 0, 0)] * (x.ndim - 1)
    zero = jnp.float32(0)
    swapped = jax.lax.pad(second, zero, [*places, to_first]) + jax.lax.pad(first, zero, [*places, to_second])
    return (turning * cos + swapped * sin).astype(x.dtype)


def turn_by_product(x: Array, cos: Array, sin: Array, *, rotary: Rotary) -> Array:
    """The form for TPUs: a product with the permutation that swaps partners, on the matrix unit.

    Halves of 32 lanes would be padded to 128 and moved as such. Exact: each sum has one term, and the precision is
    set here, whatever the global one.
    """
    dims = rotary.turned(x.shape[-1])
    channel = np.arange(dims)
    partner = (channel + dims // 2) % dims if rotary.pairing == "half" else channel ^ 1
    swap = np.pad(np.eye(dims)[partner], (0, x.shape[-1] - dims)).astype(x.dtype)
    precision = "highest" if x.dtype == jnp.float32 else None
    swapped = jnp.matmul(x, swap, precision=precision, preferred_element_type=jnp.float32)
    return (x.astype(jnp.float32) * cos + swapped * sin).astype(x.dtype)
