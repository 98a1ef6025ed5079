"""Several evaluations of several runs as the tables of the paper, each number with the file and place it is from."""

from collections.abc import Sequence

from rove_jax.report import core, index, perplexity, ruler, runs
from rove_jax.report.cells import Results, Table

TABLES = (
    runs.table,
    runs.differences,
    perplexity.core_and_perplexity,
    perplexity.last_tokens,
    perplexity.ratios,
    core.by_task,
    core.differences,
    ruler.by_task,
    ruler.differences,
    ruler.string_match,
    index.by_length,
    index.differences,
)
"""In the order of the report; each gives None where there is nothing to show."""

TITLE = "Evaluations side by side"


def make(found: Results) -> list[Table]:
    """The tables of all that was measured. Raises `UsageError` where runs were asked different questions."""
    names = runs.labelled(found)
    made = [build(found, names) for build in TABLES]
    return [table for table in made if table is not None]


def markdown(made: Sequence[Table], title: str = TITLE) -> str:
    """The report as Markdown."""
    return "\n\n".join([f"# {title}", *(table.markdown() for table in made)]) + "\n"
