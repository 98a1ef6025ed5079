"""Frequency rules against published values and against formulas written out again here."""

import json
import math

import numpy as np
import pytest

from rove_jax.config import Rotary, Scaling
from rove_jax.errors import UsageError
from rove_jax.rotary import frequencies, logit_scale


def scaled(**fields) -> np.ndarray:
    return frequencies(Rotary(scaling=Scaling(**fields)), 64)


@pytest.mark.parametrize("s", [2, 4, 8, 16])
def test_every_rule_equals_the_reference_file(test_data, s):
    reference = json.loads((test_data / "rope_scaling_reference.json").read_text())
    row, original = reference[f"scale_{s}"], reference["original_len"]
    cases = {
        "yarn_truncate": scaled(rule="yarn", factor=s, original_length=original),
        "yarn_no_truncate": scaled(rule="yarn", factor=s, original_length=original, truncate=False),
        "linear": scaled(rule="linear", factor=s),
        "ntk": scaled(rule="ntk", factor=s),
        "llama3_lf1_hf4": scaled(rule="llama3", factor=s, original_length=original),
    }
    for name, ours in cases.items():
        np.testing.assert_allclose(ours, row[name], rtol=1e-12, atol=0, err_msg=name)
    for name, factor in (("hf_dynamic_factor_s_T", s), ("dynamic_factor_1_T", 1.0)):
        ours = scaled(rule="dynamic_ntk", factor=factor, original_length=original, length=row[name]["T"])
        np.testing.assert_allclose(ours, row[name]["inv"], rtol=1e-12, atol=0, err_msg=name)
    m_squared = logit_scale(Rotary(scaling=Scaling(rule="yarn", factor=s, original_length=original)))
    assert m_squared == pytest.approx(row["attention_factor"] ** 2, rel=1e-12)


# Published values (YaRN code, transformers), head 64, base 1e4, trained on 1024: pairs 4, 12, 14, 16, 31 at s = 16.
PUBLISHED = {
    "yarn": (0.316227766, 0.01565935572, 0.006241076776, 0.002067307692, 8.334508951e-6),
    "yarn untruncated": (0.316227766, 0.01600277564, 0.006229967529, 0.001946214401, 8.334508951e-6),
    "ntk": (0.2211208421, 0.01081157683, 0.005083980531, 0.002390664974, 8.334508951e-6),
    "llama3": (0.316227766, 0.0316227766, 0.01165964935, 0.002592958179, 8.334508951e-6),
    "linear": (0.019764235376, 0.00197642353761, 0.00111142463208, 0.000625, 8.334508951e-6),
}


def test_every_rule_equals_published_values():
    ours = {
        "yarn": scaled(rule="yarn", factor=16, original_length=1024),
        "yarn untruncated": scaled(rule="yarn", factor=16, original_length=1024, truncate=False),
        "ntk": scaled(rule="ntk", factor=16),
        "llama3": scaled(rule="llama3", factor=16, original_length=1024),
        "linear": scaled(rule="linear", factor=16),
    }
    for name, values in PUBLISHED.items():
        np.testing.assert_allclose(ours[name][[4, 12, 14, 16, 31]], values, rtol=2e-9, err_msg=name)


