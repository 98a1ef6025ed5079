"""Haystacks of prose: a text of public domain, cut into words and sentences."""

import bisect
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from rove_jax.data import sources
from rove_jax.errors import UsageError

FEWEST = 1000
"""Words of a text that a person gives: fewer would be a few sentences over and over, not prose."""
ABBREVIATIONS = frozenset(
    "Mr Mrs Ms Dr Messrs St No Nos Gen Col Capt Lieut Hon Rev Sec Art vs etc viz cf Jr Sr Co p pp".split()
)
"""Words whose point does not end a sentence."""
END = re.compile(r"""(?P<word>\S*?)[.!?]+["')\]\u2019\u201d]*\Z""")

NOTE = re.compile(r"\[[^\]]*\]")
"""Dates and applause in brackets, which the addresses have."""


class Essay:
    """A text of which any number of words can be asked for; it begins again where it ends."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.words = text.split()
        self.identity = hashlib.sha256(" ".join(self.words).encode("utf-8", "replace")).hexdigest()
        following = [*self.words[1:], "The"]
        self.ends = [place + 1 for place, pair in enumerate(zip(self.words, following)) if ends_sentence(*pair)]
        if not self.ends or self.ends[-1] != len(self.words):
            self.ends.append(len(self.words))

    def sentences(self, count: int) -> list[str]:
        """The first `count` words as sentences; the last may be a part of one. Joined by spaces they are the text."""
        rounds, rest = divmod(count, len(self.words))
        stops = [*self.ends[: bisect.bisect_left(self.ends, rest)], rest] if rest else []
        return (self.spans(self.ends) * rounds if rounds else []) + self.spans(stops)

    def spans(self, stops: Sequence[int]) -> list[str]:
        """The words up to each of the places, from the one before it."""
        return [" ".join(self.words[start:stop]) for start, stop in zip([0, *stops], stops)]


def ends_sentence(word: str, following: str) -> bool:
    """Does a sentence end with `word`: a point that neither abbreviates nor is followed by a small letter."""
    match = END.match(word)
    if match is None or following[0].islower():
        return False
    stem = match["word"].lstrip("\"'([\u2018\u201c")
    initials = "." in stem or (len(stem) == 1 and stem.isupper())
    return not (word.endswith(".") and (initials or stem in ABBREVIATIONS))


def load(name: str) -> Essay:
    """The essay `sotu`, the State of the Union addresses that no run trains on, or the text of a file or folder."""
    if name == "sotu":
        found = sources.state_of_the_union().documents()
        text = "\n".join(document[-1] for document in found if document[0] == "validation")
        return Essay(name, NOTE.sub(" ", text))
    source = sources.files(Path(name).expanduser(), whole=True)
    found = Essay(source.name, "\n".join(document[-1] for document in source.documents()))
    if len(found.words) < FEWEST:
        raise UsageError(
            f"--haystack = {name!r}: has {len(found.words)} words, which would be repeated over and over; give a text "
            f"of {FEWEST} or more"
        )
    return found
