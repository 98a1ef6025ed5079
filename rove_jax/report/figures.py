"""The figures of a report over several evaluations, each with its numbers as a table of named columns."""

import itertools
from collections.abc import Sequence
from pathlib import Path

from rove_jax.analysis.picture import COLOURS, Picture
from rove_jax.evaluation.core.scoring import centered
from rove_jax.evaluation.core.tasks import TASKS
from rove_jax.report import runs
from rove_jax.report.cells import Results, with_kind
from rove_jax.report.compare import named, perplexity
from rove_jax.report.look import Documents, Figure, acting, apart, bars, drawn, legend, length_axis, looks, trained_on


def draw(found: Results, folder: Path) -> list[str]:
    """Write the figures of what was measured to `folder`; returns the names of the files. Those of an earlier report
    there go, that nobody takes them for this one's."""
    labels, written = runs.labelled(found), []
    for kind, figure in FIGURES.items():
        for form in ("png", "svg", "csv"):
            (folder / f"{kind}.{form}").unlink(missing_ok=True)
        measured = with_kind(found, kind)
        if measured:
            written += figure({labels[name]: r.document for name, r in measured.items()}).save(folder, kind)
    return [path.name for path in written]


def by_length(documents: Documents, panels: Sequence[str], field: str, value: str) -> tuple[Picture, list[tuple]]:
    """`value` against length: a panel for each `field`, a line for each run and scaling, with 95% intervals."""
    trained = trained_on(documents)
    size = (3.2, 2.6) if len(panels) > 3 else (4.4, 2.9)
    picture, rows = Picture(panels, columns=min(4, len(panels)), size=size), []
    everything = [row for document in documents.values() for row in document["results"]]
    several = len({row["scaling"] for row in everything})
    for panel, title in enumerate(panels):
        ticks = sorted({row["length"] for row in everything if row[field] == title})
        for place, (label, document) in enumerate(documents.items()):
            mine = [row for row in document["results"] if row[field] == title]
            rules = dict.fromkeys(row["scaling"] for row in document["results"])
            for style, rule in enumerate(rules):
                chosen = {row["length"]: row for row in mine if row["scaling"] == rule}
                there = acting(sorted(chosen), rule, rules, trained)
                at, look = apart(there, place + style * len(documents), several * len(documents)), looks(place, style)
                picture.line(
                    panel, named(label, rule, several > 1), at, [chosen[n][value] for n in there], place, **look
                )
                bars(picture, panel, at, [chosen[n]["interval"] for n in there], look["color"])
                rows += [(label, rule, title, n, chosen[n][value], *(chosen[n]["interval"] or ("", ""))) for n in there]
        picture.dress(panel, "tokens", "", legend=False)
        length_axis(picture.axes[panel], ticks, trained)
    return picture, rows


def ruler(documents: Documents) -> Picture:
    """Nats per token of the answer against length: a panel for each task, a line for each run and scaling.

    An asterisk: at some length a smaller form of the task.
    """
    return ruler_figure(documents).picture


def ruler_figure(documents: Documents) -> Figure:
    """The same with its numbers."""
    everything = [row for document in documents.values() for row in document["results"]]
    tasks = list(dict.fromkeys(row["published_task"] for row in everything))
    picture, rows = by_length(documents, tasks, "published_task", "nll")
    for axes, task in zip(picture.axes, tasks):
        if any(row["form"] == "small" for row in everything if row["published_task"] == task):
            axes.set_title(axes.get_title() + " *", fontsize=11)
    for axes in picture.axes[:: min(4, len(tasks))]:
        axes.set_ylabel("nats per answer token")
    legend(picture)
    return Figure(picture, ("run", "scaling", "task", "length", "nats_per_token", "low", "high"), rows)


def index(documents: Documents) -> Figure:
    """Share of right answers against length: a panel for each variant, a line for each run and scaling, and chance."""
    everything = [row for document in documents.values() for row in document["results"]]
    variants = list(dict.fromkeys(row["variant"] for row in everything))
    picture, rows = by_length(documents, variants, "variant", "accuracy")
    for axes, variant in zip(picture.axes, variants):
        chances = sorted({(row["length"], row["chance"]) for row in everything if row["variant"] == variant})
        axes.plot(*zip(*chances), color="0.45", linestyle=(0, (1, 1.5)), label="chance", zorder=1)
        axes.set_ylim(-0.03, 1.03)
    picture.axes[0].set_ylabel("share of right answers")
    legend(picture)
    return Figure(picture, ("run", "scaling", "variant", "length", "accuracy", "low", "high"), rows)


def core(documents: Documents) -> Figure:
    """Centered accuracy of each task with its 95% interval: a row for each task, a marker for each run."""
    chosen = next(iter(documents.values()))["results"][0]["baselines"]
    measured = {one["task"] for document in documents.values() for one in document["results"][0]["tasks"]}
    tasks = [task for task in TASKS if task.label in measured]
    picture = Picture([f"Core by task, baselines {chosen}"], size=(8.0, 0.9 + 0.34 * len(tasks)))
    rows = []
    for (place, (label, document)), (line, task) in itertools.product(enumerate(documents.items()), enumerate(tasks)):
        by_label = {one["task"]: one for one in document["results"][0]["tasks"]}
        if task.label not in by_label:
            continue
        one, offset = by_label[task.label], 0.7 / len(documents) * (place - (len(documents) - 1) / 2)
        value, (low, high) = one["centered"][chosen], (centered(b, task.baseline(chosen)) for b in one["interval"])
        look = {"color": COLOURS[place % len(COLOURS)], "marker": looks(place, 0)["marker"], "markersize": 4.5}
        picture.axes[0].plot([value], [line + offset], linestyle="none", label=drawn(label), **look)
        picture.axes[0].hlines(line + offset, low, high, color=look["color"], linewidth=1)
        rows.append((label, task.label, value, low, high, one["accuracy"], *one["interval"], one["examples"]))
    picture.axes[0].axvline(0, color="0.45", linewidth=1, zorder=0)
    picture.dress(0, "centered accuracy (0: guessing, 1: all right), 95%", "", legend=False)
    legend(picture)
    picture.axes[0].set_yticks(range(len(tasks)), [task.label for task in tasks])
    picture.axes[0].set_ylim(len(tasks) - 0.5, -0.5)
    header = ("run", "task", "centered", "centered_low", "centered_high", "accuracy", "low", "high", "examples")
    return Figure(picture, header, rows)


FIGURES = {"perplexity": perplexity, "core": core, "ruler": ruler_figure, "index": index}
"""Kind of evaluation -> its figure."""
