"""What turns, and how fast: the frozen specification of a rotation and of its frequency scaling."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal

from rove_jax.errors import UsageError, require, require_choice

ScalingRule = Literal["none", "linear", "ntk", "dynamic_ntk", "yarn", "llama3"]

SCALING_FIELDS: dict[str, set[str]] = {
    "none": set(),
    "linear": {"factor", "original_length", "maximum_length"},
    "ntk": {"factor", "original_length", "maximum_length"},
    "dynamic_ntk": {"factor", "original_length", "length"},
    "yarn": {
        "factor",
        "original_length",
        "maximum_length",
        "beta_fast",
        "beta_slow",
        "truncate",
        "attention_factor",
        "mscale",
        "mscale_all_dim",
    },
    "llama3": {"factor", "original_length", "maximum_length", "low_frequency_factor", "high_frequency_factor"},
}


@dataclass(frozen=True)
class Scaling:
    """How rotation frequencies are stretched for contexts longer than the training one. Formulas: `scaling.py`.

    `factor`, `original_length` and `maximum_length` say one thing twice; give any two, or all three if they agree
    (`factor = maximum_length / original_length`).
    """

    rule: ScalingRule = "none"
    factor: float | None = None
    """How many times longer than the original the context may get (s in the YaRN paper)."""
    original_length: int | None = None
    """Context length in tokens that the frequencies were trained for."""
    maximum_length: int | None = None
    """Context length in tokens to reach."""
    length: int | None = None
    """dynamic_ntk only: the current context length, fixed for the whole computation."""
    beta_fast: float = 32.0
    """yarn: pairs that turn more often than this over the original length are left alone."""
    beta_slow: float = 1.0
    """yarn: pairs that turn less often than this over the original length are fully stretched."""
    truncate: bool = True
    """yarn: round the ends of the ramp to whole pairs, as the YaRN code does."""
    attention_factor: float | None = None
    """yarn: m itself, instead of 0.1 ln s + 1. Attention logits are multiplied by m^2."""
    mscale: float | None = None
    """yarn: with `mscale_all_dim`, m = g(mscale) / g(mscale_all_dim), g(x) = 0.1 x ln s + 1."""
    mscale_all_dim: float | None = None
    low_frequency_factor: float = 1.0
    """llama3: wavelengths above original_length / this are fully stretched."""
    high_frequency_factor: float = 4.0
    """llama3: wavelengths below original_length / this are left alone."""

    def __post_init__(self) -> None:
        at = "scaling"
        require_choice(f"{at}.rule", self.rule, ScalingRule)
        for name in ("factor", "original_length", "maximum_length", "length", "attention_factor"):
            value = getattr(self, name)
            require(value is None or value > 0, f"{at}.{name}", value, "must be above 0")
        given = {f.name for f in dataclasses.fields(self) if getattr(self, f.name) != f.default} - {"rule"}
        idle = sorted(given - SCALING_FIELDS[self.rule])
        require(
            not idle,
            f"{at}.{idle[0] if idle else ''}",
            idle and getattr(self, idle[0]),
            f"rule {self.rule!r} does not read it; remove it",
        )
        if self.rule == "none":
            return
        if self.factor and self.original_length and self.maximum_length and self.rule != "dynamic_ntk":
            implied = self.maximum_length / self.original_length
            require(
                math.isclose(implied, self.factor, rel_tol=1e-9),
                f"{at}.factor",
                self.factor,
                f"conflicts with maximum_length / original_length = {self.maximum_length} / {self.original_length}"
                f" = {implied:g}; drop one of the three",
            )
        if self.rule == "dynamic_ntk":
            require(
                self.original_length is not None, f"{at}.original_length", None, "dynamic_ntk needs the training length"
            )
            require(
                self.length is not None,
                f"{at}.length",
                None,
                "dynamic_ntk needs the current length, fixed when decoding starts",
            )
        else:
            require(self.stretch >= 1.0, f"{at}.factor", self.stretch, "must be at least 1")
        if self.rule in ("yarn", "llama3"):
            require(
                self.original_length is not None,
                f"{at}.original_length",
                None,
                f"{self.rule} needs the training length",
            )
        require(
            self.beta_fast >= self.beta_slow > 0,
            f"{at}.beta_fast",
            self.beta_fast,
            f"must be at least beta_slow = {self.beta_slow}, both above 0",
        )
        require(
            self.high_frequency_factor > self.low_frequency_factor > 0,
            f"{at}.high_frequency_factor",
            self.high_frequency_factor,
            f"must be above low_frequency_factor = {self.low_frequency_factor}, both above 0",
        )
        require(
            (self.mscale is None) == (self.mscale_all_dim is None),
            f"{at}.mscale",
            self.mscale,
            "set mscale and mscale_all_dim together, or neither",
        )
        require(
            self.attention_factor is None or self.mscale is None,
            f"{at}.attention_factor",
            self.attention_factor,
            "conflicts with mscale and mscale_all_dim; keep one of the two ways",
        )

    @property
    def stretch(self) -> float:
        """The factor s: given, or maximum_length / original_length. 1.0 for rule "none"; dynamic_ntk defaults to 1."""
        if self.factor is not None:
            return float(self.factor)
        if self.original_length and self.maximum_length:
            return self.maximum_length / self.original_length
        if self.rule in ("none", "dynamic_ntk"):
            return 1.0
        raise UsageError(f"scaling.factor = None: {self.rule} needs factor, or original_length and maximum_length")


@dataclass(frozen=True)
class Rotary:
    """The rotation R_t of a head: R_t = blockdiag_m Rot(alpha t w_m) with w_m = base^(-2m / dims), then scaled."""

    base: float = 10_000.0
    dims: int | None = None
    """How many leading channels of the head turn, an even number; the rest pass unturned. None: all of them."""
    pairing: Literal["half", "interleaved"] = "half"
    """Which channels form pair m: (m, m + dims/2) for half, (2m, 2m + 1) for interleaved."""
    alpha: float = 1.0
    """Multiplies every angle. On values, 0 is exactly RoPE and 1 is RoVE."""
    scaling: Scaling = Scaling()

    def __post_init__(self) -> None:
        require(self.base > 1, "rotary.base", self.base, "must be above 1")
        require(
            self.dims is None or (self.dims >= 0 and self.dims % 2 == 0),
            "rotary.dims",
            self.dims,
            "must be an even number of channels",
        )
        require_choice("rotary.pairing", self.pairing, Literal["half", "interleaved"])
        require(0.0 <= self.alpha <= 1.0, "rotary.alpha", self.alpha, "must lie in [0, 1]")

    def turned(self, head_dim: int) -> int:
        """How many of `head_dim` channels turn; raises if the spec does not fit the head."""
        dims = head_dim if self.dims is None else self.dims
        require(dims % 2 == 0, "rotary.dims", dims, f"head_dim {head_dim} is odd; set dims to an even number")
        require(dims <= head_dim, "rotary.dims", dims, f"exceeds head_dim = {head_dim}")
        return dims
