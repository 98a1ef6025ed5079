"""What a source of text is: documents before they are tokenized, each on the side of training or of validation."""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple, Protocol

Split = Literal["train", "validation"]


class Text(NamedTuple):
    """One document before it is tokenized."""

    split: Split
    id: str
    text: str


class Source(Protocol):
    """What preparation knows of a source."""

    name: str
    bytes: int
    """About how much text there is, in UTF-8."""

    def __len__(self) -> int:
        """How many documents `documents` yields."""
        ...

    def documents(self) -> Iterator[Text]:
        """Every document once, always in the same order, validation documents last."""
        ...

    def fingerprint(self) -> str:
        """SHA-256 of all that decides what `documents` yields, read from the disk each time."""
        ...


def digest(documents: Iterable[Text]) -> str:
    """SHA-256 of documents in order: split, id and text, each after its length."""
    result = hashlib.sha256()
    for document in documents:
        for part in document:
            content = part.encode("utf-8", "surrogatepass")
            result.update(len(content).to_bytes(8, "little") + content)
    return result.hexdigest()
