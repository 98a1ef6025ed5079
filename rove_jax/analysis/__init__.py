"""What rotation can and cannot tell apart: scores as functions of distance, their failures, mixers and circuits.

Scores are S(m) = Re sum_n z_n exp(i m w_n) (Du et al., arXiv 2605.15514, section 2.1): m tokens from key to query, w_n
in radians per token, z_n the complex product of a pair of the query with the conjugate of the key's, before 1/sqrt(H).
|z_n| is the amplitude and arg z_n the phase; every function takes them as z, or scores made from them, and closed forms
say which they are for. All in float64 NumPy, but `rope_scores`, which is float32 in JAX.

In the paper's letters: a_n, phi_n `Coefficients.amplitude`, `phase`; omega_n = theta^n `frequencies`; h their number;
B `base`; M `length`; m `distances`; lambda(M) `Split.boundary`; mu, sigma^2 `Moments.mean`, `variance`; f
`fraction_bits`; eps `tolerance`. Which channels are a pair is `pairing`, as in `config.Rotary`.

Scores: `product`, `moments`, `quantization`, `inversion`, `pairs`, `aliasing`, `swap`, `sweep`, `profile`. Models:
`capture`, `failures` and `limits` (all heads of a run), `mixer`, `circuits`, `induction`. Pictures: `picture` and
`*_figures`. The names below are loaded when first used, as `analysis.position_inversion`.
"""

import importlib
from typing import Any

HOMES = {
    "against_table": "sweep",
    "attention_invariance": "aliasing",
    "base_sweep": "sweep",
    "bin_probabilities": "quantization",
    "capture_qkv": "capture",
    "closed_position_aliasing": "aliasing",
    "closed_position_inversion": "inversion",
    "closed_token_inversion": "inversion",
    "coefficients": "product",
    "effective_pairs": "capture",
    "expected_attention_invariance": "aliasing",
    "expected_position_aliasing": "aliasing",
    "expected_step": "profile",
    "expected_token_aliasing": "aliasing",
    "failure_rates": "failures",
    "find_places": "model_swap",
    "frequency_split": "moments",
    "inverted_halves": "inversion",
    "inverted_order": "inversion",
    "inverted_share": "inversion",
    "joint_pairs": "aliasing",
    "kernel_similarity": "mixer",
    "matched_filter": "circuits",
    "measure_limits": "limits",
    "model_swaps": "model_swap",
    "normal_fit": "moments",
    "pair_distances": "aliasing",
    "pair_map": "aliasing",
    "phase_aligned_reference": "inversion",
    "phase_set": "product",
    "position_aliasing": "aliasing",
    "position_inversion": "inversion",
    "profiler": "profile",
    "qk_coefficients": "product",
    "quantize": "quantization",
    "rope_frequencies": "product",
    "rope_product": "product",
    "rope_scores": "product",
    "same_scores": "aliasing",
    "split_product": "moments",
    "swap_effect": "swap",
    "token_aliasing": "aliasing",
    "token_aliasing_bound": "aliasing",
    "token_inversion": "inversion",
    "token_margin": "inversion",
    "window_moments": "moments",
}
"""Name exposed here: module it lives in."""

__all__ = [*HOMES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'rove_jax.analysis' has no attribute {name!r}")
    return getattr(importlib.import_module(f"rove_jax.analysis.{HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *HOMES})
