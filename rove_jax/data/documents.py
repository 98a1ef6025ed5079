"""What a source of text is: documents before they are tokenized, each on the side of training or of validation."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple, Protocol

Split = Literal["train", "validation"]
LONG = 16_384
"""Tokens from which a document is a long one, which evaluation at long contexts looks for."""


class Text(NamedTuple):
    """One document before it is tokenized."""

    split: Split
    id: str
    text: str


class Damage(NamedTuple):
    """Something in place of documents that cannot be had: where it lies, and what is wrong with it."""

    where: str
    what: str


class Unit(NamedTuple):
    """A piece of a source whose documents are read, and packed into windows, without knowing of any other piece."""

    name: str
    bytes: int
    """About how much text there is, in UTF-8."""


class Source(Protocol):
    """What preparation knows of a source. It can be pickled if it has more than one unit."""

    name: str
    units: Sequence[Unit]
    whole_from: int
    """Documents are kept whole, beside the windows, if they validate or have so many tokens."""

    def documents(self, unit: int = 0) -> Iterator[Text | Damage]:
        """Every document of a unit once, always in the same order."""
        ...

    def fingerprint(self) -> str:
        """SHA-256 of all that decides what `documents` yields, as found on the disk."""
        ...


def size(source: Source) -> int:
    """About how much text a source has, in bytes of UTF-8."""
    return sum(unit.bytes for unit in source.units)


def digest(documents: Iterable[Text]) -> str:
    """SHA-256 of documents in order: split, id and text, each after its length."""
    result = hashlib.sha256()
    for document in documents:
        for part in document:
            content = part.encode("utf-8", "surrogatepass")
            result.update(len(content).to_bytes(8, "little") + content)
    return result.hexdigest()
