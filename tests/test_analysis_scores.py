"""Scores as a function of distance and their moments: against derived values and brute force."""

from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
from reference import limits as oracle

from rove_jax import analysis
from rove_jax.analysis import inversion, moments, product, profile
from rove_jax.analysis.product import coefficients, phase_set, rope_frequencies, rope_product, rope_scores
from rove_jax.config import Scaling
from rove_jax.errors import UsageError

DRAW = np.random.default_rng(0)
ALIGNED = coefficients(np.zeros(64))
# The numbers below are derived values: float64 sums made outside this project, to the digits given.


@pytest.fixture(scope="module")
def canonical():
    """64 pairs of amplitude 1 and phase 0, base 1e5, 32,768 distances."""
    return rope_product(ALIGNED, rope_frequencies(64, 1e5), np.arange(32_768))


def test_the_canonical_score(canonical):
    expected = {0: 64, 1: 62.424444, 2: 58.554010, 10: 46.902567, 100: 33.431113, 1000: 22.504484, 8191: 17.087125,
                16384: 3.375341, 32767: 1.924563, 32707: -10.878275}  # fmt: skip
    np.testing.assert_allclose(canonical[list(expected)], list(expected.values()), atol=6e-7, rtol=0)
    assert canonical.argmin() == 32707


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("dims", [None, 6, 0])
def test_a_score_is_the_dot_product_of_turned_vectors_at_any_offset(pairing, dims):
    query, key = DRAW.normal(size=(2, 8))
    frequencies = rope_frequencies((8 if dims is None else dims) // 2, 1e4) if dims != 0 else np.zeros(0)
    found = product.qk_coefficients(query, key, pairing, dims)
    scores = rope_product(found.z, frequencies, np.arange(300), constant=found.constant)
    for at, distance in ((0, 0), (0, 1), (7, 5), (1000, 299), (123_456, 64)):
        expected = oracle.score(query, key, frequencies, at, distance, pairing)
        np.testing.assert_allclose(scores[distance], expected, atol=1e-9, rtol=0)
    np.testing.assert_allclose(
        oracle.wave(found.amplitude, found.phase, frequencies, np.arange(300)) + found.constant,
        scores,
        rtol=0,
        atol=1e-12,
    )
    other = product.qk_coefficients(query, key, "half" if pairing == "interleaved" else "interleaved", dims)
    assert dims == 0 or np.abs(other.amplitude - found.amplitude).max() > 0.01  # the layout matters


def test_coefficients_of_a_query_and_a_key():
    query, key = np.sin(np.arange(8) + 1.0), np.cos(2 * np.arange(8) + 1.0)
    expected = {
        "interleaved": (
            (1.39728477, 0.62011324, 0.91005099, 1.40551458),
            (1.89533086, 3.6858178, 0.28839121, 1.68160388),
            (-0.2590284238, -1.1379339422, -0.7178772325, 0.5163758778),
        ),
        "half": (
            (1.3514125, 0.94174928, 0.6388767, 1.33316384),
            (0.18499476, 2.8479342, 0.09138632, 3.01301307),
            (-0.2590284238, -1.1023387495, -0.7196788347, 1.1380685056),
        ),
    }
    for pairing, (amplitude, phase, scores) in expected.items():
        found = product.qk_coefficients(query, key, pairing)
        np.testing.assert_allclose(found.amplitude, amplitude, rtol=0, atol=6e-9)
        np.testing.assert_allclose(found.phase, phase, rtol=0, atol=6e-9)
        at = rope_product(found.z, rope_frequencies(4, 1e4), np.array([0, 1, 7, 100]))
        np.testing.assert_allclose(at, scores, rtol=0, atol=6e-11)


def test_the_jax_path_is_as_good_as_float32_at_every_distance():
    z = DRAW.normal(size=(3, 2, 64)) + 1j * DRAW.normal(size=(3, 2, 64))
    frequencies, constant = rope_frequencies(64, 1e5), DRAW.normal(size=(3, 2))
    found = np.asarray(rope_scores(z, frequencies, 131_072, constant=constant))
    assert found.shape == (3, 2, 131_072) and found.dtype == np.float32
    at = np.r_[0:2000, 65_000:66_000, 130_000:131_072]
    error = np.abs(found[..., at] - rope_product(z, frequencies, at, constant=constant)).max()
    assert error < 1e-6 * np.abs(z).sum(-1).max()
    angle = (at.astype(np.float32)[:, None] * frequencies.astype(np.float32)).astype(np.float32)
    naive = z.real @ np.cos(angle).T - z.imag @ np.sin(angle).T + constant[..., None]
    assert np.abs(naive - rope_product(z, frequencies, at, constant=constant)).max() > 100 * error
    few = np.asarray(rope_scores(z, frequencies, 5, constant=constant))
    np.testing.assert_allclose(few, found[..., :5], rtol=0, atol=1e-4)


def test_distances_in_any_order_and_type_and_far_away():
    z, frequencies = DRAW.normal(size=4) + 1j * DRAW.normal(size=4), rope_frequencies(4, 5e5)
    some = np.array([127, 3, 0, 99, 4], np.int8)
    np.testing.assert_array_equal(
        rope_product(z, frequencies, some), rope_product(z, frequencies, np.arange(128))[some]
    )
    at = np.r_[131_071, 999_000 : 10**6]
    exact = np.longdouble(5e5) ** (-np.arange(4, dtype=np.longdouble) / 4)  # 64 bits of mantissa where there are such
    angle = at.astype(np.longdouble)[:, None] * exact
    expected = (np.cos(angle) @ np.real(z) - np.sin(angle) @ np.imag(z)).astype(np.float64)
    np.testing.assert_allclose(rope_product(z, frequencies, at), expected, rtol=0, atol=2e-9)
    error = np.abs(np.asarray(rope_scores(z, frequencies, 10**6))[at] - expected).max()
    assert error < 1e-6 * np.abs(z).sum()
    angle = at.astype(np.float32)[:, None] * frequencies.astype(np.float32)  # what would not do
    assert np.abs(np.cos(angle) @ np.real(z) - np.sin(angle) @ np.imag(z) - expected).max() > 100 * error


def test_the_frequencies_of_llama3():
    found = rope_frequencies(64, 5e5, Scaling("llama3", factor=8, original_length=8192))
    plain = rope_frequencies(64, 5e5)
    np.testing.assert_allclose(found[:29], plain[:29], rtol=1e-14)
    np.testing.assert_allclose(found[35:], plain[35:] / 8, rtol=1e-14)
    assert np.all((found[29:35] < plain[29:35] * 0.999) & (found[29:35] > plain[29:35] / 7.999))
    given = (0.0032114460, 3.1269375e-4, 9.5562124e-5, 3.0689260e-7)
    np.testing.assert_allclose(found[[28, 33, 35, 63]], given, rtol=2e-8)


@pytest.mark.parametrize(
    "h, base, length, boundaries, counts",
    [
        (64, 1e5, 32_768, (57.797759, 47.581057), (48, 52)),
        (64, 5e5, 131_072, (57.470145, 48.506507), (49, 52)),
        (32, 1e4, 2048, (26.490640, 20.105201), (21, 23)),
    ],
)
def test_where_high_frequencies_end(h, base, length, boundaries, counts):
    splits = {rule: moments.frequency_split(rope_frequencies(h, base), length, rule) for rule in moments.TURNED}
    np.testing.assert_allclose((splits["hlogBM"].boundary, splits["2pi"].boundary), boundaries, rtol=0, atol=9e-7)
    assert (splits["2pi"].high.sum(), splits["pi"].high.sum()) == counts
    assert all(split.high.sum() == int(np.ceil(split.boundary)) for split in splits.values())
    scaled = rope_frequencies(h, base, Scaling("linear", factor=8))
    assert moments.frequency_split(scaled, 8 * length).boundary == pytest.approx(boundaries[1], abs=1e-6)


def test_a_boundary_that_is_a_whole_number_leaves_its_pair_low():
    # 1,000 = 1e4^(6 / 8): pair 6 turns by 1, not more; as a float64 product it may come out on either side.
    for h, base, length, whole in ((8, 1e4, 1000, 6), (8, 1e4, 100, 4), (64, 1e8, 10_000, 32), (4, 256.0, 64, 3)):
        split = moments.frequency_split(rope_frequencies(h, base), length, "hlogBM")
        np.testing.assert_array_equal(split.high, np.arange(h) < whole)
        assert split.boundary == pytest.approx(whole, abs=1e-9)


def test_the_halves_of_a_score_add_up(canonical):
    frequencies, at = rope_frequencies(64, 1e5), np.arange(0, 32_768, 500)
    high, low = moments.split_product(ALIGNED, frequencies, at, moments.frequency_split(frequencies, 32_768).high)
    np.testing.assert_allclose(high + low, canonical[at], atol=1e-11)
    assert (high[0], low[0]) == (48, 16) and np.ptp(low) < 16 < np.ptp(high)


def test_moments_of_the_canonical_score(canonical):
    frequencies = rope_frequencies(64, 1e5)
    whole = moments.window_moments(ALIGNED, frequencies, 0, 32_768)
    given = (8.012994617, 49.642613313, 7.045751437)
    np.testing.assert_allclose((whole.mean, whole.variance, whole.sd), given, rtol=0, atol=6e-10)
    assert np.trace(whole.covariance) == pytest.approx(27.118788717, rel=0, abs=6e-10)
    pairs = [0, 16, 32, 48, 63]
    np.testing.assert_allclose(
        whole.means[pairs], (3.5484e-5, 5.5486e-4, 5.2288e-4, -0.0755884, 0.9745530), rtol=0, atol=6e-8
    )
    np.testing.assert_allclose(
        np.diag(whole.covariance)[pairs], (0.5000165, 0.4999783, 0.4997539, 0.4603582, 5.1465e-4), rtol=0, atol=6e-8
    )
    fit = moments.normal_fit(canonical)
    np.testing.assert_allclose((fit.skew, fit.kurtosis, fit.ks), (0.8832, 1.9093, 0.05063), rtol=0, atol=6e-5)
    for start, mean, sd, ks in ((8192, 5.421678800, 4.927929549, 0.00946), (16_384, 4.153192344, 4.684839663, 0.01366)):
        found = moments.window_moments(ALIGNED, frequencies, start, 32_768)
        np.testing.assert_allclose((found.mean, found.sd), (mean, sd), rtol=0, atol=6e-10)
        assert moments.normal_fit(canonical[start:]).ks == pytest.approx(ks, abs=6e-6)
    theory = moments.window_moments(ALIGNED, frequencies, 0, 32_768, "asymptotic")
    assert (theory.mean, theory.variance) == (16, 24)


def test_exact_moments_are_those_of_the_scores():
    z = DRAW.normal(size=(2, 3, 6)) + 1j * DRAW.normal(size=(2, 3, 6))
    # 2 pi and its multiples, and differences of 0, are the limits of the kernel.
    frequencies = np.array([1.0, 0.3, 2 * np.pi, 0.01, 0.01, 4 * np.pi + 1.0])
    for start, stop in ((0, 1), (0, 50), (17, 400)):
        scores = rope_product(z, frequencies, np.arange(start, stop))
        found = moments.window_moments(z, frequencies, start, stop)
        np.testing.assert_allclose(found.mean, scores.mean(-1), rtol=0, atol=1e-12)
        np.testing.assert_allclose(found.variance, scores.var(-1), rtol=0, atol=1e-11)
    small = rope_frequencies(8, 100.0)
    for start, stop, mean, variance in ((0, 64, 1.1463147452, 4.6377375038), (16, 48, 0.7992602809, 1.5023788029)):
        found = moments.window_moments(np.ones(8), small, start, stop)
        np.testing.assert_allclose((found.mean, found.variance), (mean, variance), rtol=0, atol=6e-11)
    at = rope_product(np.ones(8), small, np.array([0, 1, 2, 63]))
    np.testing.assert_allclose(at, (8, 7.31372231, 5.73042968, 1.13040185), rtol=0, atol=6e-9)


def test_windows_of_one_distance_have_no_spread():
    z = DRAW.normal(size=(400, 4)) + 1j * DRAW.normal(size=(400, 4))
    frequencies = rope_frequencies(4, 1e4)
    found = moments.window_moments(z, frequencies, 131_071, 131_072)
    assert found.covariance.sum((-2, -1)).min() < 0  # rounding, which must not become a NaN
    assert np.all(found.variance >= 0) and np.all(found.sd < 1e-4)
    for length in (2, 3):
        sure = inversion.position_inversion(z, frequencies, length, method="normal")
        counted = inversion.position_inversion(z, frequencies, length)
        assert np.all((sure >= 0) & (sure <= 1)) and (length == 3 or np.array_equal(np.round(sure), counted))
    assert inversion.position_inversion(np.zeros(4), frequencies, 2, method="normal") == 0


@pytest.mark.parametrize("length", [3, 65, 101])
def test_the_middle_of_an_odd_length_is_near(length):
    z, frequencies = DRAW.normal(size=(3, 8)) + 1j * DRAW.normal(size=(3, 8)), rope_frequencies(8, 100.0)
    waves = rope_product(z, frequencies, np.arange(length))
    near = np.arange(length) < length / 2
    expected = [oracle.inverted(wave[near], wave[~near]) for wave in waves]
    np.testing.assert_array_equal(inversion.position_inversion(z, frequencies, length), expected)
    np.testing.assert_array_equal(inversion.inverted_halves(waves), expected)
    other = [oracle.inverted(wave[: length // 2], wave[length // 2 :]) for wave in waves]
    assert not np.array_equal(other, expected)


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_token_inversion_where_a_quarter_of_the_channels_turn(pairing):
    frequencies = rope_frequencies(4, 100.0)
    turned = 0
    for draw in range(12):
        query, *keys = np.random.default_rng(draw).normal(size=(3, 32))
        waves = [np.array([oracle.score(query, key, frequencies, 5, m, pairing) for m in range(60)]) for key in keys]
        difference = (waves[0] - waves[1]) * (1 if waves[0][0] >= waves[1][0] else -1)
        one, other = (product.qk_coefficients(query, key, pairing, 8) for key in keys)
        margin, constant = one.z - other.z, one.constant - other.constant
        at_zero = np.real(margin).sum()
        turned += (at_zero < 0) != (at_zero + constant < 0)
        for sign in (1, -1):
            found = inversion.token_inversion(sign * margin, frequencies, 60, constant=sign * constant)
            assert found.probability == np.mean(difference < 0)
            assert found.first_flip == (np.argmax(difference < 0) if np.any(difference < 0) else -1)
            normal = inversion.token_inversion(
                sign * margin, frequencies, 60, method="normal", constant=sign * constant
            )
            expected = NormalDist(difference.mean(), difference.std()).cdf(0)
            assert normal.probability == pytest.approx(expected, rel=0, abs=1e-9)
        measured = profile.profiler(one.z, frequencies, 60, margin=margin, constant=constant)
        assert measured.semantic == pytest.approx(1 - np.mean(difference < 0), abs=1e-12)
    assert turned >= 3  # draws in which the channels that turn would by themselves have it the other way round


def test_the_names_of_the_package_are_there():
    folder = Path(analysis.__file__).parent
    for name, module in analysis.HOMES.items():  # not loaded: some import all of the evaluation
        assert f"\ndef {name}(" in (folder / f"{module}.py").read_text(), name
        assert name in analysis.__all__ and name in dir(analysis)
    assert analysis.window_moments is moments.window_moments and analysis.profiler is profile.profiler
    with pytest.raises(AttributeError, match="window_moment'"):
        _ = analysis.window_moment


NAN = np.array([1.0, np.nan, 1.0, 1.0])


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: rope_product(NAN, rope_frequencies(4, 1e4), np.arange(3)), "z = nan: must be finite"),
        (lambda: rope_scores(NAN, rope_frequencies(4, 1e4), 3), "z = nan"),
        (lambda: rope_scores(np.full(4, 1e38), rope_frequencies(4, 1e4), 3), "take rope_product"),
        (lambda: rope_product(np.ones(4), NAN, np.arange(3)), "frequencies = nan"),
        (lambda: rope_product(np.ones(4), rope_frequencies(4, 1e4), np.array([0.0, np.inf])), "distances = inf"),
        (
            lambda: rope_product(np.ones((2, 4)), rope_frequencies(4, 1e4), np.arange(3), constant=np.ones(3)),
            "constant.s",
        ),
        (lambda: rope_product(np.ones(4), rope_frequencies(4, 1e4), np.arange(3), constant=np.nan), "constant = nan"),
        (lambda: rope_frequencies(4, -1e4), "rotary.base = -10000.0"),
        (lambda: rope_frequencies(0, 1e4), "h = 0"),
        (lambda: phase_set("uniform", 4, seed=-1), "seed = -1"),
        (lambda: moments.window_moments(NAN, rope_frequencies(4, 1e4), 0, 5), "z = nan"),
        (lambda: moments.normal_fit(NAN), "scores = nan"),
        (lambda: moments.normal_fit(np.zeros(0)), "not empty"),
        (lambda: inversion.position_inversion(NAN, rope_frequencies(4, 1e4), 8), "z = nan"),
        (lambda: inversion.position_inversion(np.ones(4), rope_frequencies(4, 1e4), 1), "length = 1"),
        (
            lambda: inversion.position_inversion(np.ones(4), rope_frequencies(4, 1e4), 0, scheme="near_far"),
            "length = 0",
        ),
        (lambda: inversion.inverted_share(NAN, np.ones(3)), "scores = nan"),
        (lambda: inversion.inverted_share(np.ones(0), np.ones(3)), "not be empty"),
        (lambda: inversion.token_inversion(np.ones(4), rope_frequencies(4, 1e4), 0), "length = 0"),
        (lambda: inversion.closed_token_inversion(4, 1e4, 0), "length = 0"),
        (lambda: profile.profiler(np.ones(4), rope_frequencies(4, 1e4), 1), "length = 1"),
        (lambda: profile.profiler(np.zeros(4), rope_frequencies(4, 1e4), 9), "0 in every channel that turns"),
        (lambda: rope_product(np.ones(3), rope_frequencies(4, 1e4), np.arange(3)), "frequencies.shape"),
        (lambda: rope_scores(np.ones(3), rope_frequencies(4, 1e4), 3), "frequencies.shape"),
        (lambda: product.qk_coefficients(np.ones(8), np.ones(8), "quarter"), "must be half or interleaved"),
        (lambda: product.qk_coefficients(np.ones(8), np.ones(8), "half", 5), "rotary_dim = 5"),
        (lambda: product.qk_coefficients(np.ones(8), np.ones(6), "half"), "key.shape"),
        (lambda: phase_set("silver", 4), "must be aligned"),
        (lambda: moments.window_moments(np.ones(4), rope_frequencies(4, 1e4), 5, 5), "start, stop = .5, 5"),
        (lambda: moments.window_moments(np.ones(4), rope_frequencies(4, 1e4), 0, 5, "rough"), "method = 'rough'"),
        (lambda: moments.frequency_split(rope_frequencies(4, 1e4), 5, "e"), "rule = 'e'"),
        (lambda: moments.normal_fit(np.ones(4)), "all this number"),
    ],
)
def test_what_makes_no_sense_is_refused(call, words):
    with pytest.raises(UsageError, match=words):
        call()
