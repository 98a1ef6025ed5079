"""Runs side by side: what may be compared, the numbers of the report, and its figure."""

import io
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from rove_jax.config import Config, Evaluation, Model
from rove_jax.errors import UsageError
from rove_jax.report import compare as report


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
                    "last": {"tokens": 64, "perplexity": None if length == 512 else 7.0},
                    "documents": [{"id": name, "tokens": count, "nll": total} for name, count, total in parts],
                }
            )
    return {
        "provenance": {
            "run": run or variant,
            "checkpoint": f"/runs/{run or variant}",
            "step": 60,
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
    documents[1]["results"][3]["documents"][0]["id"] = "c"
    with pytest.raises(UsageError, match="RoVE was measured on other documents"):
        report.ratios(documents)


def test_labels_tell_runs_apart():
    def labels(*runs):
        return report.labels([document(*run) for run in runs])

    assert labels(("rope", 0.0), ("rove", 0.0)) == ["RoPE", "RoVE"]
    assert labels(("rove", 0.0, "a"), ("rove", 0.0, "b")) == ["RoVE (a)", "RoVE (b)"]
    far = [document("rove", 0.0, "a", checkpoint=f"/{place}/a") for place in "xy"]
    assert report.labels(far) == ["RoVE (/x/a)", "RoVE (/y/a)"]
    with pytest.raises(UsageError, match="/x/a is named twice"):
        report.check_comparable([far[0]["provenance"]] * 2)


def test_the_report_holds_every_number():
    documents = [document("rope", 0.1), document("rove", 0.0)]
    text = report.markdown(documents, {"model.variant": ["rope", "rove"]}, "perplexity.png")
    assert "![Perplexity against context length](perplexity.png)" in text
    assert "`model.variant` (rope, rove)" in text
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("|")]
    cells = {tuple(cell.strip() for cell in row[:2]): [cell.strip() for cell in row[2:]] for row in rows}
    whole, last, relative = ([c.strip() for c in row[2:]] for row in rows if row[0].strip() == "256")
    by_key = [report.records(d) for d in documents]
    assert whole == [f"{by_key[p][256, rule]['perplexity']:.3f}" for p in (0, 1) for rule in ("none", "yarn")]
    assert last == ["7.000"] * 4 and relative == ["0.905 [0.905, 0.905]"] * 2
    assert ("512", "4x") in cells
    assert "relative to" not in report.markdown(documents[:1], {}, "perplexity.png")


@pytest.mark.parametrize("count", [1, 2, 9])
def test_the_figure_shows_every_line_in_its_colour(count):
    documents = [document("rove", place / 10, f"run{place}") for place in range(count)]
    image = Image.open(io.BytesIO(report.figure(documents)))
    seen = {color for _, color in image.convert("RGB").getcolors(1 << 20) or []}
    for colour in report.COLOURS[:count]:
        assert tuple(bytes.fromhex(colour[1:])) in seen
    assert image.width > 1.5 * image.height


def test_a_folder_whose_name_reads_as_a_formula_is_drawn():
    image = report.figure([document("rope", 0.1, r"a$\foo$"), document("rope", 0.0, "b")])
    assert image.startswith(b"\x89PNG")
