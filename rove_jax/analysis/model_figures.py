"""Figures of the heads of trained runs: their failure rates, and one head's scores in detail."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rove_jax.analysis import aliasing, inversion, model_swap, moments
from rove_jax.analysis.capture import Captured, score_rotation
from rove_jax.analysis.failures import draw
from rove_jax.analysis.limits import mean_over_heads, swaps_by_length
from rove_jax.analysis.picture import NUMBERED, Picture
from rove_jax.analysis.product import qk_coefficients, rope_product
from rove_jax.analysis.score_figures import drawn, several
from rove_jax.config import Model
from rove_jax.errors import require
from rove_jax.evaluation.intervals import wilson
from rove_jax.rotary import frequencies

RATES = {
    "position_inversion": "position inversion",
    "position_partner": "positions with a partner",
    "token_inversion": "token inversion",
    "token_aliasing": "token aliasing",
}


HEADS = {**RATES, "effective_pairs": "effective pairs"}
OWN_SCALE = ("token_aliasing", "effective_pairs", "positional_score")
PROFILE = {
    "positional_score": "positional score",
    "semantic_score": "semantic score",
    "high_share": "high share, $r_H$",
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
MOST_NUMBERS = 12
"""Rows and columns of cells that have room for their numbers."""
TERMS = (
    "Positional score: mean |S(m + 1) - S(m)| / ||z||; semantic score: 1 - token inversion; high share, r_H: that of "
    "||z|| in pairs that turn at least once over M; order error: P(S(far) > S(near)), "
    "near and far beyond M, 1/2 is no order"
)
"""What the follow-up's measures are."""


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


def view(cfg: Model, captured: Captured, seed: int, run: str = "") -> View:
    """A draw from the first layer and head of what was captured; `run`: what the figure calls the model."""
    rotary = score_rotation(cfg)
    omega = frequencies(rotary, cfg.head_dim)
    row, query, first, second = draw(captured.tokens, 1, seed).trials()[0]
    keys = captured.key[0, row, [first, second], 0]
    found = qk_coefficients(captured.query[0, row, query, 0][None], keys, rotary.pairing, 2 * len(omega))
    of = f"{run}, variant {cfg.variant}" if run else f"variant {cfg.variant}"
    name = f"{of}, layer {captured.layers[0]}, head {captured.heads[0]}: a query and two keys, draw {seed}; {OWN}"
    order = np.argsort(-(np.real(found.z).sum(-1) + found.constant), kind="stable")
    return View(found.z[order], found.constant[order], omega, name)


