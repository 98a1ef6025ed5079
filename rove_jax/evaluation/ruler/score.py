"""What a model makes of a sample: how likely it finds the answer, and what that is to be held against.

The text that is scored begins right behind the prompt, whose trailing spaces go: the model reads end-of-text, the
prompt, and then " " and the answer. Both are encoded as one text. Should the prompt's tokens not be the beginning of
that (a token may span the joint), they are encoded apart, and counted.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rove_jax.data.tokenizers import Tokenizer
from rove_jax.evaluation.engine import Request, Score
from rove_jax.evaluation.intervals import student, wilson
from rove_jax.evaluation.ruler.fit import Sample
from rove_jax.evaluation.ruler.item import Item


class Asked(NamedTuple):
    """A request, and whether its prompt and its answer were encoded apart."""

    request: Request
    apart: bool


def ask(tokenizer: Tokenizer, prompt: str, answer: str, begin: bool) -> Asked:
    """The request that scores `answer` after `prompt`. `begin`: end-of-text stands before the prompt."""
    text, before = f" {answer}", prompt.rstrip()
    context, whole = tokenizer.encode(before), tokenizer.encode(before + text)
    apart = not np.array_equal(whole[: len(context)], context) or len(whole) == len(context)
    continuation = tokenizer.encode(text) if apart else whole[len(context) :]
    first = np.full(1 if begin else 0, tokenizer.eot, np.int32)
    return Asked(Request(np.concatenate([first, context]), continuation), apart)


def asked(tokenizer: Tokenizer, item: Item, begin: bool) -> list[Asked]:
    """The requests of an item, in the order that `record` reads."""
    pairs = [(item.prompt, text) for text in (*item.references, item.distractor, *item.alone, *item.others)]
    if item.floor is not None:
        pairs.append((item.floor, item.references[0]))
    return [ask(tokenizer, prompt, text, begin) for prompt, text in pairs]


def record(sample: Sample, requests: Sequence[Asked], scores: Sequence[Score]) -> dict[str, Any]:
    """The numbers of one sample, in nats, from the scores of its requests."""
    item = sample.item
    sums = [float(np.sum(score.nlls, dtype=np.float64)) for score in scores]
    means = [total / len(score.nlls) for total, score in zip(sums, scores)]
    best = min(range(len(item.references)), key=means.__getitem__)
    place = len(item.references)
    found = {
        "index": sample.index,
        "units": sample.units,
        "prompt_tokens": sample.tokens,
        "depth": item.depth,
        "answer": item.references[best],
        "tokens": len(scores[best].nlls),
        "characters": len(item.references[best]) + 1,
        "nats": sums[best],
        "nll": means[best],
        "exact": bool(np.all(scores[best].greedy)),
        "distractor": item.distractor,
        "distractor_present": item.present,
        "distractor_nll": means[place],
        "floor_nll": means[-1] if item.floor is not None else None,
        "apart": sum(one.apart for one in requests),
    }
    if item.alone:
        found |= order_free(
            sums[place + 1 :][: len(item.alone)], sums[place + 1 + len(item.alone) :][: len(item.others)]
        )
    return found


def order_free(alone: Sequence[float], others: Sequence[float]) -> dict[str, float]:
    """Each right part against all the wrong ones, whatever comes first: nats it costs among them, and its rank."""
    costs = []
    for nats in alone:
        every = np.array([nats, *others], np.float64)
        costs.append(float(np.log(np.sum(np.exp(every.min() - every))) + nats - every.min()))
    ranks = [1 + sum(other < nats for other in others) for nats in alone]
    return {
        "order_free_nll": sum(costs) / len(costs),
        "order_free_rank": sum(ranks) / len(ranks),
        "order_free_choices": 1 + len(others),
    }


def matched(text: str, item: Item, group: str) -> float:
    """RULER's string match: the share of the outputs that a generated text has, any of them for questions."""
    hits = [output.lower() in text.lower() for output in item.outputs]
    return float(any(hits)) if group == "QA" else sum(hits) / len(hits)


def summarise(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What a result file says of the records of one task at one length.

    `interval`: 95%, of `nll` (Student's t); `exact_interval`: of `exact` (Wilson's). `sample_nll`: of each sample, in
    the order of their index, by which those of two models pair.
    """
    records = sorted(records, key=lambda row: row["index"])

    def column(name: str) -> np.ndarray:
        return np.array([row[name] for row in records if row.get(name) is not None], np.float64)

    def mean(values: np.ndarray) -> float | None:
        return float(values.mean()) if values.size else None

    def error(values: np.ndarray) -> float | None:
        return float(values.std(ddof=1) / math.sqrt(values.size)) if values.size > 1 else None

    nll, contrast = column("nll"), column("distractor_nll") - column("nll")
    tokens = column("prompt_tokens")
    found = {
        "samples": len(records),
        "nll": mean(nll),
        "standard_error": error(nll),
        "interval": student(nll.tolist()),
        "token_nll": float(column("nats").sum() / column("tokens").sum()),
        "character_nll": float(column("nats").sum() / column("characters").sum()),
        "exact": mean(column("exact")),
        "exact_interval": list(wilson(int(column("exact").sum()), len(records))),
        "contrast": mean(contrast),
        "contrast_standard_error": error(contrast),
        "distractor_present": mean(column("distractor_present")),
        "floor_nll": mean(column("floor_nll")),
        "answer_tokens": mean(column("tokens")),
        "prompt_tokens": [int(tokens.min()), float(tokens.mean()), int(tokens.max())],
        "units": mean(column("units")),
        "encoded_apart": int(column("apart").sum()),
        "sample_nll": nll.tolist(),
    }
    for name in ("order_free_nll", "order_free_rank", "order_free_choices", "match"):
        if column(name).size:
            found[name] = mean(column(name))
    deep = [row for row in records if row["depth"] is not None]
    if deep:
        found["by_depth"] = [
            {"from": tenth / 10, "samples": len(part), "nll": mean(np.array([row["nll"] for row in part]))}
            for tenth in range(10)
            if (part := [row for row in deep if min(9, int(row["depth"] * 10)) == tenth])
        ]
    return found
