"""The files of a figure: whether they are whole, and the numbers in them."""

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from rove_jax.analysis.picture import Picture


def save_what_fits(save: Callable) -> Callable:
    """`Picture.save`, after which the picture's caption lies within it."""

    def checked(picture: Picture, folder: Path, name: str) -> list[Path]:
        written = save(picture, folder, name)
        if picture.said:
            drawn = picture.drawing.texts[0].get_window_extent()
            assert drawn.x0 >= 0 and drawn.x1 <= picture.drawing.bbox.x1, (name, picture.said)
        return written

    return checked


def numbers(path) -> dict[tuple[str, str], np.ndarray]:
    """A figure's CSV as (panel, series) -> [n, 2]."""
    found: dict[tuple[str, str], list] = {}
    for row in csv.DictReader(line for line in path.read_text().splitlines() if not line.startswith("# ")):
        assert row["x_is"], path
        found.setdefault((row["panel"], row["series"]), []).append((float(row["x"]), float(row["y"])))
    return {name: np.array(values) for name, values in found.items()}


def check_files(folder, name: str) -> dict[tuple[str, str], np.ndarray]:
    """That the three files of a figure are whole; returns the numbers."""
    image = Image.open(folder / f"{name}.png")
    assert min(image.size) > 400 and len(image.convert("RGB").getcolors(1 << 24) or []) > 20
    assert "<svg" in (folder / f"{name}.svg").read_text()[:1000]
    found = numbers(folder / f"{name}.csv")
    assert found and all(np.isfinite(values[:, 0]).all() for values in found.values())
    return found
