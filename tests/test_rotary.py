"""Angles and rotations against float64, at every range of positions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rove_jax.config import Rotary, Scaling
from rove_jax.errors import UsageError
from rove_jax.rotary import (
    MAX_POSITION,
    angles,
    frequencies,
    full_width,
    rotate,
    turn_by_padding,
    turn_by_product,
)
from tests.reference.attention import rotation

FORMS = [turn_by_padding, turn_by_product]
YARN = Scaling(rule="yarn", factor=16.0, original_length=1024)
SPECS = [
    Rotary(),
    Rotary(pairing="interleaved"),
    Rotary(dims=16),
    Rotary(dims=16, pairing="interleaved"),
    Rotary(base=500_000.0, alpha=0.37),
    Rotary(scaling=YARN),
]


def in_form(form, x, positions, rotary, *, inverse=False):
    """`rotate` of [B, T, N, H] at positions [T], in one of its forms, whatever the platform."""
    pairs = angles(jnp.asarray(positions), rotary, x.shape[-1])
    cos, sin = (t[None, :, None] for t in full_width(*pairs, rotary, x.shape[-1]))
    return form(x, cos, -sin if inverse else sin, rotary=rotary)


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
@pytest.mark.parametrize("form", [None, *FORMS])
def test_every_form_is_the_matrix_of_the_definition_and_its_gradient_the_transpose(rotary, inverse, form):
    positions = np.array([0, 1, -5, 1000, 70_000, 1_000_000, -MAX_POSITION])
    x, grad = np.random.default_rng(1).normal(size=(2, 2, len(positions), 3, 32)).astype(np.float32)

    def call(x):
        if form is None:
            return rotate(x, jnp.asarray(positions), rotary, inverse=inverse)
        return in_form(form, x, positions, rotary, inverse=inverse)

    turned, transpose = jax.vjp(call, jnp.asarray(x))
    (back,) = transpose(jnp.asarray(grad))
    for t, position in enumerate(positions):
        matrix = rotation(frequencies(rotary, 32) * int(position), 32, rotary.pairing)
        matrix = matrix.T if inverse else matrix
        np.testing.assert_allclose(turned[:, t], x[:, t].astype(np.float64) @ matrix.T, atol=3e-6)
        np.testing.assert_allclose(back[:, t], grad[:, t].astype(np.float64) @ matrix, atol=3e-6)
    assert (turned[..., rotary.turned(32) :] == x[..., rotary.turned(32) :]).all()


@pytest.mark.parametrize("rotary", [Rotary(), Rotary(dims=16, pairing="interleaved")], ids=str)
def test_each_platform_compiles_one_form_and_no_setting_makes_its_product_inexact(rotary):
    x = jax.ShapeDtypeStruct((2, 8, 2, 32), jnp.float32)
    with jax.default_matmul_precision("bfloat16"):
        traced = jax.jit(lambda x: rotate(x, jnp.arange(8), rotary)).trace(x)
        cpu, gpu, tpu = (traced.lower(lowering_platforms=(name,)).as_text() for name in ("cpu", "cuda", "tpu"))
    assert tpu.count("dot_general") == 1 and "precision = [HIGHEST, HIGHEST]" in tpu
    assert "dot_general" not in cpu + gpu


def test_forward_mode_and_vmap_turn_tangents_as_they_turn_vectors():
    x, tangent = jax.random.normal(jax.random.key(0), (2, 3, 5, 2, 16))
    call = jax.vmap(lambda x: rotate(x, jnp.arange(5), Rotary(dims=8)))
    assert (jax.jvp(call, (x,), (tangent,))[1] == call(tangent)).all()


def test_positions_per_row_equal_a_loop_over_rows():
    x = jax.random.normal(jax.random.key(0), (3, 6, 2, 16))
    positions = jnp.array([[0, 1, 2, 0, 1, 2], [5, 4, 3, 2, 1, 0], [9, 9, 9, 100, 7, 7]])
    rows = jnp.stack([rotate(x[b : b + 1], positions[b], Rotary())[0] for b in range(3)])
    assert (rotate(x, positions, Rotary()) == rows).all()
    assert (jax.vmap(lambda x, p: rotate(x, p, Rotary()))(x, positions) == rows).all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_bfloat16_is_the_exact_rotation_rounded_once(form, pairing):
    rotary = Rotary(pairing=pairing)
    x = jax.random.normal(jax.random.key(0), (1, 300, 2, 64), jnp.bfloat16)
    turned = in_form(form, x, np.arange(130_772, 131_072), rotary)
    assert turned.dtype == jnp.bfloat16
    angle = np.arange(130_772, 131_072)[:, None] * frequencies(rotary, 64)
    first_second = lambda y: np.split(y, 2, -1) if pairing == "half" else (y[..., 0::2], y[..., 1::2])  # noqa: E731
    first, second = first_second(np.asarray(x.astype(jnp.float32), np.float64)[0])
    z = (first + 1j * second) * np.exp(1j * angle)[:, None]
    for found, exact in zip(first_second(np.asarray(turned.astype(jnp.float32))[0]), (z.real, z.imag)):
        assert (np.abs(found - exact) <= 2.0**-8 * 1.001 * np.abs(exact) + 1e-6).all()


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
