"""Results of several runs side by side: a Markdown report, its data as JSON, and a figure of perplexity by length."""

import io
import math
from collections.abc import Sequence

import numpy as np

from rove_jax.analysis.picture import COLOURS, DASHES, MARKERS
from rove_jax.config import Config, to_dict
from rove_jax.errors import UsageError
from rove_jax.evaluation.intervals import bootstrap
from rove_jax.evaluation.runs import learnt
from rove_jax.evaluation.tables import number, table

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
    flat = [dict(learnt(to_dict(config))) for config in configs]
    rows = {name: [values.get(name) for values in flat] for name in dict.fromkeys(n for values in flat for n in values)}
    return {name: values for name, values in rows.items() if any(value != values[0] for value in values)}


def labels(documents: Sequence[dict]) -> list[str]:
    """A short name of each run: its variant, with its folder's name or path where only that tells the runs apart."""
    provenances = [document["provenance"] for document in documents]
    names = [VARIANTS[p["variant"]] for p in provenances]
    for place in ("run", "checkpoint"):
        if len(set(names)) == len(names):
            break
        names = [f"{VARIANTS[p['variant']]} ({p[place]})" for p in provenances]
    return names


def records(document: dict) -> dict[tuple[int, str], dict]:
    """The measurements of a perplexity document by (length, scaling)."""
    return {(record["length"], record["scaling"]): record for record in document["results"]}


def ratios(documents: Sequence[dict]) -> list[dict]:
    """Perplexity of each later run over the first run's, with its 95% interval (paired, over documents)."""
    found = []
    for label, document in zip(labels(documents)[1:], documents[1:]):
        for key, record in records(document).items():
            baseline = records(documents[0])[key]
            texts = [[(d["id"], d["tokens"]) for d in part["documents"]] for part in (record, baseline)]
            if texts[0] != texts[1]:
                raise UsageError(f"{label} was measured on other documents than the first run; evaluate both again")
            sums, base = (np.array([d["nll"] for d in part["documents"]]) for part in (record, baseline))
            counts = np.array([d["tokens"] for d in record["documents"]])
            found.append(
                {
                    "run": label,
                    "length": key[0],
                    "scaling": key[1],
                    "ratio": record["perplexity"] / baseline["perplexity"],
                    "interval": bootstrap(sums, counts, base),
                }
            )
    return found


def markdown(documents: Sequence[dict], differing: dict[str, list], figure: str) -> str:
    """The report as Markdown. `figure` is the file name of the image beside it."""
    names, first = labels(documents), documents[0]
    settings, trained = first["settings"], first["provenance"]["training_length"]
    by_key = [records(document) for document in documents]
    columns = [(place, rule) for place in range(len(documents)) for rule in settings["scalings"]]
    header = ["context", "of training", *(f"{names[place]} {SCALINGS.get(rule, rule)}" for place, rule in columns)]

    def rows(cell) -> list[list[str]]:
        return [
            [str(n), f"{n / trained:g}x", *(cell(place, n, rule) for place, rule in columns)]
            for n in sorted(settings["lengths"])
        ]

    relative = {(r["run"], r["length"], r["scaling"]): r for r in ratios(documents)}

    def ratio(place: int, n: int, rule: str) -> str:
        record = relative[names[place], n, rule]
        low, high = record["interval"] or (None, None)
        return f"{record['ratio']:.3f} [{number(low)}, {number(high)}]"

    measured = first["results"][0]
    made = ", ".join(f"{name} {version}" for name, version in first["provenance"]["versions"].items())
    parts = [
        "# Perplexity against context length",
        f"Per token ({first['provenance']['tokenizer']}), {len(measured['documents'])} {settings['split']} documents, "
        f"mode {settings['mode']}. Trained on {trained} tokens; a scaling's factor is context / {trained} beyond that.",
        table(
            ["run", "folder", "step", "parameters", "config"],
            [
                [name, p["run"], str(p["step"]), f"{p['parameters']:,}", p["config_hash"]]
                for name, p in zip(names, (document["provenance"] for document in documents))
            ],
        ),
        "The runs differ in: "
        + ("; ".join(f"`{n}` ({', '.join(map(str, v))})" for n, v in differing.items()) or "nothing")
        + ".",
        f"![Perplexity against context length]({figure})",
        "## Whole windows",
        table(header, rows(lambda place, n, rule: number(by_key[place][n, rule]["perplexity"]))),
        "## The last min(256, context / 2) tokens of each window",
        table(header, rows(lambda place, n, rule: number(by_key[place][n, rule]["last"]["perplexity"]))),
    ]
    if len(documents) > 1:
        columns = [column for column in columns if column[0] > 0]
        header = ["context", "of training", *(f"{names[place]} {SCALINGS.get(rule, rule)}" for place, rule in columns)]
        parts += [
            f"## Perplexity relative to {names[0]}",
            "Whole windows, same scaling; below 1 is better. In brackets the 95% interval over documents.",
            table(header, rows(ratio)),
        ]
    origin = f"Data {first['provenance']['data_fingerprint']}, measured with {made}. Everything else: report.json."
    return "\n\n".join([*parts, origin]) + "\n"


