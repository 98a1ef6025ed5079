"""Pairs of equal scores: drawn, listed and counted as by brute force, however many; and what a normal variable has."""

import numpy as np
import pytest
from reference import limits as oracle
from scipy.special import ndtr

from rove_jax.analysis import aliasing, moments, pairs, quantization, sweep
from rove_jax.analysis.product import coefficients, phase_set, rope_frequencies, rope_product
from rove_jax.errors import UsageError

WAVE = rope_product(coefficients(phase_set("wave", 16)), rope_frequencies(16, 1e4), np.arange(400))
TENTHS = np.round(WAVE, 1)


@pytest.mark.parametrize("given", [{"dtype": "bf16"}, {"tolerance": 0.1}, {"tolerance": 0.0}])
@pytest.mark.parametrize("scores", [WAVE, TENTHS], ids=["wave", "tenths"])
def test_pairs_by_number_are_those_of_all_pairs(monkeypatch, scores, given):
    values = oracle.bfloat16(scores) if "dtype" in given else scores
    expected = oracle.pairs_within(values, given.get("tolerance", 0.0))
    found = pairs.alike_pairs(scores, **given)
    assert found.count == len(expected) == aliasing.position_aliasing(scores, **given).pairs
    np.testing.assert_array_equal(found.listed(), expected)
    monkeypatch.setattr(pairs, "CHUNK", 7)
    assert sorted(map(tuple, np.concatenate([np.zeros((0, 2), int), *found.chunks()]))) == list(map(tuple, expected))
    assert len(set(map(tuple, found.at(np.arange(found.count))))) == found.count
    for bins in (1, 7):
        place, gap = expected * bins // 400, (expected[:, 1] - expected[:, 0]) * bins // 400
        counts = np.zeros((bins, bins), int)
        np.add.at(counts, (place[:, 0], place[:, 1]), 1)
        dtype, tolerance = given.get("dtype"), given.get("tolerance")
        np.testing.assert_array_equal(aliasing.pair_map(scores, dtype, bins, tolerance=tolerance), counts)
        by_gap, every = aliasing.pair_distances(scores, dtype, bins, tolerance=tolerance)
        np.testing.assert_array_equal(by_gap, np.bincount(gap, minlength=bins))
        assert every.sum() == 400 * 399 // 2


def test_a_tolerance_is_of_the_difference():
    # Looking for scores up to (score + tolerance), which is rounded, counts otherwise.
    ordered = np.sort(TENTHS)
    other = (np.searchsorted(ordered, ordered + 0.1, side="right") - np.arange(400) - 1).sum()
    assert aliasing.position_aliasing(TENTHS, tolerance=0.1).pairs == len(oracle.pairs_within(TENTHS, 0.1)) != other


