"""What a perplexity is taken over: which documents, cut into which windows, under which frequency scaling.

A window of length T is what a training record is: T tokens go in, T tokens are predicted. Nothing stands for free
before a document but the end-of-text token, which precedes it in the training stream too; so every token of a document
is predicted, the first one from end-of-text alone, and no token twice. `prefix` names the other two conventions.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from rove_jax.config import Model, Scaling, ScalingRule
from rove_jax.data.prepared import Document, Documents
from rove_jax.errors import UsageError, require, require_choice

Mode = Literal["same_text", "first_n", "nonoverlap", "sliding"]
Prefix = Literal["document", "window", "none"]
Split = Literal["train", "validation", "all"]


@dataclass(frozen=True)
class Protocol:
    """How perplexity is measured. Two results compare only if their protocols and their documents are the same."""

    lengths: tuple[int, ...]
    """Context lengths T in tokens."""
    scalings: tuple[ScalingRule, ...] = ("none",)
    """Frequency scalings, each with factor T / training length; none of them acts up to the training length."""
    value_scaling: Literal["same", "none"] = "same"
    """Whether values are scaled like queries and keys (the paper's way), or keep the frequencies of training."""
    mode: Mode = "same_text"
    """same_text: the first M tokens of documents that have as many, M being the largest T, in windows of T: the same
    tokens are scored at every length. first_n: the first T tokens of those documents, one window each. nonoverlap:
    whole documents in windows of T. sliding: whole documents, windows of T every `stride` tokens."""
    stride: int | None = None
    """sliding: each window after the first scores this many new tokens. None: T / 2."""
    documents: int = 10
    """How many documents of the split, chosen by `choose`."""
    text: str | None = None
    """Instead of the run's own data: a prepared folder, a file or folder of text, tfds:NAME or tfds:NAME@DATA_DIR."""
    split: Split = "validation"
    prefix: Prefix = "document"
    """What stands before a window. document: end-of-text before a document, and before a later window the token that
    precedes it. window: end-of-text before every window, as in the YaRN authors' script (which counts it as one of the
    window's tokens: its 256 is 255 here). none: nothing, and the first token of a document is not scored."""

    def __post_init__(self) -> None:
        require(bool(self.lengths), "lengths", self.lengths, "name at least one context length")
        for length in self.lengths:
            require(length >= 2, "lengths", length, "must be at least 2 tokens")
        require(len(set(self.lengths)) == len(self.lengths), "lengths", self.lengths, "must differ from each other")
        require(bool(self.scalings), "scaling", self.scalings, "name at least one scaling rule")
        for rule in self.scalings:
            require_choice("scaling", rule, ScalingRule)
        require(len(set(self.scalings)) == len(self.scalings), "scaling", self.scalings, "must differ from each other")
        require_choice("value_scaling", self.value_scaling, Literal["same", "none"])
        require_choice("mode", self.mode, Mode)
        require_choice("prefix", self.prefix, Prefix)
        require_choice("split", self.split, Split)
        require(self.documents >= 1, "documents", self.documents, "must be at least 1")
        require(
            self.stride is None or self.mode == "sliding",
            "stride",
            self.stride,
            "is read by mode sliding only; remove it",
        )
        shortest = min(self.lengths)
        require(
            self.stride is None or 1 <= self.stride <= shortest,
            "stride",
            self.stride,
            f"must be from 1 to the shortest length, {shortest}, or tokens would be left out",
        )


class Window(NamedTuple):
    """Tokens [start, stop) of a text are predicted; the last `scored` of them count."""

    start: int
    stop: int
    scored: int


def windows(tokens: int, length: int, protocol: Protocol) -> list[Window]:
    """The windows of a text of `tokens` tokens. Their `scored` add up to as many as the mode reads."""
    if protocol.mode == "first_n":
        return [Window(0, length, length)]
    if protocol.mode == "same_text":
        tokens = max(protocol.lengths)
    stride = (protocol.stride or length // 2) if protocol.mode == "sliding" else length
    found: list[Window] = []
    start = scored = 0
    while scored < tokens:
        stop = min(start + length, tokens)
        found.append(Window(start, stop, stop - scored))
        start, scored = start + stride, stop
    return found


def sequences(tokens: np.ndarray, length: int, protocol: Protocol, eot: int) -> list[tuple[Window, np.ndarray]]:
    """Each window of a document with its token sequence: one token of context, then the tokens to predict."""
    before, text = (tokens[0], tokens[1:]) if protocol.prefix == "none" else (eot, tokens)
    found = []
    for window in windows(len(text), length, protocol):
        inside = window.start > 0 and protocol.prefix != "window"
        first = text[window.start - 1] if inside else before
        found.append((window, np.concatenate([[first], text[window.start : window.stop]]).astype(np.int32)))
    return found


class Together:
    """The documents of several splits, one after another."""

    def __init__(self, *parts: Documents) -> None:
        self.parts = parts

    def lengths(self) -> list[int]:
        """Tokens of each."""
        return [length for part in self.parts for length in part.lengths()]

    def __getitem__(self, place: int) -> Document:
        for part in self.parts:
            if place < len(part):
                return part[place]
            place -= len(part)
        raise IndexError(place)


def choose(documents: Documents | Together | Sequence[Document], protocol: Protocol) -> list[Document]:
    """The documents to measure on: the first that are long enough, in an order fixed by the hash of their place.

    The choice depends on the data and the protocol alone, so every model is measured on the same documents; it spreads
    over the split, and asking for more documents keeps the ones chosen before.

    Raises:
        UsageError: no document is long enough.
    """
    unscored = 1 if protocol.prefix == "none" else 0
    needed = (max(protocol.lengths) if protocol.mode in ("same_text", "first_n") else 1) + unscored
    known = isinstance(documents, Documents | Together)
    lengths = documents.lengths() if known else [len(document.tokens) for document in documents]
    long_enough = [place for place, length in enumerate(lengths) if length >= needed]
    if not long_enough:
        where = protocol.text if protocol.split == "all" else protocol.split
        raise UsageError(
            f"lengths = {max(protocol.lengths)}: no {where} document has {needed} tokens "
            f"(the longest has {max(lengths, default=0)}); choose shorter lengths or mode nonoverlap"
        )
    order = sorted(long_enough, key=lambda place: hashlib.sha256(str(place).encode()).digest())
    return [documents[place] for place in sorted(order[: protocol.documents])]


def scaled(cfg: Model, rule: ScalingRule, *, training_length: int, length: int, values: bool = True) -> Model:
    """`cfg` as it reads `length` tokens under `rule`: the factor is length / training_length, and 1, so `cfg` itself,
    up to the training length. `values`: rotations of values are scaled too.

    Raises:
        UsageError: the model was trained with a scaling of its own, which `rule` would replace.
    """
    if rule == "none" or length <= training_length:
        return cfg
    trained = cfg.rotary.scaling.rule
    require(trained == "none", "scaling", rule, f"the model was trained with {trained} scaling; only none is possible")
    if rule == "dynamic_ntk":
        scaling = Scaling(rule, original_length=training_length, length=length)
    else:
        scaling = Scaling(rule, factor=length / training_length, original_length=training_length)
    return cfg.with_scaling(scaling, values=values)
