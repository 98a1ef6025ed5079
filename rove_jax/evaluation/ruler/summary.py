"""The result of RULER as tables."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rove_jax.evaluation.intervals import combined
from rove_jax.evaluation.ruler.tasks import GROUPS
from rove_jax.evaluation.tables import counted, number, span, table


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
        rows.append([label, *(f"{number(mean)}{half(interval)} " for mean, interval in means)])
    return table(header, rows if len(groups) > 1 else rows[:-1])


def name(row: dict[str, Any]) -> str:
    """A task's name, the same for its small form."""
    return row["task"].removesuffix("_small")


def cell(row: dict[str, Any]) -> str:
    """A number with half its 95% interval, and a mark where the task is not as published."""
    return f"{number(row['nll'], 3)}{half(row['interval'])}{'*' if row['form'] == 'small' else ' '}"


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
            cells.append(number(row["match"]))
    return table(header, rows)


def caption(document: dict[str, Any]) -> str:
    """What the numbers of both tables are."""
    settings, provenance = document["settings"], document["provenance"]
    first = (
        f"RULER, {provenance['run']} at step {provenance['step']} (trained on {provenance['training_length']} tokens): "
        f"nats per token of the answer, mean over {counted(settings['samples'], 'sample')} ± 95%; lower is better."
    )
    return "\n".join([first, *cautions(document)])


def cautions(document: dict[str, Any]) -> list[str]:
    """In what the numbers are not RULER's, a line each."""
    settings, found, lines = document["settings"], document["results"], []
    if any(row["form"] == "small" for row in found):
        lines.append("Marked *: a smaller form of the task, not RULER's: the length is below what its parameters need.")
    made_up = sorted({row["questions"] for row in found if (row["questions"] or "").startswith("standin")})
    if made_up:
        lines.append("qa: made-up questions in place of SQuAD and HotpotQA (--squad, --hotpotqa); not comparable.")
    if any(name.startswith("haystack") for name in settings["texts"]):
        lines.append("Essays are not Paul Graham's, which have no licence; not comparable with published numbers.")
    return lines


def legend() -> str:
    """What the columns of `control_table` mean."""
    return (
        "no needle: the same answer where the text that gives it away is taken out. wrong answer: what one of the "
        "same form costs more, from the same text, or absent from it. exact: share of answers, every token likeliest, "
        "with its 95% interval (Wilson's)."
    )
