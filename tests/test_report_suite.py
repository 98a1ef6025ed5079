"""The report over several evaluations: every number is what its cell says, at the place in the file that it names."""

import html.parser
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image
from test_report import document as perplexity

from rove_jax.cli import eval as command
from rove_jax.cli.suite import check_lengths, claim
from rove_jax.config import Config, Evaluation
from rove_jax.errors import UsageError
from rove_jax.report import figures, page, paper, suite, tasks
from rove_jax.report.cells import Cell, Result, Table


def of(variant: str, kind: str, results: list, **settings) -> dict:
    return {**perplexity(variant, 0.0), "kind": kind, "settings": settings, "results": results}


def core(variant: str, right: float, labels=("copa", "piqa")) -> dict:
    tasks = [
        {
            "task": label,
            "examples": 4,
            "accuracy": right,
            "standard_error": 0.25,
            "centered": {"v1": 2 * right - 1, "v2": 2 * right - 1},
        }
        for label in labels
    ]
    record = {"core_partial": 2 * right - 1, "standard_error": 0.3, "baselines": "v1", "tasks": tasks}
    return of(variant, "core", [record], protocol="nanochat", overlong="truncate", max_examples=4)


def ruler(variant: str, nll: float, lengths=(512, 4096)) -> dict:
    rows = [
        {
            "published_task": task,
            "group": group,
            "length": length,
            "scaling": "none",
            "form": "small" if length == 512 else "published",
            "questions": None,
            "nll": nll + length / 1000 + place,
            "standard_error": 0.5,
        }
        for length in lengths
        for place, (task, group) in enumerate([("niah_single_1", "NIAH"), ("niah_single_2", "NIAH"), ("vt", "VT")])
    ]
    return of(variant, "ruler", rows, lengths=list(lengths), scalings=["none"], samples=5, texts={})


def index(variant: str, accuracy: float) -> dict:
    row = {"variant": "list", "length": 64, "scaling": "none", "accuracy": accuracy, "interval": [0.1, 0.9]}
    return of(variant, "index", [row], samples=10)


@pytest.fixture
def found() -> dict:
    """Two runs with every evaluation."""
    made = {}
    for name, variant, better in (("1_a", "rope", 0.0), ("2_b", "rove", 0.25)):
        documents = {
            "perplexity": perplexity(variant, -better),
            "core": core(variant, 0.5 + better),
            "ruler": ruler(variant, 3.0 - better),
            "index": index(variant, 0.25 + better),
        }
        made[name] = {kind: Result(d, f"results/{name}/{kind}.json") for kind, d in documents.items()}
    return made


def looked_up(document: dict, place: str):
    """The value at a place such as results[3].last.perplexity, found without the code under test."""
    value = document
    for part in re.findall(r"\w+", place):
        value = value[int(part) if part.isdecimal() else part]
    return value


def test_every_number_is_at_the_place_its_cell_names(found):
    files = {result.file: result.document for kinds in found.values() for result in kinds.values()}
    seen = 0
    for table in suite.make(found):
        assert all(len(row) == len(table.header) for row in table.rows), table.title
        for row in table.rows:
            for cell in row[1:]:
                if cell.place.endswith("their mean"):
                    places = [int(n) for n in re.findall(r"\d+", cell.place)]
                    values = [files[cell.file]["results"][n]["nll"] for n in places]
                    assert float(cell.text) == pytest.approx(sum(values) / len(values), abs=0.005) and len(values) < 3
                elif cell.file and not cell.place.endswith("documents"):
                    value = looked_up(files[cell.file], cell.place)
                    if value is not None:
                        assert float(cell.text.split()[0].rstrip("*")) == pytest.approx(value, rel=0.01, abs=0.005)
                        seen += 1
    # 3 lengths, 2 scalings and 2 runs, whole and last (none at the longest); core; 2 tasks; 3 at 2 lengths; the index.
    assert seen == 2 * (6 + 4) + 2 + 4 + 12 + 2


def test_what_the_paper_says_stands_beside_what_is_comparable_and_not_elsewhere(found):
    tables = {table.title.split(" (")[0]: table for table in suite.make(found)}
    assert not any(row[0].text.startswith("paper") for row in tables["Core and perplexity"].rows)
    assert "another unit" in tables["Core and perplexity"].note
    for kinds in found.values():
        kinds["perplexity"].document["provenance"]["tokenizer"] = "gpt2"
    tables = {table.title.split(" (")[0]: table for table in suite.make(found)}
    table = tables["Core and perplexity"]
    by_name = {row[0].text: dict(zip(table.header, row)) for row in table.rows}
    assert by_name["paper, 354M RoVE, YaRN"]["PPL 16384"].text == "124.82"
    assert by_name["paper, 354M RoVE"]["Core"].text == "0.1856" and by_name["paper, 124M RoPE"]["PPL 2048"].text == "-"
    assert by_name["RoVE"]["PPL 16384"].text == "-" and paper.CERTAINTY in table.note
    ruler = {row[0].text: dict(zip(tables["RULER"].header, row)) for row in tables["RULER"].rows}
    assert ruler["mean NIAH"]["4096 paper, 354M RoVE, YaRN"].text == "3.63"
    assert ruler["niah_single_1"]["4096 paper, 354M RoVE, YaRN"].text == ""
    assert ruler["vt"]["512 RoPE"].text.endswith("*") and not ruler["vt"]["4096 RoPE"].text.endswith("*")


