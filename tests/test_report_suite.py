"""The report over several evaluations: every number is what its cell says, at the place in the file that it names."""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from report_cases import two_runs

from rove_jax.cli import eval as command
from rove_jax.cli.suite import check_lengths, claim
from rove_jax.config import Config, Evaluation
from rove_jax.errors import UsageError
from rove_jax.evaluation.intervals import paired
from rove_jax.report import paper, suite
from rove_jax.report import ruler as ruler_tables
from rove_jax.report.cells import Results, Table


@pytest.fixture
def found() -> Results:
    return two_runs()


def looked_up(document: dict, place: str):
    """The value at a place such as results[3].last.perplexity, found without the code under test."""
    value = document
    for part in re.findall(r"\w+", place):
        value = value[int(part) if part.isdecimal() else part]
    return value


def mean_at(files: dict, place: str) -> float:
    """The mean at a place such as FILE: results[0, 1].nll, results[2].nll, the mean of their means."""
    file, where = place.split(": ")
    parts = re.findall(r"results\[([\d, ]+)\]\.(\w+)", where)
    means = [np.mean([files[file]["results"][int(n)][field] for n in rows.split(",")]) for rows, field in parts]
    said = "their mean" if "," in parts[0][0] else ""
    said = "the mean of their means" if len(parts) > 1 else said
    assert where.endswith(said) and ("mean" in where) == bool(said)
    return float(np.mean(means))


def right(document: dict, place: str) -> float:
    """The share of right answers of what CORE's or the index task's place holds."""
    value = looked_up(document, place)
    if isinstance(value, dict):
        return float(np.mean([text.count("1") / len(text) for text in value.values()]))
    answers = looked_up(document, place.replace("picked", "answers"))
    return float(np.mean([picked == answer for picked, answer in zip(value, answers, strict=True)]))


def check_comparisons(table: Table, files: dict) -> int:
    """Numbers made of two files; how many there are."""
    cells = [cell for row in table.rows for cell in row[1:] if cell.file]
    for cell in cells:
        mine, file, theirs = re.fullmatch(r"(.*), (?:over|less) (.*): (.*)", cell.place).groups()  # type: ignore[union-attr]
        assert file != cell.file
        if "perplexity" in mine:
            value = looked_up(files[cell.file], mine) / looked_up(files[file], theirs)
        elif "*" in mine:
            continue  # the score: from all of them, with weights
        else:
            value = right(files[cell.file], mine) - right(files[file], theirs)
        assert float(cell.text) == pytest.approx(value, abs=0.0051), cell
    return len(cells)


def test_every_number_is_at_the_place_its_cell_names(found):
    files = {result.file: result.document for kinds in found.values() for result in kinds.values()}
    seen = ruler = compared = 0
    for table in suite.make(found):
        assert all(len(row) == len(table.header) for row in table.rows), table.title
        if " relative to " in table.title and not table.title.startswith("RULER"):
            compared += check_comparisons(table, files)
            continue
        for row in table.rows:
            for cell in row[1:]:
                if cell.place == "provenance.created":
                    assert cell.file in files
                elif table.title.startswith("RULER"):
                    mine, *others = (f"{cell.file}: {cell.place}").split(", less ")
                    value = mean_at(files, mine) - sum(mean_at(files, other) for other in others)
                    assert float(cell.text.rstrip("*")) == pytest.approx(value, abs=0.0051), cell
                    assert len(others) == (" relative to " in table.title)
                    ruler += 1
                elif cell.file:
                    value = looked_up(files[cell.file], cell.place)
                    if value is not None:
                        assert float(cell.text.split()[0].rstrip("*")) == pytest.approx(value, rel=0.01, abs=0.005)
                        seen += 1
    # 3 lengths, 2 scalings and 2 runs, whole and last (none at the longest); core; 2 tasks; the index.
    assert seen == 2 * (6 + 4) + 2 + 4 + 2
    # 3 tasks and 3 means at 2 lengths, of both runs and of their difference; 3 by string match.
    # 3 lengths, 2 scalings, whole and last; 2 tasks and the score; the index.
    assert compared == 6 + 4 + 3 + 1
    assert ruler == 2 * 2 * 6 + 2 * 6 + 2 * 2 * 3


