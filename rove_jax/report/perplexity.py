"""The tables of a report about perplexity, and the one that has CORE beside it, as in the paper."""

from collections.abc import Iterable
from typing import Any

from rove_jax.evaluation.core.tasks import TASKS
from rove_jax.evaluation.tables import counted, number, which_documents
from rove_jax.report import compare, paper
from rove_jax.report.cells import NONE, Cell, Result, Results, Table, with_kind

PAIRED = "Intervals are 95% over documents, paired: both runs on the same draws of documents."


def lines(found: Results, names: dict[str, str]) -> Iterable[tuple[str, str, str]]:
    """(run's name, scaling, label of the line): unscaled first, then each scaling of the perplexities."""
    for name, kinds in found.items():
        rules = kinds["perplexity"].document["settings"]["scalings"] if "perplexity" in kinds else ["none"]
        for rule in dict.fromkeys(["none", *rules]):
            yield name, rule, names[name] if rule == "none" else f"{names[name]}, {compare.SCALINGS[rule]}"


def lengths_of(perplexity: dict[str, Result]) -> list[int]:
    """Every length that some run was measured at."""
    return sorted({record["length"] for result in perplexity.values() for record in result.document["results"]})


def at(result: Result | None, key: tuple[int, str], field: str) -> Cell:
    """The perplexity of a (length, scaling) with its interval; `field` is the dotted place of what holds both."""
    for place, record in enumerate(result.document["results"] if result else []):
        if result and (record["length"], record["scaling"]) == key:
            value: Any = record[field] if field else record
            where = f"results[{place}].{field}.perplexity" if field else f"results[{place}].perplexity"
            if value["perplexity"] is not None:
                return result.cell(number(value["perplexity"], 2), where, value.get("interval"))
    return NONE


def core_and_perplexity(found: Results, names: dict[str, str]) -> Table | None:
    """Tables 1 and 3 of the paper."""
    core, perplexity = with_kind(found, "core"), with_kind(found, "perplexity")
    if not core and not perplexity:
        return None
    lengths = lengths_of(perplexity)
    published = sorted({n for line in paper.CORE_AND_PERPLEXITY for n in line.perplexity})
    units = {r.document["provenance"]["tokenizer"] for r in perplexity.values()}
    beside = bool(perplexity) and units == {"gpt2"}
    columns = sorted({*lengths, *published}) if beside else lengths
    rows, cautions = [], []
    for name, rule, label in lines(found, names):
        score = [core_cell(core.get(name)) if rule == "none" else Cell("")] if core or beside else []
        rows.append([Cell(label), *score, *(at(perplexity.get(name), (length, rule), "") for length in columns)])
    rows = with_numbers(rows)
    if core:
        cautions.append("Core: mean of centered accuracies (0: guessing, 1: all right), 95% interval over examples.")
    if perplexity:
        text = f"PPL: perplexity per token ({', '.join(sorted(units))}) by context length in tokens, of "
        text += f"{texts(perplexity)}. Intervals are 95% over documents, whose difficulty all runs share: "
        cautions.append(f"{text}runs compare by their ratios, not by these.")
    if beside:
        for line in paper.CORE_AND_PERPLEXITY:
            values = [paper.printed(line.perplexity.get(length)) for length in columns]
            rows.append(
                [Cell(f"paper, {line.scale} {line.method}"), Cell(paper.printed(line.core, 4)), *map(Cell, values)]
            )
        cautions.append(f"{paper.CERTAINTY} 354M: its Table 1; 124M: its Table 3.")
    elif perplexity:
        cautions.append("The paper's perplexities are of GPT-2 tokens, another unit, and so not beside these.")
    header = ["ours", *(["Core"] if core or beside else []), *(f"PPL {length}" for length in columns)]
    what = " and ".join(name for name, there in (("Core", core), ("perplexity", perplexity)) if there)
    title = f"{what[0].upper()}{what[1:]} (the paper's Tables 1 and 3)"
    if not perplexity:
        return Table(title, "", header, rows, tuple(cautions))
    alt = (
        f"Perplexity against context length from {lengths[0]} to {lengths[-1]} tokens, a line for each run and scaling"
    )
    alt += ", and relative to the first run." if len(perplexity) > 1 else "."
    return Table(title, "", header, rows, tuple(cautions), "perplexity", alt)


