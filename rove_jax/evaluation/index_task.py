"""The index task: what is the k-th element of a list? (Du et al. 2026, arXiv 2605.15514, section 5.)

`arr = [1, 0, 3, ...]`, then `arr[k] =`, and the model picks one of the four values. What the paper leaves open is
chosen here: values are independent and uniform over {0, 1, 2, 3}, k is uniform, the pick is the likeliest of the four,
so guessing is right one time in four at every length. Three variants tell why a model fails: `numbered` writes each
index beside its value, so that it is enough to look it up; `words` lists different words and asks for the 7th;
`words_end` for the 7th from the end. In those the pick is among all words of the list.
"""

import string
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from rove_jax.data.draws import Draw
from rove_jax.data.tokenizers import Tokenizer
from rove_jax.errors import UsageError, require, require_choice
from rove_jax.evaluation.engine import Score
from rove_jax.evaluation.intervals import wilson
from rove_jax.evaluation.ruler import words

Variant = Literal["list", "numbered", "words", "words_end"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)
SHOTS: dict[Variant, int] = {"list": 0, "numbered": 0, "words": 2, "words_end": 2}
"""Questions on the same list that are answered before the one that is asked."""


class IndexTask(NamedTuple):
    """Questions that are each answered by one token."""

    prompts: list[np.ndarray]
    """int32 tokens of each, all that stands before the answer."""
    answers: np.ndarray
    """int [S], the place of the right one among the choices."""
    choices: list[np.ndarray]
    """Token ids of what may be answered: the values, or the words of the list in their order."""
    places: np.ndarray
    """int [S], k, counted from 0 at the beginning of the list."""
    n_items: int


def make_index_task(
    n_items: int,
    n_values: int = 4,
    n_samples: int = 100,
    seed: int = 42,
    *,
    tokenizer: Tokenizer,
    variant: Variant = "list",
    shots: int | None = None,
) -> IndexTask:
    """Lists of `n_items` with a question each. The same seed gives the same lists, each the beginning of longer ones.

    Args:
        n_values: how many different numbers a list has; of words all are different.
        shots: answered questions before; None: 2 about words, else 0.

    Raises:
        UsageError: more words than the tokenizer has as single tokens.
    """
    require(n_items >= 2, "n_items", n_items, "must be at least 2")
    require(2 <= n_values <= 10, "n_values", n_values, "must lie between 2 and 10")
    require(n_samples >= 1, "n_samples", n_samples, "must be at least 1")
    require_choice("variant", variant, Variant)
    shots = SHOTS[variant] if shots is None else shots
    pool = single_tokens(tokenizer) if variant in ("words", "words_end") else []
    if pool and n_items > len(pool) or variant in ("words", "words_end") and not pool:
        raise UsageError(
            f"n_items = {n_items}: {tokenizer.name} has {len(pool)} words of one token; take a shorter list"
        )
    prompts, answers, choices, places = [], [], [], []
    for index in range(n_samples):
        draw = Draw(seed, "index", index)
        asked = [int(draw.fraction() * n_items) for _ in range(shots + 1)]
        if pool:
            items = draw.apart("words").sample(pool, n_items)
            named, right = items, asked[-1]
        else:
            stream = draw.apart("values")
            items = [str(stream.below(n_values)) for _ in range(n_items)]
            named, right = [str(value) for value in range(n_values)], int(items[asked[-1]])
        text = written(variant, items, asked)
        prompt, ids = candidates(tokenizer, text, named)
        prompts.append(prompt)
        choices.append(ids)
        answers.append(right)
        places.append(asked[-1])
    return IndexTask(prompts, np.array(answers), choices, np.array(places), n_items)


