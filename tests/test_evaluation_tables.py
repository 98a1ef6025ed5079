"""Tables that jobs print: every number with its interval, how much was asked, and words for what is not plain."""

import copy

import pytest
from report_cases import ruler
from test_report import document

from rove_jax.evaluation import index_task_curve, puzzles
from rove_jax.evaluation.ruler import summary
from rove_jax.evaluation.tables import perplexity_caption, perplexity_table


def cells(table: str) -> list[dict[str, str]]:
    """The rows of a Markdown table by the names of its columns."""
    header, _, *rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in table.splitlines()]
    assert all(len(row) == len(header) for row in rows)
    return [dict(zip(header, row)) for row in rows]


def test_perplexities_are_printed_with_their_intervals():
    made = document("rope", 0.0)
    made["results"][0]["interval"] = [4.25, 1234.5]
    made["results"][0]["last"]["interval"] = [6.5, 7.5]
    first, *_, last = cells(perplexity_table(made))
    assert first["none"].endswith(" [4.25, 1234]") and first["none, last"] == "7.000 [6.50, 7.50]"
    assert last["none, last"] == "-" and first["yarn, last"] == "7.000", "what is not in the file is not shown"
    assert "95% intervals, bootstrap over documents." in perplexity_caption(made)
    alone = copy.deepcopy(made)
    for row in alone["results"]:
        del row["documents"][1:], row["interval"]
    assert "one alone has none" in perplexity_caption(alone) and "[" not in cells(perplexity_table(alone))[1]["none"]


def test_index_and_puzzles_print_how_much_was_asked():
    row = {"variant": "list", "length": 64, "scaling": "none", "n_items": 9, "samples": 37, "accuracy": 0.5}
    row |= {"interval": [0.3, 0.7], "chance": 0.25, "top_1": 0.4, "nll": 1.0, "distance": None}
    [shown] = cells(index_task_curve.index_table([row]))
    assert shown["lists"] == "37" and shown["items"] == "9" and shown["accuracy"] == "0.500"
    assert all(f"{name}: " in index_task_curve.legend() for name in ("lists", "likeliest of all", "nats", "off by"))
    row = {"size": 4, "trained": True, "samples": 37, "accuracy": 0.5, "interval": [0.3, 0.7]}
    [shown] = cells(puzzles.puzzle_table([{**row, "token_accuracy": 0.6, "nll": 1.0}]))
    assert shown["puzzles"] == "37" and shown["trained"] == "yes" and shown["nats"] == "1.000"


def test_ruler_marks_its_means_and_says_what_a_match_is():
    made = ruler("rope", 3.0)
    for row in made["results"]:
        row |= {"task": row["published_task"] + ("_small" if row["form"] == "small" else ""), "contrast": 0.0}
        row |= {"distractor_present": 1.0, "prompt_tokens": [1, 2, 3], "floor_nll": 1.0, "exact": 0.4}
        row |= {"exact_interval": [0.1, 0.8], "answer_tokens": 5.0}
    rows = {row["task"]: row for row in cells(summary.ruler_table(made))}
    for name in ("vt", "mean NIAH", "mean of groups"):
        assert rows[name]["512"].endswith("*") and not rows[name]["4096"].endswith("*")
    assert "Mean of groups: " in summary.caption(made)
    shown = {row["task"]: row["match"] for row in cells(summary.control_table(made))}
    assert shown["niah_single_1"] == "0.400 [0.12, 0.77]" and shown["vt"] == "0.500"
    assert "Match: " in summary.legend(made)
    for row in made["results"]:
        del row["match"]
    assert "Match: " not in summary.legend(made) and "match" not in cells(summary.control_table(made))[0]


@pytest.mark.parametrize(("task", "whole"), [("niah_multikey_2", True), ("qa_2", True), ("niah_multivalue", False)])
def test_a_match_has_an_interval_where_samples_are_right_or_wrong(task, whole):
    row = {"published_task": task, "match": 1.0, "samples": 4}
    assert (summary.match_interval(row) is not None) == whole
