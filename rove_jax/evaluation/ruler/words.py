"""The words, numbers and identifiers that tasks are made of."""

import hashlib
import importlib.metadata
import importlib.util
import string
import uuid
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from rove_jax.data.draws import Draw
from rove_jax.errors import UsageError

PACKAGE, VERSION = "wonderwords", "3.0.1"
"""Its lists differ between versions, and the samples with them."""


@dataclass(frozen=True)
class Words:
    """The lists of the package `wonderwords`, in the order of its files."""

    nouns: tuple[str, ...]
    adjectives: tuple[str, ...]
    verbs: tuple[str, ...]

    @cached_property
    def every(self) -> list[str]:
        """All different ones, sorted."""
        return sorted({*self.nouns, *self.adjectives, *self.verbs})

    @cached_property
    def short(self) -> list[str]:
        """Those of three or four lower-case letters, for samples of few tokens."""
        return [
            word for word in self.every if word.isascii() and word.isalpha() and word.islower() and len(word) in (3, 4)
        ]

    @cached_property
    def identity(self) -> str:
        """SHA-256 of all the lists."""
        return hashlib.sha256(
            "\n\n".join("\n".join(part) for part in (self.nouns, self.adjectives, self.verbs)).encode()
        ).hexdigest()

    def pair(self, draw: Draw) -> str:
        """A key such as `tidy-lamp`: one of 6 million pairs of an adjective and a noun."""
        return f"{draw.choice(self.adjectives)}-{draw.choice(self.nouns)}"


def load() -> Words:
    """The lists, read from the package's files; its code is not run. Raises `UsageError` without the right version."""
    spec = importlib.util.find_spec(PACKAGE)
    found = importlib.metadata.version(PACKAGE) if spec else "nothing"
    if spec is None or not spec.submodule_search_locations or found != VERSION:
        raise UsageError(f"word lists: need {PACKAGE} {VERSION}, found {found}; pip install {PACKAGE}=={VERSION}")
    folder = Path(spec.submodule_search_locations[0]) / "assets"

    def lines(name: str) -> tuple[str, ...]:
        return tuple(line.strip() for line in (folder / name).read_text("utf-8").splitlines() if line.strip())

    return Words(lines("nounlist.txt"), lines("adjectivelist.txt"), lines("verblist.txt"))


def number(draw: Draw, digits: int = 7) -> str:
    """A number of so many digits, the first not 0."""
    return str(10 ** (digits - 1) + draw.below(9 * 10 ** (digits - 1)))


def identifier(draw: Draw) -> str:
    """A UUID of version 4: 122 random bits."""
    bits = 0
    for _ in range(4):
        bits = bits << 32 | draw.below(2**32)
    return str(uuid.UUID(int=bits, version=4))


def letters(draw: Draw, count: int, alphabet: str = string.ascii_lowercase) -> str:
    """So many random letters."""
    return "".join(draw.choice(alphabet) for _ in range(count))
