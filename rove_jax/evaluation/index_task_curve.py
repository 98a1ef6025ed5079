"""The index task against length: a model asked, its accuracies as records, as a table and as a figure."""

import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from rove_jax.config import Model, ScalingRule
from rove_jax.data.tokenizers import Tokenizer
from rove_jax.evaluation.engine import Engine, Request
from rove_jax.evaluation.index_task import (
    IndexTask,
    Variant,
    by_depth,
    longest,
    make_index_task,
    score_index_task,
    single_tokens,
)
from rove_jax.evaluation.protocol import scaled
from rove_jax.evaluation.tables import number, table


def index_tasks(
    lengths: Sequence[int],
    variants: Sequence[Variant],
    tokenizer: Tokenizer,
    *,
    samples: int,
    seed: int,
    shots: int | None = None,
) -> Iterator[tuple[Variant, int, IndexTask]]:
    """The tasks of every variant and length, with as many items as fit. Raises `UsageError` where none do."""
    for variant in variants:
        most = len(single_tokens(tokenizer)) if variant.startswith("words") else 2**20
        before = 0
        for length in sorted(lengths):

            def make(items: int, count: int, variant: Variant = variant) -> IndexTask:
                given = {"tokenizer": tokenizer, "variant": variant, "shots": shots}
                return make_index_task(items, n_samples=count, seed=seed, **given)

            task = longest(length, make, most, samples, variant)
            if task.n_items > before:  # a list of all the words there are is not made longer
                yield variant, length, task
            before = task.n_items


def index_curve(
    cfg: Model,
    params: dict,
    tasks: Sequence[tuple[Variant, int, IndexTask]],
    *,
    training_length: int,
    first: Sequence[int],
    scalings: Sequence[ScalingRule] = ("none",),
    value_scaling: str = "same",
    batch_size: int | None = None,
    mesh: jax.sharding.Mesh | None = None,
    advance: Callable[[int], object] = lambda done: None,
) -> list[dict[str, Any]]:
    """One record per task and scaling: what `score_index_task` says, and the variant, length and factor.

    Args:
        first: tokens before every prompt: end-of-text, or none where the model never saw one before a text.
        scalings: frequency scalings, with factor length / training length.
        mesh: as in `Engine`.
        advance: told how many choices were scored; each question has as many as its task's `choices`.
    """
    engine, values = Engine(cfg, params, batch_size=batch_size, mesh=mesh), value_scaling == "same"
    records = []
    for variant, length, task in tasks:
        scored: dict[Model, dict[str, Any]] = {}  # scalings that leave the model as it is are computed once
        for rule in scalings:
            model = scaled(cfg, rule, training_length=training_length, length=length, values=values)
            if model not in scored:
                reader = engine.reading(model)
                scored[model] = score_index_task(task, reader.score(requests(task, first), advance))
            named = {"variant": variant, "length": length, "scaling": rule}
            factor = length / training_length if model != cfg else 1.0
            records.append({**named, "factor": factor, **scored[model]})
    return records


def requests(task: IndexTask, first: Sequence[int]) -> list[Request]:
    """One for each choice of each question; those of a question share the array of its prompt."""
    before, found = np.array(first, np.int32), []
    for prompt, ids in zip(task.prompts, task.choices):
        context = np.concatenate([before, prompt])
        found += [Request(context, ids[choice : choice + 1]) for choice in range(len(ids))]
    return found


def index_table(records: Sequence[dict[str, Any]]) -> str:
    """Accuracy with its interval, against chance: a row per variant, length and scaling."""
    header = [
        "variant",
        "length",
        "scaling",
        "lists",
        "items",
        "accuracy",
        "95%",
        "chance",
        "likeliest of all",
        "nats",
        "off by",
    ]
    rows = [
        [
            *(
                row["variant"],
                str(row["length"]),
                row["scaling"],
                str(row["samples"]),
                str(row["n_items"]),
                number(row["accuracy"]),
            ),
            "{:.2f} to {:.2f}".format(*row["interval"]),
            *(number(row["chance"], 4 if row["chance"] < 0.1 else 2), number(row["top_1"]), number(row["nll"])),
            number(row["distance"], 1),
        ]
        for row in records
    ]
    return table(header, rows)


