"""Two recipes over several seeds: the ratio of their perplexities, and how far it depends on the seed."""

import math
from collections.abc import Sequence

import numpy as np

from rove_jax.analysis.picture import COLOURS, DASHES, MARKERS, Picture
from rove_jax.config import Config
from rove_jax.errors import UsageError
from rove_jax.evaluation.intervals import bootstrap, student
from rove_jax.evaluation.tables import number, table, which_documents
from rove_jax.report.cells import escaped
from rove_jax.report.compare import SCALINGS, differences, labels, records
from rove_jax.report.look import dress

PARTS = {"whole": "whole windows", "last": "the last min(256, context / 2) tokens of each window"}
"""What of a window counts."""
SUMS = {"whole": ("tokens", "nll"), "last": ("last_tokens", "last_nll")}
"""Where documents have its sums."""


def check_pairs(baseline: Sequence[Config], against: Sequence[Config]) -> dict[str, list]:
    """The fields in which the two recipes differ: field -> [of the baseline, of the other].

    Raises `UsageError` unless each recipe was trained with the same seeds, each once, and nothing else differs in it.
    """
    for name, group in (("baseline", baseline), ("against", against)):
        other = sorted(set(differences(group)) - {"seed"})
        if other:
            raise UsageError(f"--{name}: runs of one recipe may differ in their seeds only, not in {', '.join(other)}")
        seeds = [config.seed for config in group]
        if len(set(seeds)) < len(seeds):
            raise UsageError(f"--{name}: seeds {seeds}: name one run of each seed")
    seeds = [[config.seed for config in group] for group in (baseline, against)]
    if seeds[0] != seeds[1]:
        raise UsageError(f"--against: seeds {seeds[1]}: give those of --baseline in their order, {seeds[0]}")
    return differences([baseline[0], against[0]])


def compared(baseline: Sequence[dict], against: Sequence[dict]) -> list[dict]:
    """A record for each length, scaling and part of the windows, from perplexity documents in the order of seeds.

    `baseline`, `against`: perplexity of each seed. `ratios`: of each seed; `ratio`: their geometric mean. `interval`:
    95% over seeds, on the same text (Student's t of ln ratio; None for one seed). `documents`: 95% over documents,
    with these seeds (bootstrap; None of last tokens in files of earlier versions).
    """
    found = []
    groups = [[records(document) for document in group] for group in (baseline, against)]
    for key in groups[0][0]:
        rows = [[by_key[key] for by_key in group] for group in groups]
        texts = [[(d["id"], d["tokens"]) for d in row["documents"]] for group in rows for row in group]
        if any(text != texts[0] for text in texts):
            raise UsageError("runs were measured on different documents; evaluate all of them again")
        for part in PARTS:
            values = [[row["perplexity"] if part == "whole" else row["last"]["perplexity"] for row in g] for g in rows]
            if None in values[0]:
                continue  # no window is full, so none has last tokens
            logs = np.log(values[1]) - np.log(values[0])
            over_seeds = student(logs.tolist())
            found.append(
                {
                    "length": key[0],
                    "scaling": key[1],
                    "part": part,
                    "baseline": values[0],
                    "against": values[1],
                    "ratios": np.exp(logs).tolist(),
                    "ratio": float(np.exp(logs.mean())),
                    "interval": over_seeds and np.exp(over_seeds).tolist(),
                    "documents": over_documents(rows, *SUMS[part]),
                }
            )
    return found


def over_documents(rows: Sequence[Sequence[dict]], tokens: str, nats: str) -> list[float] | None:
    """95% interval over documents of the ratio of both groups, whose documents agree, at the mean nats over seeds."""
    groups = [[[d for d in row["documents"] if d.get(tokens)] for row in group] for group in rows]
    if not all(parts for group in groups for parts in group):
        return None
    base, sums = (np.mean([[d[nats] for d in parts] for parts in group], axis=0) for group in groups)
    return bootstrap(sums, np.array([d[tokens] for d in groups[0][0]]), base)


def geometric(values: Sequence[float]) -> float:
    """The perplexity of the mean likelihood over seeds."""
    return math.exp(float(np.mean(np.log(values))))


