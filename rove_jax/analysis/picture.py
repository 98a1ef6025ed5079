"""A figure and the numbers in it, kept together: what is drawn is what the CSV file holds."""

import csv
import io
import string
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
        for panel, title in enumerate(titles):
            self.axes[panel].set_title(f"({NUMBERED[panel]}) {title}" if len(titles) > 1 else title, fontsize=11)
            self.axes[panel].spines[["top", "right"]].set_visible(False)

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
        self.axes[panel].scatter(x, y, **{"s": 12, **usual, **look})

    def bars(self, panel: int, series: str, edges: np.ndarray, heights: np.ndarray, style: int = 0) -> None:
        """A histogram."""
        self.record(panel, series, edges[:-1], heights)
        colour = COLOURS[style % len(COLOURS)]
        self.axes[panel].stairs(heights, edges, fill=True, color=colour, alpha=0.35, label=series)

    def image(self, panel: int, matrix: np.ndarray, *, label: str = "", diverging: bool = False, **look: Any) -> None:
        """A matrix as colours, with their scale; in a diverging one white is 0. In the CSV: row, column, value."""
        for row, values in enumerate(matrix):
            self.record(panel, f"row {row}", range(len(values)), values)
        usual: dict[str, Any] = {"cmap": "cividis", "aspect": "auto", "interpolation": "nearest"}
        if diverging:
            limit = np.abs(matrix).max() or 1.0
            usual |= {"cmap": "RdBu_r", "vmin": -limit, "vmax": limit}
        shown = self.axes[panel].imshow(matrix, **{**usual, **look})
        self.axes[panel].spines[["top", "right"]].set_visible(True)
        self.drawing.colorbar(shown, ax=self.axes[panel], label=label)

    def dress(self, panel: int, x: str, y: str, *, legend: bool | str = True, **settings: Any) -> None:
        """Labels, a light grid, a legend without a frame, and what else `Axes.set` takes.

        legend: "beside" puts it right of the panel, for lines that leave no room inside.
        """
        axes = self.axes[panel]
        axes.set(xlabel=x, ylabel=y, **settings)
        axes.grid(True, color="0.9", linewidth=0.8)
        axes.set_axisbelow(True)
        if legend:
            place = {"loc": "center left", "bbox_to_anchor": (1, 0.5)} if legend == "beside" else {}
            axes.legend(frameon=False, fontsize=8.5, **place)

    def tick(self, panel: int, values: Sequence[int]) -> None:
        """Ticks at `values` of the horizontal axis, as plain numbers, and at no others."""
        from matplotlib.ticker import NullLocator

        self.axes[panel].xaxis.set_minor_locator(NullLocator())
        self.axes[panel].set_xticks(values, [str(value) for value in values])

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        """The picture as a notebook shows it: drawn twice as fine as it is large."""
        image = io.BytesIO()
        self.drawing.savefig(image, format="png", dpi=144)
        return image.getvalue(), {"width": round(72 * self.drawing.get_figwidth())}

    def save(self, folder: Path, name: str) -> list[Path]:
        """Write NAME.png, NAME.svg and NAME.csv (panel, series, x, y) to `folder`; returns their paths."""
        from matplotlib import rc_context

        written = []
        with rc_context({"svg.hashsalt": name}):  # the same picture is the same file
            for kind in ("png", "svg"):
                image = io.BytesIO()
                self.drawing.savefig(image, format=kind, dpi=180, metadata={"Date": None} if kind == "svg" else None)
                written.append(folder / f"{name}.{kind}")
                results.write(written[-1], image.getvalue())
        written.append(folder / f"{name}.csv")
        results.write(written[-1], as_csv(("panel", "series", "x", "y"), self.rows))
        return written


def as_csv(header: Sequence[str], rows: Sequence[Sequence]) -> str:
    """A CSV file as text; numbers with all their digits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()
