"""RoPE and RoVE as matrices on positions and channels (figure 1 of arXiv 2606.11275), drawn and trained ones."""

from collections.abc import Sequence

import numpy as np

from rove_jax.analysis import mixer
from rove_jax.analysis.capture import capture_qkv, value_frequencies, value_pairing
from rove_jax.analysis.limits import texts
from rove_jax.analysis.picture import NUMBERED, Picture
from rove_jax.analysis.product import rope_frequencies
from rove_jax.errors import require
from rove_jax.evaluation.runs import Run

POSITIONS, HEAD_DIM = 8, 6
SHOWN = 8
"""Channels of a block of a trained mixer that are drawn, of rows and columns: more could not be told apart."""


def mixers(length: int = POSITIONS) -> Picture:
    """Five panels, lettered as in the paper: (a) the weights A of one small causal head, (b) W_V, RoPE's kernel at all
    offsets, (c) its mixer; (d) the kernels of RoVE, (e) its mixer.

    Weights and W_V are drawn from seed 0; base 100, so that all of 3 pairs turn in sight.
    """
    require(length <= 32, "--length", length, "a mixer this long cannot be read; at most 32")
    chance = np.random.default_rng(0)
    scores = np.where(mixer.visible(length, length), chance.normal(size=(length, length)), -np.inf)
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    w_v = chance.normal(size=(HEAD_DIM, HEAD_DIM))
    turning = rope_frequencies(HEAD_DIM // 2, 100.0)
    offsets = np.arange(-min(3, length - 1), 1)
    titles = [
        "attention weights $A$, of both",
        r"RoPE: one kernel $W_V$ at all offsets",
        r"RoPE: $A \otimes W_V$, a Kronecker product",
        r"RoVE: $\psi_\delta = R_\delta W_V$, one kernel an offset",
        r"RoVE: blocks $A_{ij}\,\psi_{j-i}$, Toeplitz but for $A$",
    ]
    picture = Picture(titles, columns=3, size=(4.6, 4.4))
    places = picture.axes[0].get_gridspec()
    picture.axes[5].set_subplotspec(places[1, 0])
    for panel, place in ((0, places[:, 0]), (3, places[1, 1]), (4, places[1, 2])):
        picture.axes[panel].set_subplotspec(place)  # kernels under kernels, mixers under mixers
    weights_of(picture, 0, weights)
    drawn = {}
    for panel, frequencies in ((1, None), (3, turning)):
        drawn[panel] = np.concatenate(list(mixer.kernel(w_v, offsets, frequencies)), axis=1)
        drawn[panel + 1] = mixer.mixer(weights, w_v, frequencies)
    signed(picture, drawn)
    for panel in (1, 3):
        name_offsets(picture, panel, offsets, HEAD_DIM)
        grid(picture, panel, HEAD_DIM)
        name_blocks(picture, panel + 1, HEAD_DIM, length)
        matrix = drawn[panel + 1]
        errors = mixer.kronecker_error(matrix, length), mixer.toeplitz_error(matrix, length)
        note(
            picture,
            panel + 1,
            rf"left over by $A \otimes W$: {errors[0]:.2f}, by $A_{{ij}}\psi_{{j-i}}$: {errors[1]:.2f}",
        )
    picture.caption(
        f"a causal head of normal scores and W_V, drawn from seed 0, base 100; channels m and m + {HEAD_DIM // 2} are "
        f"a pair; offset: key minus query position; {LEFT}. {SIGNS}"
    )
    return picture


SIGNS = "Red: above 0; blue with a bar: below"
"""How signs are drawn, for a caption."""
LEFT = "left over: ||matrix - nearest of that form|| / ||matrix||"
"""What the numbers in titles are."""


def signed(picture: Picture, matrices: dict[int, np.ndarray], limit: float | None = None) -> None:
    """Matrices in their panels, in one range of colours, -limit to limit (None: all of them), white at 0.

    Red and blue are the same grey in print, so values below 0 have a bar (those under a fiftieth of the range, which
    look white, have none).
    """
    ends = limit or max(float(np.abs(matrix).max()) for matrix in matrices.values()) or 1.0
    for panel, matrix in matrices.items():
        axes = picture.axes[panel]
        for row, values in enumerate(matrix):
            picture.record(panel, f"row {row}", range(len(values)), values)
        shown = axes.imshow(matrix, cmap="RdBu_r", vmin=-ends, vmax=ends, aspect="equal", interpolation="nearest")
        rows, columns = np.nonzero(matrix < -ends / 50)
        cell = 72 * 0.75 * picture.drawing.get_figwidth() / axes.get_gridspec().ncols / max(matrix.shape)  # points
        look = {"marker": "_", "s": (0.55 * cell) ** 2, "linewidth": max(0.12 * cell, 0.25)}
        dark = matrix[rows, columns] < -0.6 * ends
        axes.scatter(columns, rows, color=np.where(dark, "white", "black"), **look)
        axes.spines[["top", "right"]].set_visible(True)
        picture.colours[NUMBERED[panel]] = "entry"
    panels = [picture.axes[panel] for panel in matrices]
    picture.drawing.set_layout_engine("constrained", h_pad=0.1, w_pad=0.1)
    picture.drawing.colorbar(shown, ax=panels, label="entry", shrink=0.6, pad=0.01)


def weights_of(picture: Picture, panel: int, weights: np.ndarray) -> None:
    """Attention weights [T, T], 0 to 1, with axes."""
    look = {"aspect": "equal", "cmap": "Greys", "vmin": 0, "vmax": 1}
    picture.image(panel, weights, label="weight", rows="query", scale=0.45, **look)
    picture.axes[panel].set(xlabel="key position $j$", ylabel="query position $i$")


def name_offsets(picture: Picture, panel: int, offsets: Sequence[int] | np.ndarray, columns: int) -> None:
    """Axes of kernels side by side, each of so many columns."""
    axes = picture.axes[panel]
    axes.set_xticks(columns * (np.arange(len(offsets)) + 0.5) - 0.5, [str(d) for d in offsets])
    axes.set(xlabel=r"offset $\delta$, and channel in", ylabel="channel out")


def name_blocks(picture: Picture, panel: int, size: int, length: int) -> None:
    """Axes of a mixer: positions, at the middle of their blocks, with lines between blocks."""
    axes, places = picture.axes[panel], np.arange(0, length, max(1, length // 8))
    grid(picture, panel, size)
    axes.set_xticks(size * (places + 0.5) - 0.5, [str(at) for at in places])
    axes.set_yticks(size * (places + 0.5) - 0.5, [str(at) for at in places])
    axes.set(xlabel="key position $j$, and channel in", ylabel="query position $i$, and channel out")


def grid(picture: Picture, panel: int, size: int) -> None:
    """Thin lines between blocks of `size` rows and columns."""
    axes = picture.axes[panel]
    for edge in np.arange(size, axes.get_xlim()[1], size):
        axes.axvline(edge - 0.5, color="0.75", linewidth=0.4)
    for edge in np.arange(size, axes.get_ylim()[0], size):
        axes.axhline(edge - 0.5, color="0.75", linewidth=0.4)


def laid_out(blocks: np.ndarray) -> np.ndarray:
    """Blocks [rows, columns, O, D] in their places, of each the first `SHOWN` rows and columns of channels."""
    cut = blocks[:, :, :SHOWN, :SHOWN].transpose(0, 2, 1, 3)
    return cut.reshape(cut.shape[0] * cut.shape[1], -1)


def check_head(run: Run, layer: int, head: int) -> None:
    """Raise `UsageError` unless the model has them."""
    cfg = run.config.model
    require(0 <= layer < cfg.layers, "--layer", layer, f"the model has layers 0 to {cfg.layers - 1}")
    require(0 <= head < cfg.query_heads, "--head", head, f"the model has heads 0 to {cfg.query_heads - 1}")


def layers(
    runs: Sequence[Run], labels: Sequence[str], layer: int = 0, head: int = 0, length: int | None = None
) -> Picture:
    """A trained layer on the first tokens of a text, four panels a run: the weights of one head, its value kernels by
    offset, the head as a matrix, and all heads with W_O as one, [T D, T D]. In the titles: what is left over. Kernels
    and heads of all runs share a range of colours, and so do their layers."""
    length = length or POSITIONS
    require(length <= 32, "--length", length, "a mixer this long cannot be read; at most 32")
    titles = []
    for run, label in zip(runs, labels):
        kernel = r"kernels $\psi_\delta$" if turns(run) else r"one kernel $W_V$"
        names = (f"weights $A$, head {head}", kernel, "the head as a matrix", "all heads, with $W_O$")
        titles += [f"{label}: {name}" for name in names]
    picture = Picture(titles, columns=4, size=(4.4, 4.3))
    heads: dict[int, np.ndarray] = {}
    wholes: dict[int, np.ndarray] = {}
    offsets = -np.arange(min(4, length))[::-1]
    for place, run in enumerate(runs):
        check_head(run, layer, head)
        cfg, first = run.config.model, 4 * place
        captured = capture_qkv(cfg, run.params, texts(run, 1, length), (layer,))
        query, key = (np.moveaxis(x[0, 0], 1, 0) for x in (captured.query, captured.key))
        weights = mixer.attention_weights(cfg, query, key)
        turning, pairing, group = value_frequencies(cfg), value_pairing(cfg), cfg.query_heads // cfg.kv_heads
        w_v = mixer.value_weights(run.params, layer, head // group)
        weights_of(picture, first, weights[head])
        one = mixer.mixer(weights[head], w_v, turning, pairing)
        whole = mixer.layer_mixer(cfg, run.params, layer, weights)
        heads[first + 1] = laid_out(mixer.kernel(w_v, offsets, turning, pairing)[None])
        heads[first + 2], wholes[first + 3] = (laid_out(mixer.blocks_of(x, length)) for x in (one, whole))
        rest = mixer.kronecker_error(one, length), mixer.toeplitz_error(one, length)
        note(
            picture, first + 2, rf"left over by $A \otimes W$: {rest[0]:.2f}, by $A_{{ij}}\psi_{{j-i}}$: {rest[1]:.2f}"
        )
        count, left = cfg.query_heads, mixer.kronecker_error(whole, length, cfg.query_heads)
        note(picture, first + 3, rf"left over by {count} of $A \otimes W$: {left:.2f}")
    signed(picture, heads)
    signed(picture, wholes)
    for panel, matrix in heads.items():
        if panel % 4 == 1:
            name_offsets(picture, panel, offsets, matrix.shape[1] // len(offsets))
            grid(picture, panel, matrix.shape[1] // len(offsets))
    for panel, matrix in [*((p, m) for p, m in heads.items() if p % 4 == 2), *wholes.items()]:
        name_blocks(picture, panel, matrix.shape[0] // length, length)
    picture.caption(
        f"layer {layer}, {length} tokens of a held-out text; {PSI}; {LEFT}; of each block at most {SHOWN} "
        f"channels. {SIGNS}"
    )
    return picture


PSI = "kernel: psi_d = R_d W_V at the offset d, key minus query position; where values do not turn, W_V at all offsets"


def turns(run: Run) -> bool:
    """Whether its values are turned by their position."""
    return value_frequencies(run.config.model) is not None


def note(picture: Picture, panel: int, text: str) -> None:
    """A second line of the title."""
    picture.axes[panel].set_title(f"{picture.axes[panel].get_title()}\n{text}", fontsize=9)


def kernels(runs: Sequence[Run], labels: Sequence[str], layer: int = 0, head: int = 0) -> Picture:
    """The value kernel psi of trained heads by offset, two panels a run: that of one head at some offsets, in one range
    of colours, and for all heads how like the kernel at offset 0 it is, up to the training length."""
    titles = []
    for run, label in zip(runs, labels):
        kernel = r"$\psi_\delta$" if turns(run) else "$W_V$"
        titles += [f"{label}: {kernel} of layer {layer}, head {head}"]
        titles += [rf"{label}: $\langle\psi_\delta, \psi_0\rangle / |\psi_0|^2$, key heads"]
    picture = Picture(titles, columns=2, size=(6.0, 2.9))
    offsets, drawn = -np.array([0, 1, 2, 4, 16, 64]), {}
    for place, run in enumerate(runs):
        check_head(run, layer, head)
        cfg, trained = run.config.model, run.config.data.context_length
        turning, pairing, group = value_frequencies(cfg), value_pairing(cfg), cfg.query_heads // cfg.kv_heads
        w_v = mixer.value_weights(run.params, layer, head // group)
        drawn[2 * place] = laid_out(mixer.kernel(w_v, offsets, turning, pairing)[None])
        every = [mixer.value_weights(run.params, at, kv) for at in range(cfg.layers) for kv in range(cfg.kv_heads)]
        alike = np.stack([mixer.kernel_similarity(w, np.arange(trained), turning, pairing) for w in every])
        least = min(0.0, alike.min())
        label = "likeness, 1: the same kernel"
        picture.image(2 * place + 1, alike, label=label, rows="head", vmin=least, vmax=1)
        picture.axes[2 * place + 1].set(xlabel=r"distance, $-\delta$", ylabel="head, counted over layers")
    signed(picture, drawn)
    for panel, matrix in drawn.items():
        name_offsets(picture, panel, offsets, matrix.shape[1] // len(offsets))
        grid(picture, panel, matrix.shape[1] // len(offsets))
    picture.caption(f"{PSI}; left: at most {SHOWN} channels of each. {SIGNS}")
    return picture
