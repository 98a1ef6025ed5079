"""Intervals of shares against an oracle, and of perplexities against theory."""

import numpy as np
import pytest
from reference import ruler as oracle

from rove_jax.evaluation.intervals import bootstrap, combined, paired, wilson


def test_intervals_are_wilsons():
    for correct, count in [(0, 10), (10, 10), (1, 7), (25, 100), (499, 500)]:
        assert wilson(correct, count) == pytest.approx(oracle.wilson(correct, count), abs=1e-9)


def test_bootstrap_covers_the_mean_and_pairs_documents():
    draw = np.random.RandomState(0)
    counts = draw.randint(50, 150, size=40)
    sums = counts * draw.normal(2.0, 0.2, size=40)
    interval = bootstrap(sums, counts) or []
    center = np.exp(sums.sum() / counts.sum())
    # Against the delta method for a ratio of means.
    deviation = center * np.sqrt(np.sum((sums - counts * np.log(center)) ** 2)) / counts.sum()
    np.testing.assert_allclose(interval, [center - 1.96 * deviation, center + 1.96 * deviation], rtol=0.02)
    # Documents differ by far more than two models do on the same document, so the ratio's interval is narrow.
    paired = bootstrap(sums + 0.01 * counts, counts, sums) or []
    np.testing.assert_allclose(paired, np.full(2, np.exp(0.01)), rtol=1e-9)
    assert bootstrap(sums[:1], counts[:1]) is None


@pytest.mark.parametrize("count", [3, 10])
def test_bootstrap_covers_with_few_documents(count):
    draw, counts, within = np.random.RandomState(2), np.full(count, 500), 0
    for _ in range(200):
        low, high = bootstrap(counts * draw.normal(2.0, 0.2, size=count), counts) or (0.0, 0.0)
        within += low < np.exp(2.0) < high
    assert within / 200 > 0.915, "of a plain one 0.77 and 0.90"


def answers(both: int, first: int, second: int, neither: int) -> tuple[list[bool], list[bool]]:
    one = [True] * (both + first) + [False] * (second + neither)
    return one, [True] * both + [False] * first + [True] * second + [False] * neither


def test_paired_intervals_are_newcombes():
    for table in [(36, 2, 12, 0), (20, 2, 12, 16), (24, 5, 1, 20), (0, 0, 0, 6), (6, 0, 0, 0), (3, 2, 4, 1)]:
        one, other = answers(*table)
        difference, interval = paired(one, other)
        assert difference == pytest.approx((table[2] - table[1]) / sum(table))
        assert interval == pytest.approx(oracle.newcombe(*table), abs=1e-8)
        back, mirrored = paired(other, one)
        assert back == pytest.approx(-difference) and mirrored == pytest.approx((-interval[1], -interval[0]))
    # As printed in the paper, to four digits.
    assert paired(*answers(36, 2, 12, 0))[1] == pytest.approx((0.0569, 0.3404), abs=5e-5)


def test_paired_intervals_cover_and_pay_for_pairing():
    tables = np.random.RandomState(1).multinomial(60, [0.28, 0.02, 0.12, 0.58], size=600)
    intervals = [paired(*answers(*map(int, table)))[1] for table in tables]
    apart = 2 * 1.96 * np.sqrt(0.3 * 0.7 / 60 + 0.4 * 0.6 / 60)
    assert np.mean([low < 0.1 < high for low, high in intervals]) > 0.925
    assert np.mean(np.diff(intervals)) < 0.75 * apart


def test_combined_intervals_are_those_of_sums_and_never_empty():
    even = combined([1.0, 2.0], [(0.0, 2.0), (-1.0, 5.0)], [0.5, 0.25])
    np.testing.assert_allclose(even, [1 - np.hypot(0.5, 0.75), 1 + np.hypot(0.5, 0.75)], rtol=1e-12)
    low, high = combined([0.0] * 10, [wilson(0, 6)] * 10, [0.1] * 10)
    assert low == 0 and high == pytest.approx(oracle.wilson(0, 6)[1] / np.sqrt(10))
