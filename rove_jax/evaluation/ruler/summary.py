"""The result of RULER as tables."""

from collections.abc import Sequence
from typing import Any

from rove_jax.evaluation.ruler.tasks import GROUPS
from rove_jax.evaluation.tables import number, table


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
    for group in groups:
        rows.append([f"mean {group}", *(number(group_mean(found, [group], *column), 3) for column in columns)])
    if len(groups) > 1:
        rows.append(["mean of groups", *(number(group_mean(found, groups, *column), 3) for column in columns)])
    return table(header, rows)


def name(row: dict[str, Any]) -> str:
    """A task's name, the same for its small form."""
    return row["task"].removesuffix("_small")


def cell(row: dict[str, Any]) -> str:
    """A number with its standard error, and a mark where the task is not as published."""
    error = "" if row["standard_error"] is None else f" +- {row['standard_error']:.2f}"
    return f"{number(row['nll'], 3)}{error}{'*' if row['form'] == 'small' else ' '}"


def group_mean(found: Sequence[dict[str, Any]], groups: Sequence[str], length: int, scaling: str) -> float:
    """The mean over groups of the means over their tasks."""
    means = []
    for group in groups:
        part = [
            row["nll"] for row in found if (row["group"], row["length"], row["scaling"]) == (group, length, scaling)
        ]
        means.append(sum(part) / len(part))
    return sum(means) / len(means)


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
            number(row["exact"]),
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
        f"nats per token of the answer, mean over {settings['samples']} samples +- its standard error; lower is better."
    )
    return "\n".join([first, *cautions(document)])


def cautions(document: dict[str, Any]) -> list[str]:
    """In what the numbers are not RULER's, a line each."""
    settings, found, lines = document["settings"], document["results"], []
    if any(row["form"] == "small" for row in found):
        lines.append("* a smaller form of the task, not RULER's: the length is below what its parameters need.")
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
        "same form costs more, from the same text, or absent from it. exact: share of answers, every token likeliest."
    )
