# %% [markdown]
# # 2. Inside a rotation
#
# From RoPE to RoVE in pictures: what turns, why it has to be turned back, and what a layer looks like when it is
# written as one matrix. No trained model is needed, and all but the last section takes seconds.

# %%
from install import show, sized

# %%
import jax
import jax.numpy as jnp
import numpy as np
from ipywidgets import FloatLogSlider, IntSlider, interact

import rove_jax
from rove_jax.analysis import circuit_figures, circuits, mixer, mixer_figures
from rove_jax.analysis.picture import Picture
from rove_jax.rotary import angles, frequencies

# %% [markdown]
# ## Clocks
#
# A rotation takes the channels of a vector in pairs, and turns pair $m$ at position $t$ by the angle $t\,\omega_m$,
# with $\omega_m = \text{base}^{-2m/d}$. Think of $d/2$ clock hands. The first goes round in six positions, the last
# one hardly moves: at base 10,000 and $d = 64$ it would take 47,000 positions. Here are some of 8 hands at base
# 1000.

# %%
rotary = rove_jax.Rotary(base=1000.0)
positions = jnp.arange(128)
cosines, _ = angles(positions, rotary, 16)

picture = Picture(["cosine of the angle of a pair"], size=(8, 2.6))
for style, pair in enumerate((0, 1, 3, 5, 7)):
    picture.line(0, f"pair {pair}", positions, cosines[:, pair], style)
picture.dress(0, "position", "", legend="beside")
show(picture, "clocks")

# %% [markdown]
# ## Only differences count
#
# Turn a query by its position and a key by its own: $(R_i q)^\top (R_j k) = q^\top R_{j-i}\, k$. Move the whole
# text by a thousand positions and every score stays. That is RoPE.
#
# What about values? Turn them, and a head sums up $\sum_j A_{ij} R_j v_j$: the output now depends on where in the
# text it all happens, which is not wanted. Turn the output *back* by the position of the query and it is $\sum_j
# A_{ij} R_{j-i} v_j$: differences again. That is RoVE. `rotary_attention` can leave any of the four turns out, so
# let us see. By how much do outputs change when a text moves by a thousand positions? (`q`, `k`, `v`: queries, keys,
# values are turned forth; `o`: outputs are turned back.)

# %%
query, key, value = jax.random.normal(jax.random.key(0), (3, 1, 32, 1, 16))


def moved_by(shift, turns):
    return rove_jax.rotary_attention(
        query, key, value, rotary=rotary, value_rotary=rotary, turns=turns, is_causal=True,
        query_positions=positions[:32] + shift,
    )  # fmt: skip


cases = {"": "no positions", "qk": "RoPE", "qkvo": "RoVE", "qkv": "RoVE, not turned back", "q": "RoPE, keys left out"}
for turns, name in cases.items():
    change = jnp.abs(moved_by(1000, turns) - moved_by(0, turns)).max()
    verdict = "rounding: only differences count" if change < 1e-3 else "absolute positions leak in"
    print(f"turned: {turns or '-':5} {name:22} largest change {change:.1e}, {verdict}")

# %% [markdown]
# Two vectors that meet must both be turned: queries and keys, values and outputs.
#
# ## A layer as one matrix
#
# Attention with fixed weights is linear, so one head is one big matrix on all positions and channels. In RoPE it is
# a Kronecker product $A \otimes W_V$: every block is the *same* matrix $W_V$, times a number. In RoVE the block
# from position $j$ to position $i$ is $A_{ij}\,\psi_{j-i}$ with $\psi_\delta = R_\delta W_V$, one matrix for each
# *offset* $\delta = j - i$: block-Toeplitz (the same kernel along each diagonal of blocks) but for the weights, a
# convolution whose taps are gated by attention. This is figure 1 of the paper with its letters, for 8 positions and 6
# channels. RoPE is on top, RoVE below; (b) to (e) share one range of colours, and a bar marks what is below 0.
#
# *Which channels are a pair* is a convention: `half` turns channel $m$ with $m + d/2$ (Llama, NeoX, and the default
# here), `interleaved` turns $2m$ with $2m + 1$ (the paper, GPT-J). Models learn as well with either, since $W_V$ and
# $W_O$ can swap channels; a checkpoint must be read with the one that it was trained with.

# %%
show(mixer_figures.mixers(), "mixers")

# %% [markdown]
# The second line of (c) and (e) is the test: what is left over of the mixer (a share of its norm, 0 to 1) when the
# nearest $A \otimes W$ is taken away, and when the nearest $A_{ij}\,\psi_{j-i}$ is. Nothing is left of RoPE's by the
# first. Much is left of RoVE's, and nothing by the second. These are theorems and hold for all weights; the weights
# here are drawn at random.
#
# ## The kernel at each offset
#
# With $W_V = 1$ the kernel $\psi_\delta$ is the rotation itself, and all clocks can be read off. On the diagonal
# are the cosines; off it the sines, at $(m, m + d/2)$ for pairs of kind `half`, beside the diagonal for
# `interleaved`.


