# %% [markdown]
# # 4. Longer than the training text
#
# A model has been trained on 128 bytes at a time. What happens at 2048? This notebook measures it three ways, for
# the twins of [notebook 1](01_quickstart.ipynb): by perplexity, with and without YaRN; by RULER, which hides facts
# in long texts and asks for them; and by looking at what heads hand on.
#
# A *reference* below is what came out once, with `SIZE = "full"`, seed 0, on 2 CPU cores; other numbers are computed
# from your run. (A token of these models is a byte.)

# %%
from install import CHECKOUT, RUNS, SMALLER, render, show, sized

# %%
import dataclasses

import numpy as np
from IPython.display import Image

from rove_jax import Scaling, distributed, recipes
from rove_jax.analysis import circuit_figures
from rove_jax.analysis.picture import Picture
from rove_jax.evaluation import runs
from rove_jax.evaluation.protocol import Protocol
from rove_jax.evaluation.ruler import summary
from rove_jax.evaluation.ruler.evaluate import Asked, measure
from rove_jax.evaluation.tables import perplexity_caption, perplexity_table, table
from rove_jax.report import compare, figures
from rove_jax.rotary import frequencies, logit_scale
from rove_jax.training import loop

_ = distributed.keep_compiled()  # where programs are kept

# %% [markdown]
# The twins: found if notebook 1 has trained them, else trained now (four minutes on two CPU cores, one where `SIZE` is
# short).

# %%
for name in ("tiny_rope", "tiny_rove"):
    print(f"{name}:", flush=True)
    loop.run(recipes.load(CHECKOUT / "configs" / f"{name}.py", SMALLER), RUNS / name, say=lambda line: None)
models = [runs.open_run(RUNS / name) for name in ("tiny_rope", "tiny_rove")]
trained = models[0].config.data.context_length

# %% [markdown]
# What do they differ in? A run knows its config, so nobody has to remember:

# %%
differing = compare.differences([model.config for model in models])
render(table(["field", "RoPE", "RoVE"], [[field, *map(str, values)] for field, values in differing.items()]))

# %% [markdown]
# ## Stretching a rotation
#
# At position 2048 the slow hands point in directions that no training text has shown. One way out is to make them
# slower. *Position interpolation* divides all frequencies by the factor $s$, and so blurs what was sharp nearby.
# *NTK-aware* scaling raises the base. *YaRN* asks of each pair how often it goes round in the training length: more
# than 32 times, leave it alone; less than once, divide by $s$; in between, a blend. It also sharpens attention, by a
# factor on the scores that grows with $s$ (see the legend). Here for our models, from training length to 16 times it:

# %%
factor = 16.0
rules = {
    "as trained": Scaling(),
    "interpolation": Scaling("linear", factor=factor),
    "NTK-aware": Scaling("ntk", factor=factor),
    "YaRN": Scaling("yarn", factor=factor, original_length=trained),
}
rotary, channels = models[0].config.model.rotary, models[0].config.model.head_dim
plain = frequencies(rotary, channels)
picture = Picture(["frequency over that in training"], size=(8, 3.4))
for style, (name, scaling) in enumerate(rules.items()):
    stretched = dataclasses.replace(rotary, scaling=scaling)
    label = f"{name} (scores times {logit_scale(stretched):.2f})"
    picture.line(0, label, np.arange(len(plain)), frequencies(stretched, channels) / plain, style)
turns = plain * trained / (2 * np.pi)
picture.dress(0, "pair, from the fastest", "ratio", yscale="log", legend="beside")
print(f"in {trained} positions the fastest pair goes round {turns[0]:.1f} times and the slowest {turns[-1]:.2g} times;")
print(f"{np.sum(turns > 32)} pairs of {len(turns)} go round more than 32 times, {np.sum(turns < 1)} less than once")
show(picture, "stretching")

# %% [markdown]
# In a RoVE model the rotation of values is stretched along with that of scores (`--value-scaling none` leaves it).
# The temperature is kept out of it: it belongs to scores, and would otherwise multiply what is read.
#
# ## Perplexity
#
# The same text at every length, in windows: what changes along a curve is the context and nothing else. Half a minute
# on two CPU cores, most of it compiling.

# %%
lengths = sized((128, 256, 512, 1024, 2048), (128, 512, 1024), (64, 128))
protocol = Protocol(lengths, ("none", "yarn"), documents=sized(8, 4, 2))
documents = [runs.stored_perplexity(model, protocol)[0] for model in models]
Image(compare.figure(documents), width=1000)

