"""Several evaluations of several runs as the tables of the paper, each number with the file and place it is from."""

from collections.abc import Iterable, Sequence
from typing import Any

from rove_jax.evaluation.core.tasks import TASKS
from rove_jax.evaluation.tables import number, which_documents
from rove_jax.report import compare, paper, tasks
from rove_jax.report.cells import Cell, Result, Results, Table, labelled, with_kind


def make(found: Results) -> list[Table]:
    """The tables of all that was measured."""
    names = labelled(found)
    made = [core_and_perplexity(found, names), last_tokens(found, names), *ratios(found, names)]
    made += [build(found, names) for build in (tasks.core_by_task, tasks.ruler, tasks.index)]
    return [table for table in made if table is not None]


def lines(found: Results, names: dict[str, str]) -> Iterable[tuple[str, str, str]]:
    """(run's name, scaling, label of the line): unscaled first, then each scaling of the perplexities."""
    for name, kinds in found.items():
        rules = kinds["perplexity"].document["settings"]["scalings"] if "perplexity" in kinds else ["none"]
        for rule in dict.fromkeys(["none", *rules]):
            yield name, rule, names[name] if rule == "none" else f"{names[name]}, {compare.SCALINGS[rule]}"


def at(result: Result, key: tuple[int, str], field: str) -> tuple[Any, str] | None:
    """(value, its place) in the record of a (length, scaling), dotted `field`; None if there is no such record."""
    for place, record in enumerate(result.document["results"]):
        if (record["length"], record["scaling"]) == key:
            value: Any = record
            for part in field.split("."):
                value = value[part]
            return value, f"results[{place}].{field}"
    return None


def core_and_perplexity(found: Results, names: dict[str, str]) -> Table | None:
    """Tables 1 and 3 of the paper."""
    core, perplexity = with_kind(found, "core"), with_kind(found, "perplexity")
    if not core and not perplexity:
        return None
    lengths = sorted({n for r in perplexity.values() for n in r.document["settings"]["lengths"]})
    published = sorted({n for line in paper.CORE_AND_PERPLEXITY for n in line.perplexity})
    units = {r.document["provenance"]["tokenizer"] for r in perplexity.values()}
    comparable = units <= {"gpt2"}
    columns = sorted({*lengths, *published}) if comparable else lengths
    rows = []
    for name, rule, label in lines(found, names):
        row = [Cell(label), core_cell(core.get(name)) if rule == "none" else Cell("")]
        for length in columns:
            value = at(perplexity[name], (length, rule), "perplexity") if name in perplexity else None
            row.append(perplexity[name].cell(number(value[0], 2), value[1]) if value else Cell("-"))
        rows.append(row)
    header = ["ours", "Core", *(f"PPL {length}" for length in columns)]
    note = "Core: mean of centered accuracies ± standard error. PPL: perplexity per token against context length"
    note += f", of {texts(perplexity)}. " if perplexity else ". "
    if comparable:
        for line in paper.CORE_AND_PERPLEXITY:
            values = [number(line.perplexity.get(length), 2) for length in columns]
            label = f"paper, {line.scale} {line.method}"
            rows.append([Cell(label), Cell(number(line.core, 4)), *(Cell(value) for value in values)])
        note += paper.CERTAINTY
    else:
        note += f"Tokens: {', '.join(sorted(units)) or 'unknown'}; the paper's GPT-2 tokens are another unit, so its "
        note += "perplexities are not set beside these."
    return Table(
        "Core and perplexity (the paper's Tables 1 and 3)", note, header, rows, "perplexity.png" if perplexity else ""
    )


def texts(perplexity: dict[str, Result]) -> str:
    """How many texts perplexities were measured on, and how; the same for all runs of a report."""
    document = next(iter(perplexity.values())).document
    settings = document["settings"]
    return f"{len(document['results'][0]['documents'])} {which_documents(settings)}, mode {settings['mode']}"


def core_cell(result: Result | None) -> Cell:
    """The score of a run, marked where it is not all of CORE."""
    if result is None:
        return Cell("-")
    [record] = result.document["results"]
    name = "core" if "core" in record else "core_partial"
    mark = "" if name == "core" else f" ({len(record['tasks'])} of {len(TASKS)} tasks)"
    return result.cell(f"{record[name]:.4f} ± {record['standard_error']:.4f}{mark}", f"results[0].{name}")


def last_tokens(found: Results, names: dict[str, str]) -> Table | None:
    """Perplexity of the tokens at the end of a window alone."""
    perplexity = with_kind(found, "perplexity")
    if not perplexity:
        return None
    lengths = sorted({n for r in perplexity.values() for n in r.document["settings"]["lengths"]})
    rows = []
    for name, rule, label in lines(found, names):
        if name in perplexity:
            values = [at(perplexity[name], (length, rule), "last.perplexity") for length in lengths]
            cells = [perplexity[name].cell(number(v[0], 2), v[1]) if v else Cell("-") for v in values]
            rows.append([Cell(label), *cells])
    note = "The last min(256, context / 2) tokens of each window: what is read with the longest context. Of "
    note += f"{texts(perplexity)}."
    return Table("Perplexity of the last tokens", note, ["ours", *(f"PPL {n}" for n in lengths)], rows)


def ratios(found: Results, names: dict[str, str]) -> list[Table]:
    """Perplexities relative to the first run's, with intervals."""
    perplexity = with_kind(found, "perplexity")
    if len(perplexity) < 2:
        return []
    first, *others = perplexity
    measured = compare.ratios([result.document for result in perplexity.values()])
    by_label = compare.labels([result.document for result in perplexity.values()])
    rows = []
    for name, label in zip(others, by_label[1:]):
        mine = [ratio for ratio in measured if ratio["run"] == label]
        for rule in dict.fromkeys(ratio["scaling"] for ratio in mine):
            cells = []
            for ratio in mine:
                if ratio["scaling"] == rule:
                    low, high = ratio["interval"] or (None, None)
                    place = at(perplexity[name], (ratio["length"], rule), "documents")
                    cells.append(
                        perplexity[name].cell(
                            f"{ratio['ratio']:.3f} [{number(low)}, {number(high)}]", place[1] if place else ""
                        )
                    )
            rows.append([Cell(f"{names[name]}, {compare.SCALINGS[rule]}"), *cells])
    lengths = list(dict.fromkeys(ratio["length"] for ratio in measured))
    note = f"Below 1 is better than {names[first]} under the same scaling. In brackets the 95% interval over "
    note += f"documents: {texts(perplexity)}."
    title = f"Perplexity relative to {names[first]}"
    return [Table(title, note, ["ours", *(str(length) for length in lengths)], rows)]


def markdown(made: Sequence[Table]) -> str:
    """The report as Markdown."""
    return "\n\n".join(["# Evaluations side by side", *(table.markdown() for table in made)]) + "\n"
