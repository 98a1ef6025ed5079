"""Frequency rules for contexts longer than the training one, and the logit scale that YaRN adds.

Every rule maps the frequencies w_m = base^(-2m / dims) to other frequencies; what comes out is still a pure rotation.
YaRN's temperature is kept apart, in `logit_scale`: baked into cos and sin, as other code does, it would multiply
rotated values too.
"""

import math

import numpy as np

from rove_jax.config import Rotary, Scaling


def scaled_frequencies(rotary: Rotary, dims: int) -> np.ndarray:
    """Radians per position of each pair of `dims` channels, after scaling and before `alpha`: float64 [dims / 2]."""
    rule = rotary.scaling.rule
    return RULES[rule](rotary.base, dims, rotary.scaling)


def logit_scale(rotary: Rotary | None) -> float:
    """What attention logits are multiplied by besides 1/sqrt(H): m^2 for YaRN, 1.0 otherwise.

    m = 0.1 ln s + 1 (YaRN, arXiv 2309.00071, eq. 22), or `attention_factor`, or g(mscale) / g(mscale_all_dim) with
    g(x) = 0.1 x ln s + 1. Taken from the rotation of queries and keys only.
    """
    if rotary is None or rotary.scaling.rule != "yarn":
        return 1.0
    scaling = rotary.scaling
    if scaling.attention_factor is not None:
        return scaling.attention_factor**2
    mscale, all_dim = (1.0, 0.0) if scaling.mscale is None else (scaling.mscale, scaling.mscale_all_dim or 0.0)
    log_s = 0.1 * math.log(scaling.stretch)
    return ((mscale * log_s + 1.0) / (all_dim * log_s + 1.0)) ** 2


def plain(base: float, dims: int, scaling: Scaling) -> np.ndarray:
    """w_m = base^(-2m / dims) (RoPE, arXiv 2104.09864, section 3.2.2)."""
    del scaling
    return base ** (-np.arange(0, dims, 2, dtype=np.float64) / max(dims, 1))


def linear(base: float, dims: int, scaling: Scaling) -> np.ndarray:
    """Position interpolation, w / s (arXiv 2306.15595, eq. 4)."""
    return plain(base, dims, scaling) / scaling.stretch


def ntk(base: float, dims: int, scaling: Scaling) -> np.ndarray:
    """NTK-aware: base' = base s^(d / (d - 2)), so the first pair keeps its speed and the last is divided by s."""
    return plain(ntk_base(base, dims, scaling.stretch), dims, scaling)


def dynamic_ntk(base: float, dims: int, scaling: Scaling) -> np.ndarray:
    """NTK-aware with s = f T / L0 - (f - 1) for the current length T, and no change up to the original length L0."""
    original, length = scaling.original_length, scaling.length
    assert original is not None and length is not None  # Scaling's own checks
    stretch = scaling.stretch * max(length, original) / original - (scaling.stretch - 1.0)
    return plain(ntk_base(base, dims, stretch), dims, scaling)


def ntk_base(base: float, dims: int, stretch: float) -> float:
    """base s^(d / (d - 2)). A single pair turns by one radian a position whatever the base, so it keeps its base."""
    return base * stretch ** (dims / (dims - 2)) if dims > 2 else base


def yarn(base: float, dims: int, scaling: Scaling) -> np.ndarray:
    """A ramp over pairs from untouched to divided by s (YaRN, arXiv 2309.00071, section 3.2, in the form its code has).

    The ramp runs, linearly in the pair's index, between the pairs that turn `beta_fast` and `beta_slow` times over
    the original length. (The paper's formula is linear in the number of turns instead; every port follows the code.)
    """
    frequencies = plain(base, dims, scaling)
    if scaling.stretch == 1.0 or dims == 0:
        return frequencies
    original = scaling.original_length
    assert original is not None  # Scaling's own checks

    def pair_turning(turns: float) -> float:
        return dims * math.log(original / (2.0 * math.pi * turns)) / (2.0 * math.log(base))

    low, high = pair_turning(scaling.beta_fast), pair_turning(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    # Coinciding ends would divide by zero; the published code widens the ramp by this much.
    ramp = np.clip((np.arange(dims // 2) - low) / (high - low if high != low else 0.001), 0.0, 1.0)
    return frequencies / scaling.stretch * ramp + frequencies * (1.0 - ramp)


def llama3(base: float, dims: int, scaling: Scaling) -> np.ndarray:
    """Llama 3.1: short wavelengths kept, long ones divided by s, a blend in wavelength between."""
    frequencies = plain(base, dims, scaling)
    if scaling.stretch == 1.0:
        return frequencies
    original = scaling.original_length
    assert original is not None  # Scaling's own checks
    turns = original * frequencies / (2.0 * math.pi)
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1.0 - kept) * frequencies / scaling.stretch + kept * frequencies


RULES = {
    "none": plain,
    "linear": linear,
    "ntk": ntk,
    "dynamic_ntk": dynamic_ntk,
    "yarn": yarn,
    "llama3": llama3,
}