# %%
def kernels(offsets, base=1000.0, pairing="half", channels=16, name="kernels"):
    turning = frequencies(rove_jax.Rotary(base=base), channels)
    picture = Picture([f"offset {offset}" for offset in offsets], columns=min(4, len(offsets)), size=(2.7, 2.6))
    found = mixer.kernel(np.eye(channels), np.array(offsets), turning, pairing)
    mixer_figures.signed(picture, dict(enumerate(found)), limit=1.0)
    for axes in picture.axes:
        axes.set(xlabel="channel in", ylabel="channel out")
    return show(picture, name)


kernels([0, -1, -2, -4, -8, -16, -64, -256])

# %% [markdown]
# From (a) to (h) the token that is read lies further back. The fastest pair (channels 0 and 8) has gone round forty
# times by (h), the slowest (7 and 15) a tenth of a circle. Each panel is a different matrix, so what is read tells how
# far away it stood. Here is the same with sliders; move one, and the picture follows. (The first cell has installed
# `ipywidgets`; a page without a kernel shows the first picture alone.)

# %%
_ = interact(
    lambda offset, base, pairing: kernels([offset], base, pairing, name="kernel"),
    offset=IntSlider(-3, -64, 0, continuous_update=False),
    base=FloatLogSlider(1000.0, min=1, max=6, continuous_update=False),
    pairing=["half", "interleaved"],
)

# %% [markdown]
# ## Two things a RoVE head can do
#
# **Attenuate what is spread out.** Suppose a head looks at $n$ positions alike and reads the same value everywhere.
# RoPE hands the value on as it is. In RoVE each pair is a sum of hands that point in all directions, and the faster
# the pair, the less is left. Attention that has become diffuse over a long context is turned down, pair by pair.

# %%
turning = frequencies(rove_jax.Rotary(base=10_000.0), 64)
picture = Picture(["what is left of a constant value"], size=(7, 3.3))
for style, count in enumerate((2, 16, 128, 1024, 16_384)):
    picture.line(0, f"n = {count:,}", np.arange(32), circuits.uniform_gain(turning, count), style)
picture.dress(0, "pair, from the fastest", "share", legend="beside")
show(picture, "uniform_gain")

# %% [markdown]
# **Say where it looked.** With a constant value $b$ the output is $\sum_j A_{ij} R_{j-i}\, b$: in each pair the
# mean of $e^{i\omega(j-i)}$, which is the characteristic function of the distribution of offsets. What comes next
# can read it with a matched filter: turn by a candidate offset and see whether the hands line up. (Of the 12
# fastest pairs of 32; the slow ones line up anyway.) A RoPE head with the same weights would hand on $b$, whatever
# it looked at.

# %%
candidates = np.arange(-24, 1)
looks = {
    "always 3 back": np.eye(64, k=-3)[24:],
    "3 or 12 back": (np.eye(64, k=-3) + np.eye(64, k=-12))[24:] / 2,
    "all of the last 16": sum(np.eye(64, k=-back) for back in range(16))[24:] / 16,
}
picture = Picture(["what a matched filter finds"], size=(6, 3.3))
fast = turning[:12]
for style, (name, weights) in enumerate(looks.items()):
    response = circuits.matched_filter(circuits.characteristic(weights, fast), fast, candidates)
    picture.line(0, name, candidates, response, style, marked=True)
picture.dress(0, "candidate offset", "mean over pairs", ylim=(-0.25, 1.05))
show(picture, "matched_filter")

# %% [markdown]
# ## Induction heads: does it help a model to learn?
#
# The simplest circuit of two layers is the *induction head*: find the last time the current token occurred, and
# copy what came after it. It needs a head of the first layer that tells each token what stood before it, and
# displacement is what RoVE writes into its values. Here both train from the same weights on the same random strings
# that repeat: two layers of attention, nothing else. (One minute on two idle CPU cores; the left panel shows loss on
# the repeated part only.)

# %%
picture = circuit_figures.formation(steps=sized(500, 500, 4), seeds=1, every=sized(25, 25, 4))
for series in ("RoPE, seed 0", "RoVE, seed 0"):
    weights = [(step, weight) for panel, name, step, weight in picture.rows if (panel, name) == ("b", series)]
    formed = next((f"from step {step:.0f} on" for step, weight in weights if weight > 0.5), "not yet")
    print(f"{series}: a head with more than half its weight on the token to copy: {formed}")
show(picture, "formation")

# %% [markdown]
# Reference (500 steps, seed 0, 2 CPU cores): the loss of RoVE fell after 250 steps and that of RoPE after 400, each
# together with its induction head, and the head that looks one back was sharper in RoVE. One seed is an anecdote:
# `python -m eval figure induction --out figures` draws two, and `--training-steps` makes it longer.
#
# Next: [what RoPE's scores cannot tell apart](03_limits_of_rope.ipynb).