def test_every_table_says_how_much_was_asked(found):
    notes = {table.title.split(" (")[0]: table.note for table in suite.make(found)}
    for title in ("Core and perplexity", "Perplexity of the last tokens", "Perplexity relative to RoPE"):
        assert "2 validation documents, mode first_n" in notes[title]
    assert "mean over 5 samples of each task" in notes["RULER"]
    assert "10 lists of each length" in notes["The k-th element of a list"]
    found["2_b"]["ruler"].document["settings"]["samples"] = 7
    assert "mean over 5 or 7 samples" in tasks.ruler(found, {"1_a": "A", "2_b": "B"}).note


def test_a_part_of_core_never_reads_as_core(found):
    [row, *_] = suite.make(found)[0].rows
    assert row[1].text.endswith("(2 of 22 tasks)") and row[1].place == "results[0].core_partial"


class Links(html.parser.HTMLParser):
    """The links and images of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links, self.images = [], []

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        if tag == "a":
            self.links.append((attributes["href"], attributes["title"]))
        if tag == "img":
            self.images.append(attributes["src"])


def test_the_page_needs_nothing_but_itself_and_leads_to_the_files(found, tmp_path):
    names = figures.draw(found, tmp_path)
    assert names == ["perplexity.png", "ruler.png", "core.png"]
    for name in names:
        assert Image.open(tmp_path / name).width > 800
    tables = suite.make(found)
    reader = Links()
    reader.feed(page.page(found, tables, tmp_path))
    assert len(reader.images) == 3 and all(source.startswith("data:image/png;base64,") for source in reader.images)
    cells = [(c.file, f"{c.file}: {c.place}") for t in tables for row in t.rows for c in row if c.file]
    assert reader.links == cells and len(cells) > 40
    fewer = {name: {"core": kinds["core"]} for name, kinds in found.items()}
    assert figures.draw(fewer, tmp_path) == ["core.png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["core.csv", "core.png", "core.svg"], "no older ones"
    text = suite.markdown(tables)
    assert text.count("\n## ") == len(tables) and "![Core by task](core.png)" in text


def test_what_was_not_measured_has_no_table(found):
    for kinds in found.values():
        del kinds["perplexity"], kinds["core"], kinds["ruler"]
    [table] = suite.make(found)
    assert table.title == "The k-th element of a list" and table.rows[0][2].text == "0.50 [0.10, 0.90]"


def test_labels_are_escaped(found):
    for kinds in found.values():
        kinds["index"].document["provenance"]["run"] = "<b>&"
    only = {name: {"index": kinds["index"]} for name, kinds in found.items()}
    text = page.page(only, suite.make(only), None)
    assert "<b>&" not in text and "&lt;b&gt;&amp;" in text and json.dumps("<b>") not in text


def test_results_of_another_checkpoint_get_a_folder_of_their_own():
    first = {"step": 1, "config_hash": "c", "weights": "w", "data_fingerprint": "d", "tokenizer_identity": "t"}
    again, done = {**first, "weights": "v"}, {}
    assert claim(done, "1_a", {**first, "run": "a"}) == "1_a" == claim(done, "1_a", first)
    name = claim(done, "1_a", again)
    assert re.fullmatch(r"1_a_[0-9a-f]{16}", name) and claim(done, "1_a", again) == name
    assert claim(done, "1_a", first) == "1_a" and done == {"1_a": first, name: again}


def test_recipes_that_measure_perplexity_in_different_ways_are_refused():
    runs = [
        SimpleNamespace(config=Config(evaluation=Evaluation(lengths=lengths)), workdir=Path(name))
        for name, lengths in (("a", (256, 512)), ("b", (256, 1024)))
    ]
    for words, wrong in (([], True), (["--lengths", "64"], False)):
        parsed = [command.parser().parse_args(["perplexity", "--workdir", "x", *words]) for _ in runs]
        check_lengths("", runs[:1], parsed[:1])
        if wrong:
            with pytest.raises(UsageError, match=r"recipe of b asks for lengths = .*1024.* give --lengths within"):
                check_lengths("", runs, parsed)
        else:
            check_lengths("", runs, parsed)


def test_names_of_folders_do_not_break_links_or_tables():
    cell = Cell("1", "results/1_a#1?%|/core.json", "x")
    assert 'href="results/1_a%231%3F%25%7C/core.json"' in page.link(cell)
    table = Table("t", "", ["a|b", "c"], [[Cell("RoPE (x|y)"), cell]])
    rows = [line for line in table.markdown().splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {3}