# %%
for document in documents:
    render(perplexity_caption(document), perplexity_table(document))

# %% [markdown]
# Within the training length nothing is scaled, so a model's two curves meet at the left. The right panel has the ratio
# with a 95% interval over documents, which says nothing about other seeds. From this run:

# %%
of = [compare.records(document) for document in documents]
for rule in ("none", "yarn"):
    grown = [found[lengths[-1], rule]["perplexity"] / found[lengths[0], rule]["perplexity"] for found in of]
    print(f"scaling {rule:5} perplexity at {lengths[-1]} over {lengths[0]}: RoPE {grown[0]:.2f}, RoVE {grown[1]:.2f}")

# %% [markdown]
# Reference: unscaled, RoPE's perplexity grew 2.5-fold from 128 to 2048 bytes and RoVE's 1.9-fold; with YaRN, 1.4-fold
# both.
#
# ## Where in the window is it lost?
#
# A mean hides where a window goes wrong. Here is the loss by position, in the longest windows, without scaling.

# %%
picture = Picture(["nats per byte by position, unscaled"], size=(6, 3.4))
for style, (name, document) in enumerate(zip(("RoPE", "RoVE"), documents)):
    longest = compare.records(document)[lengths[-1], "none"]["positions"]
    picture.line(0, name, [part["from"] + 1 for part in longest], [part["nll"] for part in longest], style, marked=True)
picture.axes[0].axvline(trained, color="0.45", linewidth=1)
picture.dress(0, "from this position in the window on (line: training length)", "nats per byte", xscale="log")
show(picture, "by_position")

# %% [markdown]
# ## RULER
#
# Thirteen tasks of Hsieh et al. (arXiv 2404.06654). "One of the special magic numbers for *long-haired* is
# 7361021", says a sentence somewhere in the hay; what was the number? The score is the likelihood of the right
# answer, in nats per token. To be held against it is the same question where the sentence has been taken out.
# (A star, or "small", marks a task made smaller than RULER's, where that does not fit the length.)
#
# Be warned: a model of 0.8 million parameters that has read 3 MB of speeches does *not* look things up. What you
# see here is how the measurement goes, and how much the mere length costs. For results that mean something, train
# the `gpt2_small` recipes; the cells are the same.

# %%
asked = Asked(
    lengths=sized((256, 512, 1024), (256, 512), (128,)),
    tasks=sized(("niah_single_1", "vt"), ("niah_single_1", "vt"), ("niah_single_1",)),
    samples=sized(12, 6, 2),
    reserve="answer",
    scalings=sized(("none", "yarn"), ("none", "yarn"), ("none",)),
)
folder = RUNS / "ruler"
folder.mkdir(parents=True, exist_ok=True)
ruler = {}
for label, model in zip(("RoPE", "RoVE"), models):
    ruler[label] = measure(model, asked, folder / f"{label}.jsonl", batch_size=sized(None, None, 2))
show(figures.ruler(ruler), "ruler")

# %%
for label, document in ruler.items():
    render(label, summary.control_table(document))

# %% [markdown]
# *nats* against *no needle* is the column pair to read: where they are equal, the model has not used the sentence.
#
# ## What heads hand on
#
# Energy of a head's output over that of the values it read, by pair. Attention spreads out as texts get longer, and
# an average of many values is small. In RoVE there could be a second effect, from notebook 2: the fast pairs of a
# diffuse head cancel. The right panel is what that alone would do to one constant value. (RoPE's pairs of values do not
# turn, and are no frequencies; they are drawn in the same order.)

# %%
reached = [int(trained * part) for part in sized((0.5, 1, 2, 4, 8), (0.5, 1, 2, 4, 8), (0.5, 1))]
show(circuit_figures.energy(models, ["RoPE", "RoVE"], reached), "energy")

# %% [markdown]
# Reference: outputs shrank with length, in both models. But in RoVE it was the *fastest* pair that kept most of its
# energy, the opposite of the right panel: where attention is sharp and near there is nothing to cancel, and it may be
# that this is where the model has learnt to use that pair. Theory says what a head can do; a model says what it does.
#
# Next: [bigger machines](05_tpu_and_gpu.ipynb), or [RoVE in a model of your own](06_bring_your_own.ipynb).
