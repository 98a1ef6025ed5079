"""Pictures, and those that need no model: what is drawn, and the numbers in them."""

import io
import re

import numpy as np
import pytest
from figure_files import check_files, numbers, save_what_fits
from PIL import Image

from rove_jax.analysis.picture import COLOURS, Picture, as_csv
from rove_jax.cli import eval as command
from rove_jax.cli.figure import FIGURES


@pytest.fixture
def run(capsys):
    """Runs a command: (exit code, lines of stdout, lines of stderr)."""

    def call(*words) -> tuple[int, list[str], list[str]]:
        code = command.main([str(word) for word in words])
        out, err = capsys.readouterr()
        return code, out.splitlines(), err.splitlines()

    return call


@pytest.fixture(autouse=True)
def captions_fit(monkeypatch):
    """Every picture that a test saves is looked at."""
    monkeypatch.setattr(Picture, "save", save_what_fits(Picture.save))


def test_a_picture_holds_what_it_draws_and_is_the_same_twice(tmp_path):
    for folder in ("a", "b"):
        picture = Picture(["lines", "matrix"])
        picture.line(0, "one", [1, 2, 3], [0.5, 1 / 3, 2.0], 1)
        picture.dress(0, "x", "y")
        picture.image(1, np.array([[1.0, -2.0]]), rows="head", label="weight", digits=1)
        picture.axes[1].set(xlabel="key")
        picture.caption("of a folder named $x$ " * 20)
        written = picture.save(tmp_path / folder, "it")
    for path in written:
        assert path.read_bytes() == (tmp_path / "a" / path.name).read_bytes()
    found = check_files(tmp_path / "a", "it")
    np.testing.assert_array_equal(found["a", "one"], [(1, 0.5), (2, 1 / 3), (3, 2)])
    np.testing.assert_array_equal(found["b", "head 0"], [(0, 1), (1, -2)])
    said, header, first, *_, last = (tmp_path / "a" / "it.csv").read_text().splitlines()
    assert said.startswith("# of a folder named $x$ of a") and header == "panel,series,x,y,x_is,y_is"
    assert first == "a,one,1.0,0.5,x,y" and last == "b,head 0,1.0,-2.0,key,weight"
    colours = {colour for _, colour in Image.open(tmp_path / "a" / "it.png").convert("RGB").getcolors(1 << 24) or []}
    assert tuple(bytes.fromhex(COLOURS[1][1:])) in colours and tuple(bytes.fromhex(COLOURS[0][1:])) not in colours
    assert as_csv(["x"], [[0.1]]) == "x\n0.1\n"
    picture.drawing.suptitle(picture.said, fontsize=10, parse_math=False)  # control: in one line
    with pytest.raises(AssertionError, match="of a folder"):
        picture.save(tmp_path, "it")
    image, shown = picture._repr_png_()  # what a notebook shows
    assert Image.open(io.BytesIO(image)).size[0] == pytest.approx(2 * shown["width"], abs=2)


@pytest.mark.parametrize(
    "name", [name for name, figure in FIGURES.items() if figure.of == "nothing" and name != "induction"]
)
def test_figures_that_need_no_model(run, tmp_path, name):
    code, lines, err = run("figure", name, "--out", tmp_path, *(() if name == "mixer" else ("--length", 256)))
    assert code == 0, err
    assert lines == [str(tmp_path / f"{name}.{kind}") for kind in ("png", "svg", "csv")]
    found = check_files(tmp_path, name)
    if name == "score":
        assert found["a", "S(m)"][0].tolist() == [0, 64] and len(found["a", "S(m)"]) == 256
    if name == "inversion":
        np.testing.assert_allclose(dict(found["c", "B = 1e5"])[256], 0.843750)  # derived values
        np.testing.assert_allclose(dict(found["c", "B = 1e5"])[64], 0.578125)
        assert run("figure", name, "--length", 256, "--phases", "uniform", "--out", tmp_path / "other")[0] == 0
        other = dict(check_files(tmp_path / "other", name)["b", "B = 1e5"])
        assert dict(found["b", "B = 1e5"])[256] < 0.1 < 0.3 < other[256] < 0.7
        assert "phases uniform" in re.sub("<!--|-->", "", (tmp_path / "other" / f"{name}.svg").read_text())
    if name == "token":
        assert run("figure", name, "--length", 300, "--out", tmp_path / "odd")[0] == 0
        drawn = numbers(tmp_path / "odd" / f"{name}.csv")["c", "B = 1e4"][:, 0]
        assert drawn.tolist() == [16, 32, 64, 128, 256, 300], "the length asked for too"
    if name == "tradeoff":
        assert {series for panel, series in found if panel == "a"} == {"M = 16", "M = 64", "M = 256"}
    if name == "swap":
        rope, rove = (values for (panel, series), values in sorted(found.items()) if panel == "b")
        assert np.all(rope[:, 1] == 0) and rove[:, 1].min() > 0.1
    if name == "mixer":
        kernels = np.array([found["b", f"row {row}"][:, 1] for row in range(6)]).reshape(6, 4, 6)
        np.testing.assert_array_equal(kernels[:, 0], kernels[:, 3])
        assert np.abs(found["d", "row 0"][:6, 1] - found["d", "row 0"][-6:, 1]).max() > 0.1
