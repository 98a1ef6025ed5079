"""Digests of arrays: equal to a definition in NumPy, on any mesh, and changed by whatever changes an array."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from reference import digest as reference

from rove_jax import config, sharding
from rove_jax.training.checkpoints import digest
from rove_jax.training.checkpoints.digest import digests

DTYPES = ["float32", "bfloat16", "float16", "float8_e4m3fn", "int32", "uint8", "int16", "bool"]


def values(shape, dtype="float32", seed=0):
    """Of both signs, with zeros of both signs and what is not a number where the type has them."""
    drawn = np.asarray(np.random.RandomState(seed).randn(*shape) * 3)
    if drawn.size > 3 and jnp.issubdtype(dtype, jnp.floating):
        drawn.flat[:3] = 0.0, -0.0, np.nan
    return jnp.asarray(drawn).astype(dtype)


def one(array, name="a"):
    return digests({name: array})[name]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (2, 3, 4)])
def test_a_digest_is_what_the_definition_says(dtype, shape):
    array = values(shape, dtype)
    assert one(array, "blocks.x") == reference.digest("blocks.x", np.asarray(array), dtype)


@pytest.mark.parametrize("dtype", ["float64", "int64", "uint64"])
def test_words_of_64_bits(dtype):
    with jax.enable_x64(True):
        array = values((3, 5), dtype) * 2**33 if dtype == "float64" else jnp.arange(15, dtype=dtype).reshape(3, 5) << 31
        assert one(array) == reference.digest("a", np.asarray(array), dtype)
        assert one(array) != one(array.at[2, 4].add(2**40))


def test_types_without_bits_of_their_own_are_refused():
    for dtype in ("complex64", "int4"):
        with pytest.raises(TypeError, match=f"{dtype}: no digest of this type"):
            one(jnp.zeros(2, dtype))


def test_sharding_changes_nothing():
    array = values((8, 6, 4))
    expected = reference.digest("a", np.asarray(array), "float32")
    mesh = sharding.make_mesh(config.Mesh(data=2, fsdp=2, tensor=2))
    for spec in [(), ("data",), (None, "tensor"), (("data", "fsdp"), None, "tensor")]:
        spread = jax.device_put(array, NamedSharding(mesh, PartitionSpec(*spec)))
        assert one(spread) == expected, spec


def test_every_bit_counts():
    """All 32 bits of one element in turn: 33 different digests, and both halves of each differ."""
    array = values((3, 4))
    raw = np.asarray(array).view(np.uint32)
    found = [one(array)]
    for bit in range(32):
        flipped = raw.copy()
        flipped[1, 2] ^= np.uint32(1 << bit)
        found.append(one(jnp.asarray(flipped.view(np.float32))))
    assert len({text[:8] for text in found}) == len({text[8:] for text in found}) == 33


def test_what_moves_changes_the_digest():
    array = values((4, 6), seed=1)
    moved = {
        "as it is": array,
        "rows swapped": array[jnp.array([1, 0, 2, 3])],
        "two elements swapped": array.at[0, 0].set(array[3, 5]).at[3, 5].set(array[0, 0]),
        "reversed": array[:, ::-1],
        "transposed": array.T,
        "reshaped": array.reshape(6, 4),
        "flat": array.reshape(24),
        "one axis more": array[None],
        "other sign": -array,
        "other type": array.astype(jnp.bfloat16).astype(jnp.float32),
        "other integers": jax.lax.bitcast_convert_type(array, jnp.int32),
    }
    assert len({one(leaf) for leaf in moved.values()}) == len(moved)
    zeros = [jnp.zeros(3), -jnp.zeros(3), jnp.zeros(4), jnp.zeros(3, jnp.int32)]
    assert len({one(zeros[0], "b"), *map(one, zeros)}) == len(zeros) + 1


def test_two_arrays_of_one_shape_do_not_trade_places():
    left, right = values((3, 4)), values((3, 4), seed=1)
    before, after = digests({"a": left, "b": right}), digests({"a": right, "b": left})
    assert before["a"] != after["a"] and before["b"] != after["b"]


def test_places_beyond_2_to_the_32_elements():
    """2^36 elements, of which a corner is computed: no count of elements is ever made, which would wrap."""
    shape, words = (2**20, 2**16), digest.constants("a", jax.ShapeDtypeStruct((2**20, 2**16), jnp.int8))[0, 1:]

    @jax.jit
    def corner(words):
        return jax.lax.slice(digest.place(shape, words), (2**20 - 3, 2**16 - 2), shape)

    expected = [
        [(row * int(words[0]) + column * int(words[1])) % 2**32 for column in range(2**16 - 2, 2**16)]
        for row in range(2**20 - 3, 2**20)
    ]
    assert np.asarray(corner(words)).tolist() == expected
    with pytest.raises(ValueError, match="more than 2\\^32 elements"):
        digest.constants("a", jax.ShapeDtypeStruct((2**32 + 1,), jnp.int8))
