"""Several prepared corpora read as one, each by its weight: whose turn it is, is computed and never drawn.

Of any first n examples the corpus of the largest weight w has round(n w); of the others' share of n, the next one has
its rounded share, and so on. So every corpus has n times its weight but for rounding: less than 1 away with up to three
corpora, less than 1.5 with up to ten. What a corpus gets, it deals by `order.records` as if it were alone, and starts
its next epoch when its windows are used up.
"""

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from rove_jax import storage
from rove_jax.config import Data, fingerprint
from rove_jax.data import prepared
from rove_jax.data.prepared import Document, Documents, Prepared, Windows
from rove_jax.errors import UsageError


def deal(examples: np.ndarray, weights: Sequence[Fraction]) -> tuple[np.ndarray, np.ndarray]:
    """Which corpus each example is from, and how many before it were: two arrays int64 of the shape of `examples`.

    examples: integers >= 0, numbered from the start of the run. weights: exact, above 0, 1 in all.
    """
    whose = np.zeros(np.shape(examples), np.int64)
    number = np.zeros(np.shape(examples), np.int64)
    unclaimed = np.ones(np.shape(examples), bool)
    # Python's integers: their products are exact at any size.
    before, left = np.asarray(examples).astype(object), Fraction(1)
    for corpus in by_weight(weights):
        share = weights[corpus] / left
        mine, then = rounded(before, share), rounded(before + 1, share)
        taken = unclaimed & (then > mine)
        whose[taken], number[taken] = corpus, mine[taken].astype(np.int64)
        unclaimed &= ~taken
        before, left = before - mine, left - weights[corpus]
    return whose, number


def counts(examples: int, weights: Sequence[Fraction]) -> list[int]:
    """How many of the first `examples` examples each corpus has."""
    found, left, share = [0] * len(weights), examples, Fraction(1)
    for corpus in by_weight(weights):
        found[corpus] = int(rounded(left, weights[corpus] / share))
        left, share = left - found[corpus], share - weights[corpus]
    return found


def rounded(numbers: Any, share: Fraction) -> Any:
    """`numbers` times `share` to the nearest integer, halves up."""
    return (2 * numbers * share.numerator + share.denominator) // (2 * share.denominator)


def by_weight(weights: Sequence[Fraction]) -> list[int]:
    """Corpora from the largest weight on, equal ones in their order: so rounding adds up least."""
    return sorted(range(len(weights)), key=lambda corpus: (-weights[corpus], corpus))


class Mixture(Prepared):
    """Prepared corpora and their weights, as one dataset. `path` lists their folders."""

    def __init__(self, corpora: Sequence[Prepared], weights: Sequence[Fraction]) -> None:
        self.corpora, self.weights = corpora, weights
        parts = [
            {"path": str(corpus.path), "weight": str(weight), "fingerprint": corpus.fingerprint}
            for corpus, weight in zip(corpora, weights)
        ]
        splits = {
            split: {name: sum(corpus.manifest["splits"][split][name] for corpus in corpora) for name in counted}
            for split, counted in corpora[0].manifest["splits"].items()
        }
        identity = [[part["fingerprint"], part["weight"]] for part in parts]
        shared = ("tokenizer", "tokenizer_identity", "vocab", "eot", "token_dtype", "context_length")
        manifest = {name: corpora[0].manifest[name] for name in shared}
        manifest |= {"mixture": parts, "splits": splits, "fingerprint": fingerprint(["mixture", identity])}
        super().__init__(Path("+".join(part["path"] for part in parts)), manifest)

    def windows(self, split: str) -> "MixedWindows":
        return MixedWindows([corpus.windows(split) for corpus in self.corpora], self.weights)

    def documents(self, split: str) -> "MixedDocuments":
        """The documents of all corpora, one corpus after the other."""
        return MixedDocuments([corpus.documents(split) for corpus in self.corpora])

    def about(self, examples: int) -> str:
        shares = counts(examples, self.weights)
        return "; ".join(
            f"{float(weight):.3g} of {corpus.about(share)}"
            for corpus, weight, share in zip(self.corpora, self.weights, shares)
        )


class MixedWindows(Windows):
    """The windows of several corpora, one corpus after the other; `places` and `spread` go by the weights."""

    def __init__(self, parts: Sequence[Windows], weights: Sequence[Fraction]) -> None:
        self.parts, self.weights = parts, weights
        self.length = parts[0].length
        self.starts = np.cumsum([0] + [len(part) for part in parts])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def places(self, examples: np.ndarray, seed: int) -> np.ndarray:
        whose, number = deal(examples, self.weights)
        result = np.empty_like(number)
        for corpus, part in enumerate(self.parts):
            mine = whose == corpus
            result[mine] = self.starts[corpus] + part.places(number[mine], seed)
        return result

    def spread(self, count: int) -> np.ndarray:
        shares = counts(count, self.weights)
        return np.concatenate([start + part.spread(n) for start, part, n in zip(self.starts, self.parts, shares)])

    def rows(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        indices = np.asarray(indices, np.int64)
        if ((indices < 0) | (indices >= len(self))).any():
            raise IndexError(f"a window outside [0, {len(self)})")
        whose = np.searchsorted(self.starts, indices, side="right") - 1
        rows = np.empty((len(indices), self.length), np.int32)
        for corpus, part in enumerate(self.parts):
            mine = whose == corpus
            rows[mine] = part.rows(indices[mine] - self.starts[corpus])
        return rows


class MixedDocuments(Documents):
    """The documents of several corpora by index."""

    def __init__(self, parts: Sequence[Documents]) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def lengths(self) -> np.ndarray:
        return np.concatenate([part.lengths() for part in self.parts])

    def __getitem__(self, index: int) -> Document:
        for part in self.parts:
            if 0 <= index < len(part):
                return part[index]
            index -= len(part)
        raise IndexError("no such document")


def load(data: Data) -> Mixture:
    """Open the folders of `data.mixture`. Raises `UsageError` for one that is missing or damaged, has
    another tokenizer than the first, or is the same as another, by whatever path."""
    weights = data.weights()
    corpora = [prepared.load(storage.place(folder), data) for folder in weights]
    first, met = corpora[0], {}
    for corpus in corpora:
        other = met.setdefault(corpus.fingerprint, corpus)
        if other is not corpus:
            raise UsageError(f"data.mixture: {corpus.path} has the records of {other.path}; name one, weights added up")
        if corpus.manifest["tokenizer_identity"] != first.manifest["tokenizer_identity"]:
            raise UsageError(f"data.mixture: {corpus.path} was prepared with another tokenizer than {first.path}")
    return Mixture(corpora, list(weights.values()))
