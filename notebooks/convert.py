"""Write each notebook, NN_name.ipynb, from its source, NN_name.py in cells after `# %%`: `python notebooks/convert.py`.

The line `from install import ...` of a source becomes the text of install.py, so a notebook needs no file beside it.
Outputs are left out.
"""

from pathlib import Path

import nbformat

HERE = Path(__file__).resolve().parent
IMPORT = "from install import"


def sources() -> list[Path]:
    """The sources of all notebooks, in order."""
    return sorted(HERE.glob("[0-9][0-9]_*.py"))


def cells(source: str) -> list[tuple[str, str]]:
    """(markdown or code, text) of each cell of a source."""
    head, *parts = ("\n" + source).split("\n# %%")
    assert not head.strip(), "a source begins with a cell"
    found = []
    for part in parts:
        kind, _, text = part.partition("\n")
        lines = text.strip("\n").split("\n")
        if kind.strip() == "[markdown]":
            assert all(line[:1] == "#" for line in lines), text
            found.append(("markdown", "\n".join(line[1:].removeprefix(" ") for line in lines)))
        else:
            found.append(("code", "\n".join(lines)))
    return found


def notebook(source: str) -> str:
    """The text of the .ipynb file of a source."""
    book = nbformat.v4.new_notebook()
    book.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for number, (kind, text) in enumerate(cells(source)):
        text = (HERE / "install.py").read_text().strip("\n") if text.startswith(IMPORT) else text
        made = nbformat.v4.new_markdown_cell if kind == "markdown" else nbformat.v4.new_code_cell
        book.cells.append(made(text, id=f"cell-{number}"))
    nbformat.validate(book)
    return nbformat.writes(book, indent=1) + "\n"


if __name__ == "__main__":
    for path in sources():
        path.with_suffix(".ipynb").write_text(notebook(path.read_text()))
        print(path.with_suffix(".ipynb").name)
