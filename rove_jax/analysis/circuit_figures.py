"""Figures of what heads move: energy and reach of outputs, composition, and induction heads as they form."""

from collections.abc import Sequence

import numpy as np

from rove_jax.analysis import circuits, induction
from rove_jax.analysis.capture import Captured, capture_qkv, score_rotation, value_frequencies, value_pairing
from rove_jax.analysis.limits import texts
from rove_jax.analysis.mixer import attention_weights
from rove_jax.analysis.picture import DASHES, NUMBERED, Picture
from rove_jax.config import Model
from rove_jax.errors import require
from rove_jax.evaluation.processes import progress
from rove_jax.evaluation.runs import Run
from rove_jax.rotary import frequencies

NAMES = {"rope": "RoPE", "rove": "RoVE"}
TAIL = 64
"""Queries looked at: the last of a text."""


def formation(steps: int = 800, seeds: int = 2, every: int = 25) -> Picture:
    """Loss, induction and previous-token heads over the training of a two-layer attention-only model."""
    picture = Picture(["loss where the string repeats", "best induction head", "best previous-token head"])
    with progress(len(NAMES) * seeds, f"training, {steps} steps each", "run") as bar:
        for style, variant, seed in ((*each, seed) for each in enumerate(NAMES) for seed in range(seeds)):
            name = f"{NAMES[variant]}, seed {seed}"
            bar.now(f"of {name}")
            found = induction.train(variant, steps=steps, seed=seed, every=every)
            bar.update(1)
            for panel, values in enumerate((found.loss, found.induction, found.previous_token)):
                look = {"linestyle": DASHES[seed % len(DASHES)], "markevery": max(1, len(found.steps) // 8)}
                look |= {"markerfacecolor": "white"} if seed else {}
                picture.line(panel, name, found.steps, values, style, marked=True, **look)
    picture.axes[0].axhline(np.log(induction.ATTENTION_ONLY.vocab), color="0.45", linewidth=1, zorder=0)
    picture.dress(0, "step", "nats per token; grey: chance", ylim=(0, None))
    picture.dress(1, "step", "weight on the token to copy, layer 1", ylim=(0, 1))
    picture.dress(2, "step", "weight on the token before, layer 0", ylim=(0, 1))
    cfg = induction.ATTENTION_ONLY
    picture.caption(
        f"two layers, {cfg.query_heads} heads of {cfg.head_dim}, no MLP; {cfg.vocab} symbols with a period of "
        f"{induction.PERIODS[0]} to {induction.PERIODS[1] - 1}, measured at {induction.MEASURED} on "
        f"{induction.BATCH} strings; (b), (c): the best of {cfg.query_heads} heads, mean over their queries"
    )
    return picture


def tail_weights(cfg: Model, captured: Captured, length: int) -> tuple[np.ndarray, np.ndarray]:
    """(weights [L, N, TAIL, length] of the last queries of the text's first tokens, values [L, N, length, H]).

    Attention is causal, so the beginning of a long text is captured with it.
    """
    query, key, value = (np.moveaxis(x[:, 0, :length], 2, 1) for x in captured[:3])
    return attention_weights(cfg, query[..., -min(TAIL, length) :, :], key), value


def energy(runs: Sequence[Run], labels: Sequence[str], lengths: Sequence[int] | int | None = None) -> Picture:
    """Energy of each pair of output channels against the length, per run, and what uniform attention would leave.

    Means over all heads and the last queries. Pairs of RoPE's values do not turn and are no frequencies; they are drawn
    in the same order for comparison. `lengths`: a number alone is the longest, after which come its halves.
    """
    trained = runs[0].config.data.context_length
    if isinstance(lengths, int):
        lengths = [max(lengths // 2**power, 2) for power in (4, 3, 2, 1, 0)]
    lengths = lengths or [trained // 2, trained, 2 * trained, 4 * trained, 8 * trained]
    picture = Picture([*labels, "uniform attention, one constant value"], size=(4.4, 3.6))
    for panel, run in enumerate(runs):
        cfg = run.config.model
        captured = capture_qkv(cfg, run.params, texts(run, 1, max(lengths)))
        turning, pairing = value_frequencies(cfg), value_pairing(cfg)
        found = [circuits.output_energy(*tail_weights(cfg, captured, n), turning, pairing) for n in lengths]
        draw_energy(picture, panel, np.array([energies.mean((0, 1)) for energies in found]), lengths)
    omega = frequencies(score_rotation(runs[0].config.model), runs[0].config.model.head_dim)
    draw_energy(picture, len(runs), np.array([circuits.uniform_gain(omega, n) ** 2 for n in lengths]), lengths)
    least = min(axes.get_ylim()[0] for axes in picture.axes[: len(runs)])
    for axes in picture.axes[: len(runs)]:
        axes.set_ylim(bottom=least)  # runs are to be compared
    picture.axes[-1].legend(frameon=False, fontsize=8.5, loc="center left", bbox_to_anchor=(1, 0.5))
    last = f"({NUMBERED[len(runs)]}) has a scale of its own"
    picture.caption(
        f"energy of the outputs of heads over that of their values, by pair of channels, 0 the fastest; means over all "
        f"heads and the last {TAIL} queries of a held-out text; trained on {trained} tokens; {last}"
    )
    return picture


def draw_energy(picture: Picture, panel: int, energies: np.ndarray, lengths: Sequence[int]) -> None:
    """Lines of energy by length for pairs from the fastest to the slowest."""
    for style, pair in enumerate(circuits.pair_order(energies.shape[1], 5)):
        picture.line(panel, f"pair {pair}", lengths, energies[:, pair], style, marked=True)
    whole_decade = 10.0 ** np.floor(np.log10(energies.min()))
    picture.dress(
        panel, "length", "output energy / values'", xscale="log", yscale="log", ylim=(whole_decade, 1.3), legend=False
    )
    picture.tick(panel, lengths)


def reach(runs: Sequence[Run], labels: Sequence[str]) -> Picture:
    """|characteristic function| of every head's offsets at each frequency: 1 is one offset always, 0 all alike."""
    picture = Picture(list(labels), size=(4.8, 4.0))
    for panel, run in enumerate(runs):
        cfg, trained = run.config.model, run.config.data.context_length
        captured = capture_qkv(cfg, run.params, texts(run, 1, trained))
        weights, _ = tail_weights(cfg, captured, trained)
        found = np.abs(circuits.characteristic(weights, frequencies(score_rotation(cfg), cfg.head_dim)))
        look = {"vmin": 0, "vmax": 1, "label": "|characteristic function|", "rows": "head"}
        picture.image(panel, found.reshape(-1, found.shape[-1]), **look)
        picture.axes[panel].set(xlabel="pair, from the fastest", ylabel="head, counted over layers")
    trained = " or ".join(sorted({str(run.config.data.context_length) for run in runs}))
    picture.caption(
        f"characteristic function: sum_d A(d) exp(i d w) of the weights A(d) by distance, w the frequency of a pair; "
        f"1: one distance always, 0: all alike; mean of the last {TAIL} queries of a held-out text of {trained} tokens"
    )
    return picture


def compositions(runs: Sequence[Run], labels: Sequence[str], layer: int = 0) -> Picture:
    """Q-, K- and V-composition of the heads of `layer` with those of the next, both looking one back."""
    kinds = ("Q", "K", "V")
    picture = Picture([f"{label}: {kind}" for label in labels for kind in kinds], columns=3, size=(3.8, 3.3))
    drawn: list[tuple[int, np.ndarray]] = []
    for place, run in enumerate(runs):
        cfg = run.config.model
        most = cfg.layers - 2
        remedy = f"must lie between 0 and {most}: a layer composes with the next" if most >= 0 else "the model has one"
        require(0 <= layer <= most, "--layer", layer, remedy)
        drawn += [
            (3 * place + column, x) for column, x in enumerate(circuits.composition(cfg, run.params, layer, layer + 1))
        ]
    top = max(float(matrix.max()) for _, matrix in drawn)
    for panel, matrix in drawn:
        digits = 2 if max(matrix.shape) <= 8 else None
        picture.image(panel, matrix, vmin=0, vmax=top, label="relative norm", rows="head", digits=digits)
        picture.axes[panel].set(xlabel=f"head of layer {layer + 1}", ylabel=f"head of layer {layer}")
        for axis, heads in (("x", matrix.shape[1]), ("y", matrix.shape[0])):
            getattr(picture.axes[panel], f"set_{axis}ticks")(range(heads))
    chance = ", ".join(sorted({f"{run.config.model.width**-0.5:.3f}" for run in runs}))
    picture.caption(
        "relative norm: ||W2 W1|| / (||W2|| ||W1||), Frobenius, W1 what a head of the first layer writes from the "
        "token before it, W2 what makes queries (Q), keys (K) or the output (V) of a head of the second; unrelated "
        f"matrices would have about {chance}; all panels on one scale"
    )
    return picture
