"""Runs side by side: what may be compared, what they are called, and how their perplexities differ."""

import io
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from rove_jax.analysis.picture import COLOURS
from rove_jax.config import Config, Evaluation, Model
from rove_jax.errors import UsageError
from rove_jax.report import compare as report
from rove_jax.report.look import acting


def document(variant: str, offset: float, run: str = "", **provenance) -> dict:
    """A perplexity document of two documents with made-up likelihoods, `offset` nats per token above a common curve."""
    results = []
    for length in (128, 256, 512):
        for rule in ("none", "yarn"):
            mean = 1.0 + offset + (np.log2(length / 128) if rule == "none" else 0.0)
            parts = [("a", 100, 100 * (mean + 0.5)), ("b", 300, 300 * mean)]
            nll = sum(part[2] for part in parts) / 400
            results.append(
                {
                    "length": length,
                    "scaling": rule,
                    "nll": nll,
                    "perplexity": float(np.exp(nll)),
                    "interval": [1.0, 2.0],
                    "last": {"tokens": 64, "perplexity": None if length == 512 else 7.0, "interval": None},
                    "documents": [
                        {"id": name, "tokens": count, "nll": total, "last_tokens": count // 2, "last_nll": total / 4}
                        for name, count, total in parts
                    ],
                }
            )
    return {
        "provenance": {
            "run": run or variant,
            "checkpoint": f"/runs/{run or variant}",
            "step": 60,
            "steps": 60,
            "training_tokens": 245_760,
            "config": {"seed": 0, "model.variant": variant},
            "variant": variant,
            "parameters": 826_240,
            "tokenizer": "bytes",
            "tokenizer_identity": "t",
            "training_length": 128,
            "data_fingerprint": "d",
            "config_hash": "c",
            "versions": {"jax": "0.0.1"},
            **provenance,
        },
        "settings": {
            "lengths": [128, 256, 512],
            "scalings": ["none", "yarn"],
            "mode": "first_n",
            "split": "validation",
            "text": None,
        },
        "results": results,
    }


@pytest.mark.parametrize(
    "difference",
    [{"data_fingerprint": "e"}, {"tokenizer": "gpt2"}, {"tokenizer_identity": "u"}, {"training_length": 64}],
)
def test_runs_on_other_data_are_refused_by_what_differs(difference):
    provenances = [document("rope", 0.1)["provenance"], document("rove", 0.0)["provenance"]]
    report.check_comparable(provenances)
    [(name, value)] = difference.items()
    with pytest.raises(UsageError, match=f"rope and other are not comparable: {name} is .* and {value} for the other"):
        report.check_comparable([*provenances, document("rove", 0.0, "other", **difference)["provenance"]])


def test_differences_are_those_of_what_was_learnt():
    first = Config()
    second = replace(
        first, seed=1, model=replace(first.model, variant="rope", remat="full"), evaluation=Evaluation(True)
    )
    assert report.differences([first, second]) == {"seed": [0, 1], "model.variant": ["rove", "rope"]}
    assert report.differences([first, first]) == {}
    assert list(report.differences([first, replace(first, model=Model(layers=2))])) == ["model.layers"]


def test_ratios_are_of_perplexities_on_the_same_documents():
    documents = [document("rope", 0.1), document("rove", 0.0)]
    found = report.ratios(documents)
    assert len(found) == 6 and {record["run"] for record in found} == {"RoVE"}
    for record in found:
        np.testing.assert_allclose(record["ratio"], np.exp(-0.1), rtol=1e-12)
        np.testing.assert_allclose(record["interval"], [np.exp(-0.1)] * 2, rtol=1e-12)
        if record["length"] == 512:
            assert record["last_ratio"] is None and record["last_interval"] is None
        else:  # made up: half the tokens with a quarter of the nats
            assert record["last_ratio"] == 1.0
            np.testing.assert_allclose(record["last_interval"], [np.exp(-0.05)] * 2, rtol=1e-12)
    for made in documents:  # files of earlier versions have no such sums, of one run or of both
        for one in made["results"][0]["documents"]:
            del one["last_nll"], one["last_tokens"]
        assert report.ratios(documents)[0]["last_interval"] is None
    short = {**documents[1], "results": documents[1]["results"][2:]}
    assert [r["length"] for r in report.ratios([documents[0], short])] == [256, 256, 512, 512]
    assert [r["length"] for r in report.ratios([short, documents[1]])] == [256, 256, 512, 512]
    documents[1]["results"][3]["documents"][0]["id"] = "c"
    with pytest.raises(UsageError, match="RoVE was measured on other documents"):
        report.ratios(documents)


def test_labels_tell_runs_apart():
    def labels(*runs):
        return report.labels([document(*run)["provenance"] for run in runs])

    assert labels(("rope", 0.0), ("rove", 0.0)) == ["RoPE", "RoVE"]
    assert labels(("rove", 0.0, "a"), ("rove", 0.0, "b")) == ["RoVE (a)", "RoVE (b)"]
    far = [document("rove", 0.0, "a", checkpoint=f"/{place}/a")["provenance"] for place in "xy"]
    assert report.labels(far) == ["RoVE (run 1)", "RoVE (run 2)"]
    long = [("rove", 0.0, f"a folder whose name has {middle} letters, over sixty of them in all") for middle in "12"]
    assert labels(*long, ("rope", 0.0)) == ["RoVE (run 1)", "RoVE (run 2)", "RoPE (run 3)"]
    assert labels(long[0], ("rove", 0.0, "b")) == ["RoVE (a folder whose nam…em in all)", "RoVE (b)"]
    with pytest.raises(UsageError, match="/x/a is named twice"):
        report.check_comparable([far[0]] * 2)


@pytest.mark.parametrize("count", [1, 9])
def test_the_figure_shows_every_line_in_its_colour(count):
    documents = [document("rove", place / 10, f"run{place}") for place in range(count)]
    image = Image.open(io.BytesIO(report.figure(documents)))
    seen = {color for _, color in image.convert("RGB").getcolors(1 << 20) or []}
    for colour in COLOURS[:count]:
        assert tuple(bytes.fromhex(colour[1:])) in seen
    assert image.width > image.height


def test_the_figure_has_every_number_and_a_legend_of_what_is_there():
    documents = {"RoPE": document("rope", 0.1), "RoVE": document("rove", 0.0)}
    for row in documents["RoVE"]["results"]:
        if row["scaling"] == "yarn":
            row["perplexity"], row["last"]["perplexity"] = float("inf"), float("nan")
    made = report.perplexity(documents)
    panels = made.picture.axes
    assert len(panels) == 4 and [t.get_text() for t in made.picture.drawing.legends[0].get_texts()] == [
        "RoPE, unscaled",
        "RoPE, YaRN",
        "RoVE, unscaled",
    ]
    rows = {row[:4]: dict(zip(made.header, row)) for row in made.rows}
    assert rows["RoVE", "none", "whole windows", 256]["perplexity"] == pytest.approx(np.exp(2.125))
    assert rows["RoVE", "none", "whole windows", 256]["ratio"] == pytest.approx(np.exp(-0.1))
    assert rows["RoPE", "none", "whole windows", 256]["ratio"] == "", "of the first run there is no ratio"
    # YaRN does nothing up to 128 tokens: its line begins there, and lines of runs differ in all that print shows.
    first, second = (line for line in panels[0].get_lines()[:3:2])
    assert list(panels[0].get_lines()[1].get_xdata()) == [128, 256, 512]
    assert acting([64, 128, 256], "yarn", ["yarn"], 128) == [64, 128, 256], "there is no line to begin from"
    assert acting([64, 128, 256], "yarn", ["none", "yarn"], 128) == [128, 256]
    assert acting([256, 512], "yarn", ["none", "yarn"], 128) == [256, 512]
    assert first.get_marker() != second.get_marker() and first.get_linewidth() > second.get_linewidth()


def test_a_folder_whose_name_reads_as_a_formula_is_drawn():
    image = report.figure([document("rope", 0.1, r"a$\foo$"), document("rope", 0.0, "b")])
    assert image.startswith(b"\x89PNG")
