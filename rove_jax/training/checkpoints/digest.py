"""Digests of arrays: 64 bits that any change of an element changes, and neither order of adding up nor sharding does.

Each element becomes a hash of its array's name, type and shape, of its place in the whole array, and of its bits; the
hashes are summed modulo 2^32, in two lanes with other constants. Sums of integers have no order, so every device adds
up what lies on it, and any mesh gives the same digest. With s and m from SHAKE-256 of name, type, shape and lane, and f
the finaliser of MurmurHash3 (Austin Appleby, public domain), which is a bijection:

    hash = f(f(bits ^ s) + sum over axes of index * m)        lane = sum of hashes, modulo 2^32

A single changed element therefore changes both lanes for certain, everything else all but for one case in 2^64. 64-bit
elements are two words, low one first: f(f(low ^ s) + high) stands for f(bits ^ s). It guards against disks, not foes.
"""

import functools
import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

LANES = 2


def by_path(tree: Any) -> dict[str, Any]:
    """The leaves of a tree by their path, in the tree's order: `{"1.0.mu.embedding": ...}`."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def kind(leaf: Any) -> str:
    """Type and shape of an array or of a `ShapeDtypeStruct`: "float32[2, 8]"."""
    return f"{jnp.dtype(leaf.dtype).name}{list(leaf.shape)}"


def digests(arrays: dict[str, jax.Array]) -> dict[str, str]:
    """The digest of each array by its name, 16 hexadecimal digits, computed where the arrays lie.

    In a run of many processes all of them call this, and all get the same. Raises `ValueError` for an axis of more than
    2^32 elements, `TypeError` for types that are not whole bytes or are complex.
    """
    found = {}
    for name, leaf in arrays.items():
        # Each is waited for: on CPUs, programs of many processes that are on their way at once wait for each other.
        sums = jax.device_get(lanes_on(leaf)(leaf, constants(name, leaf)))
        found[name] = "".join(f"{int(lane):08x}" for lane in sums)
    return found


def constants(name: str, leaf: Any) -> np.ndarray:
    """uint32 [lanes, 1 + axes]: s, then an odd m for each axis."""
    if any(size > 2**32 for size in leaf.shape):
        raise ValueError(f"{name}: an axis of {kind(leaf)} has more than 2^32 elements")
    count = 1 + len(leaf.shape)
    drawn = [hashlib.shake_256(f"{name} {kind(leaf)} {lane}".encode()).digest(4 * count) for lane in range(LANES)]
    words = np.frombuffer(b"".join(drawn), "<u4").astype(np.uint32).reshape(LANES, count)
    words[:, 1:] |= 1
    return words


def lanes_on(leaf: jax.Array) -> Any:
    """`lanes`, compiled for where `leaf` lies, with a result that every process can read."""
    where = leaf.sharding
    everywhere = isinstance(where, jax.sharding.NamedSharding)
    return compiled(jax.sharding.NamedSharding(where.mesh, jax.sharding.PartitionSpec()) if everywhere else None)


@functools.cache
def compiled(where: jax.sharding.Sharding | None) -> Any:
    """`lanes` under jit, the result at `where`."""
    return jax.jit(lanes, out_shardings=where)


def lanes(array: jax.Array, words: jax.Array) -> jax.Array:
    """uint32 [lanes]: the sums over `array` for `constants`. Traceable."""
    parts = bits(array)
    return jnp.stack([jnp.sum(hashes(parts, lane), dtype=jnp.uint32) for lane in words])


def hashes(parts: list[jax.Array], words: jax.Array) -> jax.Array:
    """The hash of each element, uint32 of the array's shape; `parts` are its 32-bit words, `words` [1 + axes]."""
    mixed = finalise(parts[0] ^ words[0])
    for part in parts[1:]:
        mixed = finalise(mixed + part)
    return finalise(mixed + place(mixed.shape, words[1:]))


def place(shape: tuple[int, ...], factors: jax.Array) -> jax.Array:
    """Sum over axes of index * factor, modulo 2^32: uint32 of `shape`. No index counts elements, so none overflows."""
    total = jnp.zeros(shape, jnp.uint32)
    for axis in range(len(shape)):
        total += lax.broadcasted_iota(jnp.uint32, shape, axis) * factors[axis]
    return total


def bits(array: jax.Array) -> list[jax.Array]:
    """The bits of each element as 32-bit words, the low one first: one or two uint32 arrays of the array's shape."""
    if array.dtype == jnp.bool_:
        return [array.astype(jnp.uint32)]
    numbers = jnp.issubdtype(array.dtype, jnp.integer) or jnp.issubdtype(array.dtype, jnp.floating)
    width = (jnp.iinfo if jnp.issubdtype(array.dtype, jnp.integer) else jnp.finfo)(array.dtype).bits if numbers else 0
    if width == 64:
        pairs = lax.bitcast_convert_type(array, jnp.uint32)
        return [pairs[..., 0], pairs[..., 1]]
    if width not in (8, 16, 32):
        raise TypeError(f"{array.dtype}: no digest of this type")
    return [lax.bitcast_convert_type(array, jnp.dtype(f"uint{width}")).astype(jnp.uint32)]


def finalise(word: jax.Array) -> jax.Array:
    """A bijection of uint32 in which every bit of `word` moves every bit of the result."""
    word = (word ^ (word >> 16)) * jnp.uint32(0x85EBCA6B)
    word = (word ^ (word >> 13)) * jnp.uint32(0xC2B2AE35)
    return word ^ (word >> 16)