def legend() -> str:
    """What the columns of `index_table` mean."""
    return (
        "lists: how many were asked about, one question each. accuracy: share of questions whose right answer is the "
        "likeliest of those that may be given, with its 95% interval (Wilson's). likeliest of all: share whose right "
        "answer is the likeliest of all tokens. nats: mean -ln of the right answer's probability among all tokens. off "
        "by: mean distance in the list between the word picked and the right one."
    )


def depth_table(records: Sequence[dict[str, Any]]) -> str:
    """The heat map as numbers: right answers of how many by tenth of the list, a row per variant, length, scaling."""
    header = ["variant", "length", "scaling", *(f"{tenth / 10:.1f}" for tenth in range(10))]
    rows = [
        [row["variant"], str(row["length"]), row["scaling"]]
        + [f"{right}/{count}" if count else "-" for count, right in by_depth(row)]
        for row in records
    ]
    return table(header, rows)


def figure(records: Sequence[dict[str, Any]], training_length: int, title: str) -> bytes:
    """A PNG: accuracy against length with its interval, and a heat map by (length, k), a row for each variant."""
    from matplotlib.figure import Figure  # a second to import, for this function alone

    variants = list(dict.fromkeys(row["variant"] for row in records))
    rules = list(dict.fromkeys(row["scaling"] for row in records))
    width = 1 + len(rules)
    plot = Figure(figsize=(4 * width, 3 * len(variants)), layout="constrained")
    for line, variant in zip(plot.subplots(len(variants), width, squeeze=False), variants):
        styles = zip(rules, itertools.cycle("osD^vPX"), itertools.cycle(("-", "--", ":")), line[1:])
        for place, (rule, marker, dash, heat) in enumerate(styles):
            rows = [row for row in records if row["variant"] == variant and row["scaling"] == rule]
            lengths = [row["length"] for row in rows]
            shares = np.array([row["accuracy"] for row in rows])
            low, high = np.array([row["interval"] for row in rows]).T
            at = [length * 1.03**place for length in lengths]  # beside each other, where scalings agree
            look = {"marker": marker, "linestyle": dash, "capsize": 3, "markersize": 5}
            line[0].errorbar(at, shares, [shares - low, high - shares], label=rule, **look)
            parts = [[right / count if count else np.nan for count, right in by_depth(row)] for row in rows]
            image = heat.imshow(np.array(parts).T, vmin=0, vmax=1, aspect="auto", origin="lower", cmap="cividis")
            heat.set_xticks(range(len(lengths)), [str(length) for length in lengths], rotation=45, fontsize=7)
            heat.set_yticks([-0.5, 4.5, 9.5], ["0", "n/2", "n"])
            heat.set(title=f"{variant}, {rule}", xlabel="context, tokens", ylabel="k")
            plot.colorbar(image, ax=heat, label="accuracy")
        chances = [(row["length"], row["chance"]) for row in records if row["variant"] == variant]
        line[0].plot(*zip(*sorted(set(chances))), color="0.45", linestyle=":", label="chance")
        ticks = sorted({row["length"] for row in records if row["variant"] == variant})
        if ticks[0] <= training_length <= ticks[-1]:
            line[0].axvline(training_length, color="0.45", linewidth=0.8, label="trained on")
        line[0].set_xscale("log", base=2)
        line[0].set_xticks(ticks, [str(length) for length in ticks], rotation=45, fontsize=7)
        line[0].set(title=f"{variant}, 95%", xlabel="context, tokens", ylabel="accuracy", ylim=(-0.02, 1.02))
        line[0].legend(fontsize=7)
    plot.suptitle(title)
    stream = io.BytesIO()
    plot.savefig(stream, format="png", dpi=150, metadata={"Software": None})
    return stream.getvalue()