def test_more_pairs_than_can_be_listed_are_counted_and_drawn():
    # Small waves on a large constant, as in a head few of whose channels turn: nearly all pairs alias.
    count = 20_000
    small = 40 + 0.01 * np.sin(np.arange(count))
    found = aliasing.joint_pairs(small, np.where(np.arange(count) % 2, small, 1.0), "bf16")
    assert found.count == 2 * (count // 2 * (count // 2 - 1) // 2) and found.count < pairs.MOST_PAIRS
    every = aliasing.joint_pairs(small, small, "bf16")
    assert every.count == count * (count - 1) // 2 > pairs.MOST_PAIRS
    numbers = np.random.default_rng(0).choice(every.count, 1000, replace=False)
    drawn = every.at(numbers)
    assert np.all(drawn[:, 0] < drawn[:, 1]) and drawn.max() < count and len(np.unique(drawn, axis=0)) == 1000
    assert abs((drawn[:, 1] - drawn[:, 0]).mean() - count / 3) < count / 30  # as of places drawn at random
    with pytest.raises(UsageError, match="shorten the range"):
        aliasing.attention_invariance(small, small, "bf16")


@pytest.mark.parametrize("fraction_bits, dtype", [(7, "bfloat16"), (4, None)])
def test_bins_are_those_of_the_numbers_there_are(fraction_bits, dtype):
    numbers = (2.0 ** np.arange(-40, 8)[:, None] * (1 + np.arange(2**fraction_bits) / 2**fraction_bits)).ravel()
    numbers = np.concatenate([-numbers[::-1], [0.0], numbers])
    if dtype:
        np.testing.assert_array_equal(quantization.quantize(numbers, dtype), numbers)
    middles = np.concatenate([[-np.inf], (numbers[1:] + numbers[:-1]) / 2, [np.inf]])
    steps = 2.0 ** (np.floor(np.log2(np.abs(numbers) + (numbers == 0))) - fraction_bits) * (numbers != 0)
    for mean, sd in ((0.0, 1.0), (8.0, 7.0), (-3.0, 0.5)):
        edges = {"midpoints": (middles[:-1], middles[1:]), "steps": (numbers - steps / 2, numbers + steps / 2)}
        sums = {}
        for name, (low, high) in edges.items():
            expected = ndtr((high - mean) / sd) - ndtr((low - mean) / sd)
            found = quantization.bin_probabilities(mean, sd, fraction_bits, name)
            for power in (1, 2, 3):
                mine = (found.counts * found.probabilities**power).sum()
                assert mine == pytest.approx((expected**power).sum(), rel=1e-6)
            sums[name] = (found.counts * found.probabilities).sum()
        assert sums["midpoints"] == pytest.approx(1, abs=1e-9) and 1.001 < sums["steps"] < 1.04


def test_normal_predictions_with_bins_of_whole_steps():
    frequencies, z = rope_frequencies(64, 1e5), np.ones(64)
    for length, dtype, expected in ((8192, "bf16", 128_900), (8192, "fp16", 16_031), (32_768, "bf16", 999_530)):
        found = moments.window_moments(z, frequencies, 0, length)
        predicted = aliasing.expected_position_aliasing(
            float(found.mean), float(found.sd), length, dtype, edges="steps"
        ).pairs
        assert predicted == pytest.approx(expected, rel=0, abs=1)
        exact = aliasing.expected_position_aliasing(float(found.mean), float(found.sd), length, dtype).pairs
        assert predicted * 0.992 < exact < predicted * 0.9995
    bins = quantization.bin_probabilities(0.0, 5.0, 7, "steps")
    assert (bins.counts * bins.probabilities**2).sum() == pytest.approx(9.02e-4, abs=6e-7)


def test_the_closed_form_of_pairs_within_a_tolerance():
    for h, base, length in ((64, 1e5, 8192), (8, 1e4, 1000)):
        closed = aliasing.closed_position_aliasing(h, base, length, 1e-4)
        sd = (h * np.log(length) / np.log(base) / 2) ** 0.5
        by_normal = aliasing.expected_position_aliasing(0.0, sd, length, tolerance=1e-4).pairs
        assert closed == pytest.approx(by_normal, rel=1e-6)
        assert closed < aliasing.closed_position_aliasing(h, 10 * base, length, 1e-4)
        assert closed < aliasing.closed_position_aliasing(h, base, length + 1, 1e-4)
    # Of the score itself: the two numbers given for 8,192 distances within 2^-7 sqrt(64), a fifth below.
    for base, counted in ((1e4, 175_615), (1e7, 245_998)):
        assert 1.05 < aliasing.closed_position_aliasing(64, base, 8192, 0.0625) / counted < 1.3
    # What was read of Figure 5: as many pairs of two keys, and rho = 0.993, give the 1,491 joint ones.
    assert aliasing.expected_attention_invariance((77_505, 76_321), 8192, 0.993) == pytest.approx(1491, rel=0.01)


def test_a_sweep_says_what_it_is_of_and_reports_both_phases():
    cells = sweep.base_sweep(
        16, [1e4, 1e6], [64, 101], position_phases="uniform", token_phases="uniform", draws=3, seed=5
    )
    assert {(c.h, c.amplitude, c.dtype, c.position_phases) for c in cells} == {(16, 1.0, "bfloat16", "uniform")}
    z = coefficients(np.stack([phase_set("uniform", 16, seed=seed) for seed in (5, 6, 7)]))
    for cell in cells:
        at = np.arange(cell.length)
        aligned, *waves = rope_product(np.concatenate([np.ones((1, 16)), z]), rope_frequencies(16, cell.base), at)
        near = at < cell.length / 2
        each = [
            (oracle.inverted(w[near], w[~near]), len(oracle.pairs_within(w, 2.0**-7 * 4)), np.mean(aligned < w),
             np.sum(np.abs(aligned - w) <= 16 / 128))
            for w in waves
        ]  # fmt: skip
        mine = (cell.position_inversion, cell.position_aliasing, cell.token_inversion, cell.token_aliasing)
        np.testing.assert_allclose(mine, np.mean(each, axis=0), rtol=1e-12)
        assert abs(cell.position_inversion_uniform - 0.5) < 0.1
    orderly = sweep.base_sweep(16, [1e6], [64])[0]
    assert orderly.position_inversion < 0.35 and abs(orderly.position_inversion_uniform - 0.5) < 0.1


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: aliasing.position_aliasing(np.array([1.0, np.nan, 1.0]), tolerance=0.1), "scores = nan"),
        (lambda: aliasing.position_aliasing(np.zeros(0), "bf16"), "not empty"),
        (lambda: aliasing.position_aliasing(np.zeros(0), tolerance=0.1), "not empty"),
        (lambda: aliasing.token_aliasing(np.array([1e6]), np.array([2e6]), "fp16"), "not all finite in fp16"),
        (lambda: aliasing.pair_map(WAVE, "bf16", 0), "bins = 0"),
        (lambda: aliasing.pair_map(WAVE, "bf16", 3, tolerance=0.1), "give one of the two"),
        (lambda: aliasing.expected_position_aliasing(0.0, 1.0, 0, "bf16"), "length = 0"),
        (lambda: aliasing.expected_position_aliasing(0.0, 0.0, 9, tolerance=0.1), "sd = 0.0"),
        (lambda: aliasing.expected_position_aliasing(float("nan"), 1.0, 9, "bf16"), "mean = nan"),
        (lambda: aliasing.expected_position_aliasing(0.0, 1.0, 9, "bf16", edges="round"), "edges = 'round'"),
        (lambda: aliasing.expected_attention_invariance((1, 1), 1, 0.5), "length = 1"),
        (lambda: aliasing.expected_token_aliasing(4, 1.0, 9, 0.5), "base = 1.0"),
        (lambda: sweep.base_sweep(4, [], [8]), "bases = ()"),
        (lambda: sweep.base_sweep(4, [1e4], [8, 1]), "lengths = "),
        (lambda: sweep.base_sweep(4, [1e4], [8], draws=0), "draws = 0"),
        (lambda: sweep.against_table([]), "at least one"),
        (lambda: sweep.against_table(sweep.base_sweep(4, [1e4], [8]) + sweep.base_sweep(4, [1e5], [9])), "are missing"),
    ],
)
def test_what_makes_no_sense_is_refused(call, words):
    with pytest.raises(UsageError, match=words):
        call()
