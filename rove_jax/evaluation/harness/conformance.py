"""What must hold of an adapter to lm_eval, whatever the checkpoint: each check against plain forward passes.

Faults that adapters have had elsewhere, and what is checked against them: a token across the join (lm_eval 1297, 3336),
white space left on the context, end-of-text doubled or missing (1586, 3333, 2382), scores shifted by one (lighteval
1252), a context cut after its continuation was counted off (mlx-lm 1902), tokens of a document dropped (lingua 46),
scores that move with the batch (704, open-instruct 75), stops of another request, or letters of one (3587, 699, 630).
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np

from rove_jax.evaluation import packing
from rove_jax.evaluation.harness.adapter import Adapter
from rove_jax.evaluation.harness.pairs import windows
from rove_jax.evaluation.scorer import compute_config
from rove_jax.models import functional

Make = Callable[..., Adapter]
"""An adapter of the checkpoint with other arguments than its run folder."""

LIMIT = 64
"""Tokens of a window in the checks: small, so that they are quick with any model."""
TOLERANCE = 1e-4
"""Nats, in float32, a token; a sum over n tokens may be off by this for each."""
SENTENCE = "The people of the union report to congress"
LONG = " ".join(f"{number}. The state of this great nation is sound, its laws are kept." for number in range(8))
NEW = 12
"""Tokens that are generated."""


class Outcome(NamedTuple):
    """How a check came out."""

    name: str
    wrong: str
    """In words; empty if it holds."""


def conformance(make: Make) -> Iterator[Outcome]:
    """Every check, one after another."""
    for check in CHECKS:
        yield Outcome((check.__doc__ or "").strip().removesuffix("."), check(make) or "")


def request(*args: Any) -> SimpleNamespace:
    """What stands for lm_eval's `Instance`."""
    return SimpleNamespace(args=args)


def score(lm: Adapter, pairs: Iterable[tuple[str, str]]) -> list[tuple[float, bool]]:
    """`lm.loglikelihood` of texts."""
    return lm.loglikelihood([request(*pair) for pair in pairs], disable_tqdm=True)


def direct(lm: Adapter, context: list[int], continuation: list[int]) -> tuple[float, bool]:
    """(ln p, greedy) by a forward pass over this one text, all logits, in float64 from there on."""
    tokens = np.array(context + continuation, np.int32)
    width = packing.power(len(tokens), 32)
    cfg = compute_config(lm.run.config.model, lm.run.params, batch=1, length=width)
    logits_tv = logits(cfg, lm.run.params, np.pad(tokens, (0, width - len(tokens)))[None])
    logits_tv = np.asarray(logits_tv, np.float64)[len(context) - 1 : len(tokens) - 1, : lm.run.tokenizer.vocab]
    top_t1 = logits_tv.max(axis=1, keepdims=True)
    log_p_tv = logits_tv - top_t1 - np.log(np.exp(logits_tv - top_t1).sum(axis=1, keepdims=True))
    wanted = tokens[len(context) :]
    return float(log_p_tv[np.arange(len(wanted)), wanted].sum()), bool((logits_tv.argmax(axis=1) == wanted).all())


@functools.partial(jax.jit, static_argnums=0)
def logits(cfg: Any, params: Any, tokens_bt: jax.Array) -> jax.Array:
    """[T, V] of a batch of one."""
    return functional.unembed(cfg, params, functional.apply(cfg, params, tokens_bt).hidden)[0]


def differs(lm: Adapter, what: str, found: tuple[float, bool], context: list[int], continuation: list[int]) -> str:
    """How a result is not that of a plain forward pass; empty if it is."""
    wanted, greedy = direct(lm, context, continuation)
    if not abs(found[0] - wanted) <= TOLERANCE * max(1, len(continuation)):
        return f"{what}: ln p = {found[0]:.6f}, a forward pass gives {wanted:.6f}"
    return "" if found[1] == greedy else f"{what}: greedy = {found[1]}, a forward pass gives {greedy}"


def begin(lm: Adapter, tokens: list[int]) -> list[int]:
    """Tokens of a context as they must be read: one end-of-text before them, if the model knows it there."""
    return tokens if lm.prefix == "none" and tokens else [lm.eot_token_id, *tokens]


