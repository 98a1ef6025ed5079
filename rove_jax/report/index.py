"""The tables of a report about the index task: accuracy by length, and what runs differ by, question by question."""

from typing import Any

import numpy as np

from rove_jax.errors import UsageError
from rove_jax.evaluation.intervals import paired
from rove_jax.evaluation.tables import signed
from rove_jax.report import compare
from rove_jax.report.cells import NONE, Cell, Result, Results, Table, with_kind
from rove_jax.report.ruler import samples

ALT = "Share of right answers against length, with 95% intervals: a panel for each variant, a line for each run."

Key = tuple[str, int, str]
"""Variant, length, scaling."""


def records(result: Result) -> dict[Key, tuple[int, dict[str, Any]]]:
    """(place in the file, record) of every measurement."""
    rows = enumerate(result.document["results"])
    return {(one["variant"], one["length"], one["scaling"]): (place, one) for place, one in rows}


def keys(measured: dict[str, Result]) -> list[Key]:
    """What some run was measured on."""
    return list(dict.fromkeys(key for result in measured.values() for key in records(result)))


def named(key: Key) -> Cell:
    """The label of a row."""
    variant, length, rule = key
    return Cell(f"{variant}, {length}{'' if rule == 'none' else ', ' + compare.SCALINGS[rule]}")


def by_length(found: Results, names: dict[str, str]) -> Table | None:
    """Accuracy at the k-th element of a list."""
    measured = with_kind(found, "index")
    if not measured:
        return None
    rows = []
    for key in keys(measured):
        cells, chances = [], []
        for result in measured.values():
            if key not in records(result):
                cells.append(NONE)
                continue
            place, one = records(result)[key]
            cells.append(result.cell(f"{one['accuracy']:.2f}", f"results[{place}].accuracy", one["interval"]))
            chances.append(f"{one['chance']:.2g}")
        rows.append([named(key), *cells, Cell(" or ".join(dict.fromkeys(chances)))])
    note = (
        f"Share of right answers with its 95% interval (Wilson's), {samples(measured)} lists of each length; chance: "
    )
    note += "what guessing is worth."
    header = ["variant, tokens", *(names[name] for name in measured), "chance"]
    return Table("The k-th element of a list", note, header, rows, (), "index", ALT)


def differences(found: Results, names: dict[str, str]) -> Table | None:
    """Accuracy of each later run less the first one's."""
    measured = with_kind(found, "index")
    if len(measured) < 2:
        return None
    [first, base], *others = measured.items()
    before = records(base)
    rows = [
        [named(key), *(difference(base, before[key], result, key, names[name]) for name, result in others)]
        for key in keys(measured)
        if key in before
    ]
    note = f"Share of right answers less that of {names[first]}; above 0 is better. 95% intervals, paired: both runs "
    note += "were asked about the same lists (Newcombe 1998, method 10)."
    title = f"The k-th element relative to {names[first]}"
    return Table(title, note, ["variant, tokens", *(names[name] for name, _ in others)], rows)


def difference(first: Result, before: tuple[int, dict[str, Any]], result: Result, key: Key, name: str) -> Cell:
    """One of them. `before`: the place and the record of the first run."""
    if key not in records(result):
        return NONE
    (start, base), (place, one) = before, records(result)[key]
    if (one["answers"], one["places"]) != (base["answers"], base["places"]):
        raise UsageError(f"{name}, {named(key).text}: other lists than the first run's; evaluate both again")
    right = [np.equal(record["picked"], record["answers"]).tolist() for record in (base, one)]
    value, interval = paired(*right)
    where = f"results[{place}].picked, less {first.file}: results[{start}].picked"
    return result.cell(signed(value, 2), where, interval)
