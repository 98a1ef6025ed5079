"""Figures of what heads move: energy and reach of outputs, composition, and induction heads as they form."""

from collections.abc import Sequence

import numpy as np

from rove_jax.analysis import circuits, induction
from rove_jax.analysis.capture import Captured, capture_qkv, score_rotation, value_frequencies, value_pairing
from rove_jax.analysis.mixer import attention_weights
from rove_jax.analysis.picture import Picture
from rove_jax.config import Model
from rove_jax.errors import require
from rove_jax.evaluation.processes import progress
from rove_jax.evaluation.protocol import Protocol, choose
from rove_jax.evaluation.runs import Run, open_data
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
                picture.line(panel, name, found.steps, values, style, alpha=1 - 0.5 * seed / seeds)
    picture.axes[0].axhline(np.log(induction.ATTENTION_ONLY.vocab), color="0.45", linewidth=1, zorder=0)
    picture.dress(0, "step", "nats per token; grey: chance", ylim=(0, None))
    picture.dress(1, "step", "weight on the token to copy, layer 1", ylim=(0, 1))
    picture.dress(2, "step", "weight on the token before, layer 0", ylim=(0, 1))
    cfg = induction.ATTENTION_ONLY
    picture.drawing.suptitle(
        f"two layers, {cfg.query_heads} heads of {cfg.head_dim}, no MLP; {cfg.vocab} symbols with a period of "
        f"{induction.PERIODS[0]} to {induction.PERIODS[1] - 1}, measured at {induction.MEASURED}",
        fontsize=10,
    )
    return picture


def long_text(run: Run, length: int) -> np.ndarray:
    """`length` tokens of a validation document: int32 [1, length]."""
    protocol = Protocol((length,), ("none",), documents=1, mode="first_n", prefix="none")
    (document,) = choose(open_data(run).documents("validation"), protocol)
    return document.tokens[None, :length].astype(np.int32)


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
        captured = capture_qkv(cfg, run.params, long_text(run, max(lengths)))
        turning, pairing = value_frequencies(cfg), value_pairing(cfg)
        found = [circuits.output_energy(*tail_weights(cfg, captured, n), turning, pairing) for n in lengths]
        draw_energy(picture, panel, np.array([energies.mean((0, 1)) for energies in found]), lengths)
    omega = frequencies(score_rotation(runs[0].config.model), runs[0].config.model.head_dim)
    draw_energy(picture, len(runs), np.array([circuits.uniform_gain(omega, n) ** 2 for n in lengths]), lengths)
    least = min(axes.get_ylim()[0] for axes in picture.axes[: len(runs)])
    for axes in picture.axes[: len(runs)]:
        axes.set_ylim(bottom=least)  # runs are to be compared
    picture.axes[-1].legend(frameon=False, fontsize=8.5, loc="center left", bbox_to_anchor=(1, 0.5))
    picture.drawing.suptitle(
        f"energy of the outputs of heads over that of values, trained on {trained} tokens", fontsize=10
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
        captured = capture_qkv(cfg, run.params, long_text(run, trained))
        weights, _ = tail_weights(cfg, captured, trained)
        found = np.abs(circuits.characteristic(weights, frequencies(score_rotation(cfg), cfg.head_dim)))
        picture.image(panel, found.reshape(-1, found.shape[-1]), vmin=0, vmax=1, label="|characteristic function|")
        picture.axes[panel].set(xlabel="pair, from the fastest", ylabel="head, counted over layers")
    return picture


def compositions(runs: Sequence[Run], labels: Sequence[str], layer: int = 0) -> Picture:
    """Q-, K- and V-composition of the heads of `layer` with those of the next, both looking one back."""
    kinds = ("Q", "K", "V")
    picture = Picture([f"{label}: {kind}" for label in labels for kind in kinds], columns=3, size=(3.8, 3.3))
    for place, run in enumerate(runs):
        cfg = run.config.model
        require(
            0 <= layer < cfg.layers - 1,
            "--layer",
            layer,
            f"the model has layers 0 to {cfg.layers - 1}, and two compose",
        )
        found = circuits.composition(cfg, run.params, layer, layer + 1)
        for column, matrix in enumerate(found):
            panel = 3 * place + column
            picture.image(panel, matrix, vmin=0)
            picture.axes[panel].set(xlabel=f"head of layer {layer + 1}", ylabel=f"head of layer {layer}")
            for axis, heads in (("x", matrix.shape[1]), ("y", matrix.shape[0])):
                getattr(picture.axes[panel], f"set_{axis}ticks")(range(heads))
    chance = ", ".join(sorted({f"{run.config.model.width**-0.5:.3f}" for run in runs}))
    picture.drawing.suptitle(f"relative norms; unrelated matrices would have about {chance}", fontsize=10)
    return picture
