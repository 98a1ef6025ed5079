"""The result of RULER as tables."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from rove_jax.evaluation.intervals import combined, wilson
from rove_jax.evaluation.ruler.tasks import GROUPS
from rove_jax.evaluation.tables import counted, number, span, table

MEANS = "Mean of groups: the mean over groups of tasks of the mean over each group's tasks."
MATCH = (
    "Match: RULER's string match of what the model writes, the mean over samples of the share of the answer's parts "
    "that stand in it. Where a sample has one part, or any of several is right, it is a share of samples and has its "
    "95% interval (Wilson's)."
)
SMALL = "Marked *: a smaller form of the task, not RULER's: the length is below what its parameters need."
YES_OR_NO = ("niah_single", "niah_multikey", "qa")
"""How the names of tasks begin whose samples are each right or wrong."""


def ruler_table(document: dict[str, Any]) -> str:
    """Nats per token of the answer: a row per task, then the means of groups; a column per length and scaling."""
    found = document["results"]
    columns = list(dict.fromkeys((row["length"], row["scaling"]) for row in found))
    names = list(dict.fromkeys(name(row) for row in found))
    cells = {(name(row), row["length"], row["scaling"]): row for row in found}
    one = len({scaling for _, scaling in columns}) == 1
    header = ["task", *(str(length) if one else f"{length} {scaling}" for length, scaling in columns)]
    rows = [[each, *(cell(cells[each, *column]) for column in columns)] for each in names]
    groups = [group for group in GROUPS if any(row["group"] == group for row in found)]
    for label, of in [*((f"mean {group}", [group]) for group in groups), ("mean of groups", groups)]:
        means = [group_mean([row for row in found if (row["length"], row["scaling"]) == c], of) for c in columns]
        stars = [
            star(row for row in found if (row["length"], row["scaling"]) == c and row["group"] in of) for c in columns
        ]
        shown = [f"{number(mean)}{half(interval)}{mark or ' '}" for (mean, interval), mark in zip(means, stars)]
        rows.append([label, *shown])
    return table(header, rows if len(groups) > 1 else rows[:-1])


def name(row: dict[str, Any]) -> str:
    """A task's name, the same for its small form."""
    return row["task"].removesuffix("_small")


def cell(row: dict[str, Any]) -> str:
    """A number with half its 95% interval, and a mark where the task is not as published."""
    return f"{number(row['nll'], 3)}{half(row['interval'])}{star([row]) or ' '}"


def star(rows: Iterable[dict[str, Any]]) -> str:
    """The mark of a number that has a task in it which is not as published."""
    return "*" if any(row["form"] == "small" for row in rows) else ""


def half(interval: Sequence[float] | None) -> str:
    """How far an interval reaches to either side."""
    return "" if interval is None else f" ± {number((interval[1] - interval[0]) / 2, 2)}"


def group_mean(found: Sequence[dict[str, Any]], groups: Sequence[str]) -> tuple[float, tuple[float, float] | None]:
    """The mean over groups of the means over their tasks, of records of one length and scaling, and its 95% interval.

    None for the interval where a task has none, of a single sample.
    """
    chosen = [row for row in found if row["group"] in groups]
    sizes = Counter(row["group"] for row in chosen)
    weights = [1 / sizes[row["group"]] / len(groups) for row in chosen]
    values, intervals = [row["nll"] for row in chosen], [row["interval"] for row in chosen]
    mean = sum(weight * value for weight, value in zip(weights, values))
    return mean, None if None in intervals else combined(values, intervals, weights)


def control_table(document: dict[str, Any]) -> str:
    """What the nats are to be held against, of each task at each length and scaling."""
    header = [
        "task",
        "length",
        "scaling",
        "nats",
        "no needle",
        "wrong answer",
        "exact",
        "answer tokens",
        "prompt tokens",
    ]
    rows = []
    for row in document["results"]:
        wrong = f"{row['contrast']:+.3f}{'' if row['distractor_present'] > 0.5 else ' absent'}"
        sizes = f"{row['prompt_tokens'][0]} to {row['prompt_tokens'][2]}"
        values = [
            number(row["nll"]),
            number(row["floor_nll"]),
            wrong,
            f"{number(row['exact'], 2)} {span(row['exact_interval'])}",
            number(row["answer_tokens"], 1),
        ]
        rows.append([row["task"], str(row["length"]), row["scaling"], *values, sizes])
    if any("match" in row for row in document["results"]):
        header.append("match")
        for cells, row in zip(rows, document["results"]):
            cells.append(f"{number(row['match'])} {span(match_interval(row))}".strip())
    return table(header, rows)


def caption(document: dict[str, Any]) -> str:
    """What the numbers of both tables are."""
    settings, provenance = document["settings"], document["provenance"]
    first = (
        f"RULER, {provenance['run']} at step {provenance['step']} (trained on {provenance['training_length']} tokens): "
        f"nats per token of the answer, mean over {counted(settings['samples'], 'sample')} ± 95%; lower is better."
    )
    groups = {row["group"] for row in document["results"]}
    return "\n".join([first, *([MEANS] if len(groups) > 1 else []), *cautions(document)])


def cautions(document: dict[str, Any]) -> list[str]:
    """In what the numbers are not RULER's, a line each."""
    settings, found, lines = document["settings"], document["results"], []
    if any(row["form"] == "small" for row in found):
        lines.append(SMALL)
    made_up = sorted({row["questions"] for row in found if (row["questions"] or "").startswith("standin")})
    if made_up:
        lines.append("qa: made-up questions in place of SQuAD and HotpotQA (--squad, --hotpotqa); not comparable.")
    if any(name.startswith("haystack") for name in settings["texts"]):
        lines.append("Essays are not Paul Graham's, which have no licence; not comparable with published numbers.")
    return lines


def match_interval(row: dict[str, Any]) -> tuple[float, float] | None:
    """95% of a record's string match, where each sample is right or wrong; None where it may be so in part."""
    whole = row["published_task"].startswith(YES_OR_NO)
    return wilson(row["match"] * row["samples"], row["samples"]) if whole else None


def legend(document: dict[str, Any]) -> str:
    """What the columns of `control_table` mean."""
    said = (
        "no needle: the same answer where the text that gives it away is taken out. wrong answer: what one of the "
        "same form costs more, from the same text, or absent from it. exact: share of answers, every token likeliest, "
        "with its 95% interval (Wilson's)."
    )
    return f"{said} {MATCH}" if any("match" in row for row in document["results"]) else said