def texts(perplexity: dict[str, Result], whole: bool = True, last: bool = False) -> str:
    """How many texts and tokens perplexities were measured on, and how; the same for all runs of a report.

    `whole`, `last`: whether perplexities of whole windows and of last tokens are spoken of.
    """
    document = next(iter(perplexity.values())).document
    settings, read = document["settings"], document["results"][0]["documents"]
    amounts = [amount(document["results"], "tokens")] if whole else []
    full = [record for record in document["results"] if record["last"]["perplexity"] is not None]
    if last and all("last_tokens" in one for record in full for one in record["documents"]) and full:
        amounts.append(f"{amount(full, 'last_tokens')}{', of last tokens' if whole else ''}")
    counted_on = f" ({'; '.join(amounts)})" if amounts else ""
    kind = which_documents(settings).replace("documents", "document" if len(read) == 1 else "documents", 1)
    alone = ", of which alone there is no interval" if len(read) == 1 else ""
    return f"{len(read)} {kind}{counted_on}, mode {settings['mode']}{alone}"


def amount(records: list[dict[str, Any]], field: str) -> str:
    """How many tokens perplexities at each length are of; `field`: where documents have their number."""
    totals = {record["length"]: sum(one.get(field, 0) for one in record["documents"]) for record in records}
    if len(set(totals.values())) == 1:
        return f"{min(totals.values()):,} tokens at each length"
    shortest, longest = min(totals), max(totals)
    return f"{totals[shortest]:,} tokens at length {shortest} to {totals[longest]:,} at {longest}"


def core_cell(result: Result | None) -> Cell:
    """The score of a run, marked where it is not all of CORE."""
    if result is None:
        return NONE
    [record] = result.document["results"]
    name = "core" if "core" in record else "core_partial"
    mark = "" if name == "core" else f" ({len(record['tasks'])} of {counted(len(TASKS), 'task')})"
    interval = record["by_baselines"][record["baselines"]]["interval"]
    return result.cell(f"{record[name]:.4f}{mark}", f"results[0].{name}", interval, 3)


def last_tokens(found: Results, names: dict[str, str]) -> Table | None:
    """Perplexity of the tokens at the end of a window alone."""
    perplexity = with_kind(found, "perplexity")
    if not perplexity:
        return None
    lengths = lengths_of(perplexity)
    rows = [
        [Cell(label), *(at(perplexity.get(name), (length, rule), "last") for length in lengths)]
        for name, rule, label in lines(found, names)
    ]
    note = (
        "The last min(256, context / 2) tokens of each full window: what is read with the longest context. Perplexity "
    )
    note += f"per token, of {texts(perplexity, whole=False, last=True)}."
    return Table("Perplexity of the last tokens", note, ["ours", *(f"PPL {n}" for n in lengths)], with_numbers(rows))


def with_numbers(rows: list[list[Cell]]) -> list[list[Cell]]:
    """The rows that have a number."""
    return [row for row in rows if any(cell.file for cell in row)]


def ratios(found: Results, names: dict[str, str]) -> Table | None:
    """Perplexities relative to the first run's, with intervals."""
    perplexity = with_kind(found, "perplexity")
    if len(perplexity) < 2:
        return None
    [first, base], *others = perplexity.items()
    lengths, rows = lengths_of(perplexity), []
    for name, result in others:
        measured = compare.ratios([base.document, result.document])
        for part, what in (("", "whole windows"), ("last_", "last tokens")):
            for rule in dict.fromkeys(ratio["scaling"] for ratio in measured):
                there = {ratio["length"]: ratio for ratio in measured if ratio["scaling"] == rule}
                cells = [ratio_cell(base, result, there.get(length), part) for length in lengths]
                rows.append([Cell(f"{names[name]}, {compare.SCALINGS[rule]}, {what}"), *cells])
    note = f"Below 1 is better than {names[first]} under the same scaling, at each context length in tokens; of "
    note += f"{texts(perplexity, last=True)}. {PAIRED} They say nothing of other seeds of training."
    return Table(f"Perplexity relative to {names[first]}", note, ["ours", *map(str, lengths)], rows)


def ratio_cell(base: Result, result: Result, ratio: dict[str, Any] | None, part: str) -> Cell:
    """A ratio with its interval, and the two numbers that it is made from."""
    if ratio is None or ratio[f"{part}ratio"] is None:
        return NONE
    own, other = (f"results[{place}].{part.replace('_', '.')}perplexity" for place in reversed(ratio["places"]))
    where = f"{own}, over {base.file}: {other}"
    return result.cell(f"{ratio[f'{part}ratio']:.3f}", where, ratio[f"{part}interval"], 3)
