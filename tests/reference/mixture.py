"""Whose turn it is in a mixture, one example after another and by fractions alone."""

import math
from collections.abc import Sequence
from fractions import Fraction


def turns(examples: int, weights: Sequence[Fraction]) -> list[int]:
    """The corpus of each of the first `examples` examples.

    Corpora from the largest weight on: each takes an example that reaches it if its rounded share of those that have
    reached it, this one included, has grown; otherwise the example goes on to the next.
    """
    order = sorted(range(len(weights)), key=lambda corpus: weights[corpus], reverse=True)
    reached = [0] * len(weights)
    found = []
    for _ in range(examples):
        for place, corpus in enumerate(order):
            share = weights[corpus] / sum(weights[other] for other in order[place:])
            reached[corpus] += 1
            half_up = [math.floor(count * share + Fraction(1, 2)) for count in (reached[corpus] - 1, reached[corpus])]
            if half_up[1] > half_up[0]:
                found.append(corpus)
                break
    return found
