"""The tables of a report about RULER: nats of the answer by task and length, and what runs differ by on the samples."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rove_jax.errors import UsageError
from rove_jax.evaluation.intervals import student
from rove_jax.evaluation.ruler import summary
from rove_jax.evaluation.ruler.tasks import GROUPS, NAMES
from rove_jax.evaluation.tables import number, signed
from rove_jax.report import compare, paper
from rove_jax.report.cells import NONE, Cell, Result, Results, Table, with_kind

ALT = "Nats per token of the answer against length, with 95% intervals: a panel for each task, a line for each run."


class Column(NamedTuple):
    """A run at a length under a scaling: its records by the published task, and where they are in the file."""

    label: str
    length: int
    rule: str
    result: Result
    records: dict[str, tuple[int, dict[str, Any]]]


def columns(found: Results, names: dict[str, str]) -> list[Column]:
    """Every column there is, lengths outermost."""
    made = []
    for name, result in with_kind(found, "ruler").items():
        rows = list(enumerate(result.document["results"]))
        for length, rule in dict.fromkeys((row["length"], row["scaling"]) for _, row in rows):
            label = f"{length} {names[name]}{'' if rule == 'none' else ', ' + compare.SCALINGS[rule]}"
            there = {r["published_task"]: (p, r) for p, r in rows if (r["length"], r["scaling"]) == (length, rule)}
            made.append(Column(label, length, rule, result, there))
    return sorted(made, key=lambda column: column.length)


def mean_cell(column: Column, groups: list[str], shown: Callable[[float, int], str]) -> Cell:
    """The mean of groups of tasks, `shown` as text."""
    chosen = {place: row for place, row in column.records.values() if row["group"] in groups}
    if {row["group"] for row in chosen.values()} != set(groups):
        return NONE
    mean, interval = summary.group_mean(list(chosen.values()), groups)
    where = f"results[{', '.join(map(str, chosen))}].nll, their mean"
    return column.result.cell(shown(mean, 2), where, interval)


def rows_of(
    made: list[Column], cell: Callable[[Column, str], Cell], shown: Callable[[float, int], str]
) -> list[list[Cell]]:
    """A row for each task, by `cell` of a column and a task's name, then the means of groups, then theirs."""
    tasks = [task for task in NAMES if any(task in column.records for column in made)]
    rows = [[Cell(task), *(cell(column, task) for column in made)] for task in tasks]
    groups = [g for g in GROUPS if any(row["group"] == g for column in made for _, row in column.records.values())]
    for label, of in [*((f"mean {group}", [group]) for group in groups), ("mean of groups", groups)]:
        rows.append([Cell(label), *(mean_cell(column, of, shown) for column in made)])
    return rows if len(groups) > 1 else rows[:-1]


def by_task(found: Results, names: dict[str, str]) -> Table | None:
    """Tables 2 and 4 of the paper."""
    made = columns(found, names)
    if not made:
        return None

    def cell(column: Column, task: str) -> Cell:
        if task not in column.records:
            return NONE
        place, one = column.records[task]
        mark = "*" if one["form"] == "small" else ""
        return column.result.cell(f"{one['nll']:.2f}{mark}", f"results[{place}].nll", one["interval"])

    measured = with_kind(found, "ruler")
    header, rows = ["task", *(column.label for column in made)], rows_of(made, cell, number)
    cautions = list(dict.fromkeys(line for r in measured.values() for line in summary.cautions(r.document)))
    note = f"Nats per token of the answer, mean over {samples(measured)} samples of each task and length, with its 95% "
    note += "interval (Student's t); lower is better."
    if {result.document["provenance"]["tokenizer"] for result in measured.values()} != {"gpt2"}:
        cautions.append("The paper's are nats per GPT-2 token, another unit, and so not beside these.")
    elif any(column.length == 4096 for column in made):
        for label, values in paper.RULER.items():
            header.append(f"4096 paper, {label}")
            for row in rows:
                mean = row[0].text.startswith("mean ") and row[0].text != "mean of groups"
                row.append(Cell(paper.printed(values.get(row[0].text.removeprefix("mean "))) if mean else ""))
        means = ", ".join(f"{label} {value}" for label, value in paper.RULER_MEAN.items())
        cautions.append(f"{paper.CERTAINTY} Its means over tasks and lengths, of its Table 2: {means}.")
    return Table("RULER (the paper's Tables 2 and 4)", note, header, rows, tuple(cautions), "ruler", ALT)


def samples(measured: dict[str, Result]) -> str:
    """How many samples, once where all runs have as many."""
    return " or ".join(map(str, dict.fromkeys(r.document["settings"]["samples"] for r in measured.values())))


def differences(found: Results, names: dict[str, str]) -> Table | None:
    """Nats of each later run less the first one's, on the same samples."""
    measured = with_kind(found, "ruler")
    if len(measured) < 2:
        return None
    [first, base], *others = measured.items()
    bases = {(column.length, column.rule): column for column in columns({first: found[first]}, names)}
    made = []
    for column in columns({name: found[name] for name, _ in others}, names):
        start = bases.get((column.length, column.rule))
        if start is not None:
            less = {t: (p, less_than(start, column, t)) for t, (p, _) in column.records.items() if t in start.records}
            made.append(column._replace(records=less))
    rows = rows_of(made, difference_cell, signed)
    note = f"Nats per token of the answer less those of {names[first]}; below 0 is better. Means over samples with 95% "
    note += "intervals (Student's t), paired: both runs answered the same samples."
    return Table(f"RULER relative to {names[first]}", note, ["task", *(column.label for column in made)], rows)


def difference_cell(column: Column, task: str) -> Cell:
    """The difference of a task."""
    if task not in column.records:
        return NONE
    place, one = column.records[task]
    return column.result.cell(signed(one["nll"], 2), f"results[{place}].sample_nll", one["interval"])


def less_than(start: Column, column: Column, task: str) -> dict[str, Any]:
    """The record of a difference: as one of a task, but of nats less nats."""
    mine, theirs = start.records[task][1], column.records[task][1]
    if start.result.document["settings"] != column.result.document["settings"]:
        raise UsageError(f"{column.label}: other samples than the first run's; evaluate both again")
    less = np.subtract(theirs["sample_nll"], mine["sample_nll"]).tolist()
    return {"group": theirs["group"], "nll": float(np.mean(less)), "interval": student(less)}