@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize(("head_dim", "original"), [(64, 4096), (64, 131_072), (128, 131_072)])
def test_yarn_ramp_pair_by_pair(head_dim, original, truncate):
    """The ramp written out pair by pair, with the clamp at dim - 1 of the published code."""

    def pair(turns):
        return head_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(1e4))

    low, high = (math.floor(pair(32)), math.ceil(pair(1))) if truncate else (pair(32), pair(1))
    low, high = max(low, 0), min(high, head_dim - 1)
    expected = []
    for i in range(head_dim // 2):
        w = 1e4 ** (-2 * i / head_dim)
        share = min(max((i - low) / (high - low), 0.0), 1.0)
        expected.append(w / 8 * share + w * (1 - share))
    rotary = Rotary(scaling=Scaling(rule="yarn", factor=8, original_length=original, truncate=truncate))
    np.testing.assert_allclose(frequencies(rotary, head_dim), expected, rtol=1e-12)


@pytest.mark.parametrize("rule", ["linear", "ntk", "yarn", "llama3"])
def test_factor_one_is_no_scaling_bit_for_bit(rule):
    fields = {"original_length": 1024} if rule in ("yarn", "llama3") else {}
    rotary = Rotary(scaling=Scaling(rule=rule, factor=1.0, **fields))
    assert (frequencies(rotary, 64) == frequencies(Rotary(), 64)).all()
    assert logit_scale(rotary) == 1.0


def test_yarn_with_coinciding_ramp_ends_is_finite_and_falling():
    rotary = Rotary(scaling=Scaling(rule="yarn", factor=4, original_length=16, beta_fast=1.0, beta_slow=1.0))
    for truncate in (True, False):
        f = frequencies(Rotary(scaling=Scaling(**{**vars(rotary.scaling), "truncate": truncate})), 8)
        assert np.isfinite(f).all() and (np.diff(f) < 0).all()


def test_dynamic_ntk_is_plain_up_to_the_original_length_and_grows_after():
    plain = frequencies(Rotary(), 64)
    for length in (1, 512, 1024):
        assert (scaled(rule="dynamic_ntk", original_length=1024, length=length) == plain).all()
    assert scaled(rule="dynamic_ntk", original_length=1024, length=1025)[-1] < plain[-1]
    with pytest.raises(UsageError, match="length"):
        Scaling(rule="dynamic_ntk", original_length=1024)


@pytest.mark.parametrize(
    ("fields", "m"),
    [
        ({}, 0.1 * math.log(128) + 1),  # 1.4852, the value that peers squared
        ({"attention_factor": 1.25}, 1.25),
        ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),
        ({"mscale": 0.707, "mscale_all_dim": 0.5}, (0.0707 * math.log(128) + 1) / (0.05 * math.log(128) + 1)),
        ({"mscale": 1.0, "mscale_all_dim": 0.0}, 0.1 * math.log(128) + 1),
    ],
)
def test_temperature_enters_once_squared(fields, m):
    rotary = Rotary(scaling=Scaling(rule="yarn", factor=128, original_length=1024, **fields))
    assert logit_scale(rotary) == pytest.approx(m * m, rel=1e-12)
    assert logit_scale(None) == logit_scale(Rotary(scaling=Scaling(rule="ntk", factor=128))) == 1.0


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"rule": "yarn", "factor": 4.0, "original_length": 2048, "maximum_length": 4096}, "scaling.factor = 4.0"),
        ({"rule": "yarn", "original_length": 2048}, "scaling.factor"),
        ({"rule": "yarn", "factor": 4.0}, "scaling.original_length"),
        ({"rule": "linear", "factor": 0.5}, "scaling.factor"),
        ({"rule": "yarm"}, "did you mean yarn"),
        ({"factor": 4.0}, "scaling.factor"),
        ({"rule": "linear", "factor": 4.0, "beta_fast": 16.0}, "scaling.beta_fast"),
        ({"rule": "yarn", "factor": 4.0, "original_length": 64, "mscale": 1.0}, "scaling.mscale"),
        ({"rule": "linear", "factor": math.inf}, "scaling.factor = inf"),
        ({"rule": "yarn", "factor": 4.0, "original_length": 64, "beta_fast": math.inf}, "scaling.beta_fast = inf"),
        # g(mscale_all_dim) = 0 would divide by zero.
        ({"rule": "yarn", "factor": math.e, "original_length": 9, "mscale": 1, "mscale_all_dim": -10}, "mscale_all"),
        ({"rule": "yarn", "factor": 4.0, "original_length": 9, "mscale": math.nan, "mscale_all_dim": 1.0}, "mscale"),
    ],
)
def test_contradicting_settings_are_refused_by_name(fields, named):
    with pytest.raises(UsageError, match=named):
        Scaling(**fields)


def test_a_consistent_triple_passes():
    triple = Scaling(rule="yarn", factor=2.0, original_length=2048, maximum_length=4096)
    assert triple.stretch == Scaling(rule="yarn", original_length=2048, maximum_length=4096).stretch == 2.0
