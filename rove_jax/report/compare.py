"""Runs side by side: which compare, what they are called, and how their perplexities differ."""

import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rove_jax.analysis.picture import Picture
from rove_jax.config import Config, to_dict
from rove_jax.errors import UsageError
from rove_jax.evaluation.intervals import bootstrap
from rove_jax.evaluation.runs import learnt
from rove_jax.report.look import Documents, Figure, acting, apart, bars, drawn, dress, legend, looks, trained_on

VARIANTS = {"nope": "NoPE", "rope": "RoPE", "rove": "RoVE", "custom": "custom"}
SCALINGS = {"none": "unscaled", "linear": "PI", "ntk": "NTK", "dynamic_ntk": "dynamic NTK", "yarn": "YaRN"}
TOKENS = ("tokenizer", "tokenizer_identity")
"""Provenance that must agree between runs whose nats per token are compared."""
COMPARABLE = (*TOKENS, "training_length", "data_fingerprint")
"""The same for perplexities on their own data."""


def check_comparable(provenances: Sequence[dict], fields: Sequence[str] = COMPARABLE) -> None:
    """Raise `UsageError` if a run is named twice, or naming the first of `fields` in which two differ, which makes the
    numbers of these runs different quantities."""
    folders = [provenance["checkpoint"] for provenance in provenances]
    for folder in folders:
        if folders.count(folder) > 1:
            raise UsageError(f"workdirs: {folder} is named twice")
    first = provenances[0]
    for other in provenances[1:]:
        for name in fields:
            if first[name] != other[name]:
                raise UsageError(
                    f"workdirs: {first['run']} and {other['run']} are not comparable: {name} is {first[name]} "
                    f"for one and {other[name]} for the other"
                )


def differences(configs: Sequence[Config]) -> dict[str, list]:
    """The fields that runs were trained with different values of: field -> value of each run."""
    return differing([dict(learnt(to_dict(config))) for config in configs])


def differing(flat: Sequence[dict[str, Any]]) -> dict[str, list]:
    """The same of configs as they stand in the provenance of results."""
    rows = {name: [values.get(name) for values in flat] for name in dict.fromkeys(n for values in flat for n in values)}
    return {name: values for name, values in rows.items() if any(value != values[0] for value in values)}


LONGEST = 28
"""Letters of a folder's name that a label has at most; the table of runs has the whole name."""


def labels(provenances: Sequence[dict]) -> list[str]:
    """A short name of each run: its variant, with its folder's name, or else its place among the runs, where only that
    tells them apart."""
    variants = [VARIANTS[provenance["variant"]] for provenance in provenances]
    folders = [shortened(provenance["run"]) for provenance in provenances]
    for names in (variants, [f"{variant} ({folder})" for variant, folder in zip(variants, folders)]):
        if len(set(names)) == len(names):
            return names
    return [f"{variant} (run {place})" for place, variant in enumerate(variants, 1)]


def shortened(name: str) -> str:
    """Both ends of a long name."""
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 10]}…{name[-9:]}"


def records(document: dict) -> dict[tuple[int, str], dict]:
    """The measurements of a perplexity document by (length, scaling)."""
    return {(record["length"], record["scaling"]): record for record in document["results"]}


def ratios(documents: Sequence[dict]) -> list[dict]:
    """Perplexity of each later run over the first run's, at each length and scaling that both were measured at.

    `ratio` is of whole windows, `last_ratio` of their last tokens (None where there are none); `interval` and
    `last_interval` are 95%, paired, over documents (None for fewer than two). `place`: of the record in its document.
    """
    found = []
    names, first = labels([document["provenance"] for document in documents]), records(documents[0])
    places = {key: place for place, key in enumerate(first)}
    for label, document in zip(names[1:], documents[1:]):
        for place, record in enumerate(document["results"]):
            key = (record["length"], record["scaling"])
            if key not in first:
                continue
            both = (first[key], record)
            texts = [[(d["id"], d["tokens"]) for d in part["documents"]] for part in both]
            if texts[0] != texts[1]:
                raise UsageError(f"{label} was measured on other documents than the first run; evaluate both again")
            whole, last = ([part["perplexity"] for part in parts] for parts in (both, [r["last"] for r in both]))
            found.append(
                {
                    "run": label,
                    "length": key[0],
                    "scaling": key[1],
                    "places": [places[key], place],
                    "ratio": whole[1] / whole[0],
                    "interval": paired_interval(both, "tokens", "nll"),
                    "last_ratio": None if None in last else last[1] / last[0],
                    "last_interval": None if None in last else paired_interval(both, "last_tokens", "last_nll"),
                }
            )
    return found