def written(variant: Variant, items: Sequence[str], asked: Sequence[int]) -> str:
    """The list, the answered questions and the one to answer."""
    if variant in ("list", "numbered"):
        head = f"arr = [{', '.join(items)}]\n"
        if variant == "numbered":
            head = "".join(f"arr[{place}] = {value}\n" for place, value in enumerate(items)) + "\n"
        return head + "".join(f"arr[{k}] = {items[k]}\n" for k in asked[:-1]) + f"arr[{asked[-1]}] ="
    end = variant == "words_end"
    names = [f"{ordinal(len(items) - k if end else k + 1)} item{' from the end' if end else ''}" for k in asked]
    shown = [f"The {name} is {items[k]}.\n" for name, k in zip(names, asked[:-1])]
    return f"{', '.join(items)}\n{''.join(shown)}The {names[-1]} is"


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th, 11th, 112th, ..."""
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"


def single_tokens(tokenizer: Tokenizer) -> list[str]:
    """The words of `wonderwords`, and letters, that are one token after a space, however the space is encoded."""
    before = tokenizer.encode("is")
    alone = len(tokenizer.encode("is a")) - len(before)
    pool = [*words.load().every, *string.ascii_letters]
    fitting = [word for word in pool if word.isalpha() and len(tokenizer.encode(f"is {word}")) == len(before) + alone]
    return list(dict.fromkeys(fitting))


def candidates(tokenizer: Tokenizer, text: str, named: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """The tokens before the answer, the space before it among them if it is one of its own; and the answers' ids."""
    encoded = tokenizer.encode(f"{text} {named[0]}")
    stem, last = encoded[:-1], tokenizer.encode(f" {named[0]}")
    apart = len(last)
    ids = [tokenizer.encode(f" {name}") for name in named]
    if any(len(one) != apart or not np.array_equal(one[:-1], last[:-1]) for one in ids) or encoded[-1] != last[-1]:
        raise UsageError(f"index task: {tokenizer.name} does not have every one of {named[:4]} as one token")
    return stem, np.array([one[-1] for one in ids], np.int32)


def longest(length: int, make: Callable[[int, int], IndexTask], most: int, samples: int, variant: Variant) -> IndexTask:
    """The task with the most items, up to `most`, whose prompts, end-of-text before them and the answer's token are all
    within `length` tokens. `make` takes the number of items and of samples.

    Raises:
        UsageError: not even two items fit.
    """

    def size(task: IndexTask) -> int:
        return max(map(len, task.prompts)) + 2

    low, high = 1, 2
    while high <= most and size(make(high, 1)) <= length:
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if size(make(middle, 1)) <= length else (low, middle)
    for items in range(low, 1, -1):  # what is asked differs by a token or two between samples
        task = make(items, samples)
        if size(task) <= length:
            return task
    least = size(make(2, samples))
    raise UsageError(f"--lengths = {length}: two items of {variant} take {least} tokens; choose longer, or --variants")


def score_index_task(task: IndexTask, scores: Sequence[Score]) -> dict[str, Any]:
    """How often the likeliest choice is the right one.

    Args:
        scores: of each choice of each question, one after another, each of one token.

    Returns:
        samples, correct, accuracy and its 95% Wilson `interval`, chance; `top_1`, the share where the right token is
        the likeliest of all; `nll`, mean nats of the right token; `distance`, mean distance in the list between the
        word picked and the right one (None for values); each sample's place, answer and pick.
    """
    ends = np.cumsum([len(ids) for ids in task.choices])
    groups = [scores[end - len(ids) : end] for end, ids in zip(ends, task.choices)]
    right = [group[answer] for group, answer in zip(groups, task.answers)]
    picked = np.array([int(np.argmin([score.nlls[0] for score in group])) for group in groups])
    hits = picked == task.answers
    in_order = len(task.choices[0]) == task.n_items and np.array_equal(task.answers, task.places)
    return {
        "n_items": task.n_items,
        "samples": len(hits),
        "correct": int(hits.sum()),
        "accuracy": float(hits.mean()),
        "interval": list(wilson(int(hits.sum()), len(hits))),
        "chance": 1 / len(task.choices[0]),
        "top_1": float(np.mean([bool(score.greedy[0]) for score in right])),
        "nll": float(np.mean([float(score.nlls[0]) for score in right])),
        "distance": float(np.abs(picked - task.answers).mean()) if in_order else None,
        "places": task.places.tolist(),
        "answers": task.answers.tolist(),
        "picked": picked.tolist(),
    }


def by_depth(record: dict[str, Any]) -> list[tuple[int, int]]:
    """(samples, right ones) by tenth of the list."""
    tenths = np.minimum(9, np.array(record["places"]) * 10 // record["n_items"])
    hits = np.array(record["picked"]) == np.array(record["answers"])
    return [(int((tenths == tenth).sum()), int(hits[tenths == tenth].sum())) for tenth in range(10)]
