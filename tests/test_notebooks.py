"""The notebooks: what they are made from, what their first cell does, and each of them run from top to bottom."""

import ast
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from nbclient import NotebookClient

from notebooks import convert
from notebooks import install as first_cell
from rove_jax import recipes

SOURCES = convert.sources()
MACHINE = re.compile(r"/(?:home|root|Users|work|tmp|content)/\w")


def named(path: Path) -> str:
    return path.stem


def read(source: Path) -> nbformat.NotebookNode:
    return nbformat.read(source.with_suffix(".ipynb"), 4)


def test_every_notebook_has_a_source_and_every_source_a_notebook() -> None:
    assert [path.stem[:2] for path in SOURCES] == ["01", "02", "03", "04", "05", "06"]
    assert sorted(convert.HERE.glob("*.ipynb")) == [path.with_suffix(".ipynb") for path in SOURCES]


@pytest.mark.parametrize("source", SOURCES, ids=named)
def test_a_notebook_is_what_its_source_gives(source: Path) -> None:
    again = "python notebooks/convert.py writes it again"
    assert source.with_suffix(".ipynb").read_text() == convert.notebook(source.read_text()), again


def test_conversion_keeps_text_code_and_order() -> None:
    made = convert.cells("# %% [markdown]\n# # A\n#\n# $x$\n\n# %%\nif True:\n\n    x = 1\n\n\n# %%\nx\n")
    assert made == [("markdown", "# A\n\n$x$"), ("code", "if True:\n\n    x = 1"), ("code", "x")]
    for wrong in ("x = 1\n# %%\n", "# %% [markdown]\n# a\nb\n"):
        with pytest.raises(AssertionError):
            convert.cells(wrong)


@pytest.mark.parametrize("source", SOURCES, ids=named)
def test_a_notebook_installs_first_and_names_no_machine(source: Path) -> None:
    book = read(source)
    assert book.cells[0].cell_type == "markdown" and book.cells[0].source.startswith("# ")
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert code[0].source == (convert.HERE / "install.py").read_text().strip("\n")
    assert not any("ADDRESS" in cell.source or "from install" in cell.source for cell in code[1:])
    assert not any(cell.outputs or cell.execution_count for cell in code)
    for cell in code:
        ast.parse(cell.source)
    assert MACHINE.search("/home" + "/someone"), "the check itself sees nothing"
    assert MACHINE.findall(source.with_suffix(".ipynb").read_text()) == []


@pytest.mark.parametrize("document", [*SOURCES, convert.HERE / "README.md"], ids=named)
def test_links_lead_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+\.(?:ipynb|md))\)", document.read_text())
    assert links and [link for link in links if not (convert.HERE / link).exists()] == []


def test_the_checkout_is_found_from_inside_or_cloned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert first_cell.checkout() == convert.HERE.parent
    calls = []
    monkeypatch.setattr(first_cell.subprocess, "run", lambda words, check: calls.append(words))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="set ADDRESS"):
        first_cell.checkout()
    assert calls == []
    monkeypatch.setattr(first_cell, "ADDRESS", "where/it/is")
    assert first_cell.checkout() == tmp_path / "rove-jax"
    assert calls == [["git", "clone", "--quiet", "--depth", "1", "where/it/is", "rove-jax"]]


