"""Angles and rotations against float64, at every range of positions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rove_jax.config import Rotary, Scaling
from rove_jax.errors import UsageError
from rove_jax.rotary import MAX_POSITION, angles, frequencies, rotate
from tests.reference.attention import rotation

YARN = Scaling(rule="yarn", factor=16.0, original_length=1024)
SPECS = [
    Rotary(),
    Rotary(pairing="interleaved"),
    Rotary(dims=16),
    Rotary(dims=16, pairing="interleaved"),
    Rotary(base=500_000.0, alpha=0.37),
    Rotary(scaling=YARN),
]


@pytest.mark.parametrize("rotary", [Rotary(), Rotary(alpha=0.37), Rotary(scaling=YARN)])
def test_angles_stay_within_1e_6_to_the_last_position(rotary):
    rng = np.random.default_rng(0)
    edges = [0, 1, -1, 1023, 1024, 1025, -1024, MAX_POSITION, -MAX_POSITION, MAX_POSITION - 1]
    positions = np.concatenate([edges, rng.integers(-MAX_POSITION, MAX_POSITION + 1, 100_000)])
    cos, sin = angles(jnp.asarray(positions, jnp.int32), rotary, 64)
    exact = positions[:, None] * frequencies(rotary, 64)
    assert np.abs(cos - np.cos(exact)).max() <= 1e-6
    assert np.abs(sin - np.sin(exact)).max() <= 1e-6
    assert np.abs(np.square(cos, dtype=np.float64) + np.square(sin, dtype=np.float64) - 1).max() <= 1e-6
    # The negative control: a float32 product, which the tables are there to avoid, misses by four orders.
    product = np.float32(positions)[:, None] * np.float32(frequencies(rotary, 64))
    assert np.abs(np.cos(np.float64(product)) - np.cos(exact)).max() > 1e-3


@pytest.mark.parametrize("rotary", SPECS, ids=str)
@pytest.mark.parametrize("inverse", [False, True])
def test_rotate_is_the_matrix_of_the_definition(rotary, inverse):
    positions = np.array([0, 1, -5, 1000, 70_000, 1_000_000, -MAX_POSITION])
    x = np.random.default_rng(1).normal(size=(2, len(positions), 3, 32)).astype(np.float32)
    turned = rotate(jnp.asarray(x), jnp.asarray(positions), rotary, inverse=inverse)
    for t, position in enumerate(positions):
        matrix = rotation(frequencies(rotary, 32) * int(position), 32, rotary.pairing)
        matrix = matrix.T if inverse else matrix
        np.testing.assert_allclose(turned[:, t], x[:, t].astype(np.float64) @ matrix.T, atol=3e-6)


def test_positions_per_row_equal_a_loop_over_rows():
    x = jax.random.normal(jax.random.key(0), (3, 6, 2, 16))
    positions = jnp.array([[0, 1, 2, 0, 1, 2], [5, 4, 3, 2, 1, 0], [9, 9, 9, 100, 7, 7]])
    rows = jnp.stack([rotate(x[b : b + 1], positions[b], Rotary())[0] for b in range(3)])
    assert (rotate(x, positions, Rotary()) == rows).all()
    assert (jax.vmap(lambda x, p: rotate(x, p, Rotary()))(x, positions) == rows).all()


def test_bfloat16_is_the_exact_rotation_rounded_once():
    x = jax.random.normal(jax.random.key(0), (1, 300, 2, 64), jnp.bfloat16)
    positions = jnp.arange(130_772, 131_072)
    turned = rotate(x, positions, Rotary())
    assert turned.dtype == jnp.bfloat16
    angle = np.arange(130_772, 131_072)[:, None] * frequencies(Rotary(), 64)
    first, second = np.split(np.asarray(x.astype(jnp.float32), np.float64)[0], 2, axis=-1)
    z = (first + 1j * second) * np.exp(1j * angle)[:, None]
    exact = np.concatenate([z.real, z.imag], axis=-1)
    error = np.abs(np.asarray(turned.astype(jnp.float32))[0] - exact)
    assert (error <= 2.0**-8 * 1.001 * np.abs(exact) + 1e-6).all()


def test_neighbouring_positions_stay_apart_past_256():
    """bfloat16 positions or angles, the usual fault, make 256 and 257 equal."""
    one = jnp.broadcast_to(jnp.eye(64)[0], (1, 45, 1, 64)).astype(jnp.bfloat16)
    turned = np.asarray(rotate(one, jnp.arange(256, 301), Rotary())[0, :, 0].astype(jnp.float32))
    assert len(np.unique(turned, axis=0)) == 45


def test_alpha_zero_and_no_dims_return_the_input_itself():
    x = jnp.array([[[[-0.0, 1.0, jnp.inf, 3.0]]]])
    for rotary in (Rotary(alpha=0.0), Rotary(dims=0)):
        assert rotate(x, jnp.array([7]), rotary) is x


@pytest.mark.parametrize("position", [MAX_POSITION + 1, -MAX_POSITION - 1, 2**31 - 1, -(2**31)])
def test_concrete_positions_out_of_range_are_refused(position):
    x = jnp.ones((1, 1, 1, 8))
    with pytest.raises(UsageError, match=str(position)):
        rotate(x, jnp.array([position]), Rotary())
    # Traced, they cannot be refused; far out, they are at least loud.
    far = jax.jit(lambda p: rotate(x, p, Rotary()))(jnp.array([position]))
    assert jnp.isnan(far).any() or abs(position) <= MAX_POSITION + 1024


def test_wrong_positions_and_dims_are_refused_by_value():
    x = jnp.ones((2, 4, 1, 8))
    with pytest.raises(UsageError, match="integers"):
        rotate(x, jnp.arange(4.0), Rotary())
    with pytest.raises(UsageError, match=r"\(3,\)"):
        rotate(x, jnp.arange(3), Rotary())
    with pytest.raises(UsageError, match="exceeds head_dim = 8"):
        rotate(x, jnp.arange(4), Rotary(dims=16))
    with pytest.raises(UsageError, match="odd"):
        rotate(jnp.ones((2, 4, 1, 7)), jnp.arange(4), Rotary())
    with pytest.raises(UsageError, match="even"):
        Rotary(dims=3)
