"""The page and the figures of a report: whole in themselves, readable by all, whatever runs are called."""

import csv
import html.parser
import json
import re

import pytest
from PIL import Image
from report_cases import two_runs

from rove_jax.report import figures, page, suite
from rove_jax.report.cells import Cell, Result, Results, Table


@pytest.fixture
def found() -> Results:
    return two_runs()


class Links(html.parser.HTMLParser):
    """The links and images of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links, self.images, self.unlabelled = [], [], []

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        if tag == "a":
            self.links.append((attributes["href"], attributes.get("title")))
        if tag == "img":
            self.images.append(attributes["src"])
        needed = {"img": ["alt"], "th": ["scope"], "html": ["lang"], "table": ["aria-labelledby"], "div": ["tabindex"]}
        self.unlabelled += [(tag, name) for name in needed.get(tag, []) if not attributes.get(name)]


def test_the_page_needs_nothing_but_itself_and_leads_to_the_files(found, tmp_path):
    names = figures.draw(found, tmp_path)
    kinds = ("perplexity", "core", "ruler", "index")
    assert names == [f"{kind}.{form}" for kind in kinds for form in ("png", "svg", "csv")]
    for kind in kinds:
        assert Image.open(tmp_path / f"{kind}.png").width > 500
    tables = suite.make(found)
    reader = Links()
    reader.feed(page.page(found, tables, tmp_path))
    assert len(reader.images) == 4 and all(source.startswith("data:image/png;base64,") for source in reader.images)
    cells = [(c.file, f"{c.file}: {c.place}") for t in tables for row in t.rows for c in row if c.file]
    assert [link for link in reader.links if link[1]] == cells and len(cells) > 60
    assert reader.unlabelled == [], "every header has its scope, every picture its words, every region a name"
    fewer = {name: {"core": kinds["core"]} for name, kinds in found.items()}
    assert figures.draw(fewer, tmp_path) == ["core.png", "core.svg", "core.csv"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["core.csv", "core.png", "core.svg"], "no older ones"
    text = suite.markdown(tables)
    assert (
        text.count("\n## ") == len(tables) and "a marker for each run; 0 is guessing, 1 all right.](core.png)" in text
    )


def test_labels_are_escaped(found, tmp_path):
    for kinds in found.values():
        kinds["index"].document["provenance"] |= {"run": "<b>&", "variant": "rove", "checkpoint": "/<b>&"}
    only = {name: {"index": kinds["index"]} for name, kinds in found.items()}
    figures.draw(only, tmp_path)
    text = page.page(only, suite.make(only), tmp_path)
    assert "<b>&" not in text and "&lt;b&gt;&amp;" in text and json.dumps("<b>") not in text


@pytest.mark.parametrize("count", [1, 4])
def test_reports_hold_with_few_and_many_runs_and_with_what_is_missing(found, tmp_path, count):
    first, second = found.values()
    del second["core"]
    short = {**first["index"].document, "results": []}
    more = {"3_c": {**first, "index": Result(short, "c")}, "4_d": {"ruler": second["ruler"]}}
    chosen = dict([*found.items(), *more.items()][:count])
    first["perplexity"].document["results"][0]["perplexity"] = float("inf")
    second["perplexity"].document["results"].pop()
    for place, kinds in enumerate(chosen.values()):
        for kind, result in kinds.items():
            made = {**result.document["provenance"], "run": f'<b>&"{place}" |$ {"x" * 60}'}
            kinds[kind] = Result({**result.document, "provenance": made}, result.file)
    figures.draw(chosen, tmp_path)
    tables = suite.make(chosen)
    for table in tables:
        assert table.rows and all(len(row) == len(table.header) for row in table.rows), table.title
        lines = [line for line in table.markdown().splitlines() if line.startswith("|")]
        assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {len(table.header) + 1}
    assert any(cell.text == "inf" for table in tables for row in table.rows for cell in row)
    text = page.page(chosen, tables, tmp_path)
    assert "<b>&" not in text and text.count("<section>") == len(tables) and "relative to" in text or count == 1


def test_the_numbers_of_a_figure_say_what_they_are(found, tmp_path):
    figures.draw(found, tmp_path)
    tables = {kind: list(csv.DictReader((tmp_path / f"{kind}.csv").open())) for kind in ("core", "ruler", "index")}
    assert [row["task"] for row in tables["core"]] == ["copa", "piqa"] * 2 and tables["core"][0]["examples"] == "4"
    chosen = [row for row in tables["ruler"] if (row["run"], row["task"], row["length"]) == ("RoVE", "vt", "4096")]
    assert float(chosen[0]["nats_per_token"]) == pytest.approx(2.75 + 4.096 + 2) and len(chosen) == 1
    assert [row["variant"] for row in tables["index"]] == ["list", "list"]
    assert tables["index"][1] | {"run": "", "scaling": ""} == dict(
        run="", scaling="", variant="list", length="64", accuracy="0.5", low="0.1", high="0.9"
    )


def test_names_of_folders_do_not_break_links_or_tables():
    cell = Cell("1", "results/1_a#1?%|/core.json", "x")
    assert 'href="results/1_a%231%3F%25%7C/core.json"' in page.link(cell)
    for inside in ("|", "\n", "\r\n", "\n\n# "):
        name = f"RoPE (x{inside}y)"
        table = Table(f"t {name}", f"Less {name}.", [f"a{inside}b", "c"], [[Cell(name), cell]], (f"Of {name}.",))
        title, _, note, _, caution, _, *rows = table.markdown().splitlines()
        assert (title[:10], note[:10], caution[:10]) == ("## t RoPE ", "Less RoPE ", "- Of RoPE ")
        assert [len(re.findall(r"(?<!\\)\|", row)) for row in rows] == [3, 3, 3]
