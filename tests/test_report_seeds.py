"""Two recipes over seeds: the ratio and its interval by hand, what may be paired, and what the report shows."""

import copy
from dataclasses import replace

import numpy as np
import pytest
from test_report import document

from rove_jax.config import Config
from rove_jax.errors import UsageError
from rove_jax.evaluation.intervals import student
from rove_jax.report import seeds

OFFSETS = {"rope": (0.30, 0.32, 0.31), "rove": (0.10, 0.13, 0.10)}
STUDENT = 4.302652729911275
"""97.5% of Student's t with two degrees of freedom, as tables have it."""


@pytest.fixture
def groups() -> list[list[dict]]:
    return [[document(name, offset, f"{name}-{k}") for k, offset in enumerate(OFFSETS[name])] for name in OFFSETS]


def test_a_ratio_is_the_mean_over_seeds_with_students_interval(groups):
    rows = seeds.compared(*groups)
    assert len(rows) == 6 + 4, "whole windows at every length, last tokens where there are some"
    logs = np.subtract(OFFSETS["rove"], OFFSETS["rope"])
    half = STUDENT * np.sqrt(((logs - logs.mean()) ** 2).sum() / 2) / np.sqrt(3)
    for row in rows:
        wanted = logs if row["part"] == "whole" else 0 * logs  # made-up last tokens are alike
        np.testing.assert_allclose(row["ratios"], np.exp(wanted), rtol=1e-12)
        np.testing.assert_allclose(row["ratio"], np.exp(wanted.mean()), rtol=1e-12)
    for row in rows[:-4]:
        if row["part"] == "whole":
            np.testing.assert_allclose(row["interval"], np.exp([logs.mean() - half, logs.mean() + half]), rtol=1e-9)
            # Every document is better by the same nats per token, so drawing documents anew changes nothing.
            np.testing.assert_allclose(row["documents"], [np.exp(logs.mean())] * 2, rtol=1e-12)
        else:  # made up: half the tokens with a quarter of the nats
            wanted = np.subtract(OFFSETS["rove"], OFFSETS["rope"]).mean() / 2
            np.testing.assert_allclose(row["documents"], [np.exp(wanted)] * 2, rtol=1e-12)


def test_an_interval_over_documents_is_wide_where_they_disagree(groups):
    for one in groups[1]:
        one["results"][0]["documents"][0]["nll"] += 50.0
    low, high = seeds.compared(*groups)[0]["documents"]
    assert low < 0.9 < 1.2 < high


def test_one_seed_has_no_interval(groups):
    row = seeds.compared(groups[0][:1], groups[1][:1])[0]
    assert row["interval"] is None and row["ratio"] == pytest.approx(np.exp(-0.2))
    assert student([1.0]) is None
    np.testing.assert_allclose(student([1.0, 3.0]) or [], [2 - 12.706204736, 2 + 12.706204736], rtol=1e-9)


def test_other_documents_are_refused(groups):
    groups[1][2]["results"][3]["documents"][0]["id"] = "c"
    with pytest.raises(UsageError, match="measured on different documents"):
        seeds.compared(*groups)


def test_what_may_be_paired():
    rove = [replace(Config(), seed=seed) for seed in range(2)]
    rope = [replace(one, model=replace(one.model, variant="rope")) for one in rove]
    assert seeds.check_pairs(rope, rove) == {"model.variant": ["rope", "rove"]}
    refused = {
        "--against: seeds .1, 0.: give those of --baseline": (rope, rove[::-1]),
        "--against: seeds .0.: give": (rope, rove[:1]),
        "--baseline: seeds .0, 0.: name one": ([rope[0], rope[0]], rove),
        "--against: runs .* may differ in their seeds only, not in model.variant": (rope, [rove[0], rope[1]]),
    }
    for complaint, pair in refused.items():
        with pytest.raises(UsageError, match=complaint):
            seeds.check_pairs(*pair)


def test_the_report_and_the_figure_hold_every_number(groups, tmp_path):
    before = copy.deepcopy(groups)
    rows = seeds.compared(*groups)
    text = seeds.markdown(groups, rows, {"model.variant": ["rope", "rove"]}, "seeds.png")
    assert (
        "`model.variant` (rope, rove)" in text and "![Perplexity and ratio against context length](seeds.png)" in text
    )
    [line] = [line for line in text.splitlines() if line.startswith("|     256 |          2x |     YaRN |  4.")]
    cells = [cell.strip() for cell in line.split("|")[6:10]]
    assert cells == ["0.819", "0.799 to 0.839", "0.819 to 0.819", "0.819, 0.827, 0.811"]
    picture = seeds.figure(groups, rows)
    drawn = {(panel, series, x): y for panel, series, x, y in picture.rows if not series.endswith("seeds")}
    assert len(drawn) == 3 * (4 + 2) and drawn["b", "YaRN", 512.0] == pytest.approx(np.exp(-0.2))
    assert drawn["a", "RoVE, unscaled", 256.0] == pytest.approx(np.exp(2.125 + np.mean(OFFSETS["rove"])))
    assert len(picture.rows) == len(drawn) + 3 * 3 * (4 + 2)
    assert [path.suffix for path in picture.save(tmp_path, "seeds")] == [".png", ".svg", ".csv"]
    assert groups == before
