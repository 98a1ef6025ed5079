"""Variable tracking: a chain of assignments among lines of noise; which variables have the value?"""

import string
from dataclasses import dataclass

from rove_jax.data.draws import Draw
from rove_jax.evaluation.ruler import words
from rove_jax.evaluation.ruler.item import NOISE, Item, Material

TEMPLATE = (
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n{context}\n"
    "Question: Find all variables that are assigned the value {query} in the text above."
    " Answer: According to the chain(s) of variable assignment in the text above, {count} variables are assigned the "
    "value {query}, they are: "
)
SMALL_TEMPLATE = "{context}\nVariables with value {query}:"
EXAMPLE_TOKENS = 500
"""Most tokens of the example before the question, where five lines of noise do not have more."""


@dataclass(frozen=True)
class Variables:
    """A task of this family."""

    hops: int = 4
    small: bool = False
    """No example, short lines, names of two letters."""
    tokens: int = 30

    @property
    def least(self) -> int:
        """Fewest lines of noise."""
        return 1 if self.small else self.hops + 1

    def most(self, material: Material) -> int:
        """Noise has no end."""
        return 2**24

    def item(self, material: Material, draw: Draw, index: int, units: int, length: int) -> Item:
        """See `Generator`."""
        names = self.names(draw, self.hops + 1, 2 if self.small else 5)
        value = words.number(draw, 5)
        places = sorted(draw.fraction() for _ in names)
        wrong = self.names(draw.apart("wrong"), len(names), len(names[0]), avoid=names)
        example = "" if self.small else self.example(material, draw.apart("example"))
        template = SMALL_TEMPLATE if self.small else example + TEMPLATE

        def framed(chain: list[str]) -> str:
            context = self.context(chain, places, units)
            return template.format(context=context, query=value, count=len(names))

        return Item(
            prompt=framed(self.chain(names, value)),
            outputs=tuple(names),
            references=(" ".join(names),),
            distractor=" ".join(wrong),
            present=False,
            floor=framed([]),
        )

    def names(self, draw: Draw, count: int, size: int, avoid: list[str] = []) -> list[str]:  # noqa: B006, only read
        """Different names of capital letters."""
        found: list[str] = []
        while len(found) < count:
            name = words.letters(draw, size, string.ascii_uppercase)
            if name not in found and name not in avoid and name != "VAR":
                found.append(name)
        return found

    def chain(self, names: list[str], value: str) -> list[str]:
        """The assignments, from the number on."""
        end = "" if self.small else " "  # RULER's lines end so
        return [f"VAR {names[0]} = {value}"] + [f"VAR {a} = VAR {b}{end}" for b, a in zip(names, names[1:])]

    def context(self, chain: list[str], places: list[float], units: int) -> str:
        """The lines of the chain, in order, among `units` lines of noise, at least one of them between any two."""
        found, before = [], 0
        lines = [NOISE[line % 5] if self.small else " ".join(NOISE) for line in range(units)]
        for number, (place, line) in enumerate(zip(places, chain)):
            after = int(place * max(1, units - len(places) + 1)) + number  # all different, as RULER's sample is
            found += [*lines[before:after], line]
            before = after
        return "\n".join([*found, *lines[before:]])

    def example(self, material: Material, draw: Draw) -> str:
        """A question with its answer, in names of three letters: new names and a new value for every sample."""
        names, value = self.names(draw, self.hops + 1, 3), words.number(draw, 5)
        places = [(2 * step + 1) / (2 * len(names)) for step in range(len(names))]

        def written(units: int) -> str:
            context = self.context(self.chain(names, value), places, units)
            return TEMPLATE.format(context=context, query=value, count=len(names)) + " ".join(names) + "\n\n"

        units = self.hops + 1
        while material.count(written(units + 1)) <= EXAMPLE_TOKENS:
            units += 1
        return written(units)