@pytest.mark.parametrize("there", ["one that serves", "another", "none", "rove_jax alone"])
def test_the_jax_of_the_runtime_is_kept_if_it_can_be(there: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def run(words: list[str], check: bool = False) -> SimpleNamespace:
        calls.append(words[words.index("--quiet") + 1 :])
        return SimpleNamespace(returncode=1 if there == "another" and len(calls) == 1 else 0)

    monkeypatch.setattr(first_cell.subprocess, "run", run)
    monkeypatch.setattr(first_cell.importlib.metadata, "version", lambda name: "0.7.2")
    present = {"none": [], "rove_jax alone": ["jax", "jaxlib", "rove_jax"]}.get(there, ["jax", "jaxlib"])
    monkeypatch.setattr(first_cell.importlib.util, "find_spec", lambda name: name in present or None)
    monkeypatch.setattr(first_cell.shutil, "which", {"nvidia-smi": "there"}.get)
    if there == "another":
        with pytest.raises(SystemExit, match="restart the runtime"):  # jax is loaded here
            first_cell.install(Path("it"), [])
    else:
        monkeypatch.delitem(sys.modules, "jax")
        first_cell.install(Path("it"), ["wonderwords==3.0.1"])
    jax = ["jax==0.7.2", "jaxlib==0.7.2"]
    kept = ["it[text,ruler]", "ipywidgets", *jax]
    other = ["it[text,ruler,cuda]", "ipywidgets"]
    asked = {"one that serves": [kept], "another": [kept, other], "none": [other]}
    assert calls == {**asked, "rove_jax alone": [["wonderwords==3.0.1", *jax]]}[there]


def test_what_is_missing_beside_rove_jax_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as after `pip install -e ".[text]"`: an extra, a version that is not the one asked for."""
    there = {"ipywidgets": None, "tyro": "0.1", "wonderwords": "2.2"}

    def version(name: str) -> str:
        if there.get(name, "1") is None:
            raise first_cell.importlib.metadata.PackageNotFoundError(name)
        return there.get(name, "1")

    monkeypatch.setattr(first_cell.importlib.metadata, "version", version)
    assert first_cell.missing(convert.HERE.parent) == ["wonderwords==3.0.1", "ipywidgets"]
    there.update(ipywidgets="8", wonderwords="3.0.1")
    assert first_cell.missing(convert.HERE.parent) == []
    there["etils"] = None
    assert [need.split(">")[0] for need in first_cell.missing(convert.HERE.parent)] == ["etils[epath]"]


def test_what_pip_cannot_install_beside_the_jax_that_is_here_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_cell.subprocess, "run", lambda words: SimpleNamespace(returncode=1))
    with pytest.raises(SystemExit, match="could not install that beside jax=="):
        first_cell.install(convert.HERE.parent, ["wonderwords==3.0.1"])


@pytest.mark.parametrize("chosen", ["full", "short", "tiny", "huge"])
def test_a_size_is_chosen_in_the_environment_or_in_the_cell(chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (convert.HERE / "install.py").read_text()
    outcomes = []
    for environment, cell in ((chosen, text), ("", text.replace('SIZE = "full"', f'SIZE = "{chosen}"'))):
        monkeypatch.setenv("ROVE_NOTEBOOK_SIZE", environment)
        monkeypatch.setenv("ROVE_NOTEBOOK_RUNS", "somewhere")
        names: dict = {}
        if chosen == "huge":
            with pytest.raises(SystemExit, match="huge.*must be full, short or tiny"):
                exec(cell, names)
            continue
        exec(cell, names)
        folder = {"full": "somewhere", "short": "somewhere/short", "tiny": "somewhere/tiny"}[chosen]
        assert names["RUNS"] == Path(folder) and names["sized"](1, 2, 3) == ["full", "short", "tiny"].index(chosen) + 1
        outcomes.append(recipes.load(convert.HERE.parent / "configs" / "tiny_rove.py", names["SMALLER"]).training.steps)
    assert outcomes == {"full": [800, 800], "short": [250, 250], "tiny": [4, 4], "huge": []}[chosen]


Ran = tuple[list[nbformat.NotebookNode], list[str]]
"""Cells of a notebook with their outputs, and the errors among these."""


def execute(books: list[nbformat.NotebookNode]) -> list[Ran]:
    """Run notebooks one after the other in one kernel, which forgets all names in between; a cell that fails ends none.

    Starting a kernel and importing jax costs more than most notebooks at their smallest.
    """
    forget = nbformat.v4.new_code_cell("get_ipython().reset(new_session=False)")
    each = [cell for book in books for cell in (*book.cells, forget.copy())]
    for number, cell in enumerate(each):
        cell.id = f"cell-{number}"
    whole = nbformat.v4.new_notebook(cells=each)
    where = {"metadata": {"path": str(convert.HERE)}}
    client = NotebookClient(whole, timeout=600, kernel_name="python3", resources=where, allow_errors=True)
    cells, ran = iter(client.execute().cells), []
    for book in books:
        mine = [next(cells) for _ in book.cells]
        outputs = [output for cell in mine for output in cell.get("outputs", ())]
        ran.append((mine, [f"{o.ename}: {o.evalue}" for o in outputs if o.output_type == "error"]))
        next(cells)
    return ran


DEVICES_OF_ITS_OWN = "05_tpu_and_gpu"
"""It sets the number of devices, which a process can do once."""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    """Every notebook at its smallest, by name, with one folder of runs, of prepared data and of compiled programs.

    Last in the kernel of most of them: one that fails, and one that uses a name of that one.
    """
    folder = tmp_path_factory.mktemp("notebooks")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("JAX_NUM_CPU_DEVICES", raising=False)
        patch.setenv("PYTHONPATH", str(convert.HERE.parent))
        patch.setenv("MPLBACKEND", "Agg")
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # compiling is most of it
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.setenv("ROVE_NOTEBOOK_RUNS", str(folder / "runs"))
        patch.setenv("ROVE_NOTEBOOK_SIZE", "tiny")
        together = {source.stem: read(source) for source in SOURCES if source.stem != DEVICES_OF_ITS_OWN}
        for name, code in (("fails", "left = 1\nimport rove_jax\nrove_jax.nothing_of_this_name"), ("borrows", "left")):
            together[name] = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
        alone = read(convert.HERE / f"{DEVICES_OF_ITS_OWN}.py")
        [other] = execute([alone])
        return {**dict(zip(together, execute(list(together.values())))), DEVICES_OF_ITS_OWN: other}


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES, ids=named)
def test_a_notebook_runs_from_top_to_bottom(source: Path, ran: dict[str, Ran]) -> None:
    cells, errors = ran[source.stem]
    assert errors == []
    shown = 0
    for cell in cells:
        images = [output for output in cell.get("outputs", ()) if "image/png" in output.get("data", {})]
        if cell.cell_type == "code" and cell.source.split("\n")[-1].startswith("show("):
            assert len(images) == 1, cell.source
        shown += len(images)
    assert shown, "no picture in a notebook"


@pytest.mark.slow
def test_a_cell_that_fails_is_seen_and_so_is_a_name_of_another_notebook(ran: dict[str, Ran]) -> None:
    [failed], [borrowed] = ran["fails"][1], ran["borrows"][1]
    assert "nothing_of_this_name" in failed and "name 'left' is not defined" in borrowed


@pytest.mark.slow
def test_long_cells_show_their_progress(ran: dict[str, Ran]) -> None:
    """Bars of the library are for terminals; the first cell lets a notebook have them."""
    outputs = [output for cell in ran["01_quickstart"][0] for output in cell.get("outputs", ())]
    drawn = "".join(output.text for output in outputs if output.get("name") == "stderr")
    assert "tiny_rove: perplexity" in drawn and "tiny_rope: perplexity" in drawn and "tokens/s" in drawn
