"""A table of a report: cells that know which result file, and which place in it, they are from."""

from typing import Any, NamedTuple

from rove_jax.evaluation import tables


class Cell(NamedTuple):
    """A number as text, how sure it is, and where it is from."""

    text: str
    file: str = ""
    """Path from the report's folder; "" for labels and for what the paper says."""
    place: str = ""
    """Where in the file, such as results[3].perplexity."""
    spread: str = ""
    """Its 95% interval, such as [1.2, 1.4]; "" where it has none."""

    @property
    def whole(self) -> str:
        """The number and its interval in one line."""
        return f"{self.text} {self.spread}".strip()


NONE = Cell("-")
"""What was not measured."""


class Table(NamedTuple):
    """A table with what must be known to read it."""

    title: str
    note: str
    header: list[str]
    rows: list[list[Cell]]
    cautions: tuple[str, ...] = ()
    """What else must be known, a line each."""
    figure: str = ""
    """Name of the picture that shows it, if there is one; NAME.png, NAME.svg and NAME.csv lie beside the report."""
    alt: str = ""
    """The picture in words."""

    def markdown(self) -> str:
        """The table as text, after its picture."""
        rows = [[escaped(cell.whole) for cell in row] for row in self.rows]
        parts = [
            f"## {escaped(self.title)}",
            escaped(self.note),
            "\n".join(f"- {escaped(line)}" for line in self.cautions),
        ]
        if self.figure:
            parts.append(f"![{self.alt}]({self.figure}.png)")
            parts.append(f"The figure as [SVG]({self.figure}.svg), its numbers as [CSV]({self.figure}.csv).")
        parts.append(tables.table([escaped(name) for name in self.header], rows))
        return "\n\n".join(part for part in parts if part)


def escaped(text: str) -> str:
    """Text that Markdown shows as it is and in one line, in a table too, whatever a folder is called."""
    text = " ".join(text.splitlines())
    for mark in "\\|<`":
        text = text.replace(mark, f"\\{mark}")
    return text


class Result(NamedTuple):
    """A result document and the file it is in."""

    document: dict[str, Any]
    file: str

    def cell(self, text: str, place: str, interval: Any = None, digits: int = 2) -> Cell:
        """A number of this file with its 95% interval."""
        return Cell(text, self.file, place, tables.span(interval, digits))


Results = dict[str, dict[str, Result]]
"""Run's name -> kind of evaluation -> result."""


def with_kind(found: Results, kind: str) -> dict[str, Result]:
    """Run's name -> its result of that kind."""
    return {name: kinds[kind] for name, kinds in found.items() if kind in kinds}
