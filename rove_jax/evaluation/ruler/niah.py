"""Needles in a haystack: one or several statements in a long text that is about something else."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from rove_jax.data.draws import Draw
from rove_jax.evaluation.ruler import words
from rove_jax.evaluation.ruler.item import NOISE, Item, Material

Hay = Literal["noise", "essay", "needle"]
Kind = Literal["numbers", "words", "uuids"]

TEMPLATE = (
    "Some special magic {kind} are hidden within the following text. Make sure to memorize it. I will quiz you about "
    "the {kind} afterwards.\n{context}\n"
    "What are all the special magic {kind} for {query} mentioned in the provided text?"
    " The special magic {kind} for {query} mentioned in the provided text are"
)
NEEDLE = "One of the special magic {kind} for {key} is: {value}."
SMALL_TEMPLATE = "{context}\nThe magic {kind} for {query} are"
SMALL_NEEDLE = "The magic {kind} for {key} is {value}."
DEPTHS = tuple(round(100 * step / 39) / 100 for step in range(40))
"""Where needles lie in an essay."""


class Needle(NamedTuple):
    """A value under a key."""

    key: str
    value: str


@dataclass(frozen=True)
class Needles:
    """A task of this family."""

    haystack: Hay
    key: Kind = "words"
    value: Kind = "numbers"
    keys: int = 1
    values: int = 1
    """Of each key."""
    queries: int = 1
    """How many of the keys are asked for."""
    small: bool = False
    """Short words, numbers and statements, and no instructions."""
    tokens: int = 128

    @property
    def least(self) -> int:
        """Fewest lines or words of hay."""
        if self.small:
            return 1
        return 25 * self.keys * self.values if self.haystack == "essay" else self.keys * self.values

    def most(self, material: Material) -> int:
        """Lines, needles and words are repeated or drawn without end; short words are not."""
        if self.haystack == "needle" and self.small and self.key == "words":
            return len(material.words.short) // 2
        return 2**24

    def item(self, material: Material, draw: Draw, index: int, units: int, length: int) -> Item:
        """See `Generator`."""
        seen: set[str] = set()
        keys = [self.fresh(self.key, material, draw, seen) for _ in range(self.keys)]
        values = [[self.fresh(self.value, material, draw, seen) for _ in range(self.values)] for _ in keys]
        asked = draw.sample(range(self.keys), self.queries)
        wrong = [self.fresh(self.value, material, draw, seen) for _ in range(self.queries * self.values)]
        needles = [Needle(key, value) for key, part in zip(keys, values) for value in part]
        shuffled = Draw(42).shuffled(range(len(needles)))  # RULER shuffles them with one seed for all samples
        needles = [needles[place] for place in shuffled]
        depths = self.depths(draw, len(needles))
        outputs = [value for place in asked for value in values[place]]
        unasked = [value for place, part in enumerate(values) if place not in asked for value in part]
        hay_draw = draw.apart("hay")
        hay: list[str] = []
        if self.haystack == "needle":
            others = [
                Needle(*(self.fresh(kind, material, hay_draw, seen) for kind in (self.key, self.value)))
                for _ in range(units)
            ]
            hay = [self.written(needle) for needle in others]
            unasked = [others[draw.below(units)].value]
        elif self.haystack == "noise":
            hay = [NOISE[line % 5] if self.small else " ".join(NOISE) for line in range(units)]
        elif material.essay is not None:
            hay = material.essay.sentences(units)
        if len(asked) > 1:  # the same values in another order: right for none of the keys
            distractor, present = outputs[1:] + outputs[:1], True
        elif unasked:
            distractor, present = [draw.choice(unasked)], True
        else:
            distractor, present = wrong, False
        placed = list(zip(depths, needles))
        queried = {keys[place] for place in asked}
        left = [(depth, needle) for depth, needle in placed if needle.key not in queried]
        names = [keys[place] for place in asked]
        one = len(placed) == 1
        return Item(
            prompt=self.framed(self.joined(hay, placed), names),
            outputs=tuple(outputs),
            references=(", ".join(outputs),),
            distractor=", ".join(distractor),
            present=present,
            floor=self.framed(self.joined(hay, left), names),
            depth=depths[0] if one else None,
        )

    def fresh(self, kind: Kind, material: Material, draw: Draw, seen: set[str]) -> str:
        """A key or a value that is none of `seen`, and is from now on."""
        while True:
            if kind == "numbers":
                found = words.number(draw, 4 if self.small else 7)
            elif kind == "uuids":
                found = words.letters(draw, 6, "0123456789abcdef") if self.small else words.identifier(draw)
            else:
                found = draw.choice(material.words.short) if self.small else material.words.pair(draw)
            if found not in seen:
                seen.add(found)
                return found

    def depths(self, draw: Draw, count: int) -> list[float]:
        """Where the needles lie, in order: of an essay 40 places, else anywhere."""
        found = draw.sample(DEPTHS, count) if self.haystack == "essay" else [draw.fraction() for _ in range(count)]
        return sorted(found)

    def joined(self, hay: list[str], placed: list[tuple[float, Needle]]) -> str:
        """The hay with the needles in their places, which are in order."""
        found, before = [], 0
        for depth, needle in placed:
            place = int(len(hay) * depth)
            found += [*hay[before:place], self.written(needle)]
            before = place
        return (" " if self.haystack == "essay" else "\n").join([*found, *hay[before:]])

    def written(self, needle: Needle) -> str:
        """A needle as the text has it."""
        if self.small:
            return SMALL_NEEDLE.format(kind=self.name(one=True), key=needle.key, value=needle.value)
        return NEEDLE.format(kind=self.value, key=needle.key, value=needle.value)

    def framed(self, context: str, names: list[str]) -> str:
        """The prompt, in the singular where one value is asked for."""
        one = self.queries * self.values == 1
        template = SMALL_TEMPLATE if self.small else TEMPLATE
        if one:
            template = template.replace("Some", "A").replace("are all", "is").replace("are", "is")
        query = names[0] if len(names) == 1 else f"{', '.join(names[:-1])}{'' if self.small else ','} and {names[-1]}"
        return template.format(kind=self.name(one), query=query, context=context)

    def name(self, one: bool) -> str:
        """What a value is called."""
        name = "codes" if self.small and self.value == "uuids" else self.value
        return name[:-1] if one else name
