"""The settings of a model: what is rotated, sizes, and how it is computed."""

import dataclasses
from dataclasses import dataclass
from typing import Literal

from rove_jax.config.rotation import Rotary, Scaling
from rove_jax.errors import UsageError, require, require_choice

Variant = Literal[
    "nope", "rope", "rove", "custom", "vo", "absolute_q", "absolute_k", "absolute_v", "absolute_o", "absolute_qkv"
]
Remat = Literal["none", "dots", "full", "offload"]
Backend = Literal["auto", "xla", "cudnn", "chunked", "splash"]

TURNS: dict[str, str] = {
    "nope": "",
    "rope": "qk",
    "rove": "qkvo",
    "custom": "qkvo",
    "vo": "vo",
    # Ablations in which absolute positions leak: nothing is promised beyond the training length.
    "absolute_q": "q",
    "absolute_k": "k",
    "absolute_v": "v",
    "absolute_o": "o",
    "absolute_qkv": "qkv",
}
"""What turns in each variant: queries, keys, values, and outputs (back). The nine patterns of Su's table
(kexue.fm/archives/10862), and custom, in which values have a rotation of their own."""


@dataclass(frozen=True)
class Model:
    """A GPT-2-style decoder without learned positions. Presets: `rove_jax.models.presets`."""

    variant: Variant = "rove"
    """What is rotated: nope nothing, rope q and k, rove q, k, v and back, custom by `rotary` and `value_rotary`;
    for ablations: vo values and back, absolute_* the letters in the name."""
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
    """Rotation of queries and keys and, but for custom, of values."""
    value_rotary: Rotary = Rotary()
    """Rotation of values; read by variant custom only."""
    window: int | None = None
    """A query sees this many latest positions, itself included. None: all earlier ones."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of activations and products; parameters, softmax, norms, logits and losses are float32."""
    scan_layers: bool = False
    """One compiled layer looped over (compiles fast), or layers unrolled (runs faster). Same parameters."""
    remat: Remat = "none"
    """What the backward pass recomputes: nothing, all but products with weights, everything in a layer; or all but
    those products, which wait in the memory of the host (TPU and GPU)."""
    attention: Backend = "auto"

    def __post_init__(self) -> None:
        require_choice("model.variant", self.variant, Variant)
        require_choice("model.dtype", self.dtype, Literal["float32", "bfloat16"])
        require_choice("model.remat", self.remat, Remat)
        require_choice("model.attention", self.attention, Backend)
        for name in ("layers", "width", "query_heads", "kv_heads", "head_dim", "mlp_width", "vocab", "vocab_multiple"):
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool)
            require(whole and value >= 1, f"model.{name}", value, "must be a whole number, at least 1")
        require(
            self.query_heads % self.kv_heads == 0,
            "model.kv_heads",
            self.kv_heads,
            f"must divide query_heads = {self.query_heads}",
        )
        require(0.0 <= self.dropout < 1.0, "model.dropout", self.dropout, "must lie in [0, 1)")
        require(self.norm_epsilon > 0, "model.norm_epsilon", self.norm_epsilon, "must be above 0")
        window = self.window is None or (isinstance(self.window, int) and self.window >= 1)
        require(window and self.window is not True, "model.window", self.window, "must be a whole number, at least 1")
        if self.variant != "custom" and self.value_rotary != Rotary():
            raise UsageError(
                f"model.value_rotary: variant {self.variant} does not read it; set model.variant to custom, or change "
                "model.rotary"
            )
        if not self.turns and self.rotary != Rotary():
            raise UsageError("model.rotary: variant nope rotates nothing; set model.variant to rope or rove")
        for rotary in self.rotations:
            if rotary is not None:
                rotary.turned(self.head_dim)

    @property
    def rotations(self) -> tuple[Rotary | None, Rotary | None]:
        """(rotation of q and k, rotation of values and outputs), None where nothing turns. See `TURNS`."""
        values = self.value_rotary if self.variant == "custom" else self.rotary
        return (
            self.rotary if set("qk") & set(self.turns) else None,
            values if set("vo") & set(self.turns) else None,
        )

    @property
    def turns(self) -> str:
        """Which of q, k, v and the output o turn."""
        return TURNS[self.variant]

    @property
    def padded_vocab(self) -> int:
        return -(-self.vocab // self.vocab_multiple) * self.vocab_multiple

    def with_scaling(self, scaling: Scaling, *, values: bool = True) -> "Model":
        """The same model with its frequencies scaled, the only change evaluation may make.

        `values`: those of values too, as in the paper; else they keep the frequencies they were trained with.
        """
        rotary, value_rotary = self.rotations
        if rotary is None and (value_rotary is None or not values):
            return self
        scaled = dataclasses.replace(self, rotary=dataclasses.replace(self.rotary, scaling=scaling))
        if value_rotary is None or (values and self.variant != "custom"):
            return scaled
        require(self.turns == "qkvo", "model.variant", self.variant, "scales the frequencies of values with the rest")
        value_rotary = dataclasses.replace(value_rotary, scaling=scaling) if values else value_rotary
        return dataclasses.replace(scaled, variant="custom", value_rotary=value_rotary)
