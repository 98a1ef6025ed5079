"""Accuracy of a model on the puzzles it was trained on, by size, within and beyond the sizes of training."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from rove_jax.config import Model
from rove_jax.data import puzzles
from rove_jax.data.draws import Draw
from rove_jax.data.tokenizers import Tokenizer
from rove_jax.errors import RunError, require
from rove_jax.evaluation.engine import Engine, Request
from rove_jax.evaluation.intervals import wilson
from rove_jax.evaluation.tables import number, table


def default_sizes(kind: str) -> tuple[int, ...]:
    """Some sizes of training, and some beyond."""
    return (4, 8, 12, 16, 24, 32) if kind == "substring" else (1, 2, 3, 4)


def accuracies(
    cfg: Model,
    params: dict,
    tokenizer: Tokenizer,
    kind: str,
    sizes: Sequence[int],
    *,
    samples: int = 200,
    seed: int = 42,
    first: Sequence[int] = (),
    batch_size: int | None = None,
    mesh: jax.sharding.Mesh | None = None,
    advance: Callable[[int], object] = lambda done: None,
) -> list[dict[str, Any]]:
    """One record per size: the share of puzzles whose answer, and the end of it, is what the model finds likeliest.

    The answer is right if its every token is the likeliest after those before it, which is when greedy writing gives
    it. Each puzzle is one of its own, with none answered before it.

    Args:
        kind: `substring` or `addition`.
        first: tokens before a puzzle: end-of-text, or none where documents were trained apart.
        mesh: as in `Engine`.

    Raises:
        UsageError: a kind that is none, or a size that no puzzle has.
        RunError: the model gives a likelihood that is not finite.
    """
    require(kind in puzzles.SIZES, "data.source", kind, f"no puzzles; they are {', '.join(puzzles.SIZES)}")
    require(len(set(sizes)) == len(sizes), "--sizes", list(sizes), "must differ from each other")
    # Python writes no number of more than 4300 digits, and an engine reads 2^20 tokens.
    least, most = (puzzles.LETTERS, 2**19) if kind == "substring" else (1, 4_000)
    for size in sizes:
        require(least <= size <= most, "--sizes", size, f"must lie between {least} and {most}")
    engine, records = Engine(cfg, params, batch_size=batch_size, mesh=mesh), []
    for size in sizes:
        found = [puzzles.puzzles(kind, size, Draw(seed, "asked", kind, index), 1)[0] for index in range(samples)]
        end = "," if kind == "substring" else "]"
        requests = [
            Request(
                np.concatenate([np.array(first, np.int32), tokenizer.encode(one.prompt)]),
                tokenizer.encode(one.answer + end),
            )
            for one in found
        ]
        longest = max(len(request.context) + len(request.continuation) for request in requests)
        scores = engine.score(requests, advance)
        if not all(np.isfinite(score.nlls).all() for score in scores):
            raise RunError(f"{kind}, size {size}: the model gives a likelihood that is not finite")
        right = sum(bool(score.greedy.all()) for score in scores)
        records.append(
            {
                "size": size,
                "trained": size in puzzles.SIZES[kind],
                "samples": samples,
                "correct": right,
                "accuracy": right / samples,
                "interval": list(wilson(right, samples)),
                "token_accuracy": float(np.mean(np.concatenate([score.greedy[:-1] for score in scores]))),
                "nll": float(np.mean([np.mean(score.nlls, dtype=np.float64) for score in scores])),
                "tokens": longest,
            }
        )
    return records


def puzzle_table(records: Sequence[dict[str, Any]]) -> str:
    """Accuracy with its interval by size."""
    header = ["size", "trained", "puzzles", "accuracy", "95%", "of tokens", "nats"]
    rows = [
        [
            str(row["size"]),
            "yes" if row["trained"] else "no",
            str(row["samples"]),
            number(row["accuracy"]),
            "{:.2f} to {:.2f}".format(*row["interval"]),
            number(row["token_accuracy"]),
            number(row["nll"]),
        ]
        for row in records
    ]
    return table(header, rows)
