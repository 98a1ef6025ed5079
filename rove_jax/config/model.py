"""The settings of a model: what is rotated, sizes, and how it is computed."""

import dataclasses
from dataclasses import dataclass
from typing import Literal

from rove_jax.config.rotation import Rotary, Scaling
from rove_jax.errors import UsageError, require, require_choice

Variant = Literal["nope", "rope", "rove", "custom"]
Backend = Literal["auto", "xla", "cudnn", "chunked"]


@dataclass(frozen=True)
class Model:
    """A GPT-2-style decoder without learned positions. Presets: `rove_jax.models.presets`."""

    variant: Variant = "rove"
    """What is rotated: nope nothing, rope q and k, rove q, k, v and back, custom by `rotary` and `value_rotary`."""
    layers: int = 4
    width: int = 128
    """D, channels of the residual stream."""
    query_heads: int = 2
    """N."""
    kv_heads: int = 2
    """K; divides query_heads."""
    head_dim: int = 64
    """H."""
    mlp_width: int = 512
    """F."""
    vocab: int = 257
    """V, tokens that exist (the tokenizer's count)."""
    vocab_multiple: int = 64
    """The embedding table is padded to a multiple of this; padded rows take no part in loss, scores or sampling."""
    bias: bool = True
    dropout: float = 0.0
    """On embeddings and on both residual branches; attention weights have none (fused kernels)."""
    norm_epsilon: float = 1e-5
    rotary: Rotary = Rotary()
    """Rotation of queries and keys (and, for rove, of values)."""
    value_rotary: Rotary = Rotary()
    """Rotation of values; read by variant custom only."""
    window: int | None = None
    """A query sees this many latest positions, itself included. None: all earlier ones."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of activations and products; parameters, softmax, norms, logits and losses are float32."""
    scan_layers: bool = False
    """One compiled layer looped over (compiles fast), or layers unrolled (runs faster). Same parameters."""
    remat: Literal["none", "dots", "full"] = "none"
    """What the backward pass recomputes: nothing, all but products with weights, everything in a layer."""
    attention: Backend = "auto"

    def __post_init__(self) -> None:
        require_choice("model.variant", self.variant, Variant)
        require_choice("model.dtype", self.dtype, Literal["float32", "bfloat16"])
        require_choice("model.remat", self.remat, Literal["none", "dots", "full"])
        require_choice("model.attention", self.attention, Backend)
        for name in ("layers", "width", "query_heads", "kv_heads", "head_dim", "mlp_width", "vocab", "vocab_multiple"):
            require(getattr(self, name) >= 1, f"model.{name}", getattr(self, name), "must be at least 1")
        require(
            self.query_heads % self.kv_heads == 0,
            "model.kv_heads",
            self.kv_heads,
            f"must divide query_heads = {self.query_heads}",
        )
        require(0.0 <= self.dropout < 1.0, "model.dropout", self.dropout, "must lie in [0, 1)")
        require(self.norm_epsilon > 0, "model.norm_epsilon", self.norm_epsilon, "must be above 0")
        require(self.window is None or self.window >= 1, "model.window", self.window, "must be at least 1")
        if self.variant != "custom" and self.value_rotary != Rotary():
            raise UsageError(
                f"model.value_rotary: variant {self.variant} does not read it; set model.variant to custom, or change "
                "model.rotary"
            )
        if self.variant == "nope" and self.rotary != Rotary():
            raise UsageError("model.rotary: variant nope rotates nothing; set model.variant to rope or rove")
        for rotary in self.rotations:
            if rotary is not None:
                rotary.turned(self.head_dim)

    @property
    def rotations(self) -> tuple[Rotary | None, Rotary | None]:
        """(rotation of q and k, rotation of values), None where nothing turns. The one table of variants."""
        return {
            "nope": (None, None),
            "rope": (self.rotary, None),
            "rove": (self.rotary, self.rotary),
            "custom": (self.rotary, self.value_rotary),
        }[self.variant]

    @property
    def padded_vocab(self) -> int:
        return -(-self.vocab // self.vocab_multiple) * self.vocab_multiple

    def with_scaling(self, scaling: Scaling, *, values: bool = True) -> "Model":
        """The same model with its frequencies scaled, the only change evaluation may make.

        `values`: those of values too, as in the paper; else they keep the frequencies they were trained with.
        """
        rotary, value_rotary = self.rotations
        if rotary is None:
            return self
        scaled = dataclasses.replace(self, rotary=dataclasses.replace(rotary, scaling=scaling))
        if value_rotary is None or (values and self.variant == "rove"):
            return scaled
        value_rotary = dataclasses.replace(value_rotary, scaling=scaling) if values else value_rotary
        return dataclasses.replace(scaled, variant="custom", value_rotary=value_rotary)
