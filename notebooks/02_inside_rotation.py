# %% [markdown]
# # 2. Inside a rotation
#
# From RoPE to RoVE in pictures: what turns, why it has to be turned back, and what a layer looks like when it is
# written as one matrix. No trained model is needed, and all but the last section takes seconds.

# %%
from install import TINY, show

# %%
import importlib.util

import jax
import jax.numpy as jnp
import numpy as np

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
# let us see. By how much do outputs change when a text moves by a thousand positions?

# %%
query, key, value = jax.random.normal(jax.random.key(0), (3, 1, 32, 1, 16))


def moved_by(shift, turns):
    return rove_jax.rotary_attention(
        query, key, value, rotary=rotary, value_rotary=rotary, turns=turns, is_causal=True,
        query_positions=positions[:32] + shift,
    )  # fmt: skip


for turns, name in (("", "nothing"), ("qk", "RoPE"), ("qkvo", "RoVE"), ("qkv", "RoVE, not turned back"), ("q", "q")):
    change = jnp.abs(moved_by(1000, turns) - moved_by(0, turns)).max()
    print(f"turned: {turns or '-':5} {name:22} largest change {change:.1e}")

# %% [markdown]
# The first three do not move (what is left is rounding). Without the turn back, absolute positions leak in.
#
# ## A layer as one matrix
#
# Attention with fixed weights is linear, so one head is one big matrix on all positions and channels. In RoPE it is
# a Kronecker product $A \otimes W_V$: every block is the *same* matrix $W_V$, times a number. In RoVE the block
# from position $j$ to position $i$ is $A_{ij}\,\psi_{j-i}$ with $\psi_\delta = R_\delta W_V$, one matrix for each
# *offset*: a convolution whose taps are gated by attention. This is figure 1 of the paper, for 8 positions and 6
# channels.

# %%
show(mixer_figures.mixers(), "mixers")

# %% [markdown]
# Read the titles of (c) and (e): how much of the mixer is left over when the best $A \otimes W$ is taken away, and
# when the best $A_{ij}\,\psi_{j-i}$ is. RoPE is the first without rest. RoVE is not, but it is the second.
#
# ## The kernel at each offset
#
# With $W_V = 1$ the kernel $\psi_\delta$ is the rotation itself, and all clocks can be read off. On the diagonal
# are the cosines; off it the sines, in places that depend on which channels form a pair.


# %%
def kernels(offsets, base=1000.0, pairing="half", channels=16, name="kernels"):
    turning = frequencies(rove_jax.Rotary(base=base), channels)
    picture = Picture([f"offset {offset}" for offset in offsets], columns=min(4, len(offsets)), size=(2.7, 2.2))
    for panel, psi in enumerate(mixer.kernel(np.eye(channels), np.array(offsets), turning, pairing)):
        picture.image(panel, psi, aspect="equal", cmap="RdBu_r", vmin=-1, vmax=1)
    return show(picture, name)


kernels([0, -1, -2, -4, -8, -16, -64, -256])

# %% [markdown]
# From (a) to (h): the fast pairs, at the top left, go round first, while the slow ones still say "near". Where
# `ipywidgets` is installed, here is the same with sliders.

# %%
if importlib.util.find_spec("ipywidgets"):
    from ipywidgets import FloatLogSlider, IntSlider, interact

    interact(
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
# ## Does it help a model to learn?
#
# The simplest circuit of two layers is the *induction head*: find the last time the current token occurred, and
# copy what came after it. It needs a head of the first layer that tells each token what stood before it, and
# displacement is what RoVE writes into its values. Here both train from the same weights on the same random strings
# that repeat: two layers of attention, nothing else. (A minute or two on a CPU; the left panel shows loss on the
# repeated part only.)

# %%
show(circuit_figures.formation(steps=4 if TINY else 500, seeds=1, every=4 if TINY else 25), "formation")

# %% [markdown]
# When this was run last, the loss of RoVE fell after 250 steps and that of RoPE after 400, each together with its
# induction head, and the head that looks one back was sharper in RoVE. One seed is an anecdote: `python -m eval
# figure induction --out figures` draws two, and `--training-steps` makes it longer.
#
# Next: [what RoPE's scores cannot tell apart](03_limits_of_rope.ipynb).
