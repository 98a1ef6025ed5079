"""A figure and the numbers in it, kept together: what is drawn is what the CSV file holds."""

import csv
import io
import string
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rove_jax.evaluation import results

# Okabe and Ito's palette (told apart with any colour vision), in an order whose first two also differ in print.
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("solid", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 2, 1, 2)), (0, (8, 3)), (0, (3, 1, 1, 1, 1, 1)))
MARKERS = "osD^vPX"
NUMBERED = string.ascii_lowercase
LETTERS = 12.5
"""Of a caption or a label of an axis, an inch."""
HEADER = ("panel", "series", "x", "y", "x_is", "y_is")
MANY = 500
"""Dots from which on they are an image in the SVG too, which would have megabytes otherwise."""


class Picture:
    """Panels in a row or a grid, each titled with its letter. Panels are addressed by their number."""

    def __init__(self, titles: Sequence[str], *, columns: int | None = None, size: tuple[float, float] = (4.3, 3.5)):
        """size: of one panel, inches."""
        from matplotlib.figure import Figure  # a second to import, for pictures alone

        columns = columns or len(titles)
        lines = -(-len(titles) // columns)
        self.drawing = Figure(figsize=(size[0] * columns, size[1] * lines), layout="constrained")
        self.axes = list(np.ravel(self.drawing.subplots(lines, columns, squeeze=False)))
        for empty in self.axes[len(titles) :]:
            empty.set_visible(False)
        self.rows: list[tuple[str, str, float, float]] = []
        self.said = ""
        self.colours: dict[str, str] = {}
        for panel, title in enumerate(titles):
            self.axes[panel].set_title(f"({NUMBERED[panel]}) {title}" if len(titles) > 1 else title, fontsize=11)
            self.axes[panel].spines[["top", "right"]].set_visible(False)

    def caption(self, text: str) -> None:
        """What holds for all panels, above them, broken into lines that fit; as it is, `$` and all. The first line of
        the CSV file has it too."""
        self.said = text
        width = int(self.drawing.get_figwidth() * LETTERS)
        lines = [textwrap.fill(line, width) for line in text.split("\n")]
        self.drawing.suptitle("\n".join(lines), fontsize=10, parse_math=False)

    def record(self, panel: int, series: str, x: Sequence | np.ndarray, y: Sequence | np.ndarray) -> None:
        """Note numbers for the CSV file."""
        self.rows += [(NUMBERED[panel], series, float(a), float(b)) for a, b in zip(x, y)]

    def line(
        self, panel: int, series: str, x: Any, y: Any, style: int = 0, *, marked: bool = False, **look: Any
    ) -> None:
        """A line in colour and dashes number `style`; `marked` puts a marker of its own on each point."""
        self.record(panel, series, x, y)
        marker = {"marker": MARKERS[style % len(MARKERS)], "markersize": 5} if marked else {}
        usual = {"color": COLOURS[style % len(COLOURS)], "linestyle": DASHES[style % len(DASHES)], "label": series}
        self.axes[panel].plot(x, y, **{**usual, **marker, "linewidth": 1.5, **look})

    def dots(self, panel: int, series: str, x: Any, y: Any, style: int = 0, **look: Any) -> None:
        """Points, one marker each."""
        self.record(panel, series, x, y)
        usual = {"color": COLOURS[style % len(COLOURS)], "marker": MARKERS[style % len(MARKERS)], "label": series}
        self.axes[panel].scatter(x, y, **{"s": 12, "rasterized": len(x) >= MANY, **usual, **look})

    def bounds(self, panel: int, series: str, x: Any, bounds: Sequence[Sequence[float]], style: int = 0) -> None:
        """Upright bars from lower to upper bounds of 95% intervals, [n, 2]."""
        for place, what in enumerate(("lower", "upper")):
            self.record(panel, f"{series}, {what} 95%", x, [bound[place] for bound in bounds])
        if len(bounds):
            self.axes[panel].vlines(x, *zip(*bounds), color=COLOURS[style % len(COLOURS)], linewidth=1)

    def bars(self, panel: int, series: str, edges: np.ndarray, heights: np.ndarray, style: int = 0) -> None:
        """A histogram."""
        self.record(panel, series, edges[:-1], heights)
        colour = COLOURS[style % len(COLOURS)]
        self.axes[panel].stairs(heights, edges, fill=True, color=colour, alpha=0.35, label=series)

    def image(
        self,
        panel: int,
        matrix: np.ndarray,
        *,
        label: str = "",
        rows: str = "row",
        digits: int | None = None,
        scale: float = 1.0,
        **look: Any,
    ) -> None:
        """A matrix as colours, with their scale, which `label` names. In the CSV: a series for each row, called `rows`
        and its number, and columns as x. `digits`: decimals of numbers in the cells; None: none. `scale`: length of the
        colours' scale, of the panel's height."""
        for row, values in enumerate(matrix):
            self.record(panel, f"{rows} {row}", range(len(values)), values)
        self.colours[NUMBERED[panel]] = label
        usual: dict[str, Any] = {"cmap": "cividis", "aspect": "auto", "interpolation": "nearest"}
        shown = self.axes[panel].imshow(matrix, **{**usual, **look})
        self.axes[panel].spines[["top", "right"]].set_visible(True)
        self.drawing.colorbar(shown, ax=self.axes[panel], label=label, shrink=scale)
        if digits is not None:
            for (row, column), value in np.ndenumerate(matrix):
                dark = np.mean(shown.to_rgba(value)[:3]) < 0.5
                text = "-" if np.isnan(value) else f"{value:.{digits}f}"
                look = {"color": "white" if dark and text != "-" else "black", "fontsize": 8}
                self.axes[panel].text(column, row, text, ha="center", va="center", **look)

    def dress(self, panel: int, x: str, y: str, *, legend: bool | str = True, **settings: Any) -> None:
        """Labels, a light grid, a legend without a frame, and what else `Axes.set` takes.

        legend: "beside" and "below" put it outside, for points that leave no room inside.
        """
        axes = self.axes[panel]
        height = 0.65 * self.drawing.get_figheight() / axes.get_gridspec().nrows
        axes.set(xlabel=x, ylabel=textwrap.fill(y, int(height * LETTERS)), **settings)
        axes.grid(True, color="0.9", linewidth=0.8)
        axes.set_axisbelow(True)
        if legend:
            places = {
                "beside": {"loc": "center left", "bbox_to_anchor": (1, 0.5)},
                "below": {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "borderaxespad": 4.5},
            }
            axes.legend(frameon=False, fontsize=8.5, **places.get(str(legend), {}))

    def tick(self, panel: int, values: Sequence[int]) -> None:
        """Ticks at `values` of the horizontal axis, at every second of more than 6 and so on, as plain numbers."""
        from matplotlib.ticker import NullLocator

        chosen = values[::-1][:: -(-len(values) // 6)]
        self.axes[panel].xaxis.set_minor_locator(NullLocator())
        self.axes[panel].set_xticks(chosen, [str(value) for value in chosen])

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        """The picture as a notebook shows it: drawn twice as fine as it is large."""
        image = io.BytesIO()
        self.drawing.savefig(image, format="png", dpi=144)
        return image.getvalue(), {"width": round(72 * self.drawing.get_figwidth())}

    def save(self, folder: Path, name: str) -> list[Path]:
        """Write NAME.png, NAME.svg and NAME.csv to `folder`; returns their paths.

        The CSV has the columns `HEADER`: beside each x and y, what it is. Its first line is "# " and the caption.
        """
        from matplotlib import rc_context

        written = []
        with rc_context({"svg.hashsalt": name}):  # the same picture is the same file
            for kind in ("png", "svg"):
                image = io.BytesIO()
                self.drawing.savefig(image, format=kind, dpi=180, metadata={"Date": None} if kind == "svg" else None)
                written.append(folder / f"{name}.{kind}")
                results.write(written[-1], image.getvalue())
        written.append(folder / f"{name}.csv")
        labels = {}
        for letter, axes in zip(NUMBERED, self.axes):
            labels[letter] = axes.get_xlabel(), self.colours.get(letter, " ".join(axes.get_ylabel().split()))
        said = f"# {' '.join(self.said.split())}\n" if self.said else ""
        results.write(written[-1], said + as_csv(HEADER, [(*row, *labels[row[0]]) for row in self.rows]))
        return written


def as_csv(header: Sequence[str], rows: Sequence[Sequence]) -> str:
    """A CSV file as text; numbers with all their digits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()