def test_what_the_paper_says_stands_beside_what_is_comparable_and_not_elsewhere(found):
    tables = {table.title.split(" (")[0]: table for table in suite.make(found)}
    assert not any(row[0].text.startswith("paper") for row in tables["Core and perplexity"].rows)
    for title in ("Core and perplexity", "RULER"):
        assert "another unit" in tables[title].cautions[-1]
        assert not any("paper" in name for name in tables[title].header)
    for kinds in found.values():
        for kind in ("perplexity", "ruler"):
            kinds[kind].document["provenance"]["tokenizer"] = "gpt2"
    tables = {table.title.split(" (")[0]: table for table in suite.make(found)}
    table = tables["Core and perplexity"]
    by_name = {row[0].text: dict(zip(table.header, row)) for row in table.rows}
    assert by_name["paper, 354M RoVE, YaRN"]["PPL 16384"].text == "124.82"
    assert {row[0].text for row in table.rows if not any(cell.file for cell in row)} == {
        f"paper, {line.scale} {line.method}" for line in paper.CORE_AND_PERPLEXITY
    }
    assert by_name["paper, 354M RoVE"]["Core"].text == "0.1856" and by_name["paper, 124M RoPE"]["PPL 2048"].text == "-"
    assert by_name["RoVE"]["PPL 16384"].text == "-" and paper.CERTAINTY in table.cautions[-1]
    assert by_name["paper, 354M RoPE"]["PPL 16384"].text == "1630.72", "with every digit that is known"
    ruler = {row[0].text: dict(zip(tables["RULER"].header, row)) for row in tables["RULER"].rows}
    assert ruler["mean NIAH"]["4096 paper, 354M RoVE, YaRN"].text == "3.63"
    assert ruler["niah_single_1"]["4096 paper, 354M RoVE, YaRN"].text == ""
    assert ruler["vt"]["512 RoPE"].text.endswith("*") and not ruler["vt"]["4096 RoPE"].text.endswith("*")


def test_every_table_says_how_much_was_asked(found):
    notes = {t.title.split(" (")[0]: " ".join([t.note, *t.cautions]) for t in suite.make(found)}
    tokens = {
        "Core and perplexity": "400 tokens at each length",
        "Perplexity of the last tokens": "200 tokens at each length",
        "Perplexity relative to RoPE": "400 tokens at each length; 200 tokens at each length, of last tokens",
    }
    for title, amount in tokens.items():
        assert f"2 validation documents ({amount}), mode first_n" in notes[title]
    for record in found["1_a"]["perplexity"].document["results"]:
        for one in record["documents"]:  # at 512 tokens there are none, whatever stands here
            one["last_tokens"] = {128: 1280, 256: 640, 512: 9}[record["length"]]
    last = next(t for t in suite.make(found) if t.title == "Perplexity of the last tokens")
    assert "(2,560 tokens at length 128 to 1,280 at 256)" in last.note and "400" not in last.note
    assert "mean over 5 samples of each task" in notes["RULER"]
    assert "8 lists of each length" in notes["The k-th element of a list"]
    assert "4 rows of each task at most" in notes["Core by task"]
    assert notes["Core by task"].count("longer than the training length") == 1, "the same of both runs, said once"
    found["2_b"]["ruler"].document["settings"]["samples"] = 7
    table = ruler_tables.by_task(found, {"1_a": "A", "2_b": "B"})
    assert table is not None and "mean over 5 or 7 samples" in table.note


def test_a_part_of_core_never_reads_as_core(found):
    [row, *_] = next(table for table in suite.make(found) if table.title.startswith("Core and")).rows
    assert row[1].spread == "[-0.200, 0.100]"
    assert row[1].text.endswith("(2 of 22 tasks)") and row[1].place == "results[0].core_partial"


