"""What a generator makes, and what it makes it from."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from rove_jax.data.draws import Draw
from rove_jax.evaluation.ruler.essay import Essay
from rove_jax.evaluation.ruler.words import Words

NOISE = ("The grass is green.", "The sky is blue.", "The sun is yellow.", "Here we go.", "There and back again.")


class Item(NamedTuple):
    """One question with its answer."""

    prompt: str
    """The text, the question and the beginning of the answer ("answer prefix")."""
    outputs: tuple[str, ...]
    """What RULER's string match looks for: all of them, or for questions on documents any."""
    references: tuple[str, ...]
    """Whole answers, several only to questions on documents; the likeliest to the model counts."""
    distractor: str
    """A wrong answer of the same form."""
    present: bool
    """Whether the prompt has the distractor."""
    floor: str | None = None
    """The prompt without what answers it. None where the answer is not in one place."""
    depth: float | None = None
    """Where the needle is, from 0, the beginning of the text, to 1, where there is one."""
    alone: tuple[str, ...] = ()
    """Parts of an answer whose order does not matter, each as it stands right behind the prompt."""
    others: tuple[str, ...] = ()
    """Wrong ones of the same form that the prompt has."""


@dataclass(frozen=True)
class Document:
    """A question, its answers, and the places of its documents in a list of them."""

    question: str
    answers: tuple[str, ...]
    gold: tuple[int, ...]
    """Those that answer it."""
    near: tuple[int, ...]
    """Those that go with it first (SQuAD: of the same article; HotpotQA: the distractors given with the question)."""


@dataclass(frozen=True)
class Questions:
    """Questions on documents."""

    name: str
    documents: tuple[str, ...]
    asked: tuple[Document, ...]
    identity: str
    """SHA-256 of all of it."""


@dataclass(frozen=True)
class Material:
    """What samples are made from."""

    count: Callable[[str], int]
    """How many tokens a text has."""
    words: Words
    essay: Essay | None = None
    questions: dict[str, Questions] = field(default_factory=dict)
    """By name of the set."""


class Generator(Protocol):
    """One task's way of making items. `units` is what its length grows by."""

    @property
    def least(self) -> int:
        """Fewest units."""
        ...

    @property
    def tokens(self) -> int:
        """How many tokens the published task leaves for the answer; 0: as many as the answer has."""
        ...

    def most(self, material: Material) -> int:
        """Most units that there is material for."""
        ...

    def item(self, material: Material, draw: Draw, index: int, units: int, length: int) -> Item:
        """Sample `index` with so many units. What is asked, and where it lies, does not depend on `units`."""
        ...
