"""A report as one HTML page that needs nothing beside it: tables, figures, and where every number is from."""

import base64
import html
import urllib.parse
from collections.abc import Sequence
from pathlib import Path

from rove_jax.report.cells import Cell, Results, Table, labelled

STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; padding: 0 1rem; max-width: 76rem;
       color: #1a1a1a; background: #fff; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
p { max-width: 50rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.9rem; }
th, td { padding: 0.3rem 0.7rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: inherit;
  white-space: normal; overflow-wrap: anywhere; min-width: 7rem; max-width: min(24rem, 40vw); }
tr { background: #fff; } thead tr { border-bottom: 2px solid #888; }
td a { color: inherit; text-decoration: underline dotted #999; }
tr.paper td { color: #666; font-style: italic; }
img { max-width: max(100%, 44rem); height: auto; background: #fff; }
@media (prefers-color-scheme: dark) {
  body, tr { color: #e6e6e6; background: #16181c; } th, td { border-color: #3a3d44; }
  tr.paper td { color: #a0a0a0; }
}
"""


def page(found: Results, tables: Sequence[Table], folder: Path) -> str:
    """The page for `folder`, which has the figures. A number leads to its result file; its title says where in it."""
    parts = ["<h1>Evaluations side by side</h1>", runs_table(found), *(section(table, folder) for table in tables)]
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Evaluations side by side</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def section(table: Table, folder: Path) -> str:
    """One table with its title, its note and its figure."""
    parts = [f"<h2>{html.escape(table.title)}</h2>", f"<p>{html.escape(table.note)}</p>"]
    if table.figure:
        parts.append(figure(folder / table.figure))
    return "\n".join([*parts, rows(table.header, table.rows)])


def rows(header: Sequence[str], lines: Sequence[Sequence[Cell]]) -> str:
    """A table that scrolls sideways where the screen is narrow."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in header)
    body = []
    for line in lines:
        kind = ' class="paper"' if line and line[0].text.startswith("paper") else ""
        body.append(f"<tr{kind}>" + "".join(f"<td>{link(cell)}</td>" for cell in line) + "</tr>")
    return (
        f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n' + "\n".join(body) + "\n</tbody></table>"
        "</div>"
    )


def link(cell: Cell) -> str:
    """A cell's text, leading to its file."""
    text = html.escape(cell.text)
    if not cell.file:
        return text
    where = html.escape(f"{cell.file}: {cell.place}", quote=True)
    return f'<a href="{html.escape(urllib.parse.quote(cell.file), quote=True)}" title="{where}">{text}</a>'


def figure(path: Path) -> str:
    """An image inside the page."""
    content = path.read_bytes()
    width = int.from_bytes(content[16:20], "big") // 2  # of a PNG; drawn for screens of two pixels a point
    data = base64.b64encode(content).decode("ascii")
    name = html.escape(path.stem)
    return f'<div class="wide"><img alt="{name}" width="{width}" src="data:image/png;base64,{data}"></div>'


def runs_table(found: Results) -> str:
    """What was measured: a line for each run."""
    names, lines = labelled(found), []
    for name, kinds in found.items():
        origin = next(iter(kinds.values())).document["provenance"]
        values = (origin["run"], str(origin["step"]), f"{origin['parameters']:,}", origin["tokenizer"])
        more = (str(origin["training_length"]), origin["config_hash"], ", ".join(kinds))
        lines.append([Cell(names[name]), *(Cell(value) for value in (*values, *more))])
    header = ["run", "folder", "step", "parameters", "tokens", "trained on", "config", "measured"]
    return rows(header, lines)
