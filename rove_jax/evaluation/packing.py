"""How requests are laid out for few programs and little padding: prefixes side by side in rows, branches in rounds.

Requests that begin alike, such as the choices of one question, become one prefix, read once, and a branch each. Rows of
one length hold many prefixes as segments; a branch is read over the keys and values of its row, in the segment of its
prefix, so it sees that and nothing else. Branches of one prefix would see each other: each goes to a round of its own.
"""

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

ROW = 1024
"""Tokens of a row; longer requests have rows of the next power of two."""
SHARED = 64
"""A prefix of fewer tokens is not worth a second pass."""
ROUNDS = 32
"""Tokens of a round: this, or 4, 16, ... times as many."""


class Request(NamedTuple):
    """What is to be scored. Many with one context share its array, so that nothing is copied."""

    context: np.ndarray
    """int32 tokens, at least one; end-of-text stands for an empty one."""
    continuation: np.ndarray
    """int32 tokens, at least one: those that are scored."""

    @property
    def size(self) -> int:
        """Tokens that are read: all but the last, which is only predicted."""
        return len(self.context) + len(self.continuation) - 1

    def inputs(self, first: int, end: int) -> np.ndarray:
        """[first, end) of the tokens that are read, int32."""
        apart = len(self.context)
        late = self.continuation[max(first - apart, 0) : max(end - apart, 0)]
        return np.concatenate([self.context[first:end], late]).astype(np.int32, copy=False)


class Span(NamedTuple):
    """Continuation tokens [offset, offset + count) of a request are predicted at the indices from `at` on."""

    request: int
    offset: int
    at: int
    count: int


class Branch(NamedTuple):
    """A request's input after the prefix it shares; `Span.at` counts from its first token."""

    tokens: np.ndarray
    spans: list[Span]


class Tree(NamedTuple):
    """Requests with one beginning."""

    prefix: np.ndarray
    spans: list[Span]
    branches: list[Branch]


@dataclass
class Strip:
    """What one row holds in one pass."""

    tokens: list[np.ndarray] = field(default_factory=list)
    positions: list[np.ndarray] = field(default_factory=list)
    segments: list[np.ndarray] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    size: int = 0

    def add(self, tokens: np.ndarray, spans: Iterable[Span], segment: int, position: int = 0) -> None:
        """Put tokens at the end, at positions from `position` on."""
        self.tokens.append(tokens)
        self.positions.append(np.arange(position, position + len(tokens)))
        self.segments.append(np.full(len(tokens), segment))
        self.spans += [span._replace(at=span.at + self.size) for span in spans]
        self.size += len(tokens)


@dataclass
class Row:
    """A row: its prefixes, and the rounds of their branches."""

    length: int
    prefixes: Strip = field(default_factory=Strip)
    rounds: list[Strip] = field(default_factory=list)

    def add(self, tree: Tree) -> None:
        """Put a tree in, longer branches where there is more room."""
        segment = len(self.prefixes.tokens) + 1
        self.prefixes.add(tree.prefix, tree.spans, segment)
        self.rounds += [Strip() for _ in range(len(tree.branches) - len(self.rounds))]
        emptiest = sorted(self.rounds, key=lambda strip: strip.size)
        for strip, branch in zip(emptiest, sorted(tree.branches, key=lambda branch: -len(branch.tokens))):
            strip.add(branch.tokens, branch.spans, segment, len(tree.prefix))

    @property
    def longest_round(self) -> int:
        """Tokens of the longest round; 0 if there is none."""
        return max((strip.size for strip in self.rounds), default=0)


def trees(requests: Sequence[Request], shares: bool = True) -> list[Tree]:
    """The requests, neighbours with a long common beginning of their inputs together (unless not `shares`)."""
    groups: list[tuple[list[int], int, int]] = []  # their places, what they have in common, the longest
    for place, request in enumerate(requests):
        if groups and shares:
            members, common, longest = groups[-1]
            both, longest = min(common, shared(requests[members[0]], request)), max(longest, request.size)
            if both >= max(SHARED, longest / 2):
                members.append(place)
                groups[-1] = members, both, longest
                continue
        groups.append(([place], request.size, request.size))
    found = []
    for members, common, _ in groups:
        tree = Tree(requests[members[0]].inputs(0, common), [], [])
        for place in members:
            first, count = len(requests[place].context) - 1, len(requests[place].continuation)
            early = min(max(common - first, 0), count)  # tokens predicted within the prefix
            if early:
                tree.spans.append(Span(place, 0, first, early))
            if common < requests[place].size:
                late = Span(place, early, first + early - common, count - early)
                tree.branches.append(Branch(requests[place].inputs(common, requests[place].size), [late]))
        found.append(tree)
    return found


def shared(left: Request, right: Request) -> int:
    """How many first tokens two requests have in common, of those that are read."""
    start = len(left.context) if left.context is right.context else 0
    size = min(left.size, right.size)
    differ = np.flatnonzero(left.inputs(start, size) != right.inputs(start, size))
    return start + int(differ[0]) if len(differ) else size


def rows(forest: Sequence[Tree]) -> list[Row]:
    """Rows that hold the trees, each in the fullest row with room, those with branches together."""
    usual = min(ROW, power(sum(len(tree.prefix) for tree in forest)))
    found: list[Row] = []
    room: list[tuple[int, int]] = []  # (tokens left, row), sorted
    for tree in sorted(forest, key=lambda tree: (not tree.branches, -len(tree.prefix))):
        size = len(tree.prefix)
        at = bisect.bisect_left(room, (size, 0))
        if at == len(room):
            found.append(Row(max(usual, power(size))))
            left, row = found[-1].length, len(found) - 1
        else:
            left, row = room.pop(at)
        found[row].add(tree)
        bisect.insort(room, (left - size, row))
    return found


def alone(forest: Sequence[Tree], length: int) -> list[Row]:
    """Rows of `length` tokens that hold one tree each."""
    found = [Row(length) for _ in forest]
    for row, tree in zip(found, forest):
        row.add(tree)
    return found


def power(count: int, start: int = 1, factor: int = 2) -> int:
    """The first of start, start x factor, start x factor^2, ... that is no less than `count`."""
    while start < count:
        start *= factor
    return start


def batches(found: Sequence[Row], rows_of: dict[int, int]) -> list[tuple[list[Row], int]]:
    """Rows of one length together, up to `rows_of[length]` of them, and the tokens of a round of each batch (0: none).

    Long ones first, so that the memory that they take is asked for at once.
    """
    made = []
    for length, size in sorted(rows_of.items(), reverse=True):
        part = sorted((row for row in found if row.length == length), key=lambda row: -row.longest_round)
        for first in range(0, len(part), size):
            batch = part[first : first + size]
            made.append((batch, power(batch[0].longest_round, ROUNDS, 4) if batch[0].rounds else 0))
    return made