def joins(make: Make) -> str:
    """Every split of a text into context and continuation is scored, also within a token."""
    lm = make(max_length=LIMIT)
    splits = [(SENTENCE[:place], SENTENCE[place:]) for place in range(1, len(SENTENCE))]
    whole = lm.tok_encode(SENTENCE)
    for (context, continuation), found in zip(splits, score(lm, splits)):
        before = lm.tok_encode(context.rstrip())
        after = whole[len(before) :]
        if whole[: len(before)] != before:
            after = lm.tok_encode(context[len(context.rstrip()) :] + continuation)
        wrong = differs(lm, f"{context!r} + {continuation!r}", found, begin(lm, before), after)
        if wrong or not found[0] < 0:
            return wrong or f"{context!r} + {continuation!r}: ln p = {found[0]}, nothing was scored"
    return ""


def spaces(make: Make) -> str:
    """White space at the end of a context belongs to the continuation."""
    lm = make(max_length=LIMIT)
    apart = score(lm, [("The union ", "is sound"), ("The union", " is sound")])
    if abs(apart[0][0] - apart[1][0]) > TOLERANCE:
        return f"'The union ' + 'is sound' gives {apart[0][0]:.6f}, 'The union' + ' is sound' {apart[1][0]:.6f}"
    return ""


def empty(make: Make) -> str:
    """An empty context is end-of-text; an empty continuation is certain."""
    lm = make(max_length=LIMIT)
    found = score(lm, [("", SENTENCE), (" \n", "Yes"), (SENTENCE, "")])
    if found[2] != (0.0, True):
        return f"an empty continuation gives {found[2]}"
    return differs(lm, "no context", found[0], [lm.eot_token_id], lm.tok_encode(SENTENCE)) or differs(
        lm, "white space as context", found[1], [lm.eot_token_id], lm.tok_encode(" \nYes")
    )


def end_of_text(make: Make) -> str:
    """End-of-text stands before a text once where it did in training, and nowhere else."""
    for prefix in ("trained", "document", "window", "none"):
        lm = make(max_length=LIMIT, prefix=prefix)
        if prefix == "trained" and (lm.prefix == "none") != lm.run.config.data.segments:
            return f"prefix is {lm.prefix} by itself, which is not as in training"
        tokens = lm.tok_encode("The union is")
        [found] = score(lm, [("The union", " is")])
        size = len(lm.tok_encode("The union"))
        wrong = differs(lm, f"prefix {lm.prefix}", found, begin(lm, tokens[:size]), tokens[size:])
        if wrong:
            return wrong
    return ""


def truncation(make: Make) -> str:
    """A long context loses its beginning, and exactly the continuation is scored, however long it is."""
    lm = make(max_length=LIMIT)
    pairs = [(LONG, " in every year"), ("The union", f" {LONG}"), (LONG, f" {LONG[:100]}")]
    for result, (context, continuation) in zip(score(lm, pairs), pairs):
        before, whole = begin(lm, lm.tok_encode(context)), begin(lm, lm.tok_encode(context + continuation))
        after = whole[len(before) :]
        kept = before[-max(1, LIMIT + 1 - len(after)) :]
        wrong = differs(lm, f"{len(before)} + {len(after)} tokens", result, kept, after)
        if wrong:
            return wrong
    return ""


def batches(make: Make) -> str:
    """Results come in the order of the requests, and do not depend on the batch size or on what is beside them."""
    draw = np.random.RandomState(0)
    pairs = []
    for _ in range(23):
        start, size, more = draw.randint(100), draw.randint(1, 2 * LIMIT), draw.randint(1, 20)
        pairs.append((LONG[start : start + size], LONG[start + size : start + size + more]))
    wanted = None
    for rows in (1, 4, 7):
        order = draw.permutation(len(pairs))
        found = score(make(max_length=LIMIT, batch_size=rows), [pairs[place] for place in order])
        by_place = [found[place] for place in np.argsort(order)]
        wanted = wanted or by_place
        for place, (one, other) in enumerate(zip(by_place, wanted)):
            if abs(one[0] - other[0]) > TOLERANCE or one[1] != other[1]:
                return f"request {place}, {rows} rows at once: {one}, one row at once: {other}"
    lm = make(max_length=LIMIT, batch_size=7)
    context, after, _ = lm.pair(*pairs[0])
    assert wanted is not None
    return differs(lm, "the first of 23", wanted[0], context[-max(1, LIMIT + 1 - len(after)) :], after)