def head_inversion(shown: View, length: int = LENGTH) -> Picture:
    """One head: its score over distance, and how likely inversions of positions and of tokens are by length."""
    picture = Picture(["score over distance", "P(far half scores higher)", "distances with the wrong order"])
    waves = shown.scores(length)
    thin = slice(None, None, max(1, length // 2048))
    lengths = several(length)
    for style, name, wave in zip((6, 4), ("key 1", "key 2"), waves):
        look = {"linestyle": "solid", "linewidth": 0.6 if style == 6 else 0.9, "zorder": 2 + style / 6}
        picture.line(0, name, np.arange(length)[thin], wave[thin], style, **look)
        shares = [float(inversion.inverted_halves(wave[:m])) for m in lengths]
        picture.line(1, f"{name}, counted", lengths, shares, style, marked=True)
    normal = [float(inversion.position_inversion(shown.z[0], shown.frequencies, m, method="normal")) for m in lengths]
    picture.line(1, "key 1, normal with exact moments", lengths, normal, 1, linewidth=1)
    running = np.cumsum(inversion.inverted_order(waves[0], waves[1]))
    picture.line(2, "counted", lengths, [running[m - 1] / m for m in lengths], 0, marked=True)
    picture.dress(0, "distance m", "score", xlim=(0, length))
    for panel in (1, 2):
        picture.axes[panel].axhline(0.5, color="0.45", linewidth=1, zorder=0)
        picture.dress(panel, "length M", "probability" if panel == 1 else "share", xscale="log", ylim=(0, 1))
    picture.caption(f"{shown.name}{drawn(thin.step)}")
    return picture


def head_aliasing(shown: View, length: int = LENGTH, *, dtype: str = "bfloat16", bins: int = 32) -> Picture:
    """One head: where pairs of positions with equal scores lie, how far apart, and those that alias for both keys."""
    picture = Picture(["equal for key 1", "how near they are", "equal for both keys"])
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
    picture.dots(2, "pairs of distances", joint[:, 1], joint[:, 0], 1, s=6, label=f"{found.count:,} pairs")
    picture.dress(1, "|m1 - m2|", "share of all pairs so far apart", ylim=(0, None))
    picture.dress(2, "farther distance", "nearer distance", legend="below", xlim=(0, length), ylim=(length, 0))
    some = "" if found.count <= DOTS else f", {DOTS:,} of these pairs drawn"
    picture.caption(f"{shown.name}; scores in {dtype}; (c): where a swap of the two tokens changes no weight{some}")
    return picture


def heads(document: dict, names: Mapping[str, str] = HEADS) -> Picture:
    """Fields of `failures.failure_rates` for every head at the longest length measured, layer by head.

    `names`: field -> title of its panel. Fields that are no shares are drawn on a scale of their own.
    """
    records = document["results"]
    longest = max(record["length"] for record in records)
    layers, columns = (sorted({record[name] for record in records}) for name in ("layer", "head"))
    picture = Picture(list(names.values()), columns=3 if len(names) > 4 else 2, size=(4.0, 3.3))
    few = max(len(layers), len(columns)) <= MOST_NUMBERS
    for panel, name in enumerate(names):
        matrix = np.full((len(layers), len(columns)), np.nan)
        for record in records:
            if record["length"] == longest:
                matrix[layers.index(record["layer"]), columns.index(record["head"])] = record[name]
        own = name in OWN_SCALE
        label = f"{name.replace('_', ' ')}, own scale" if own else "share, all from 0 to 1"
        digits = 1 if name == "effective_pairs" else 3 if name == "token_aliasing" else 2
        look = {"digits": digits if few else None, "vmin": 0, "vmax": None if own else 1}
        picture.image(panel, matrix, label=label, rows="layer", **look)
        picture.axes[panel].set(xlabel="head", ylabel="layer")
        picture.axes[panel].set_xticks(range(len(columns)), columns)
        picture.axes[panel].set_yticks(range(len(layers)), layers)
    terms = f". {TERMS}" if "high_share" in names else ""
    picture.caption(f"{document['provenance']['run']}, M = {longest} distances, {measured([document])}{terms}")
    return picture


def profile(document: dict) -> Picture:
    """`heads` of the follow-up's measures."""
    return heads(document, PROFILE)


def measured(documents: Sequence[dict]) -> str:
    """How, for a caption. Raises `UsageError` where results are of several dtypes: their rates do not compare."""
    dtypes, scalings, draws = (
        sorted({document["settings"][name] for document in documents}) for name in ("dtype", "scaling", "draws")
    )
    require(len(dtypes) == 1, "--results", dtypes, "rates in several dtypes do not compare; draw one dtype at a time")
    means = f"means over {' or '.join(map(str, draws))} queries of each head"
    return f"scores in {dtypes[0]}, scaling {', '.join(scalings)}; {means}; {OWN}"


def with_scaling(documents: Sequence[dict], labels: Sequence[str]) -> list[str]:
    """Labels that name the scaling of frequencies, where there is one."""
    rules = [document["settings"]["scaling"] for document in documents]
    return [label if rule == "none" else f"{label}, {rule}" for label, rule in zip(labels, rules)]


def by_length(documents: Sequence[dict], labels: Sequence[str]) -> Picture:
    """The four failure rates by length, mean over all heads, of one or several runs."""
    picture = Picture(list(RATES.values()), columns=4, size=(3.6, 3.5))
    for style, (document, label) in enumerate(zip(documents, with_scaling(documents, labels))):
        for panel, name in enumerate(RATES):
            means = mean_over_heads(document, name)
            picture.line(panel, label, list(means), list(means.values()), style, marked=True)
    for panel, name in enumerate(RATES):
        most = max((y for letter, _, _, y in picture.rows if letter == NUMBERED[panel]), default=0.0)
        picture.dress(panel, "length M", "mean over heads", legend="below", xscale="log")
        picture.tick(panel, sorted({record["length"] for document in documents for record in document["results"]}))
        picture.axes[panel].set_ylim(0, 1.1 * most or None if name == "token_aliasing" else 1.02)
    heads_of = sorted({len({(r["layer"], r["head"]) for r in document["results"]}) for document in documents})
    picture.caption(f"{' or '.join(map(str, heads_of))} heads; {measured(documents)}")
    return picture


SWAP_PANELS = {
    "swap_unseen": "the two tokens alone: unseen",
    "swap_unseen_context": "in the text around them: unseen",
    "swap_change": "the two tokens alone: change",
    "swap_change_context": "in the text around them: change",
}


def swaps(documents: Sequence[dict], labels: Sequence[str]) -> Picture:
    """How often the output of a head cannot tell that two tokens changed places whose scores cannot, by run.

    A point is a head at the longest length that all have; heads without any such pair of places have none.
    """
    lengths = [{record["length"] for record in document["results"]} for document in documents]
    together = set.intersection(*lengths)
    require(bool(together), "--results", sorted(set.union(*lengths)), "have no length in common; measure both at one")
    longest, count = max(together), len(documents)
    picture = Picture(list(SWAP_PANELS.values()), columns=2, size=(4.6, 3.5))
    names: dict[tuple[int, int], int] = {}
    for style, (document, label) in enumerate(zip(documents, with_scaling(documents, labels))):
        [summary] = [one for one in swaps_by_length(document) if one["length"] == longest]
        records = [record for record in document["results"] if record["length"] == longest]
        for record in records:
            names.setdefault((record["layer"], record["head"]), len(names))
        own = [record for record in records if record["swap_draws"]]
        at = [names[record["layer"], record["head"]] + 0.24 * (style - (count - 1) / 2) for record in own]
        for panel, name in enumerate(SWAP_PANELS):
            mean = "" if summary[name] is None else f" {summary[name]:.3g}, mean of"
            shown = f"{label}:{mean} {summary['heads']} of {summary['of']} heads"
            picture.dots(panel, label, at, [record[name] for record in own], style, s=28, label=shown)
            if panel < 2:
                bounds = [wilson(record[name] * record["swap_draws"], record["swap_draws"]) for record in own]
                picture.bounds(panel, label, at, bounds, style)
    for panel in range(4):
        label = "share of swaps unseen" if panel < 2 else "||change|| / ||output||"
        picture.dress(panel, "layer.head", label, legend="below", xlim=(-0.6, len(names) - 0.4))
        most = (
            1.0 if panel < 2 else max((y for letter, _, _, y in picture.rows if letter == NUMBERED[panel]), default=0.0)
        )
        picture.axes[panel].set_ylim(-0.04 * (most or 1), 1.08 * (most or 1))
        shown = list(names.items())[:: -(-len(names) // 16)]
        picture.axes[panel].set_xticks([place for _, place in shown], [f"{n}.{head}" for (n, head), _ in shown])
    picture.caption(
        f"two tokens change places where both keys' scores are equal, of M = {longest} distances; unseen: the output "
        "is the same numbers; bars: 95%, Wilson's, as if each query with such places were one answer; heads without a "
        f"point have none; {measured(documents)}"
    )
    return picture


def model_swaps(documents: Sequence[dict], labels: Sequence[str]) -> Picture:
    """Two tokens of a text change places, and the whole model reads it: its output against what the scores notice.

    A point is a swap of tokens that matter, the output changing where one of them is lost. In the legend: to how many
    of these the output is blind. The others are in the result file alone.
    """
    picture, ends = Picture(with_scaling(documents, labels), size=(4.8, 4.2)), []
    for panel, document in enumerate(documents):
        records = document.get("model_swaps") or []
        require(bool(records), "--results", labels[panel], "holds no swaps in texts; measure it with --swaps above 0")
        for style, summary in enumerate(model_swap.by_kind(records)):
            kind, own = summary["kind"], [r for r in records if r["kind"] == summary["kind"]]
            own = [record for record in own if record["stake"] > model_swap.SAME]
            share = "none matters"
            if own:
                low, high = summary["intervals"]["blind"]
                blind = sum(record["total_variation"] <= model_swap.SAME for record in own)
                share = f"blind to {blind} of {len(own)} that matter, {low:.0%} to {high:.0%}"
            gaps, values = [record["gap"] for record in own], [record["total_variation"] for record in own]
            look = {"s": 22, "alpha": 0.8, "label": f"{kind}: {share}"}
            picture.dots(panel, kind, gaps, np.maximum(values, LEAST_SHOWN), style, **look)
            ends += gaps
        picture.axes[panel].axhline(model_swap.SAME, color="0.45", linewidth=1, zorder=0)
        scales: dict[str, Any] = {"xscale": "log", "yscale": "log", "ylim": (0.7 * LEAST_SHOWN, 1.3)}
        axes = "largest change of a logit, first layer", "total variation of the output"
        picture.dress(panel, *axes, legend="below", **scales)
    for axes in picture.axes[: len(labels)]:
        axes.set_xlim(0.7 * min(ends, default=0.1), 1.4 * max(ends, default=1.0))
    read = sorted({d["settings"]["swap_length"] or d["provenance"]["training_length"] for d in documents})
    picture.caption(
        f"two tokens change places in a text of {' or '.join(map(str, read))} tokens, where the scores of the first "
        f"layer change least (nearest) or anywhere (random); below the line, at {model_swap.SAME:g}, the output is "
        f"blind to it; less than {LEAST_SHOWN:g} is drawn there; in the legend: 95%, Wilson's"
    )
    return picture
