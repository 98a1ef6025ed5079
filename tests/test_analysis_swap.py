"""Two tokens that change places where their scores alias: a RoPE head cannot tell, a RoVE head can."""

import numpy as np
import pytest
from reference import limits as oracle

from rove_jax.analysis import aliasing, swap
from rove_jax.analysis.product import coefficients, phase_set, qk_coefficients, rope_frequencies, rope_product
from rove_jax.errors import UsageError

H = 64
FREQUENCIES = rope_frequencies(H, 1e5)


def channels(pairs: np.ndarray) -> np.ndarray:
    """Complex pairs as a vector in the half layout."""
    return np.concatenate([pairs.real, pairs.imag], -1)


@pytest.fixture(scope="module")
def case():
    """(query, two keys, two values): keys of amplitude 1 and phases 0 and 0.1 sin n."""
    n = np.arange(H)
    query = channels(np.ones(H, complex))
    keys = channels(np.conj(coefficients(np.stack([phase_set("aligned", H), phase_set("ripple", H)]))))
    return query, keys, channels(np.stack([np.exp(1j * n), np.exp(-2j * n)]) / 8)


def test_a_swap_that_rope_cannot_see_changes_rove(case):
    query, keys, values = case
    z = qk_coefficients(query, keys, "half").z
    pairs = aliasing.attention_invariance(*rope_product(z, FREQUENCIES, np.arange(8192)), "bf16")
    np.testing.assert_array_equal(pairs[:3], [(5, 6), (16, 17), (16, 19)])
    rope, rove = (
        swap.swap_effect(query, keys, values, *pairs.T, frequencies=FREQUENCIES, value_frequencies=turning)
        for turning in (None, FREQUENCIES)
    )
    assert np.all(rope.change == 0) and np.all(rope.unseen("float32"))
    assert rove.change[0] == pytest.approx(0.1421345360, abs=6e-11)  # a derived value
    assert not rove.unseen("bfloat16").any() and rove.relative.min() > 0.05


def test_the_outputs_are_those_of_a_head(case):
    query, keys, values = case
    rest = np.zeros((1, 2 * H))
    for m1, m2 in ((5, 6), (3, 40)):
        for turning in (None, FREQUENCIES):
            found = swap.swap_effect(
                query, keys, values, np.array([m1]), np.array([m2]), frequencies=FREQUENCIES, value_frequencies=turning
            )
            for out, distances in ((found.before, (m1, m2, 0)), (found.after, (m2, m1, 0))):
                expected = oracle.head(query, np.concatenate([keys, rest]), np.concatenate([values, rest]),
                                       np.array(distances), FREQUENCIES, value_frequencies=turning)  # fmt: skip
                np.testing.assert_allclose(channels(out[0]), expected, atol=1e-12)
    assert found.change[0] > 0.1  # and a pair that does not alias is seen by both
    plain = swap.swap_effect(query, keys, values, 3, 40, frequencies=FREQUENCIES, value_frequencies=None)
    assert plain.change[0] > 0.01 and not plain.unseen("bfloat16")[0]


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_one_token_moves_in_a_context_of_others(pairing):
    draw = np.random.default_rng(0)
    query, *others = draw.normal(size=(6, 10))
    keys, values = draw.normal(size=(2, 5, 10))
    frequencies = rope_frequencies(4, 100.0)  # the last two channels do not turn
    at = np.array([9, 3, 1, 12])
    found = qk_coefficients(query, keys[1:], pairing, 8)
    scores = [
        rope_product(z, frequencies, np.array([m]), constant=c)[0] for z, c, m in zip(found.z, found.constant, at)
    ]
    rest = swap.Rest(np.array(scores), swap.in_query_frame(values[1:], at, frequencies, pairing))
    moved = swap.swap_effect(query, keys[:1], values[:1], np.array([2, 5]), np.array([7, 5]), pairing=pairing,
                             frequencies=frequencies, value_frequencies=frequencies, rest=rest)  # fmt: skip
    for trial, (m1, m2) in enumerate(((2, 7), (5, 5))):
        for out, m in ((moved.before[trial], m1), (moved.after[trial], m2)):
            expected = oracle.head(query, keys, values, np.array([m, *at]), frequencies,
                                   value_frequencies=frequencies, pairing=pairing)  # fmt: skip
            pairs = expected[:4] + 1j * expected[4:8] if pairing == "half" else expected[:8:2] + 1j * expected[1:8:2]
            np.testing.assert_allclose(out, np.concatenate([pairs, expected[8:]]), atol=1e-12)
    assert moved.unseen("float32").tolist() == [False, True] and moved.relative[1] == 0
    with pytest.raises(UsageError, match="must be one or two"):
        swap.swap_effect(query, keys, values, 1, 2, frequencies=frequencies, value_frequencies=None)