def markdown(documents: Sequence[Sequence[dict]], rows: Sequence[dict], differ_in: dict[str, list], figure: str) -> str:
    """The report as Markdown, of the documents of both recipes. `figure` is the file name of the image beside it."""
    first = documents[0][0]
    names = [escaped(label) for label in labels([group[0]["provenance"] for group in documents])]
    settings, trained = first["settings"], first["provenance"]["training_length"]

    def bounds(interval: list[float] | None) -> str:
        return "-" if interval is None else f"{interval[0]:.3f} to {interval[1]:.3f}"

    def cells(row: dict) -> list[str]:
        groups = [row["baseline"], row["against"]]
        means = [number(geometric(values)) for values in groups]
        ratios = ", ".join(f"{ratio:.3f}" for ratio in row["ratios"])
        head = [str(row["length"]), f"{row['length'] / trained:g}x", SCALINGS[row["scaling"]], *means]
        return [*head, f"{row['ratio']:.3f}", bounds(row["interval"]), bounds(row["documents"]), ratios]

    header = ["context", "of training", "scaling", *names, "ratio", "over seeds", "over documents", "each seed"]
    fields = "; ".join(f"`{name}` ({values[0]}, {values[1]})" for name, values in differ_in.items()) or "nothing"
    count = len(first["results"][0]["documents"])
    tokens = first["provenance"]["tokenizer"]
    texts = f"{count} {escaped(which_documents(settings))}"
    parts = [
        f"# {names[1]} / {names[0]} over {len(documents[0])} seed{'s' if len(documents[0]) > 1 else ''}",
        f"Perplexity per token ({tokens}), {texts}, mode {settings['mode']}, trained on "
        f"{trained} tokens. The recipes differ in {fields}. Perplexities and ratios are geometric means over seeds; "
        f"below 1 {names[1]} is better. Intervals are 95%: over seeds on this text (Student's t), and over documents "
        f"with these seeds (bootstrap)." + (" One seed has no interval over seeds." if len(documents[0]) == 1 else ""),
        f"![Perplexity and ratio against context length]({figure})",
    ]
    for part, title in PARTS.items():
        shown = [cells(row) for row in rows if row["part"] == part]
        parts += [f"## {title[0].upper()}{title[1:]}", table(header, shown)] if shown else []
    versions = ", ".join(f"{name} {version}" for name, version in first["provenance"]["versions"].items())
    origin = f"Data {first['provenance']['data_fingerprint']}, measured with {versions}. Everything else: report.json."
    return "\n\n".join([*parts, origin]) + "\n"


def figure(documents: Sequence[Sequence[dict]], rows: Sequence[dict]) -> Picture:
    """Perplexity against length of both recipes, and their ratio with its interval over seeds; each seed as a point."""
    names = labels([group[0]["provenance"] for group in documents])
    whole = [row for row in rows if row["part"] == "whole"]
    scalings, lengths = list(dict.fromkeys(r["scaling"] for r in whole)), sorted({r["length"] for r in whole})
    sure = ", 95% over seeds" if any(row["interval"] for row in whole) else ""
    picture = Picture(["perplexity, whole windows", f"ratio {names[1]} / {names[0]}{sure}"], size=(6.0, 3.8))
    for style, rule in enumerate(scalings):
        chosen = sorted((row for row in whole if row["scaling"] == rule), key=lambda row: row["length"])
        at = [row["length"] for row in chosen]
        for place, (name, group) in enumerate(zip(names, ("baseline", "against"))):
            colour, filled = COLOURS[place], {} if style == 0 else {"markerfacecolor": "white"}
            look = {"linestyle": DASHES[style % len(DASHES)], **filled}
            means = [geometric(row[group]) for row in chosen]
            picture.line(0, f"{name}, {SCALINGS[rule]}", at, means, place, marked=True, **look)
            seeds = np.repeat(at, len(chosen[0][group])), np.ravel([row[group] for row in chosen])
            picture.dots(0, f"{name}, {SCALINGS[rule]}, seeds", *seeds, place, label=None, s=6, color=colour)
        colour = COLOURS[2 + style]
        look = {"color": colour, "linestyle": DASHES[style % len(DASHES)], "marker": MARKERS[2 + style]}
        picture.line(1, SCALINGS[rule], at, [row["ratio"] for row in chosen], **look)
        seeds = np.repeat(at, len(chosen[0]["ratios"])), np.ravel([row["ratios"] for row in chosen])
        picture.dots(1, f"{SCALINGS[rule]}, seeds", *seeds, label=None, s=8, color=colour, marker="o")
        bounds = [(row["length"], *row["interval"]) for row in chosen if row["interval"]]
        if bounds:
            picture.axes[1].vlines(*zip(*bounds), color=colour, linewidth=1.2)
    provenance = documents[0][0]["provenance"]
    picture.axes[1].axhline(1.0, color="0.45", linewidth=1, zorder=0)
    for panel, label in enumerate((f"perplexity per token ({provenance['tokenizer']})", "ratio of perplexities")):
        picture.dress(panel, "context length (tokens)", label, legend="beside")
        dress(picture.axes[panel], lengths, provenance["training_length"])
    return picture
