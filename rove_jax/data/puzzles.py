"""Generated texts whose answers take exact positions: a substring by its index, and addition.

After the tasks by which RoPER was measured (labml.ai 2022), where rotating values helped most. A document is a puzzle
with its answer; what a puzzle of a size is like does not depend on the other sizes.
"""

import string
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rove_jax.data.documents import LONG, Text, Unit, digest
from rove_jax.data.draws import Draw

SIZES = {"substring": range(3, 17), "addition": range(1, 4)}
"""Sizes in training and validation: letters of a string, digits of a number."""
QUESTIONS = {"substring": 8, "addition": 4}
"""Of a document."""
LETTERS = 3
"""Of a substring."""
COUNTS = {"train": 100_000, "validation": 500}


class Puzzle(NamedTuple):
    """A question with its answer."""

    prompt: str
    answer: str


def puzzles(kind: str, size: int, draw: Draw, count: int) -> list[Puzzle]:
    """Questions of one size. Substrings are all of one string, and each prompt begins with it.

    `[kqzvbt]2=zvb`: the letters from index 2, counted from 0. `[12+405=417`: numbers of up to `size` digits.
    """
    if kind == "substring":
        text = "".join(draw.choice(string.ascii_lowercase) for _ in range(size))
        places = [draw.below(size - LETTERS + 1) for _ in range(count)]
        return [Puzzle(f"[{text}]{place}=", text[place : place + LETTERS]) for place in places]
    found = []
    for _ in range(count):
        left, right = (draw.below(10 ** (1 + draw.below(size))) for _ in range(2))
        found.append(Puzzle(f"[{left}+{right}=", str(left + right)))
    return found


def written(kind: str, found: Sequence[Puzzle]) -> str:
    """A document: the string once and its questions one after another, or sums one after another."""
    if kind == "substring":
        start = found[0].prompt.index("]") + 1
        return found[0].prompt[:start] + ",".join(one.prompt[start:] + one.answer for one in found)
    return "".join(f"{one.prompt}{one.answer}]" for one in found)


class Puzzles:
    """A source of generated documents, of sizes drawn evenly; the same on every machine."""

    whole_from = LONG

    def __init__(self, kind: str) -> None:
        self.name = kind
        self.units: Sequence[Unit] = [Unit(kind, 60 * sum(COUNTS.values()))]

    def documents(self, unit: int = 0) -> Iterator[Text]:
        for split in ("train", "validation"):
            draw = Draw(self.name, split)
            for index in range(COUNTS[split]):
                size = draw.choice(SIZES[self.name])
                found = puzzles(self.name, size, draw, QUESTIONS[self.name])
                yield Text(split, f"{split}-{index}", written(self.name, found))

    def fingerprint(self) -> str:
        return digest(self.documents())
