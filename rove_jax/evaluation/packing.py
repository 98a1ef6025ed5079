"""How requests are laid out for few programs and little padding: trees side by side in rows of one length.

Requests that begin alike, such as the choices of one question, become a tree: what they share, read once, and a branch
for what each goes on with. A tree's prefix and each of its branches are segments of a row; a branch sees its prefix and
itself, so neither other branches nor other trees.
"""

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

ROW = 1024
"""Tokens of a row. Longer trees have rows of this and an eighth more, or of 2, 4, ... times as many: a prompt often
fills a power of two, and its branches need room."""


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

    @property
    def size(self) -> int:
        """Tokens that are read."""
        return len(self.prefix) + sum(len(branch.tokens) for branch in self.branches)


@dataclass
class Row:
    """What one row holds."""

    length: int
    tokens: list[np.ndarray] = field(default_factory=list)
    positions: list[np.ndarray] = field(default_factory=list)
    segments: list[np.ndarray] = field(default_factory=list)
    prefixes: list[np.ndarray] = field(default_factory=list)
    """Of each token, the segment that its own continues; 0: none."""
    spans: list[Span] = field(default_factory=list)
    size: int = 0

    def add(self, tree: Tree) -> None:
        """Put a tree at the end."""
        trunk = len(self.tokens) + 1
        self.put(tree.prefix, tree.spans)
        for branch in tree.branches:
            self.put(branch.tokens, branch.spans, len(tree.prefix), trunk)

    def put(self, tokens: np.ndarray, spans: Iterable[Span], position: int = 0, prefix: int = 0) -> None:
        """Put a segment at the end, at positions from `position` on."""
        self.tokens.append(tokens)
        self.positions.append(np.arange(position, position + len(tokens)))
        self.segments.append(np.full(len(tokens), len(self.tokens)))
        self.prefixes.append(np.full(len(tokens), prefix))
        self.spans += [span._replace(at=span.at + self.size) for span in spans]
        self.size += len(tokens)

    @property
    def scored(self) -> int:
        """Tokens whose likelihood is asked for."""
        return sum(span.count for span in self.spans)


def trees(requests: Sequence[Request], shares: bool = True) -> list[Tree]:
    """The requests, neighbours with a long common beginning of their inputs together (unless not `shares`)."""
    groups: list[tuple[list[int], int, int]] = []  # their places, what they have in common, the longest
    for place, request in enumerate(requests):
        if groups and shares:
            members, common, longest = groups[-1]
            both, longest = min(common, shared(requests[members[0]], request)), max(longest, request.size)
            # Joined, each choice repeats what its question has beyond `both`; apart, each question repeats `both`.
            if both >= max(longest / 2, common * (1 - 1 / len(members))):
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
    """Rows that hold the trees, each in the fullest row with room."""
    usual = min(ROW, power(sum(tree.size for tree in forest)))
    found: list[Row] = []
    room: list[tuple[int, int]] = []  # (tokens left, row), sorted
    for tree in sorted(forest, key=lambda tree: -tree.size):
        at = bisect.bisect_left(room, (tree.size, 0))
        if at == len(room):
            found.append(Row(usual if tree.size <= usual else power(tree.size, ROW * 9 // 8)))
            left, row = found[-1].length, len(found) - 1
        else:
            left, row = room.pop(at)
        found[row].add(tree)
        bisect.insort(room, (left - tree.size, row))
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


def batches(found: Sequence[Row], rows_of: dict[int, int]) -> list[list[Row]]:
    """Rows of one length together, up to `rows_of[length]` of them.

    Long ones first, so that the memory that they take is asked for at once; those of which much is asked together.
    """
    made = []
    for length, size in sorted(rows_of.items(), reverse=True):
        part = sorted((row for row in found if row.length == length), key=lambda row: -row.scored)
        made += [part[first : first + size] for first in range(0, len(part), size)]
    return made