VECTORS = [
    ((10, 4), [([-1], [0, 1, 2, 3]), ([3], [4, 5, 6, 7]), ([5, 6, 7], [8, 9])]),
    ((3, 4), [([-1], [0, 1, 2])]),
    ((4, 4), [([-1], [0, 1, 2, 3])]),
]
"""((tokens of a document, tokens of a window), (context, continuation) of each window); -1 is end-of-text."""


def rolling(make: Make) -> str:
    """Windows of a document score every token once, each with the context that lm_eval's windows give it."""
    for (count, limit), wanted in VECTORS:
        found = [part[:2] for part in windows(list(range(count)), limit, eot=-1, prefix="document")]
        if found != wanted:
            return f"{count} tokens in windows of {limit}: {found}"
    lm = make(max_length=LIMIT)
    texts = ["", SENTENCE, LONG]
    found = lm.loglikelihood_rolling([request(text) for text in texts], disable_tqdm=True)
    for text, result in zip(texts, found):
        total = result[0] if isinstance(result, tuple) else result
        tokens = lm.tok_encode(text)
        wanted = by_windows(lm, tokens)
        if not abs(total - wanted) <= TOLERANCE * max(1, len(tokens)):
            return f"{len(tokens)} tokens: ln p = {total:.6f}, forward passes over the windows give {wanted:.6f}"
    return ""


def by_windows(lm: Adapter, tokens: list[int]) -> float:
    """ln p of a document in windows of `LIMIT`, by a forward pass over each."""
    total, before = 0.0, [lm.eot_token_id, *tokens]
    for start in range(0, len(tokens), LIMIT):
        end = min(start + LIMIT, len(tokens))
        total += direct(lm, before[max(0, end - LIMIT) : start + 1], tokens[start:end])[0]
    return total


def stops(make: Make) -> str:
    """Each text ends before the first of its own stops; a stop is a text, not letters, and may be several tokens."""
    lm = make(max_length=LIMIT, batch_size=4)

    def texts(*untils: Any) -> list[str]:
        settings = [{"until": until, "max_gen_toks": NEW} for until in untils]
        return lm.generate_until([request(SENTENCE, one) for one in settings], disable_tqdm=True)

    free = texts([], [], [])[0]  # several, for the program of four rows
    if len(free) < 4:
        return f"cannot be told: the model ends {SENTENCE!r} with {free!r}"
    absent = free[::-1] + "\0"  # the same letters
    later = free[len(free) // 2 :][:3]
    untils = [later, [later], absent, [absent, later, free[-1]], free[0], [free[:2]], [], "", [absent]]
    for until, text in zip(untils, texts(*untils)):
        ends = [free.find(stop) for stop in ([until] if isinstance(until, str) else until) if stop]
        wanted = free[: min((end for end in ends if end >= 0), default=len(free))]
        if text != wanted:
            return f"until {until!r}: {text!r} instead of {wanted!r}; without stops {free!r}"
    return ""


def kinds(make: Make) -> str:
    """Results are plain Python values, which caches and JSON can hold."""
    lm = make(max_length=LIMIT)
    [(total, greedy)] = score(lm, [("The union", " is")])
    [rolled] = lm.loglikelihood_rolling([request(SENTENCE)], disable_tqdm=True)
    text = make(max_length=LIMIT, batch_size=4).generate_until(
        [request(SENTENCE, {"max_gen_toks": NEW})] * 4, disable_tqdm=True
    )[0]
    total_rolled = rolled[0] if isinstance(rolled, tuple) else rolled
    found = [type(total), type(greedy), type(total_rolled), type(text)]
    return "" if found == [float, bool, float, str] else f"types {[one.__name__ for one in found]}"


CHECKS = (joins, spaces, empty, end_of_text, truncation, batches, rolling, stops, kinds)
