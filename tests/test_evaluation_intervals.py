"""Intervals of shares against an oracle, and of perplexities against theory."""

import numpy as np
import pytest
from reference import ruler as oracle

from rove_jax.evaluation.intervals import bootstrap, wilson


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
