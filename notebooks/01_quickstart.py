# %% [markdown]
# # 1. Quickstart: two language models that differ in one word
#
# A transformer needs to be told where its tokens are. **RoPE** tells it by turning queries and keys: the vector at
# position $t$ is turned by the angle $t\,\omega_m$ in its $m$-th pair of channels. Two turned vectors know only how
# far apart they are, so a *score* depends on a distance. What is then read, the value, is the same at every
# distance.
#
# **RoVE** turns the values too, and turns each output back by its own position:
#
# $$\text{RoPE:}\quad y_i = \sum_j A_{ij}\, v_j \qquad\qquad \text{RoVE:}\quad y_i = \sum_j A_{ij}\, R_{j-i}\, v_j$$
#
# so *what is read* depends on the distance as well. No parameter is added. Here you train one model of each kind,
# with 0.8 million parameters, on the bytes of two centuries of State of the Union addresses, and look at what the
# difference does. On two CPU cores this takes about five minutes; with `SIZE = "short"` in the first cell, two, with
# less trained models. Nothing is downloaded but the packages. What is said of results below is computed from your
# run, or marked as a *reference* with the setting it was measured in.

# %%
from install import CHECKOUT, RUNS, SMALLER, show, sized

# %%
import time

import jax

from rove_jax import config, distributed, recipes
from rove_jax.analysis import training_figure
from rove_jax.analysis.picture import Picture
from rove_jax.evaluation import at_end, runs
from rove_jax.evaluation.generate import Sampling, generate
from rove_jax.report import compare
from rove_jax.training import loop, setup

distributed.keep_compiled()  # programs compiled here are found again by the next notebook
jax.devices()

# %% [markdown]
# ## A recipe
#
# A run is described by one frozen dataclass. A *recipe* is a Python file that returns one, and any field can be
# replaced by command-line words, as `SIZE` does here. In which fields that matter to what is learnt does this recipe
# differ from the defaults, and in which from its twin?

# %%
rope, rove = (recipes.load(CHECKOUT / "configs" / f"tiny_{name}.py", SMALLER) for name in ("rope", "rove"))
for beside, other in (("default", config.Config()), ("RoPE twin", rope)):
    for field, (theirs, ours) in compare.differences([other, rove]).items():
        print(f"{beside:10} {field:28} {theirs} -> {ours}")

# %% [markdown]
# What the recipe comes to on this machine, before anything is computed: parameters, mesh, and which attention kernel
# was chosen, with the reasons against the others. (A token of these models is a byte.)

# %%
print("\n".join(setup.make(rove).lines()))

# %% [markdown]
# ## Train
#
# The same as `python -m train --config configs/tiny_rove.py --workdir runs/tiny_rove` in a shell. If you stop it
# and run the cell again, it goes on from its last checkpoint, on a CPU with the same bits as if it had never
# stopped. If the run is finished, nothing is done. Two minutes on two CPU cores.


# %%
def train(recipe, name):
    began = time.monotonic()
    print(f"{name}:", flush=True)
    # Without its lines about set-up, which stand above.
    result = loop.run(recipe, RUNS / name, say=lambda line: None)
    print(f"{name}: at step {result.step} after {time.monotonic() - began:.0f} s")


train(rove, "tiny_rove")

# %% [markdown]
# Now the twin: same seed, same batches, same weights at the start.

# %%
train(rope, "tiny_rope")

# %%
show(training_figure.training([RUNS / "tiny_rope", RUNS / "tiny_rove"], ["RoPE", "RoVE"]), "training")

# %% [markdown]
# Within the length that a model was trained on, curves that lie close are what to expect. (Reference: 800 steps, seed
# 0, 2 CPU cores: RoVE lies a little lower.) Longer texts are where it gets interesting.
#
# ## Evaluate
#
# Both models read the *same* held-out text, cut into windows of 128 bytes and more. A model that uses context
# well gets better with longer windows; one that has never seen such distances gets worse. YaRN stretches the
# rotation so that the longer window looks familiar; more on that in notebook 4. Perplexity is the exponential of
# the mean nats per byte: 4 means "as unsure as between 4 equally likely bytes". Half a minute a model; each length
# and each scaling is a program of its own, and compiling them is much of it. (The tables say tokens: a byte each.)

# %%
evaluated = at_end.evaluate_run(RUNS / "tiny_rove")

# %%
twin = at_end.evaluate_run(RUNS / "tiny_rope")

# %%
picture = Picture(["perplexity on the same text"], size=(6.5, 4))
lengths = sorted({record["length"] for record in evaluated["perplexity"]["results"]})
for style, (name, document) in enumerate((("RoPE", twin["perplexity"]), ("RoVE", evaluated["perplexity"]))):
    for rule, dashes in zip(document["settings"]["scalings"], ("solid", "dashed")):
        values = [row["perplexity"] for row in document["results"] if row["scaling"] == rule]
        label = name if rule == "none" else f"{name} with YaRN"
        picture.line(0, label, lengths, values, style, marked=True, linestyle=dashes)
picture.dress(0, "bytes in a window", "perplexity per byte", xscale="log")
picture.tick(0, lengths)
of = {(name, r["length"], r["scaling"]): r["perplexity"] for name, d in (("RoPE", twin), ("RoVE", evaluated))
      for r in d["perplexity"]["results"]}  # fmt: skip
for length in (lengths[0], lengths[-1]):
    one, other = of["RoPE", length, "none"], of["RoVE", length, "none"]
    print(f"{length:5} bytes: RoPE {one:.2f}, RoVE {other:.2f}; RoVE is {'lower' if other < one else 'not lower'}")
show(picture, "quickstart")

# %% [markdown]
# Reference (800 steps, seed 0, 2 CPU cores): at 128, 512 and 2048 bytes RoPE has 3.59, 4.86 and 8.92, RoVE 3.49,
# 4.13 and 6.75; with YaRN, RoPE 3.59, 3.97, 5.10 and RoVE 3.49, 3.85, 4.73. So past the training length both got worse,
# RoPE faster. One seed of a tiny model proves little; the paper reports the same with 354 million parameters. Each
# result file says which checkpoint, config, data and versions its numbers came from:

# %%
{name: evaluated["perplexity"]["provenance"][name] for name in ("checkpoint", "step", "config_hash", "versions")}

# %% [markdown]
# ## Sample
#
# The decoder keeps keys and values in a cache, as they were before any later text. Change the prompt, the
# temperature, or the folder.

# %%
model = runs.open_run(RUNS / "tiny_rove")
prompt = "My fellow citizens, the people of this country"
[new] = generate(
    model.config.model,
    model.params,
    [model.tokenizer.encode(prompt)],
    max_new_tokens=sized(200, 200, 10),
    eot=model.tokenizer.eot,
    sampling=Sampling(temperature=0.7),
)
print(prompt + model.tokenizer.decode(new))

# %% [markdown]
# ## What lies where
#
# A run folder is all that evaluation needs: the resolved config, a record of how it was run, metrics, checkpoints
# with a digest of every array, results.

# %%
for path in sorted((RUNS / "tiny_rove").iterdir()):
    print(path.name)

# %% [markdown]
# Next: [what a rotation does inside a layer](02_inside_rotation.ipynb), in pictures; or, with the two models you
# now have, [what RoPE's scores cannot tell apart](03_limits_of_rope.ipynb).
