"""Circuits, where heads look and what dilution does to their outputs: against float64 NumPy and derived values."""

import jax
import numpy as np
import pytest
from reference.attention import rotation

from rove_jax.analysis import circuits, induction, mixer, mixer_figures
from rove_jax.analysis.product import rope_frequencies
from rove_jax.config import Model, Rotary
from rove_jax.models import functional

SMALL = Model(
    variant="rove", layers=2, width=12, query_heads=4, kv_heads=2, head_dim=6, mlp_width=8, vocab=32, vocab_multiple=32,
    rotary=Rotary(base=100.0, dims=4, pairing="interleaved"), bias=False,
)  # fmt: skip
ROPE = Model(**{**vars(SMALL), "variant": "rope"})
OMEGA = np.array([1.0, 0.1])
CHANCE = np.random.default_rng(0)


@pytest.fixture(scope="module")
def params():
    shapes = functional.abstract(SMALL)
    return jax.tree.map(lambda leaf: CHANCE.normal(size=leaf.shape).astype(np.float32), shapes)


def matrices(params: dict, layer: int, head: int) -> tuple[np.ndarray, ...]:
    """W_Q, W_K, W_V of a query head with the norm's gain in them, and W_O."""
    block = jax.tree.map(lambda leaf: np.asarray(leaf[layer], np.float64), params["blocks"])
    own = block["attention"]
    reads = [own[name]["kernel"][:, head if name == "query" else head // 2].T * block["attention_norm"]["scale"]
             for name in ("query", "key", "value")]  # fmt: skip
    return (*reads, own["out"]["kernel"][head].T)


def test_circuits_are_products_of_weights_with_the_turn_between(params):
    for layer, head, offset in ((0, 0, 0), (0, 3, -1), (1, 1, -7)):
        w_q, w_k, w_v, w_o = matrices(params, layer, head)
        turn = rotation(OMEGA * offset, 6, "interleaved")
        np.testing.assert_allclose(
            circuits.qk_circuit(SMALL, params, layer, head, offset), w_q.T @ turn @ w_k, atol=1e-10
        )
        np.testing.assert_allclose(
            circuits.ov_circuit(SMALL, params, layer, head, offset), w_o @ turn @ w_v, atol=1e-10
        )
        np.testing.assert_allclose(circuits.ov_circuit(ROPE, params, layer, head, offset), w_o @ w_v, atol=1e-10)


def test_a_score_is_the_qk_circuit_between_two_tokens(params):
    x = CHANCE.normal(size=(2, 12))
    w_q, w_k, *_ = matrices(params, 1, 2)
    for i, j in ((5, 5), (9, 2)):
        left, right = (rotation(OMEGA * at, 6, "interleaved") for at in (i, j))
        expected = (left @ w_q @ x[0]) @ (right @ w_k @ x[1])
        found = x[0] @ circuits.qk_circuit(SMALL, params, 1, 2, j - i) @ x[1]
        assert found == pytest.approx(expected, rel=1e-9)


def test_composition_over_two_layers(params):
    found = circuits.composition(SMALL, params, 0, 1, (-2, -3))
    for first, second in ((0, 0), (3, 1)):
        _, _, v1, o1 = matrices(params, 0, first)
        q2, k2, v2, o2 = matrices(params, 1, second)
        near, far = (rotation(OMEGA * d, 6, "interleaved") for d in (-2, -3))
        moved, scored, passed = o1 @ near @ v1, q2.T @ far @ k2, o2 @ far @ v2
        size = np.linalg.norm
        assert found.q[first, second] == pytest.approx(size(scored.T @ moved) / size(scored) / size(moved))
        assert found.k[first, second] == pytest.approx(size(scored @ moved) / size(scored) / size(moved))
        assert found.v[first, second] == pytest.approx(size(passed @ moved) / size(passed) / size(moved))
    # Displacements add up: with nothing between the turns, two heads that look back by 2 and 3 are one by 5.
    turn = {d: rotation(OMEGA * d, 6, "interleaved") for d in (-2, -3, -5)}
    np.testing.assert_allclose(turn[-3] @ turn[-2], turn[-5], atol=1e-12)
    assert np.abs(circuits.composition(ROPE, params, 0, 1).v - found.v).max() > 1e-3


def test_where_a_head_looks_is_its_characteristic_function():
    weights = np.zeros((5, 8))
    weights[np.arange(5), np.arange(5) + 1] = 1.0  # queries 3..7 of 8 look exactly two back
    np.testing.assert_allclose(circuits.characteristic(weights, OMEGA), np.exp(-2j * OMEGA), atol=1e-12)
    response = circuits.matched_filter(circuits.characteristic(weights, OMEGA), OMEGA, np.array([-7, -2, 0]))
    np.testing.assert_allclose(response, [np.cos(OMEGA * gap).mean() for gap in (5, 0, 2)], atol=1e-12)
    uniform = np.full((1, 40), 1 / 40)
    np.testing.assert_allclose(np.abs(circuits.characteristic(uniform, OMEGA)), circuits.uniform_gain(OMEGA, 40))
    # A constant value makes a RoVE head write that function: checked with the mixer.
    value = np.array([1.0, 0.0, 1.0, 0.0])  # both pairs 1 + 0i, interleaved
    out = mixer.mixer(uniform, np.eye(4), OMEGA, "interleaved") @ np.tile(value, 40)
    offsets = np.arange(40)
    expected = np.exp(1j * np.outer(offsets, OMEGA)).mean(0)  # the query stands at 0, keys at 0..39
    np.testing.assert_allclose(out[0::2] + 1j * out[1::2], expected, atol=1e-12)


def test_dilution_attenuates_fast_pairs():
    frequencies = rope_frequencies(32, 1e4)[[0, 8, 16, 24]]
    # Derived values, to the two digits given.
    np.testing.assert_allclose(circuits.uniform_gain(frequencies, 1024), (0.00, 0.02, 0.18, 0.96), atol=6e-3)
    np.testing.assert_allclose(circuits.uniform_gain(frequencies, 16_384), (0.00, 0.00, 0.00, 0.12), atol=6e-3)


def test_output_energy_is_that_of_the_output():
    weights, values = CHANCE.dirichlet(np.ones(9), size=(2, 4)), CHANCE.normal(size=(2, 9, 6))
    for turning in (None, OMEGA):
        found = circuits.output_energy(weights, values, turning, "interleaved")
        for head in range(2):
            matrix = mixer.mixer(np.concatenate([np.zeros((5, 9)), weights[head]]), np.eye(6), turning, "interleaved")
            out = (matrix @ values[head].ravel()).reshape(9, 6)[5:]
            energy = (out**2).mean(0).reshape(3, 2).sum(1) / (values[head] ** 2).mean(0).reshape(3, 2).sum(1)
            np.testing.assert_allclose(found[head], energy[: len(found[head])], rtol=1e-10)
        assert found.shape == (2, 3 if turning is None else 2)
    constant = np.tile(np.array([1.0, 0, 1, 0, 1, 0]), (64, 1))
    uniform = np.full((1, 64), 1 / 64)
    turned = circuits.output_energy(uniform, constant, OMEGA, "interleaved")
    np.testing.assert_allclose(turned, circuits.uniform_gain(OMEGA, 64) ** 2, rtol=1e-9)
    np.testing.assert_allclose(circuits.output_energy(uniform, constant, None, "interleaved"), 1.0)


def test_induction_and_previous_token_scores():
    period, length = 5, 12
    weights = np.zeros((length, length))
    for i in range(period, length):
        weights[i, i - period + 1] = 0.75
    assert circuits.induction_score(weights, period) == pytest.approx(0.75)
    assert circuits.induction_score(weights, period + 1) == circuits.previous_token_score(weights) == 0
    weights[np.arange(1, length), np.arange(length - 1)] = 0.25
    assert circuits.previous_token_score(weights) == 0.25


def test_figure_1_has_its_numbers_one_range_of_colours_and_signs_that_survive_print():
    picture, length, size = mixer_figures.mixers(4), 4, mixer_figures.HEAD_DIM
    drawn = {}
    for panel, row, column, value in picture.rows:
        drawn.setdefault(panel, {})[int(row.split()[1]), int(column)] = value
    a, b, c, d, e = (
        np.array([values[at] for at in sorted(values)]).reshape(np.array(max(values)) + 1)
        for _, values in sorted(drawn.items())
    )
    w_v, omega = b[:, :size], 100.0 ** (-np.arange(size // 2) / (size // 2))
    turned = [rotation(omega * offset, size, "half") @ w_v for offset in range(-3, 1)]
    np.testing.assert_allclose(b, np.tile(w_v, 4))
    np.testing.assert_allclose(c, np.kron(a, w_v), atol=1e-12)
    np.testing.assert_allclose(d, np.concatenate(turned, 1), atol=1e-12)
    for i in range(length):
        for j in range(i + 1):
            block = e[size * i : size * (i + 1), size * j : size * (j + 1)]
            np.testing.assert_allclose(block, a[i, j] * turned[j - i + 3], atol=1e-12)
    np.testing.assert_allclose([a.sum(1), np.abs(np.triu(a, 1)).sum(1)], [[1] * 4, [0] * 4])

    limit = max(np.abs(matrix).max() for matrix in (b, c, d, e))
    for axes, matrix in zip(picture.axes[1:], (b, c, d, e)):
        (image,), (bars,) = axes.images, axes.collections
        assert image.get_clim() == (-limit, limit) and axes.get_xlabel() and axes.get_ylabel()
        marked = np.zeros(matrix.shape, bool)
        marked[tuple(np.asarray(bars.get_offsets(), int).T[::-1])] = True
        assert (marked == (matrix < -limit / 50)).all() and 0 < marked.sum() < marked.size


def test_strings_repeat_and_the_loss_is_of_what_repeats():
    tokens, period = induction.repeated(np.random.default_rng(0), 6, (12, 32))
    for row, own in zip(tokens, period):
        np.testing.assert_array_equal(row[own:], row[:-own])
        assert 12 <= own < 32 and not np.array_equal(row[1:], row[:-1])
    # Attention alone: the MLPs are 0, and so is what they learn.
    cfg = induction.ATTENTION_ONLY
    shapes = jax.tree.map(lambda leaf: np.full(leaf.shape, 0.1, np.float32), functional.abstract(cfg))
    cleared = induction.without_mlp(shapes)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(cleared["blocks"]["mlp"]))
    kept = [leaf for leaf in jax.tree.leaves(cleared["blocks"]["attention"])]
    assert all(np.all(np.asarray(leaf) == np.float32(0.1)) for leaf in kept)


@pytest.mark.slow
def test_training_measures_as_it_goes():
    found = induction.train("rove", steps=4, seed=0, every=2)
    assert found.steps == [0, 2, 4] and 1 < found.loss[2] < found.loss[0]
    assert all(0 < score < 1 for score in (*found.induction, *found.previous_token))
    # The first loss by hand: of the tokens that were seen one period before, and of those alone.
    cfg = Model(**{**vars(induction.ATTENTION_ONLY), "variant": "rove"})
    params = induction.without_mlp(induction.fresh(cfg, 0))
    tokens, period = induction.repeated(np.random.default_rng(10_000), induction.BATCH, (24, 25))
    hidden = np.asarray(jax.jit(lambda t: functional.apply(cfg, params, t).hidden)(tokens[:, :-1]), np.float64)
    logits = hidden @ np.asarray(params["embedding"], np.float64).T
    nll = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, tokens[:, 1:, None], -1)[..., 0]
    assert set(period) == {24} and found.loss[0] == pytest.approx(nll[:, 24:].mean(), abs=1e-4)
    assert abs(nll.mean() - nll[:, 24:].mean()) > 1e-3
