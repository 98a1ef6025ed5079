"""Figures of the heads of trained runs: their failure rates, and one head's scores in detail."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rove_jax.analysis import aliasing, inversion, model_swap, moments
from rove_jax.analysis.capture import Captured, score_rotation
from rove_jax.analysis.failures import draw
from rove_jax.analysis.limits import mean_over_heads
from rove_jax.analysis.picture import Picture
from rove_jax.analysis.product import qk_coefficients, rope_product
from rove_jax.analysis.score_figures import octaves
from rove_jax.config import Model
from rove_jax.errors import require
from rove_jax.rotary import frequencies

RATES = {
    "position_inversion": "position inversion",
    "position_partner": "positions with an equal",
    "token_inversion": "token inversion",
    "token_aliasing": "token aliasing",
}


HEADS = {**RATES, "effective_pairs": "effective number of frequencies"}
OWN_SCALE = ("token_aliasing", "effective_pairs", "positional_score")
PROFILE = {
    "positional_score": "positional score",
    "semantic_score": "semantic score",
    "high_share": "norm in fast pairs, $r_H$",
    "order_error": "order error beyond M",
}
"""The follow-up's measures (arXiv 2609.39929)."""


OWN = "amplitudes and phases of the models' queries and keys"
LENGTH = 8192
"""Distances in the figures of one head."""
DOTS = 20_000
"""Pairs that are drawn one by one, evenly chosen of all."""
LEAST_SHOWN = 1e-4
"""Total variation below this is drawn there."""


class View(NamedTuple):
    """One query of one head and two keys, first the one that scores higher at distance 0."""

    z: np.ndarray
    """complex [2, h]."""
    constant: np.ndarray
    frequencies: np.ndarray
    name: str

    def scores(self, length: int) -> np.ndarray:
        """float64 [2, length]."""
        return rope_product(self.z, self.frequencies, np.arange(length), constant=self.constant)


def view(cfg: Model, captured: Captured, seed: int) -> View:
    """A draw from the first layer and head of what was captured."""
    rotary = score_rotation(cfg)
    omega = frequencies(rotary, cfg.head_dim)
    row, query, first, second = draw(captured.tokens, 1, seed).trials()[0]
    keys = captured.key[0, row, [first, second], 0]
    found = qk_coefficients(captured.query[0, row, query, 0][None], keys, rotary.pairing, 2 * len(omega))
    name = f"layer {captured.layers[0]}, head {captured.heads[0]}, draw {seed}; {OWN}"
    order = np.argsort(-(np.real(found.z).sum(-1) + found.constant), kind="stable")
    return View(found.z[order], found.constant[order], omega, name)