def test_ruler_says_what_its_means_and_matches_are(found):
    tables = named(found)
    for title in ("RULER", "RULER relative to RoPE"):
        assert "Mean of groups: the mean over groups" in tables[title].note
        assert any(line.startswith("Marked *") for line in tables[title].cautions)
        rows = {row[0].text: dict(zip(tables[title].header, row)) for row in tables[title].rows}
        for name in ("vt", "mean NIAH", "mean of groups"):
            assert rows[name]["512 RoVE"].text.endswith("*") and not rows[name]["4096 RoVE"].text.endswith("*")
    match = {row[0].text: row[1] for row in tables["RULER by string match"].rows}
    # 2 of 5 by Wilson's formula; of vt, whose samples are right in part, 0.5 is a mean.
    assert match["niah_single_1"].whole == "0.40* [0.12, 0.77]" and match["vt"].whole == "0.50*"
    for kinds in found.values():
        for row in kinds["ruler"].document["results"]:
            del row["match"]
    assert "RULER by string match" not in named(found), "nothing was written"


def named(found: dict) -> dict[str, Table]:
    return {table.title.split(" (")[0]: table for table in suite.make(found)}


def test_runs_are_compared_on_what_both_answered(found):
    tables = named(found)
    core_rows = {row[0].text: row[1] for row in tables["Core relative to RoPE"].rows}
    _, (low, high) = paired([True] * 2 + [False] * 2, [True] * 3 + [False])
    assert core_rows["copa"].whole == f"+0.250 [{low:.2f}, {high:.2f}]"
    assert core_rows["score"].text == "+0.5000 (2 of 22 tasks)", "of centered accuracies, whose baseline is a half"
    away = np.sqrt(2) * (0.25 - low)
    assert core_rows["score"].spread.startswith(f"[{0.5 - away:.3f}, ")
    rows = {row[0].text: row[1] for row in tables["RULER relative to RoPE"].rows}
    # Every sample is easier by the same, so there is no doubt, however much samples differ.
    assert rows["vt"].whole == rows["mean NIAH"].whole == rows["mean of groups"].whole == "-0.25* [-0.25, -0.25]"
    [row] = tables["The k-th element relative to RoPE"].rows
    _, (low, high) = paired([True] * 2 + [False] * 6, [True] * 4 + [False] * 4)
    assert row[1].whole == f"+0.25 [{low:.2f}, {high:.2f}]"


@pytest.mark.parametrize(
    ("kind", "change", "complaint"),
    [
        ("core", lambda d: d["results"][0]["tasks"][0]["outcomes"].update({"": "01"}), "RoVE, copa: other questions"),
        ("ruler", lambda d: d["settings"].update(seed=1), "RoVE: other samples than the first run's"),
        ("index", lambda d: d["results"][0].update(places=[0] * 8), "RoVE, list, 64: other lists"),
        (
            "core",
            lambda d: d["provenance"].pop("config"),
            "1_a/.*: an earlier version made it|2_b/.*: an earlier version",
        ),
    ],
)
def test_runs_that_were_asked_other_things_are_not_compared(found, kind, change, complaint):
    change(found["2_b"][kind].document)
    with pytest.raises(UsageError, match=complaint):
        suite.make(found)


def test_the_runs_are_told_with_what_they_differ_in(found):
    for kinds in found.values():
        for result in kinds.values():
            result.document["provenance"] |= {"steps": 150, "created": "2026-12-01T00:00:00+00:00"}
    runs, differ, *_ = suite.make(found)
    row = dict(zip(runs.header, runs.rows[1]))
    assert row["step"].text == "60 of 150" and runs.cautions == ("Read before the end of training: RoPE, RoVE.",)
    assert row["trained on (tokens)"].text == "245,760" and row["folder"].text == "/runs/rove"
    assert (row["ruler"].text, row["ruler"].file) == ("2026-12-01", "results/2_b/ruler.json")
    assert [[cell.text for cell in line] for line in differ.rows] == [["model.variant", "rope", "rove"]]
    assert not suite.make({"1_a": found["1_a"]})[0].title == differ.title


def test_what_was_not_measured_has_no_table(found):
    for kinds in found.values():
        del kinds["perplexity"], kinds["core"], kinds["ruler"]
    titles = ["The runs", "What the runs differ in", "The k-th element of a list", "The k-th element relative to RoPE"]
    tables = suite.make(found)
    assert [table.title for table in tables] == titles
    assert tables[2].rows[0][2].whole == "0.50 [0.10, 0.90]"


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
