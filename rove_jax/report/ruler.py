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
    base: "Column | None" = None
    """What its numbers are less than: they are differences."""

    def where(self, groups: list[list[str]], field: str = "nll") -> str:
        """The place of the mean over groups of the mean over each one's tasks; of a single task that of its number."""
        parts = [f"results[{', '.join(str(self.records[t][0]) for t in tasks)}].{field}" for tasks in groups]
        text = ", ".join(parts)
        if len(groups) > 1:
            text += ", the mean of their means"
        elif len(groups[0]) > 1:
            text += ", their mean"
        return f"{text}, less {self.base.result.file}: {self.base.where(groups, field)}" if self.base else text


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
    tasks = [[task for task, (_, row) in column.records.items() if row["group"] == group] for group in groups]
    text = f"{shown(mean, 2)}{summary.star(chosen.values())}"
    return column.result.cell(text, column.where(tasks), interval)


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
        return column.result.cell(f"{one['nll']:.2f}{summary.star([one])}", f"results[{place}].nll", one["interval"])

    measured = with_kind(found, "ruler")
    header, rows = ["task", *(column.label for column in made)], rows_of(made, cell, number)
    cautions = list(dict.fromkeys(line for r in measured.values() for line in summary.cautions(r.document)))
    note = f"Nats per token of the answer, mean over {samples(measured)} samples of each task and length, with its 95% "
    note += f"interval (Student's t); lower is better.{means_told(rows)}"
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


def string_match(found: Results, names: dict[str, str]) -> Table | None:
    """What runs wrote, by RULER's string match, of those that were let write."""
    made = []
    for column in columns(found, names):
        wrote = {task: (place, row) for task, (place, row) in column.records.items() if "match" in row}
        made += [column._replace(records=wrote)] if wrote else []
    if not made:
        return None

    def cell(column: Column, task: str) -> Cell:
        if task not in column.records:
            return NONE
        _, one = column.records[task]
        text = f"{one['match']:.2f}{summary.star([one])}"
        return column.result.cell(text, column.where([[task]], "match"), summary.match_interval(one))

    tasks = [task for task in NAMES if any(task in column.records for column in made)]
    rows = [[Cell(task), *(cell(column, task) for column in made)] for task in tasks]
    small = any(summary.star([row]) for column in made for _, row in column.records.values())
    note = f"{summary.MATCH} Of {samples(with_kind(found, 'ruler'))} samples of each task and length; "
    note += "higher is better."
    header, cautions = ["task", *(column.label for column in made)], (summary.SMALL,) if small else ()
    return Table("RULER by string match", note, header, rows, cautions)


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
            made.append(column._replace(records=less, base=start))
    rows = rows_of(made, difference_cell, signed)
    note = f"Nats per token of the answer less those of {names[first]}; below 0 is better. Means over samples with 95% "
    note += f"intervals (Student's t), paired: both runs answered the same samples.{means_told(rows)}"
    small = any(summary.star([row]) for column in made for _, row in column.records.values())
    header, cautions = ["task", *(column.label for column in made)], (summary.SMALL,) if small else ()
    return Table(f"RULER relative to {names[first]}", note, header, rows, cautions)


def means_told(rows: list[list[Cell]]) -> str:
    """What the mean of groups is, where there is one."""
    return f" {summary.MEANS}" if rows and rows[-1][0].text == "mean of groups" else ""


def difference_cell(column: Column, task: str) -> Cell:
    """The difference of a task."""
    if task not in column.records:
        return NONE
    _, one = column.records[task]
    return column.result.cell(f"{signed(one['nll'], 2)}{summary.star([one])}", column.where([[task]]), one["interval"])


def less_than(start: Column, column: Column, task: str) -> dict[str, Any]:
    """The record of a difference: as one of a task, but of nats less nats."""
    mine, theirs = start.records[task][1], column.records[task][1]
    if start.result.document["settings"] != column.result.document["settings"]:
        raise UsageError(f"{column.label}: other samples than the first run's; evaluate both again")
    less = np.subtract(theirs["sample_nll"], mine["sample_nll"]).tolist()
    form = "small" if summary.star([mine, theirs]) else "published"
    return {"group": theirs["group"], "form": form, "nll": float(np.mean(less)), "interval": student(less)}
