"""The tables of a report about CORE: accuracy of each task, and what runs differ by, question by question."""

from typing import Any

from rove_jax.errors import UsageError
from rove_jax.evaluation.core.report import notes, rows_asked
from rove_jax.evaluation.core.tasks import TASKS
from rove_jax.evaluation.intervals import combined, paired
from rove_jax.evaluation.tables import signed
from rove_jax.report.cells import NONE, Cell, Result, Results, Table, with_kind

ALT = "Centered accuracy of each task, with a 95% interval, a marker for each run; 0 is guessing, 1 all right."


def by_task(found: Results, names: dict[str, str]) -> Table | None:
    """Accuracy of each task."""
    core = with_kind(found, "core")
    if not core:
        return None
    rows = [[Cell(task.label), *(cell(result, task.label) for result in core.values())] for task in TASKS]
    rows = [row for row in rows if any(one.file for one in row)]
    settings = next(iter(core.values())).document["settings"]
    note = "Share of right answers (of how many) and its 95% interval (Wilson's), asked as "
    note += f"{settings['protocol']} does, {rows_asked(settings)}; prompts longer than the training context: "
    note += f"{settings['overlong']}. {baselines(core)}"
    said = dict.fromkeys(line for result in core.values() for line in notes(result.document["results"][0]))
    return Table("Core by task", note, ["task", *(names[name] for name in core)], rows, tuple(said), "core", ALT)


def baselines(core: dict[str, Result]) -> str:
    """Which guesses count as 0."""
    chosen = dict.fromkeys(result.document["results"][0]["baselines"] for result in core.values())
    return f"The figure and the score have baselines {' or '.join(chosen)}."


def task_of(result: Result, label: str) -> tuple[int, dict[str, Any]] | None:
    """(place in the file, figures) of a task, if it was measured."""
    for place, one in enumerate(result.document["results"][0]["tasks"]):
        if one["task"] == label:
            return place, one
    return None


def cell(result: Result, label: str) -> Cell:
    """The accuracy of a task."""
    there = task_of(result, label)
    if there is None:
        return NONE
    place, one = there
    text = f"{one['accuracy']:.3f} ({one['examples']})"
    return result.cell(text, f"results[0].tasks[{place}].accuracy", one["interval"])


def differences(found: Results, names: dict[str, str]) -> Table | None:
    """Accuracy of each later run less the first one's, of tasks and of the score."""
    core = with_kind(found, "core")
    if len(core) < 2:
        return None
    [first, base], *others = core.items()
    chosen = base.document["results"][0]["baselines"]
    columns = [differing(base, result, names[name], chosen) for name, result in others]
    labels = [label for label in dict.fromkeys(label for column in columns for label in column)]
    rows = [[Cell(label), *(column.get(label, NONE) for column in columns)] for label in labels]
    note = f"Share of right answers less that of {names[first]}; above 0 is better. 95% intervals, paired: both runs "
    note += "answered the same questions (Newcombe 1998, method 10). The score: the mean of centered differences."
    title = f"Core relative to {names[first]}"
    return Table(title, note, ["task", *(names[name] for name, _ in others)], rows)


def differing(base: Result, other: Result, name: str, chosen: str) -> dict[str, Cell]:
    """Task's label, or "score" -> the difference, of the tasks that both have."""
    cells, values, bounds, weights = {}, [], [], []
    for task in TASKS:
        start, end = task_of(base, task.label), task_of(other, task.label)
        if start is None or end is None:
            continue
        (before, mine), (place, theirs) = start, end
        difference, interval = by_category(mine["outcomes"], theirs["outcomes"], f"{name}, {task.label}")
        where = f"results[0].tasks[{place}].outcomes, less {base.file}: results[0].tasks[{before}].outcomes"
        cells[task.label] = other.cell(signed(difference, 3), where, interval)
        values.append(difference)
        bounds.append(interval)
        weights.append(1 / (1 - task.baseline("v1" if chosen == "v1" else "v2")))
    if cells:
        weights = [weight / len(values) for weight in weights]
        total = sum(weight * value for weight, value in zip(weights, values))
        interval = combined(values, bounds, weights)
        where = f"results[0].tasks[*].outcomes, less {base.file}: results[0].tasks[*].outcomes"
        part = "" if len(values) == len(TASKS) else f" ({len(values)} of {len(TASKS)} tasks)"
        cells["score"] = other.cell(f"{signed(total, 4)}{part}", where, interval, 3)
    return cells


def by_category(first: dict[str, str], second: dict[str, str], what: str) -> tuple[float, tuple[float, float]]:
    """The mean over categories of (share of `second` less that of `first`), and its 95% interval."""
    if {name: len(text) for name, text in first.items()} != {name: len(text) for name, text in second.items()}:
        raise UsageError(f"{what}: other questions than the first run's; evaluate both again")
    each = [paired([c == "1" for c in first[name]], [c == "1" for c in second[name]]) for name in first]
    values, bounds = [value for value, _ in each], [interval for _, interval in each]
    return sum(values) / len(values), combined(values, bounds, [1 / len(values)] * len(values))
