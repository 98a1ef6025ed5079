"""Random draws that are the same on every machine and in every version of Python."""

import hashlib
import random
from collections.abc import Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")


class Draw:
    """A stream of draws that the words of its key decide.

    It stands on `random.Random(int).random()` alone, the one part of `random` whose sequence Python promises to keep.
    """

    def __init__(self, *key: str | int) -> None:
        self.key = key
        digest = hashlib.sha256("\0".join(map(str, key)).encode()).digest()
        self.fraction = random.Random(int.from_bytes(digest, "big")).random
        """Draws a float in [0, 1)."""

    def apart(self, *key: str | int) -> "Draw":
        """Another stream, which does not depend on how much was drawn from this one."""
        return Draw(*self.key, *key)

    def below(self, n: int) -> int:
        """An integer from 0 to n - 1."""
        return int(self.fraction() * n)

    def choice(self, items: Sequence[T]) -> T:
        """One of the items."""
        return items[self.below(len(items))]

    def sample(self, items: Iterable[T], count: int) -> list[T]:
        """`count` different ones of the items, in random order."""
        left = list(items)
        for place in range(count):
            other = place + self.below(len(left) - place)
            left[place], left[other] = left[other], left[place]
        return left[:count]

    def shuffled(self, items: Iterable[T]) -> list[T]:
        """All the items, in random order."""
        left = list(items)
        return self.sample(left, len(left))