def paired_interval(both: Sequence[dict], tokens: str, nats: str) -> list[float] | None:
    """95% interval of the ratio of two records' perplexities over the documents they share; None where their sums are
    not in the file (of last tokens, in those of earlier versions)."""
    parts = [[document for document in record["documents"] if document.get(tokens)] for record in both]
    if not all(parts):
        return None
    base, sums = (np.array([document[nats] for document in part]) for part in parts)
    return bootstrap(sums, np.array([document[tokens] for document in parts[0]]), base)


def named(label: str, rule: str, always: bool = False) -> str:
    """What the legend calls a line."""
    return drawn(label if rule == "none" and not always else f"{label}, {SCALINGS.get(rule, rule)}")


def perplexity(documents: Documents) -> Figure:
    """Perplexity against context length, of whole windows and their last tokens; below, relative to the first run."""
    first, *others = documents
    everything = [record for document in documents.values() for record in document["results"]]
    lengths, trained = sorted({record["length"] for record in everything}), trained_on(documents)
    several = len({record["scaling"] for record in everything})
    parts = {"": "whole windows", "last_": "last min(256, context / 2) tokens"}
    titles = [*parts.values(), *(f"{what}, ratio" for what in parts.values() if others)]
    picture, rows = Picture(titles, columns=2, size=(5.4, 3.4)), []
    relative = {
        (label, ratio["scaling"], ratio["length"]): ratio
        for label in others
        for ratio in ratios([documents[first], documents[label]])
    }
    for place, (label, document) in enumerate(documents.items()):
        measured = records(document)
        rules = dict.fromkeys(record["scaling"] for record in document["results"])
        for style, rule in enumerate(rules):
            there = acting([length for length in lengths if (length, rule) in measured], rule, rules, trained)
            look, name = looks(place, style), named(label, rule, several > 1)
            for panel, (part, what) in enumerate(parts.items()):
                found = [measured[n, rule]["last"] if part else measured[n, rule] for n in there]
                # Where no window is full there are no last tokens: None, and a gap in the line.
                values = [math.nan if one["perplexity"] is None else one["perplexity"] for one in found]
                picture.line(panel, name, there, values, place, **look)
                less = [relative.get((label, rule, n)) for n in there]
                if place:
                    at = apart(there, (place - 1) + style * len(others), several * len(others))
                    shown = [math.nan if r is None or r[f"{part}ratio"] is None else r[f"{part}ratio"] for r in less]
                    picture.line(2 + panel, name, at, shown, place, **look)
                    bars(picture, 2 + panel, at, [r and r[f"{part}interval"] for r in less], look["color"])
                for n, one, r in zip(there, found, less):
                    to_first = (r[f"{part}ratio"], *(r[f"{part}interval"] or ("", ""))) if r else ("",) * 3
                    interval = one.get("interval") or ("", "")
                    rows.append((label, rule, what, n, one["perplexity"], *interval, *to_first))
    unit = next(iter(documents.values()))["provenance"]["tokenizer"]
    for panel in range(len(titles)):
        picture.dress(panel, "context length (tokens)", "", legend=False)
        dress(picture.axes[panel], lengths, trained)
        if panel > 1:
            picture.axes[panel].axhline(1.0, color="0.45", linewidth=1, zorder=0)
    picture.axes[0].set_ylabel(f"perplexity per token ({unit})")
    if others:
        picture.axes[2].set_ylabel(f"ratio to {drawn(first)}, 95%")
    legend(picture)
    header = ("run", "scaling", "part", "length", "perplexity", "low", "high", "ratio", "ratio_low", "ratio_high")
    return Figure(picture, header, rows)


def figure(documents: Sequence[dict]) -> bytes:
    """The same as a PNG, of runs in their order."""
    image = io.BytesIO()
    names = labels([document["provenance"] for document in documents])
    perplexity(dict(zip(names, documents))).picture.drawing.savefig(image, format="png", dpi=160)
    return image.getvalue()
