"""Text to tokens: where a context ends and its continuation begins, what fits in a window, a document in windows.

The rules are those of lm_eval 0.4.13 (`TemplateLM._encode_pair`, `get_rolling_token_windows`), but where a token spans
the join: there it loses text, or has nothing left to score (its issues 1053, 1297 and 3336).
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from rove_jax.evaluation.protocol import Prefix


class Pair(NamedTuple):
    """A context and a continuation in tokens."""

    context: list[int]
    """At least one."""
    continuation: list[int]
    """Those that are scored; none if the text has none."""
    apart: bool = False
    """A token of the whole text spans the join, so the two were encoded apart."""


def encode_pair(
    encode: Callable[[str], list[int]], context: str, continuation: str, *, eot: int, prefix: Prefix
) -> Pair:
    """The tokens of a context and its continuation.

    White space at the end of the context is taken to the continuation, to which tokenizers attach it. Both are encoded
    as one text, and the continuation is what follows the tokens of the context.

    Args:
        encode: text to ids, without any that are special.
        prefix: whether `eot` stands before the context. It does in any case where there is no context.
    """
    bare = context.rstrip()
    continuation = context[len(bare) :] + continuation
    before, whole = encode(bare), encode(bare + continuation)
    size = len(before)
    apart = whole[:size] != before
    after = encode(continuation) if apart else whole[size:]
    if not before and after[:1] == [eot]:  # text that brings its own
        before, after = after[:1], after[1:]
    return Pair(begun(before, eot, prefix), after, apart)


def begun(tokens: list[int], eot: int, prefix: Prefix) -> list[int]:
    """`tokens` with `eot` before them if `prefix` asks for it or nothing else stands there; never twice."""
    if tokens[:1] == [eot] or (tokens and prefix == "none"):
        return tokens
    return [eot, *tokens]


def fit(pair: Pair, limit: int, *, eot: int, prefix: Prefix) -> Pair:
    """The pair without the first tokens of its context, so that the model reads `limit` tokens at most.

    The last token is only predicted, so there are `limit` + 1. The continuation stays whole, with at least one token
    before it, however long it is.
    """
    if len(pair.context) + len(pair.continuation) <= limit + 1:
        return pair
    return pair._replace(context=last(pair.context, max(1, limit + 1 - len(pair.continuation)), eot, prefix))


def last(tokens: list[int], count: int, eot: int, prefix: Prefix) -> list[int]:
    """The last `count` tokens; the first of them is `eot` where every window begins with it."""
    kept = tokens[-count:]
    return [eot, *kept[1:]] if prefix == "window" else kept


def windows(tokens: list[int], limit: int, *, eot: int, prefix: Prefix) -> Iterator[Pair]:
    """A document in windows of which the model reads `limit` tokens each, and every token is scored once.

    The first begins with `eot`; the last reaches back for a full context, of which it scores what is new.
    """
    if tokens[:1] == [eot]:
        tokens = tokens[1:]
    for start in range(0, len(tokens), limit):
        end = min(start + limit, len(tokens))
        if start == 0:
            before = [eot]
        elif prefix == "window":
            before = [eot, *tokens[end - limit : start]]
        else:
            before = tokens[end - limit - 1 : start]
        yield Pair(before, tokens[start:end])
