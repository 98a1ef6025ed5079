"""How figures of a report look alike: names of folders, one legend, axes of lengths, lines that lie on each other."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rove_jax.analysis.picture import COLOURS, DASHES, MARKERS, Picture, as_csv
from rove_jax.evaluation import results

Documents = dict[str, dict[str, Any]]
"""Label of a run -> its result of one kind."""


class Figure(NamedTuple):
    """A picture and the numbers in it."""

    picture: Picture
    header: tuple[str, ...]
    rows: list[tuple]

    def save(self, folder: Path, name: str) -> list[Path]:
        """Write NAME.png, NAME.svg and NAME.csv to `folder`; returns their paths."""
        written = self.picture.save(folder, name)
        results.write(folder / f"{name}.csv", as_csv(self.header, self.rows))
        return written


def trained_on(documents: Documents) -> int:
    """The training length of the first run."""
    return next(iter(documents.values()))["provenance"]["training_length"]


def drawn(label: str) -> str:
    """A label as Matplotlib draws it: a folder's name may have what would begin a formula."""
    return label.replace("$", r"\$")


def looks(place: int, style: int) -> dict[str, Any]:
    """Of the line of run number `place` under scaling number `style`: runs differ in colour and marker, scalings in
    dashes and filling. Earlier runs are wider and larger, so that they show around later ones on the same points."""
    colour = COLOURS[place % len(COLOURS)]
    return {
        "color": colour,
        "linestyle": DASHES[style % len(DASHES)],
        "linewidth": max(1.2, 2.8 - 0.8 * place),
        "marker": MARKERS[place % len(MARKERS)],
        "markersize": max(4.0, 8.0 - 1.8 * place),
        "markerfacecolor": colour if style == 0 else "white",
        "zorder": 2 + 0.1 * place,
    }


def apart(lengths: Sequence[int], place: int, count: int) -> list[float]:
    """The lengths of line number `place` of `count`, moved a little on a log axis, so that bars stand side by side."""
    return [length * 1.03 ** (place - (count - 1) / 2) for length in lengths]


def acting(lengths: Sequence[int], rule: str, rules: Iterable[str], trained: int) -> list[int]:
    """The lengths at which the line of `rule` is drawn: beside an unscaled one among `rules` it begins where it parts
    from that, at the last length up to that of training."""
    before = [length for length in lengths if length <= trained]
    whole = rule == "none" or "none" not in rules
    return [length for length in lengths if whole or length > trained or length == max(before)]


def bars(picture: Picture, panel: int, at: Sequence[float], intervals: Sequence[Any], colour: str) -> None:
    """The 95% intervals of points, of those that have one."""
    there = [(x, *interval) for x, interval in zip(at, intervals) if interval is not None]
    if there:
        picture.axes[panel].vlines(*zip(*there), color=colour, linewidth=1)


def legend(picture: Picture) -> None:
    """Every line that has a point in some panel, once, below all of them, where long names leave the lines alone."""
    entries = {}
    for axes in picture.axes:
        for handle, label in zip(*axes.get_legend_handles_labels()):
            line = handle[0] if isinstance(handle, tuple) else handle
            if any(math.isfinite(value) for value in line.get_ydata()):
                entries.setdefault(label, handle)
    if entries:
        drawing = picture.drawing
        columns = max(1, int(drawing.get_figwidth() * 12 / (8 + max(map(len, entries)))))  # about 12 letters an inch
        drawing.set_figheight(drawing.get_figheight() + 0.2 * -(-len(entries) // columns))
        look = {"loc": "outside lower center", "ncols": columns, "frameon": False, "fontsize": 8.5}
        drawing.legend(entries.values(), entries.keys(), **look)


def dress(axes, lengths: Sequence[int], trained: int) -> None:
    """Log axes with plain numbers on them, the measured lengths as ticks, and a mark at the training length."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, ScalarFormatter

    axes.set(xscale="log", yscale="log")
    low, high = axes.get_ylim()
    # Over a short range the round numbers of a log scale are too far apart.
    axes.yaxis.set_major_locator(
        MaxNLocator(7, steps=[1, 2, 5, 10]) if high / low < 5 else LogLocator(subs=(1, 2, 3, 5))
    )
    axes.yaxis.set_major_formatter(ScalarFormatter(useOffset=False))
    axes.yaxis.set_minor_locator(NullLocator())
    length_axis(axes, lengths, trained)
    axes.grid(True, color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def length_axis(axes, lengths: Sequence[int], trained: int) -> None:
    """Lengths on a log axis, those measured as ticks; the training length is marked where it is among them."""
    from matplotlib.ticker import NullLocator

    axes.set_xscale("log")
    axes.set_xticks(lengths, [str(length) for length in lengths], rotation=45 if len(lengths) > 5 else 0)
    axes.xaxis.set_minor_locator(NullLocator())
    if not min(lengths) <= trained <= max(lengths):
        return
    axes.axvline(trained, color="0.45", linewidth=1, linestyle=(0, (2, 2)), zorder=0)
    look = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "fontsize": 9, "color": "0.35"}
    axes.annotate("trained", (trained, 1), xytext=(4, -9), **look)
