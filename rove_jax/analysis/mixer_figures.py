"""RoPE and RoVE as matrices on positions and channels (figure 1 of arXiv 2606.11275)."""

import numpy as np

from rove_jax.analysis import mixer
from rove_jax.analysis.picture import Picture
from rove_jax.analysis.product import rope_frequencies

POSITIONS, HEAD_DIM = 8, 6


def mixers(length: int = POSITIONS) -> Picture:
    """Five panels: the weights, RoPE's kernel and mixer, RoVE's kernels and mixer, of one small causal head.

    Weights and W_V are drawn from seed 0; base 100, so that all of 3 pairs turn in sight.
    """
    from rove_jax.errors import require

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
        title = picture.axes[kernel_panel + 1].get_title()
        picture.axes[kernel_panel + 1].set_title(
            f"{title}\nrest after A (x) W: {errors[0]:.2f}, after A_ij psi_(j-i): {errors[1]:.2f}", fontsize=9
        )
        for panel in (kernel_panel, kernel_panel + 1):
            axes = picture.axes[panel]
            for edge in np.arange(HEAD_DIM, axes.get_xlim()[1], HEAD_DIM):
                axes.axvline(edge - 0.5, color="0.75", linewidth=0.4)
            for edge in np.arange(HEAD_DIM, axes.get_ylim()[0], HEAD_DIM):
                axes.axhline(edge - 0.5, color="0.75", linewidth=0.4)
    return picture