def head_inversion(shown: View, length: int = LENGTH) -> Picture:
    """One head: its score over distance, and how likely inversions of positions and of tokens are by length."""
    picture = Picture(["score over distance", "P(far half scores higher)", "distances with the wrong order"])
    waves = shown.scores(length)
    thin = slice(None, None, max(1, length // 2048))
    lengths = octaves(length, 16)
    picture.line(0, "key 1", np.arange(length)[thin], waves[0][thin], 0, linestyle="solid", linewidth=0.6)
    for style, (name, wave) in enumerate(zip(("key 1", "key 2"), waves)):
        shares = [float(inversion.inverted_halves(wave[:m])) for m in lengths]
        picture.line(1, f"{name}, counted", lengths, shares, style, marked=True)
    normal = [float(inversion.position_inversion(shown.z[0], shown.frequencies, m, method="normal")) for m in lengths]
    picture.line(1, "key 1, normal with exact moments", lengths, normal, 6, linewidth=1)
    running = np.cumsum(inversion.inverted_order(*waves))
    picture.line(2, "counted", lengths, [running[m - 1] / m for m in lengths], 0, marked=True)
    picture.dress(0, "distance m", "score", xlim=(0, length))
    for panel in (1, 2):
        picture.axes[panel].axhline(0.5, color="0.45", linewidth=1, zorder=0)
        picture.dress(panel, "length M", "probability" if panel == 1 else "share", xscale="log", ylim=(0, 1))
    picture.drawing.suptitle(shown.name, fontsize=10)
    return picture


def head_aliasing(shown: View, length: int = LENGTH, *, dtype: str = "bfloat16", bins: int = 32) -> Picture:
    """One head: where pairs of positions with equal scores lie, how far apart, and those that alias for both keys."""
    picture = Picture(["equal for key 1", "how near they are", "equal for both keys: a swap is unseen"])
    waves = shown.scores(length)
    found = aliasing.position_aliasing(waves[0], dtype)
    counts = np.where(np.triu(np.ones((bins, bins))), aliasing.pair_map(waves[0], dtype, bins), np.nan)
    extent = (0, length, length, 0)
    picture.image(0, counts, label=f"pairs, {found.pairs:,} in all", extent=extent)
    picture.axes[0].set(xlabel="farther distance", ylabel="nearer distance")
    for style, (name, wave) in enumerate(zip(("key 1", "key 2"), waves)):
        number, every = aliasing.pair_distances(wave, dtype, bins)
        at = (np.arange(bins) + 0.5) * length / bins
        picture.line(1, name, at[every > 0], (number / np.maximum(every, 1))[every > 0], style, marked=True)
    fit = [moments.window_moments(z, shown.frequencies, 0, length) for z in shown.z]
    share = [
        aliasing.expected_position_aliasing(float(m.mean + c), float(m.sd), length, dtype).pairs
        / (length * (length - 1) / 2)
        for m, c in zip(fit, shown.constant)
    ]
    picture.line(1, "normal variables", [0, length], [np.mean(share)] * 2, 6, linewidth=1)
    found = aliasing.joint_pairs(waves[0], waves[1], dtype)
    joint = found.at(np.unique(np.linspace(0, found.count - 1, min(found.count, DOTS), dtype=np.int64)))
    picture.dots(2, f"{found.count:,} pairs", joint[:, 1], joint[:, 0], 1, s=6)
    picture.dress(1, "|m1 - m2|", "share of all pairs so far apart", ylim=(0, None))
    picture.dress(2, "farther distance", "nearer distance", xlim=(0, length), ylim=(length, 0))
    picture.drawing.suptitle(f"{shown.name}; scores in {dtype}", fontsize=10)
    return picture


def heads(document: dict, names: Mapping[str, str] = HEADS) -> Picture:
    """Fields of `failures.failure_rates` for every head at the longest length measured, layer by head.

    `names`: field -> title of its panel. Fields that are no shares are drawn on a scale of their own.
    """
    records = document["results"]
    longest = max(record["length"] for record in records)
    layers, columns = (sorted({record[name] for record in records}) for name in ("layer", "head"))
    picture = Picture(list(names.values()), columns=3 if len(names) > 4 else 2, size=(4.0, 3.3))
    for panel, name in enumerate(names):
        matrix = np.full((len(layers), len(columns)), np.nan)
        for record in records:
            if record["length"] == longest:
                matrix[layers.index(record["layer"]), columns.index(record["head"])] = record[name]
        picture.image(panel, matrix, vmin=0, vmax=None if name in OWN_SCALE else 1)
        picture.axes[panel].set(xlabel="head", ylabel="layer")
        picture.axes[panel].set_xticks(range(len(columns)), columns)
        picture.axes[panel].set_yticks(range(len(layers)), layers)
    settings = document["settings"]
    scores = f"scores in {settings['dtype']}, scaling {settings['scaling']}"
    picture.drawing.suptitle(
        f"{document['provenance']['run']}, {longest} distances, {scores};\nmean of {settings['draws']} queries; {OWN}",
        fontsize=10,
    )
    return picture


def profile(document: dict) -> Picture:
    """`heads` of the follow-up's measures."""
    return heads(document, PROFILE)


def by_length(documents: Sequence[dict], labels: Sequence[str]) -> Picture:
    """The four failure rates by length, mean over all heads, of one or several runs."""
    picture = Picture(list(RATES.values()), columns=4, size=(3.6, 3.3))
    for style, (document, label) in enumerate(zip(documents, labels)):
        for panel, name in enumerate(RATES):
            means = mean_over_heads(document, name)
            picture.line(panel, label, list(means), list(means.values()), style, marked=True)
    for panel, name in enumerate(RATES):
        most = max(value or 0.0 for document in documents for value in mean_over_heads(document, name).values())
        top = {"top": 1.3 * most or None} if name in OWN_SCALE else {"top": 1.0}
        picture.dress(panel, "length M", "mean over heads", xscale="log")
        picture.tick(panel, sorted({record["length"] for document in documents for record in document["results"]}))
        picture.axes[panel].set_ylim(bottom=0, **top)
    scalings = ", ".join(sorted({document["settings"]["scaling"] for document in documents}))
    picture.drawing.suptitle(f"scores in {documents[0]['settings']['dtype']}, scaling {scalings}; {OWN}", fontsize=10)
    return picture


def swaps(documents: Sequence[dict], labels: Sequence[str]) -> Picture:
    """How often the output of a head cannot tell that two tokens changed places whose scores cannot, by run.

    A point is a head at the longest length measured.
    """
    picture = Picture(["the two tokens alone", "in the text around them", "how much the output changes"])
    longest = max(record["length"] for record in documents[0]["results"])
    for style, (document, label) in enumerate(zip(documents, labels)):
        records = [record for record in document["results"] if record["length"] == longest]
        records = [record for record in records if record["swap_unseen"] is not None]
        at = np.arange(len(records))
        for panel, name in enumerate(("swap_unseen", "swap_unseen_context", "swap_change")):
            values = [record[name] for record in records]
            mean = np.mean(values) if values else float("nan")
            picture.dots(panel, f"{label}: {mean:.3g}", at, values, style, s=28)
    for panel in range(3):
        label = "relative change" if panel == 2 else "share of swaps unseen"
        picture.dress(panel, "head, counted over layers", label)
        picture.axes[panel].set_ylim(bottom=-0.04, **({} if panel == 2 else {"top": 1.04}))
    dtype = documents[0]["settings"]["dtype"]
    picture.drawing.suptitle(
        f"tokens swapped where both keys' scores are equal in {dtype}, of {longest} distances; in the legend: means;\n"
        f"{OWN}",
        fontsize=10,
    )
    return picture


def model_swaps(documents: Sequence[dict], labels: Sequence[str]) -> Picture:
    """Two tokens of a text change places, and the whole model reads it: its output against what the scores notice.

    A point is a swap of tokens that matter, the output changing where one of them is lost. In the legend: how many of
    these the output cannot tell. The others are in the CSV file alone.
    """
    picture, ends = Picture(list(labels), size=(4.6, 3.8)), []
    for panel, document in enumerate(documents):
        records = document.get("model_swaps") or []
        require(bool(records), "--results", labels[panel], "holds no swaps in texts")
        for style, summary in enumerate(model_swap.by_kind(records)):
            kind = summary["kind"]
            both = [record for record in records if record["kind"] == kind]
            own = [record for record in both if record["stake"] > model_swap.SAME]
            rest = [record for record in both if record["stake"] <= model_swap.SAME]
            picture.record(
                panel, f"{kind}, does not matter", *([r[x] for r in rest] for x in ("gap", "total_variation"))
            )
            share = "none matters" if summary["blind"] is None else f"{summary['blind']:.0%} of {len(own)} unseen"
            gaps, values = [record["gap"] for record in own], [record["total_variation"] for record in own]
            picture.dots(panel, f"{kind}: {share}", gaps, np.maximum(values, LEAST_SHOWN), style, s=22, alpha=0.8)
            ends += gaps
        picture.axes[panel].axhline(model_swap.SAME, color="0.45", linewidth=1, zorder=0)
        scales: dict[str, Any] = {"xscale": "log", "yscale": "log", "ylim": (0.7 * LEAST_SHOWN, 1.3)}
        picture.dress(panel, "largest change of a logit, first layer", "total variation of the output", **scales)
    for axes in picture.axes[: len(labels)]:
        axes.set_xlim(0.7 * min(ends, default=0.1), 1.4 * max(ends, default=1.0))
    settings = documents[0]["settings"]
    picture.drawing.suptitle(
        f"two tokens that matter change places in a text of {settings['swap_length'] or 'the training'} "
        f"{'tokens' if settings['swap_length'] else 'length'}; below the line ({model_swap.SAME:g}) a swap is unseen",
        fontsize=10,
    )
    return picture
