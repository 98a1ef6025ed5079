"""A report as one HTML page that needs nothing beside it: tables, figures, and where every number is from."""

import base64
import html
import urllib.parse
from collections.abc import Sequence
from pathlib import Path

from rove_jax.report import runs
from rove_jax.report.cells import Cell, Results, Table
from rove_jax.report.suite import TITLE

STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; padding: 0 1rem; max-width: 76rem;
       color: #1a1a1a; background: #fff; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
p, ul { max-width: 50rem; overflow-wrap: anywhere; } ul { padding-left: 1.2rem; }
nav ul { columns: 16rem; } figure { margin: 1rem 0; } figcaption { font-size: 0.85rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.9rem; }
th, td { padding: 0.3rem 0.7rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #ddd;
         vertical-align: top; }
thead th { white-space: normal; vertical-align: bottom; max-width: 11rem; overflow-wrap: break-word; }
th:first-child { text-align: left; position: sticky; left: 0; background: inherit; font-weight: normal;
  white-space: normal; overflow-wrap: anywhere; min-width: 7rem; max-width: min(22rem, 40vw); }
thead th:first-child { font-weight: bold; }
tr { background: #fff; } thead tr { border-bottom: 2px solid #888; }
td small { display: block; color: #555; }
a { color: inherit; } td a { text-decoration: underline dotted #999; }
tr.paper * { color: #666; font-style: italic; }
img { max-width: max(100%, 44rem); height: auto; background: #fff; }
@media (prefers-color-scheme: dark) {
  body, tr { color: #e6e6e6; background: #16181c; } th, td { border-color: #3a3d44; }
  tr.paper *, td small { color: #a8a8a8; }
}
@media print {
  :root { color-scheme: light; }
  body, tr, td small, tr.paper * { color: #000; background: #fff; } body { font-size: 9pt; margin: 0; max-width: none; }
  nav { display: none; } figcaption { font-size: 8pt; } .wide { overflow: visible; } img { max-width: 100%; }
  table { font-size: 7pt; } th, td { padding: 0.15rem 0.3rem; white-space: normal; overflow-wrap: anywhere; }
  td a { text-decoration: none; } th:first-child { position: static; min-width: 4rem; }
  h2, p, ul { break-after: avoid; } tr, figure { break-inside: avoid; } thead { display: table-header-group; }
}
"""


def page(found: Results, tables: Sequence[Table], folder: Path) -> str:
    """The page for `folder`, which has the figures. A number leads to its result file; its title says where in it."""
    links = "\n".join(f'<li><a href="#t{n}">{html.escape(table.title)}</a></li>' for n, table in enumerate(tables))
    parts = [f"<h1>{TITLE}</h1>", f'<nav aria-label="Tables"><ul>\n{links}\n</ul></nav>']
    parts.append("<p>A number leads to the file that it is from; below it stands its 95% interval.</p>")
    body = "\n".join([*parts, *(section(table, n, folder) for n, table in enumerate(tables))])
    names = ", ".join(runs.labelled(found).values())
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{TITLE}: {html.escape(names)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def section(table: Table, number: int, folder: Path) -> str:
    """One table with its title, its notes and its figure."""
    parts = [f'<h2 id="t{number}">{html.escape(table.title)}</h2>']
    parts += [f"<p>{html.escape(table.note)}</p>"] if table.note else []
    if table.cautions:
        parts.append("<ul>" + "".join(f"<li>{html.escape(line)}</li>" for line in table.cautions) + "</ul>")
    parts += [figure(table, folder)] if table.figure else []
    parts += [rows(table, f"t{number}")] if table.rows else []
    return "<section>\n" + "\n".join(parts) + "\n</section>"


def rows(table: Table, named: str) -> str:
    """A table that scrolls sideways, by keys too, where the screen is narrow. `named`: the id of its title."""
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in table.header)
    body = []
    for first, *others in table.rows:
        kind = ' class="paper"' if first.text.startswith("paper") else ""
        cells = "".join(f"<td>{link(cell)}</td>" for cell in others)
        body.append(f'<tr{kind}><th scope="row">{html.escape(first.text)}</th>{cells}</tr>')
    return (
        f'<div class="wide" role="region" aria-labelledby="{named}" tabindex="0"><table aria-labelledby="{named}">\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n" + "\n".join(body) + "\n</tbody></table></div>"
    )


def link(cell: Cell) -> str:
    """A cell's text, leading to its file, and its interval."""
    text = html.escape(cell.text)
    if cell.file:
        where = html.escape(f"{cell.file}: {cell.place}", quote=True)
        text = f'<a href="{html.escape(urllib.parse.quote(cell.file), quote=True)}" title="{where}">{text}</a>'
    return f"{text} <small>{html.escape(cell.spread)}</small>" if cell.spread else text


def figure(table: Table, folder: Path) -> str:
    """An image inside the page, what it shows in words, and where its numbers are."""
    content = (folder / f"{table.figure}.png").read_bytes()
    width = int.from_bytes(content[16:20], "big") // 2  # of a PNG; drawn for screens of two pixels a point
    data, alt = base64.b64encode(content).decode("ascii"), html.escape(table.alt, quote=True)
    files = ", ".join(f'<a href="{table.figure}.{form}">{table.figure}.{form}</a>' for form in ("svg", "csv"))
    return (
        f'<figure><div class="wide" role="region" aria-label="Figure" tabindex="0"><img alt="{alt}" width="{width}" '
        f'src="data:image/png;base64,{data}"></div><figcaption>{html.escape(table.alt)} {files}</figcaption></figure>'
    )
