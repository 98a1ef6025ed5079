"""Words that are counted: the most common of a list, and the most frequent of a coded text."""

import math
import string
from dataclasses import dataclass

from rove_jax.data.draws import Draw
from rove_jax.evaluation.ruler import words
from rove_jax.evaluation.ruler.item import Item, Material

COMMON_TEMPLATE = (
    "Below is a numbered list of words. In these words, some appear more often than others. Memorize the ones that "
    "appear most often.\n{context}\n"
    "Question: What are the 10 most common words in the above list?"
    " Answer: The top 10 words that appear most often in the list are:"
)
SMALL_COMMON_TEMPLATE = "{context}\nThe most common words are:"
CODED_TEMPLATE = (
    "Read the following coded text and track the frequency of each coded word. Find the three most frequently "
    "appeared coded words. {context}\n"
    "Question: Do not provide any explanation. Please ignore the dots '....'. What are the three most frequently "
    "appeared words in the above coded text?"
    " Answer: According to the coded text above, the three most frequently appeared words are:"
)
SMALL_CODED_TEMPLATE = "{context}\nMost frequent after the dots:"


def numbered(found: list[str]) -> str:
    """`1. a 2. b`, as the list and the answer are written."""
    return " ".join(f"{place + 1}. {word}" for place, word in enumerate(found))


@dataclass(frozen=True)
class CommonWords:
    """Common words extraction. A unit is a different word."""

    common: int = 10
    small: bool = False
    """Two common words of a few letters, and no example."""
    tokens: int = 120

    @property
    def least(self) -> int:
        """Fewest different words: one more than are asked for, and one to mistake for each of those."""
        return 2 * self.common

    def most(self, material: Material) -> int:
        """As many words as there are."""
        return len(material.words.short if self.small else material.words.every)

    def item(self, material: Material, draw: Draw, index: int, units: int, length: int) -> Item:
        """See `Generator`."""
        if self.small:
            repeats, example = (3, 1), ""
        elif length < 4096:
            repeats, example = (6, 1), self.example(material, draw.apart("example"), 20, (3, 1))
        else:
            repeats, example = (30, 3), self.example(material, draw.apart("example"), 40, (10, 3))
        pool = material.words.short if self.small else material.words.every
        drawn = draw.sample(pool, units)
        template = SMALL_COMMON_TEMPLATE if self.small else COMMON_TEMPLATE
        common, others = drawn[: self.common], drawn[self.common : 2 * self.common]
        return Item(
            prompt=example + template.format(context=self.listed(drawn, repeats)),
            outputs=tuple(common),
            references=(numbered(common),),
            distractor=numbered(others),
            present=True,
            alone=tuple(f"1. {word}" for word in common),
            others=tuple(f"1. {word}" for word in others),
        )

    def listed(self, drawn: list[str], repeats: tuple[int, int]) -> str:
        """The list: the common words and the others, each as often as `repeats` says."""
        often = drawn[: self.common] * repeats[0] + drawn[self.common :] * repeats[1]
        return numbered(Draw(42).shuffled(often))  # RULER shuffles with one seed for all samples

    def example(self, material: Material, draw: Draw, count: int, repeats: tuple[int, int]) -> str:
        """A shorter list with its answer."""
        drawn = draw.sample(material.words.every, count)
        return f"{COMMON_TEMPLATE.format(context=self.listed(drawn, repeats))} {numbered(drawn[: self.common])}\n"


@dataclass(frozen=True)
class CodedWords:
    """Frequent words extraction: made-up words whose counts fall as the square of the rank. A unit is a word drawn."""

    small: bool = False
    """Words of three letters."""
    tokens: int = 50

    least = 30
    """So many that the second, third, fourth and fifth word have different counts."""

    def most(self, material: Material) -> int:
        """Letters have no end."""
        return 2**24

    def item(self, material: Material, draw: Draw, index: int, units: int, length: int) -> Item:
        """See `Generator`."""
        # Published: one word for 50 tokens of room. Those of no count are left out, so that few would be enough.
        different = max(7, (length - self.tokens) // 50)
        dots, size = (".", 3) if self.small else ("...", 6)
        made: dict[str, None] = {}
        while len(made) < different:
            made.setdefault(words.letters(draw, size, string.ascii_lowercase))
        vocabulary = [dots, *list(made)[1:]]
        counts = self.counts(units, different)
        while len(set(counts[1:5])) < 4:  # 42 to 52 words: the fourth and the fifth are equally frequent
            units -= 1
            counts = self.counts(units, different)
        text = [word for word, count in zip(vocabulary, counts) for _ in range(count)]
        template = SMALL_CODED_TEMPLATE if self.small else CODED_TEMPLATE
        answer, others = vocabulary[1:4], vocabulary[4:7]
        return Item(
            prompt=template.format(context=" ".join(draw.apart("order").shuffled(text))),
            outputs=tuple(answer),
            references=(" ".join(answer),),
            distractor=" ".join(others),
            present=counts[6] > 0,
        )

    @staticmethod
    def counts(units: int, different: int) -> list[int]:
        """units / (rank^2 zeta(2)) of each rank, rounded down."""
        return [int(units / (rank**2 * math.pi**2 / 6)) for rank in range(1, different + 1)]