def figure(documents: Sequence[dict]) -> bytes:
    """PNG: perplexity against context length on log axes, of whole windows, of their last tokens, and relative to the
    first run. Runs differ in colour and marker, scalings in dashes and filling."""
    from matplotlib.figure import Figure  # a second to import, for this function alone

    settings, trained = documents[0]["settings"], documents[0]["provenance"]["training_length"]
    lengths, names = sorted(settings["lengths"]), [drawn(name) for name in labels(documents)]
    by_key = [records(document) for document in documents]
    relative = {(drawn(r["run"]), r["length"], r["scaling"]): r for r in ratios(documents)}
    drawing = Figure(figsize=(13, 5) if relative else (9, 5), layout="constrained")
    panels = drawing.subplots(1, 3 if relative else 2)
    panels[1].sharey(panels[0])
    for place, name in enumerate(names):
        for style, rule in enumerate(settings["scalings"]):
            colour = COLOURS[place % len(COLOURS)]
            look = {
                "color": colour,
                "linestyle": DASHES[style % len(DASHES)],
                "marker": MARKERS[place % len(MARKERS)],
                "markerfacecolor": colour if style == 0 else "white",
                "label": f"{name}, {SCALINGS.get(rule, rule)}",
            }
            found = [by_key[place][length, rule] for length in lengths]
            panels[0].plot(lengths, [record["perplexity"] for record in found], **look)
            # Where no window is full there are no last tokens: None, and a gap in the line.
            panels[1].plot(lengths, [record["last"]["perplexity"] or math.nan for record in found], **look)
            if place:
                ratio = [relative[name, length, rule] for length in lengths]
                panels[2].plot(lengths, [record["ratio"] for record in ratio], **look)
                bounds = [record["interval"] or (record["ratio"],) * 2 for record in ratio]
                panels[2].vlines(lengths, *zip(*bounds), color=colour, linewidth=1)
    titles = ["whole windows", "last min(256, context / 2) tokens", f"relative to\n{names[0]} (whole windows)"]
    for axes, title in zip(panels, titles):
        dress(axes, lengths, trained)
        axes.set(title=title, xlabel="context length (tokens)")
    panels[0].set_ylabel(f"perplexity per token ({documents[0]['provenance']['tokenizer']})")
    legend(drawing, panels[0])
    if relative:
        panels[2].axhline(1.0, color="0.45", linewidth=1, zorder=0)
        panels[2].set_ylabel("ratio of perplexities, 95% interval")
    image = io.BytesIO()
    drawing.savefig(image, format="png", dpi=160)
    return image.getvalue()


def drawn(label: str) -> str:
    """A label as Matplotlib draws it: a folder's name may have what would begin a formula."""
    return label.replace("$", r"\$")


def legend(drawing, axes) -> None:
    """The lines of `axes` below all panels, where names of any length leave the lines alone."""
    lines, names = axes.get_legend_handles_labels()
    columns = max(1, int(drawing.get_figwidth() * 12 / (8 + max(map(len, names)))))  # about 12 letters to an inch
    drawing.legend(lines, names, loc="outside lower center", ncols=columns, frameon=False, fontsize=8.5)


def dress(axes, lengths: Sequence[int], trained: int) -> None:
    """Log axes with plain numbers on them, the measured lengths as ticks, and a mark at the training length."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, ScalarFormatter

    axes.set(xscale="log", yscale="log")
    axes.set_xticks(lengths, [str(length) for length in lengths])
    low, high = axes.get_ylim()
    # Over a short range the round numbers of a log scale are too far apart.
    axes.yaxis.set_major_locator(
        MaxNLocator(7, steps=[1, 2, 5, 10]) if high / low < 5 else LogLocator(subs=(1, 2, 3, 5))
    )
    axes.yaxis.set_major_formatter(ScalarFormatter(useOffset=False))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
    axes.axvline(trained, color="0.45", linewidth=1, linestyle=(0, (2, 2)), zorder=0)
    axes.annotate(
        "trained",
        (trained, 0),
        xycoords=("data", "axes fraction"),
        xytext=(4, 5),
        textcoords="offset points",
        fontsize=9,
        color="0.35",
    )
    axes.grid(True, color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
