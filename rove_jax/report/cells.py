"""A table of a report: cells that know which result file, and which place in it, they are from."""

from typing import Any, NamedTuple

from rove_jax.evaluation import tables
from rove_jax.report import compare


class Cell(NamedTuple):
    """A number as text, and where it is from."""

    text: str
    file: str = ""
    """Path from the report's folder; "" for labels and for what the paper says."""
    place: str = ""
    """Where in the file, such as results[3].perplexity."""


class Table(NamedTuple):
    """A table with what must be known to read it."""

    title: str
    note: str
    header: list[str]
    rows: list[list[Cell]]
    figure: str = ""
    """File name of the picture that shows it, if there is one."""

    def markdown(self) -> str:
        """The table as text, after its picture."""
        rows = [[cell.text.replace("|", "\\|") for cell in row] for row in self.rows]
        header = [name.replace("|", "\\|") for name in self.header]
        picture = [f"![{self.title}]({self.figure})"] if self.figure else []
        return "\n\n".join([f"## {self.title}", self.note, *picture, tables.table(header, rows)])


class Result(NamedTuple):
    """A result document and the file it is in."""

    document: dict[str, Any]
    file: str

    def cell(self, text: str, place: str) -> Cell:
        return Cell(text, self.file, place)


Results = dict[str, dict[str, Result]]
"""Run's name -> kind of evaluation -> result."""


def labelled(found: Results) -> dict[str, str]:
    """Run's name -> the label it has in the report."""
    firsts = [next(iter(kinds.values())).document for kinds in found.values()]
    return dict(zip(found, compare.labels(firsts)))


def with_kind(found: Results, kind: str) -> dict[str, Result]:
    """Run's name -> its result of that kind."""
    return {name: kinds[kind] for name, kinds in found.items() if kind in kinds}
