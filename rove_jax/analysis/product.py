"""The RoPE product: a score as a function of distance, from a query and a key, or from amplitudes and phases."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Complex, Float, Num, Shaped

from rove_jax.config import Rotary, Scaling
from rove_jax.errors import UsageError, require
from rove_jax.scaling import scaled_frequencies

Rates = np.ndarray | np.floating
"""float64 [...]: one number for each batch index, a NumPy scalar where there is none."""

PHASES = {
    "aligned": "0",
    "golden": "2 pi frac(n (sqrt(5) - 1) / 2)",
    "root2": "2 pi frac(n sqrt(2))",
    "ripple": "0.1 sin n",
    "wave": "0.5 sin n",
    "uniform": "uniform",
}
"""Phases of pair n by name: aligned make a score that decays as far as it can, golden and root2 are spread evenly and
the same everywhere, uniform ones are drawn."""

CHUNK = 1024
"""Distances that are formed at once."""


class Coefficients(NamedTuple):
    """A query and a key as z, complex128 [..., h], and what the channels that do not turn add to every score."""

    z: np.ndarray
    constant: np.ndarray

    @property
    def amplitude(self) -> np.ndarray:
        """a_n = |z_n|, float64 [..., h]."""
        return np.abs(self.z)

    @property
    def phase(self) -> np.ndarray:
        """phi_n = arg z_n in [0, 2 pi), float64 [..., h]."""
        return np.angle(self.z) % (2 * np.pi)


def rope_frequencies(h: int, base: float, scaling: Scaling | None = None) -> Float[np.ndarray, " h"]:
    """Radians per position of `h` pairs, w_n = base^(-n / h), scaled as `scaling` says: float64 [h].

    A rule is nothing without its numbers: `Scaling("llama3", factor=8, original_length=8192)`, of `rove_jax.config`.
    """
    require(h >= 1, "h", h, "must be at least 1")
    fits = scaling is None or isinstance(scaling, Scaling)
    require(fits, "scaling", scaling, 'must be a Scaling of rove_jax.config, as Scaling("yarn", factor=4)')
    return scaled_frequencies(Rotary(base=base, scaling=scaling or Scaling()), 2 * h)


def phase_set(name: str, h: int, *, seed: int = 0) -> Float[np.ndarray, " h"]:
    """Phases of `h` pairs by a name of `PHASES`, float64 [h]; uniform ones are drawn from `seed`."""
    require(name in PHASES, "phases", name, f"must be {', '.join([*PHASES][:-1])} or uniform")
    require(seed >= 0, "seed", seed, "must be at least 0")
    n = np.arange(h, dtype=np.float64)
    if name == "aligned":
        return np.zeros(h)
    if name in ("golden", "root2"):
        return 2 * np.pi * (n * ((np.sqrt(5.0) - 1) / 2 if name == "golden" else np.sqrt(2.0)) % 1.0)
    if name in ("ripple", "wave"):
        return (0.1 if name == "ripple" else 0.5) * np.sin(n)
    return np.random.default_rng(seed).uniform(0, 2 * np.pi, h)


def coefficients(phases: np.ndarray, amplitude: float | np.ndarray = 1.0) -> Complex[np.ndarray, "*batch h"]:
    """z_n = a_n exp(i phi_n), complex128; `phases` are numbers (`phase_set` makes them by name)."""
    require(not isinstance(phases, str), "phases", phases, "must be numbers, as phase_set(name, h) returns")
    check_finite("phases", phases)
    check_finite("amplitude", amplitude)
    return amplitude * np.exp(1j * np.asarray(phases, np.float64))


def channel_pairs(x: np.ndarray, pairing: str, dims: int | None = None) -> Complex[np.ndarray, "*batch h"]:
    """The first `dims` channels (None: all) of `x` [..., H] as complex pairs x1 + i x2, complex128 [..., dims / 2]."""
    x = np.asarray(x, np.float64)
    size = x.shape[-1] if dims is None else dims
    require(size % 2 == 0 and 0 <= size <= x.shape[-1], "rotary_dim", size, f"must be even, at most {x.shape[-1]}")
    if pairing == "half":
        return x[..., : size // 2] + 1j * x[..., size // 2 : size]
    if pairing == "interleaved":
        return x[..., 0:size:2] + 1j * x[..., 1:size:2]
    raise UsageError(f"pairing = {pairing!r}: must be half or interleaved")


def qk_coefficients(
    query: Shaped[np.ndarray, "*#batch H"],
    key: Shaped[np.ndarray, "..."],
    pairing: str,
    rotary_dim: int | None = None,
) -> Coefficients:
    """What the score of a query and a key, both before rotation, depends on: z_n = Q_n conj(K_n).

    Args:
      query, key: any float type, [..., H] both, of shapes that broadcast.
      pairing: which channels form pair n: (n, n + rotary_dim / 2) for half, (2n, 2n + 1) for interleaved. The same
        vectors have other amplitudes and phases under the other one.
      rotary_dim: how many leading channels turn (None: all); the dot product of the rest is `constant`.
    """
    query, key = np.asarray(query, np.float64), np.asarray(key, np.float64)
    check_alike("key.shape", key, query)
    check_finite("query", query)
    check_finite("key", key)
    turning = query.shape[-1] if rotary_dim is None else rotary_dim
    z = channel_pairs(query, pairing, turning) * np.conj(channel_pairs(key, pairing, turning))
    return Coefficients(z, np.sum(query[..., turning:] * key[..., turning:], axis=-1))


def rope_product(
    z: Num[np.ndarray, "*batch h"],
    frequencies: Float[np.ndarray, " pairs"],
    distances: Shaped[np.ndarray, " T"],
    *,
    constant: float | np.ndarray = 0.0,
) -> Float[np.ndarray, "*batch T"]:
    """S(m) = constant + Re sum_n z_n exp(i m w_n) at every distance (Du et al., section 2.1): float64 [..., T].

    The reference. Distances, in tokens, are finite numbers in any order. An angle is off by m w 2^-53, 1e-10 radians
    at m = 1e6.
    """
    z, frequencies = check_pairs(z, frequencies)
    m = np.asarray(distances, np.float64)
    require(m.ndim == 1, "distances.shape", m.shape, "must have one axis")
    check_finite("distances", m)
    added = added_constant(constant, z.shape[:-1])
    out = np.empty((*z.shape[:-1], len(m)))
    for first in range(0, len(m), CHUNK):
        angle = m[first : first + CHUNK, None] * frequencies
        out[..., first : first + CHUNK] = np.real(z) @ np.cos(angle).T - np.imag(z) @ np.sin(angle).T
    return out + added[..., None]


def rope_scores(
    z: Num[np.ndarray, "*batch h"],
    frequencies: Float[np.ndarray, " pairs"],
    length: int,
    *,
    constant: float | np.ndarray = 0.0,
) -> Float[Array, "*batch M"]:
    """`rope_product` at the distances 0..length - 1, on the device, in chunks: float32 [..., length].

    The error is that of a float32 sum, about 1e-7 of sum |z|, whatever the distance: angles are formed on the host in
    float64, for every CHUNK-th distance and for those of one chunk, and only products of their cosines in float32.
    """
    z, frequencies = check_pairs(z, frequencies)
    require(length >= 1, "length", length, "must be at least 1")
    require(z.size > 0, "z.shape", z.shape, "must not be empty")
    largest = float(np.abs(z).sum(-1).max(initial=0.0))
    require(largest < 1e38, "z", largest, "is the largest sum |z|, more than float32 holds; take rope_product")
    rows = z.reshape(-1, z.shape[-1])
    coarse = np.exp(1j * np.outer(np.arange(0, length, CHUNK), frequencies))
    fine = np.exp(1j * np.outer(np.arange(min(CHUNK, length)), frequencies))
    parts = [np.stack([np.real(x), np.imag(x)]).astype(np.float32) for x in (rows, coarse, fine)]
    added = added_constant(constant, z.shape[:-1]).reshape(-1).astype(np.float32)
    return _scores(*parts, added, length).reshape(*z.shape[:-1], length)


@functools.partial(jax.jit, static_argnames="length")
def _scores(rows: Array, coarse: Array, fine: Array, constant: Array, length: int) -> Array:
    def chunk(turn: Array) -> Array:
        real = rows[0] * turn[0][None] - rows[1] * turn[1][None]
        imaginary = rows[0] * turn[1][None] + rows[1] * turn[0][None]
        product = functools.partial(jnp.matmul, precision="highest")
        return product(real, fine[0].T) - product(imaginary, fine[1].T)

    chunks = jax.lax.map(chunk, jnp.swapaxes(coarse, 0, 1))
    return jnp.swapaxes(chunks, 0, 1).reshape(rows.shape[1], -1)[:, :length] + constant[:, None]


def check_alike(name: str, one: np.ndarray, other: np.ndarray) -> None:
    """Raise `UsageError` unless both have the same last axis, and leading ones that broadcast."""
    leading = zip(one.shape[-2::-1], other.shape[-2::-1])
    fits = (
        one.ndim > 0 < other.ndim
        and one.shape[-1] == other.shape[-1]
        and all(1 in (a, b) or a == b for a, b in leading)
    )
    require(fits, name, one.shape, f"must end in the same number as {other.shape}, and broadcast with it")


def check_pairs(z: np.ndarray, frequencies: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both as complex128 and float64; `UsageError` unless each pair has a frequency and all numbers are finite."""
    pairs = np.shape(z)[-1:]
    found = np.shape(frequencies)
    require(found == pairs != (), "frequencies.shape", found, f"must be {pairs}, as many as z has pairs")
    check_finite("z", z)
    check_finite("frequencies", frequencies)
    return np.asarray(z, np.complex128), np.asarray(frequencies, np.float64)


def check_finite(name: str, x: float | np.ndarray) -> None:
    """Raise `UsageError` if there is a NaN or an infinity. (Comparisons with NaN are false: a plausible rate of 0.)"""
    finite = np.isfinite(x)
    if not finite.all():
        raise UsageError(f"{name} = {np.asarray(x)[~finite].flat[0]}: must be finite")


def added_constant(constant: float | np.ndarray, batch: tuple[int, ...]) -> Float[np.ndarray, "*batch"]:
    """`constant` as one number for each batch index, float64; raises `UsageError` if it cannot be that."""
    shape = np.shape(constant)
    fits = len(shape) <= len(batch) and all(a in (1, b) for a, b in zip(shape[::-1], batch[::-1]))
    require(fits, "constant.shape", shape, f"must broadcast to {batch}, the leading axes of z")
    check_finite("constant", constant)
    return np.broadcast_to(np.asarray(constant, np.float64), batch)
