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

POSITIVE = (
    *("factor", "original_length", "maximum_length", "length", "attention_factor"),
    *("beta_fast", "beta_slow", "low_frequency_factor", "high_frequency_factor"),
)


@dataclass(frozen=True)
class Scaling:
    """How rotation frequencies are stretched for contexts longer than the training one. Formulas: `scaling.py`.

    `factor`, `original_length` and `maximum_length` say one thing twice; give what the rule needs, or all three if
    they agree (`factor = maximum_length / original_length`).
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
        require_choice("scaling.rule", self.rule, ScalingRule)
        for name in POSITIVE:
            value = getattr(self, name)
            self.check(value is None or 0 < value < math.inf, name, "must be above 0 and finite")
        for name in ("mscale", "mscale_all_dim"):
            value = getattr(self, name)
            self.check(value is None or 0 <= value < math.inf, name, "must be at least 0 and finite")
        for f in dataclasses.fields(self):
            idle = getattr(self, f.name) != f.default and f.name not in {"rule", *SCALING_FIELDS[self.rule]}
            self.check(not idle, f.name, f"rule {self.rule!r} does not read it; remove it")
        if self.rule in ("yarn", "llama3", "dynamic_ntk"):
            self.check(self.original_length is not None, "original_length", f"{self.rule} needs the training length")
        if self.rule == "dynamic_ntk":
            self.check(self.length is not None, "length", "needed: the current length, fixed when decoding starts")
        elif self.factor and self.original_length and self.maximum_length:
            implied = self.maximum_length / self.original_length
            both = f"maximum_length / original_length = {self.maximum_length} / {self.original_length} = {implied:g}"
            rule = f"conflicts with {both}; drop one of the three"
            self.check(math.isclose(implied, self.factor, rel_tol=1e-9), "factor", rule)
        self.check(self.stretch >= 1.0, "factor", "must be at least 1")
        self.check(self.beta_fast >= self.beta_slow > 0, "beta_fast", f"must be at least beta_slow, {self.beta_slow}")
        low = self.low_frequency_factor
        self.check(self.high_frequency_factor > low > 0, "high_frequency_factor", f"must be above the low one, {low}")
        pair = (self.mscale is None) == (self.mscale_all_dim is None)
        self.check(pair, "mscale", "set mscale and mscale_all_dim together, or neither")
        twice = self.attention_factor is not None and self.mscale is not None
        self.check(not twice, "attention_factor", "conflicts with mscale and mscale_all_dim; keep one of the two ways")

    def check(self, condition: bool, name: str, rule: str) -> None:
        """Raise `UsageError` naming field `name` and its value unless `condition` holds."""
        require(condition, f"scaling.{name}", getattr(self, name), rule)

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
        require(1 < self.base < math.inf, "rotary.base", self.base, "must be above 1 and finite")
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
        require(dims % 2 == 0, "head_dim", dims, "is odd; make it even, or set rotary.dims to an even number below it")
        require(dims <= head_dim, "rotary.dims", dims, f"exceeds head_dim = {head_dim}")
        return dims
