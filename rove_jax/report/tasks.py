"""The tables of a report that have a row for each task: Core, RULER, the index task."""

from collections.abc import Iterable

from rove_jax.evaluation.core.tasks import TASKS
from rove_jax.evaluation.ruler import summary
from rove_jax.evaluation.ruler.tasks import GROUPS, NAMES
from rove_jax.evaluation.tables import number
from rove_jax.report import compare, paper
from rove_jax.report.cells import Cell, Results, Table, with_kind


def many(counts: Iterable[int]) -> str:
    """The counts of several runs, once where they are the same."""
    return " or ".join(map(str, dict.fromkeys(counts)))


def core_by_task(found: Results, names: dict[str, str]) -> Table | None:
    """Accuracy of each task."""
    core = with_kind(found, "core")
    if not core:
        return None
    rows = []
    for task in TASKS:
        row = [Cell(task.label)]
        for result in core.values():
            [record] = result.document["results"]
            places = [place for place, one in enumerate(record["tasks"]) if one["task"] == task.label]
            if not places:
                row.append(Cell("-"))
                continue
            one = record["tasks"][places[0]]
            text = f"{one['accuracy']:.3f} ± {one['standard_error']:.3f} ({one['examples']})"
            row.append(result.cell(text, f"results[0].tasks[{places[0]}].accuracy"))
        if any(cell.file for cell in row):
            rows.append(row)
    settings = next(iter(core.values())).document["settings"]
    limit = f", the first {settings['max_examples']} examples of each" if settings["max_examples"] else ""
    note = (
        f"Accuracy ± standard error (examples), asked as {settings['protocol']} does{limit}; prompts longer than the "
        f"training context: {settings['overlong']}."
    )
    return Table("Core by task", note, ["task", *(names[name] for name in core)], rows, "core.png")


def ruler(found: Results, names: dict[str, str]) -> Table | None:
    """Tables 2 and 4 of the paper."""
    measured = with_kind(found, "ruler")
    if not measured:
        return None
    columns = [
        (name, length, rule)
        for length in sorted({n for r in measured.values() for n in r.document["settings"]["lengths"]})
        for name, result in measured.items()
        for rule in result.document["settings"]["scalings"]
        if any((row["length"], row["scaling"]) == (length, rule) for row in result.document["results"])
    ]
    header = ["task"] + [
        f"{length} {names[name]}{'' if rule == 'none' else ', ' + compare.SCALINGS[rule]}"
        for name, length, rule in columns
    ]
    rows, groups = [], {}
    for task in NAMES:
        row = [Cell(task)]
        for name, length, rule in columns:
            for place, one in enumerate(measured[name].document["results"]):
                if (one["published_task"], one["length"], one["scaling"]) == (task, length, rule):
                    error = "" if one["standard_error"] is None else f" ± {one['standard_error']:.2f}"
                    mark = "*" if one["form"] == "small" else ""
                    row.append(measured[name].cell(f"{one['nll']:.2f}{error}{mark}", f"results[{place}].nll"))
                    groups.setdefault((one["group"], name, length, rule), []).append((one["nll"], place))
                    break
            else:
                row.append(Cell("-"))
        if any(cell.file for cell in row):
            rows.append(row)
    for group in GROUPS:
        row = [Cell(f"mean {group}")]
        for name, length, rule in columns:
            part = groups.get((group, name, length, rule), [])
            place = f"results[{', '.join(str(place) for _, place in part)}].nll, their mean"
            mean = sum(nll for nll, _ in part) / max(1, len(part))
            row.append(measured[name].cell(f"{mean:.2f}", place) if part else Cell("-"))
        if any(cell.file for cell in row):
            rows.append(row)
    cautions = dict.fromkeys(line for r in measured.values() for line in summary.cautions(r.document))
    counts = many(r.document["settings"]["samples"] for r in measured.values())
    what = f"Nats per token of the answer, mean over {counts} samples of each task and length ± standard error"
    note = " ".join([f"{what}; lower is better.", *cautions])
    if any(length == 4096 for _, length, _ in columns):
        for label, values in paper.RULER.items():
            header.append(f"4096 paper, {label}")
            for row in rows:
                value = values.get(row[0].text.removeprefix("mean "))
                row.append(Cell(number(value, 2) if row[0].text.startswith("mean ") else ""))
        means = ", ".join(f"{label} {value}" for label, value in paper.RULER_MEAN.items())
        note += f" {paper.CERTAINTY} Its means over tasks and lengths: {means}."
    return Table("RULER (the paper's Tables 2 and 4)", note, header, rows, "ruler.png")


def index(found: Results, names: dict[str, str]) -> Table | None:
    """Accuracy at the k-th element of a list."""
    measured = with_kind(found, "index")
    if not measured:
        return None
    keys = list(
        dict.fromkeys(
            (one["variant"], one["length"], one["scaling"])
            for result in measured.values()
            for one in result.document["results"]
        )
    )
    rows = []
    for variant, length, rule in keys:
        row = [Cell(f"{variant}, {length}{'' if rule == 'none' else ', ' + compare.SCALINGS[rule]}")]
        for result in measured.values():
            for place, one in enumerate(result.document["results"]):
                if (one["variant"], one["length"], one["scaling"]) == (variant, length, rule):
                    low, high = one["interval"]
                    row.append(
                        result.cell(f"{one['accuracy']:.2f} [{low:.2f}, {high:.2f}]", f"results[{place}].accuracy")
                    )
                    break
            else:
                row.append(Cell("-"))
        rows.append(row)
    counts = many(result.document["settings"]["samples"] for result in measured.values())
    note = f"Share of right answers with its 95% Wilson interval, {counts} lists of each length. Chance is 0.25 for "
    note += "list and numbered."
    return Table("The k-th element of a list", note, ["variant, tokens", *(names[name] for name in measured)], rows)
