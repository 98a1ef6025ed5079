"""What analysis says of arguments that make no sense: one line, and what would do instead."""

from inspect import unwrap  # signatures are checked in the tests alone: users get as far as the function itself

import numpy as np
import pytest

from rove_jax import analysis
from rove_jax.analysis import failures, profile
from rove_jax.analysis.product import Coefficients
from rove_jax.errors import UsageError

OMEGA = 10.0 ** -np.arange(4.0)
Z = np.exp(1j * np.arange(4))
Q, NAN, SCORES = np.arange(8.0), np.full(8, np.nan), np.cos(np.arange(20.0))
PAIR = np.ones((2, 8))


def swap(*m, **given):
    vectors = (given.pop("query", Q), PAIR, given.pop("values", PAIR))
    return unwrap(analysis.swap_effect)(*vectors, *m, frequencies=OMEGA, value_frequencies=None, **given)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: unwrap(analysis.rope_frequencies)(4, 1e4, "llama3"), "scaling = 'llama3': must be a Scaling"),
        (lambda: analysis.phase_set("gold", 4), "phases = 'gold': must be aligned, golden"),
        (lambda: unwrap(analysis.coefficients)("golden"), "phases = 'golden': must be numbers"),
        (lambda: analysis.qk_coefficients(Q, Q, "split"), "pairing = 'split': must be half or interleaved"),
        (lambda: analysis.qk_coefficients(Q[:7], Q[:7], "half"), "rotary_dim = 7: must be even"),
        (lambda: analysis.qk_coefficients(NAN, Q, "half"), "query = nan: must be finite"),
        (lambda: analysis.qk_coefficients(PAIR, np.ones((3, 8)), "half"), "key.shape = .*broadcast with it"),
        (lambda: unwrap(analysis.token_margin)(np.ones((2, 4)), np.ones((3, 4))), "z2.shape = "),
        (lambda: analysis.rope_scores(np.ones((0, 4)), OMEGA, 3), "z.shape = .*must not be empty"),
        (lambda: analysis.frequency_split(np.array([1.0, 0.0]), 8), "must all be above 0"),
        (lambda: analysis.frequency_split(OMEGA, 8, "3pi"), "rule = '3pi': must be one of hlogBM, 2pi, pi"),
        (lambda: analysis.window_moments(Z, OMEGA, -1, 8), "start, stop = .*0 <= start"),
        (lambda: analysis.window_moments(Z, OMEGA, 0, 8, "fast"), "method = 'fast'"),
        (lambda: analysis.closed_position_inversion(0, 1e4, 8), "h = 0"),
        (lambda: analysis.closed_token_inversion(-1, 1e4, 8), "h = -1"),
        (lambda: analysis.token_aliasing_bound(64, -8, 7), "length = -8"),
        (lambda: analysis.token_aliasing_bound(64, 8, 70), "fraction_bits = 70"),
        (lambda: analysis.expected_token_aliasing(64, 1e4, 8, -0.1), "tolerance = -0.1"),
        (lambda: analysis.position_aliasing(SCORES, "float64"), "dtype = 'float64': must be one of bfloat16"),
        (lambda: unwrap(analysis.inverted_order)(SCORES, SCORES[:3]), "second.shape = "),
        (lambda: analysis.effective_pairs(NAN), "z = nan"),
        (lambda: swap(-1, 2), "m1, m2 = -1: must be at least 0"),
        (lambda: swap(np.arange(2), np.arange(3)), "m2.shape = "),
        (lambda: swap(1, 2, values=PAIR * np.nan), "values = nan"),
        (lambda: swap(1, 2, dtype="fp8"), "dtype = 'fp8'"),
    ],
)
def test_one_line_says_what_is_wrong(call, words):
    with pytest.raises(UsageError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_head_whose_query_is_0_has_rates_but_no_norm():
    assert analysis.effective_pairs(np.array([[0, 0], [3, 4j], [2, 0]])).tolist() == [0.0, 25**2 / (81 + 256), 1.0]
    waves = np.zeros((2, 1, 25))
    still = failures.profile_rates(Coefficients(np.zeros((2, 1, 4), complex), np.zeros((2, 1))), waves, OMEGA, 8)
    assert still == {"positional_score": None, "high_share": None, "order_error": 0.0}
    moving = failures.profile_rates(Coefficients(np.ones((2, 1, 4), complex), np.zeros((2, 1))), waves, OMEGA, 8)
    assert moving["positional_score"] == 0 and 0 < moving["high_share"] < 1
    with pytest.raises(UsageError, match="is 0 in every channel that turns"):
        profile.profiler(np.zeros(4), OMEGA, 8)
