"""The figures of a report over several evaluations: RULER by task and length, Core by task."""

from pathlib import Path

from rove_jax.analysis.picture import COLOURS, DASHES, MARKERS, Picture
from rove_jax.evaluation.core.tasks import TASKS
from rove_jax.report import compare
from rove_jax.report.cells import Results, labelled, with_kind


def draw(found: Results, folder: Path) -> list[str]:
    """Write the figures of what was measured to `folder`; returns the names of the PNG files. Those of an earlier
    report there go, that nobody takes them for this one's."""
    from rove_jax.evaluation import results

    for name in ("perplexity.png", *(f"{kind}.{form}" for kind in ("ruler", "core") for form in ("png", "svg", "csv"))):
        (folder / name).unlink(missing_ok=True)
    names, written = labelled(found), []
    perplexity = with_kind(found, "perplexity")
    if perplexity:
        image = compare.figure([result.document for result in perplexity.values()])
        results.write(folder / "perplexity.png", image)
        written.append("perplexity.png")
    for kind, figure in (("ruler", ruler), ("core", core)):
        measured = with_kind(found, kind)
        if measured:
            labels = {name: compare.drawn(label) for name, label in names.items()}
            figure({labels[name]: result.document for name, result in measured.items()}).save(folder, kind)
            written.append(f"{kind}.png")
    return written


def ruler(documents: dict[str, dict]) -> Picture:
    """Nats per token of the answer against length: a panel for each task, a line for each run and scaling.

    An asterisk: at some length a smaller form of the task.
    """
    tasks = list(dict.fromkeys(row["published_task"] for d in documents.values() for row in d["results"]))
    columns = min(5, len(tasks))
    picture = Picture(tasks, columns=columns, size=(3.0, 2.6))
    for panel, task in enumerate(tasks):
        small = False
        for style, (label, document) in enumerate(documents.items()):
            for dash, rule in enumerate(document["settings"]["scalings"]):
                rows = [r for r in document["results"] if (r["published_task"], r["scaling"]) == (task, rule)]
                rows.sort(key=lambda row: row["length"])
                small |= any(row["form"] == "small" for row in rows)
                lengths, nats = [row["length"] for row in rows], [row["nll"] for row in rows]
                look = {"linestyle": DASHES[dash % len(DASHES)], "markerfacecolor": None if dash == 0 else "white"}
                look = {name: value for name, value in look.items() if value is not None}
                named = label if rule == "none" else f"{label}, {compare.SCALINGS[rule]}"
                picture.line(panel, named, lengths, nats, style, marked=True, **look)
                if all(row["standard_error"] is not None for row in rows):
                    errors = [row["standard_error"] for row in rows]
                    bars = [[n - e for n, e in zip(nats, errors)], [n + e for n, e in zip(nats, errors)]]
                    picture.axes[panel].vlines(lengths, *bars, color=COLOURS[style % len(COLOURS)], linewidth=1)
        ticks = sorted({row["length"] for d in documents.values() for row in d["results"]})
        label = "nats per answer token" if panel % columns == 0 else ""
        picture.dress(panel, "tokens", label, legend=False, xscale="log")
        picture.axes[panel].set_xticks(ticks, [str(tick) for tick in ticks])
        picture.axes[panel].minorticks_off()
        if small:
            picture.axes[panel].set_title(picture.axes[panel].get_title() + " *", fontsize=11)
    compare.legend(picture.drawing, picture.axes[0])
    return picture


def core(documents: dict[str, dict]) -> Picture:
    """Centered accuracy of each task with its standard error: a row for each task, a marker for each run."""
    first = next(iter(documents.values()))["results"][0]
    measured = {one["task"] for d in documents.values() for one in d["results"][0]["tasks"]}
    tasks = [task for task in TASKS if task.label in measured]
    baselines = first["baselines"]
    picture = Picture([f"Core by task, baselines {baselines}"], size=(8.0, 0.9 + 0.34 * len(tasks)))
    for style, (label, document) in enumerate(documents.items()):
        by_label = {one["task"]: one for one in document["results"][0]["tasks"]}
        offset = 0.16 * (style - (len(documents) - 1) / 2)
        there = [(place, by_label[task.label], task) for place, task in enumerate(tasks) if task.label in by_label]
        values = [one["centered"][baselines] for _, one, _ in there]
        errors = [one["standard_error"] / (1 - task.baseline(baselines)) for _, one, task in there]
        picture.record(0, label, [place for place, *_ in there], values)
        picture.axes[0].errorbar(
            values,
            [place + offset for place, *_ in there],
            xerr=errors,
            label=label,
            color=COLOURS[style % len(COLOURS)],
            marker=MARKERS[style % len(MARKERS)],
            linestyle="none",
            markersize=5,
            elinewidth=1,
        )
    picture.axes[0].axvline(0, color="0.45", linewidth=1)
    picture.dress(0, "centered accuracy (0: guessing, 1: all right)", "", legend=False)
    compare.legend(picture.drawing, picture.axes[0])
    picture.axes[0].set_yticks(range(len(tasks)), [task.label for task in tasks])
    picture.axes[0].invert_yaxis()
    return picture
