"""RoPE and RoVE as matrices on positions and channels (figure 1 of arXiv 2606.11275), drawn and trained ones."""

from collections.abc import Sequence

import numpy as np

from rove_jax.analysis import mixer
from rove_jax.analysis.capture import capture_qkv, value_frequencies, value_pairing
from rove_jax.analysis.circuit_figures import long_text
from rove_jax.analysis.picture import Picture
from rove_jax.analysis.product import rope_frequencies
from rove_jax.errors import require
from rove_jax.evaluation.runs import Run

POSITIONS, HEAD_DIM = 8, 6
SHOWN = 12
"""Channels of a block of a trained mixer that are drawn, of rows and columns: more could not be told apart."""


def mixers(length: int = POSITIONS) -> Picture:
    """Five panels: the weights, RoPE's kernel and mixer, RoVE's kernels and mixer, of one small causal head.

    Weights and W_V are drawn from seed 0; base 100, so that all of 3 pairs turn in sight.
    """
    require(length <= 32, "--length", length, "a mixer this long cannot be read; at most 32")
    chance = np.random.default_rng(0)
    scores = np.where(mixer.visible(length, length), chance.normal(size=(length, length)), -np.inf)
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    w_v = chance.normal(size=(HEAD_DIM, HEAD_DIM))
    turning = rope_frequencies(HEAD_DIM // 2, 100.0)
    offsets = np.arange(-min(3, length - 1), 1)
    titles = ["weights A", "RoPE: one kernel W_V", "RoPE: mixer, A (x) W_V", "RoVE: kernels R_d W_V", "RoVE: mixer"]
    picture = Picture(titles, columns=3, size=(4.4, 3.8))
    picture.image(0, weights, aspect="equal", cmap="Greys")
    picture.axes[0].set(xlabel="key position", ylabel="query position")
    for kernel_panel, frequencies in ((1, None), (3, turning)):
        kernels = mixer.kernel(w_v, offsets, frequencies)
        picture.image(kernel_panel, np.concatenate(list(kernels), axis=1), diverging=True, aspect="equal")
        picture.axes[kernel_panel].set_xticks(
            HEAD_DIM * (np.arange(len(offsets)) + 0.5) - 0.5, [f"offset {d}" for d in offsets]
        )
        matrix = mixer.mixer(weights, w_v, frequencies)
        picture.image(kernel_panel + 1, matrix, diverging=True, aspect="equal")
        picture.axes[kernel_panel + 1].set(xlabel="key position x channel", ylabel="query position x channel")
        errors = mixer.kronecker_error(matrix, length), mixer.toeplitz_error(matrix, length)
        note(picture, kernel_panel + 1, f"rest after A (x) W: {errors[0]:.2f}, after A_ij psi_(j-i): {errors[1]:.2f}")
        for panel in (kernel_panel, kernel_panel + 1):
            grid(picture, panel, HEAD_DIM)
    return picture


def grid(picture: Picture, panel: int, size: int) -> None:
    """Thin lines between blocks of `size` rows and columns."""
    axes = picture.axes[panel]
    for edge in np.arange(size, axes.get_xlim()[1], size):
        axes.axvline(edge - 0.5, color="0.75", linewidth=0.4)
    for edge in np.arange(size, axes.get_ylim()[0], size):
        axes.axhline(edge - 0.5, color="0.75", linewidth=0.4)


def draw_blocks(picture: Picture, panel: int, blocks: np.ndarray) -> None:
    """Blocks [rows, columns, O, D] in their places, of each the first `SHOWN` rows and columns of channels."""
    cut = blocks[:, :, :SHOWN, :SHOWN].transpose(0, 2, 1, 3)
    picture.image(panel, cut.reshape(cut.shape[0] * cut.shape[1], -1), diverging=True, aspect="equal")
    grid(picture, panel, cut.shape[1])
    picture.axes[panel].set(xticks=[], yticks=[])


def check_head(run: Run, layer: int, head: int) -> None:
    """Raise `UsageError` unless the model has them."""
    cfg = run.config.model
    require(0 <= layer < cfg.layers, "--layer", layer, f"the model has layers 0 to {cfg.layers - 1}")
    require(0 <= head < cfg.query_heads, "--head", head, f"the model has heads 0 to {cfg.query_heads - 1}")


def layers(
    runs: Sequence[Run], labels: Sequence[str], layer: int = 0, head: int = 0, length: int | None = None
) -> Picture:
    """A trained layer on the first tokens of a text, four panels a run: the weights of one head, its value kernels by
    offset, the head as a matrix, and all heads with W_O as one, [T D, T D]. In the titles: what is left over."""
    length = length or POSITIONS
    require(length <= 32, "--length", length, "a mixer this long cannot be read; at most 32")
    names = (f"weights, head {head}", "kernels R_d W_V", "head as a matrix", "layer as a matrix")
    picture = Picture([f"{label}: {name}" for label in labels for name in names], columns=4, size=(4.2, 4.0))
    for place, run in enumerate(runs):
        check_head(run, layer, head)
        cfg, first = run.config.model, 4 * place
        captured = capture_qkv(cfg, run.params, long_text(run, length), (layer,))
        query, key = (np.moveaxis(x[0, 0], 1, 0) for x in (captured.query, captured.key))
        weights = mixer.attention_weights(cfg, query, key)
        turning, pairing, group = value_frequencies(cfg), value_pairing(cfg), cfg.query_heads // cfg.kv_heads
        w_v = mixer.value_weights(run.params, layer, head // group)
        picture.image(first, weights[head], aspect="equal", cmap="Greys", vmin=0, vmax=1)
        picture.axes[first].set(xlabel="key position", ylabel="query position")
        offsets = -np.arange(min(4, length))[::-1]
        draw_blocks(picture, first + 1, mixer.kernel(w_v, offsets, turning, pairing)[None])
        size = min(SHOWN, *w_v.shape)
        picture.axes[first + 1].set_xticks(
            min(SHOWN, w_v.shape[1]) * (np.arange(len(offsets)) + 0.5) - 0.5, [f"offset {d}" for d in offsets]
        )
        one = mixer.mixer(weights[head], w_v, turning, pairing)
        whole = mixer.layer_mixer(cfg, run.params, layer, weights)
        for panel, matrix in ((first + 2, one), (first + 3, whole)):
            draw_blocks(picture, panel, mixer.blocks_of(matrix, length))
            picture.axes[panel].set(xlabel="key position x channel", ylabel="query position x channel")
        rest = mixer.kronecker_error(one, length), mixer.toeplitz_error(one, length)
        note(picture, first + 2, f"rest after A (x) W: {rest[0]:.2f}, after A_ij psi_(j-i): {rest[1]:.2f}")
        heads = cfg.query_heads
        note(picture, first + 3, f"rest after {heads} A (x) W: {mixer.kronecker_error(whole, length, heads):.2f}")
    picture.drawing.suptitle(
        f"layer {layer}, {length} tokens of a held-out text; of each block the first {size} channels are drawn",
        fontsize=10,
    )
    return picture


def note(picture: Picture, panel: int, text: str) -> None:
    """A second line of the title."""
    picture.axes[panel].set_title(f"{picture.axes[panel].get_title()}\n{text}", fontsize=9)


def kernels(runs: Sequence[Run], labels: Sequence[str], layer: int = 0, head: int = 0) -> Picture:
    """The value kernel psi of trained heads by offset, two panels a run: that of one head at some offsets, and for all
    heads how like the kernel at offset 0 it is, up to the training length."""
    names = (f"psi of layer {layer}, head {head}", "<psi_d, psi_0> / |psi_0|^2, key heads")
    picture = Picture([f"{label}: {name}" for label in labels for name in names], columns=2, size=(6.0, 2.9))
    for place, run in enumerate(runs):
        check_head(run, layer, head)
        cfg, trained = run.config.model, run.config.data.context_length
        turning, pairing, group = value_frequencies(cfg), value_pairing(cfg), cfg.query_heads // cfg.kv_heads
        offsets = -np.array([0, 1, 2, 4, 16, 64])
        w_v = mixer.value_weights(run.params, layer, head // group)
        draw_blocks(picture, 2 * place, mixer.kernel(w_v, offsets, turning, pairing)[None])
        ticks = min(SHOWN, w_v.shape[1]) * (np.arange(len(offsets)) + 0.5) - 0.5
        picture.axes[2 * place].set_xticks(ticks, [str(d) for d in offsets])
        picture.axes[2 * place].set(xlabel="offset", ylabel=f"first {min(SHOWN, len(w_v))} channels")
        every = [mixer.value_weights(run.params, at, kv) for at in range(cfg.layers) for kv in range(cfg.kv_heads)]
        alike = np.stack([mixer.kernel_similarity(w, np.arange(trained), turning, pairing) for w in every])
        picture.image(2 * place + 1, alike, vmin=min(0.0, alike.min()), vmax=1)
        picture.axes[2 * place + 1].set(xlabel="distance, -offset", ylabel="head, counted over layers")
    return picture
