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
# difference does. On two CPU cores: about five minutes. Nothing is downloaded but the packages.

# %%
from install import CHECKOUT, RUNS, SMALLER, TINY, show

# %%
import jax

from rove_jax import distributed, recipes
from rove_jax.analysis import training_figure
from rove_jax.analysis.picture import Picture
from rove_jax.evaluation import at_end, runs
from rove_jax.evaluation.generate import Sampling, generate
from rove_jax.training import loop, setup

distributed.keep_compiled()  # programs compiled here are found again by the next notebook
jax.devices()

# %% [markdown]
# ## A recipe
#
# A run is described by one frozen dataclass. A *recipe* is a Python file that returns one, and any field can be
# replaced by command-line words. What follows prints what the recipe comes to on this machine, before anything is
# computed: parameters, mesh, and which attention kernel was chosen, with the reasons against the others.

# %%
rove = recipes.load(CHECKOUT / "configs" / "tiny_rove.py", SMALLER)
print("\n".join(setup.make(rove).lines()))

# %%
rove.model

# %% [markdown]
# ## Train
#
# The same as `python -m train --config configs/tiny_rove.py --workdir runs/tiny_rove` in a shell. If you stop it
# and run the cell again, it goes on from its last checkpoint, on a CPU with the same bits as if it had never
# stopped. If the run is finished, it says so and nothing is done.

# %%
result = loop.run(rove, RUNS / "tiny_rove")
result

# %% [markdown]
# Now the twin. Its recipe has `VARIANT = "rope"`, and that is all the difference: same seed, same batches, same
# weights at the start.

# %%
rope = recipes.load(CHECKOUT / "configs" / "tiny_rope.py", SMALLER)
loop.run(rope, RUNS / "tiny_rope")

# %%
show(training_figure.training([RUNS / "tiny_rope", RUNS / "tiny_rove"], ["RoPE", "RoVE"]), "training")

# %% [markdown]
# The curves are close, RoVE a little lower. Within the length that a model was trained on (here 128 bytes) that is
# what to expect. Longer texts are where it gets interesting.
#
# ## Evaluate
#
# Both models read the *same* held-out text, cut into windows of 128, 256, ... 2048 bytes. A model that uses context
# well gets better with longer windows; one that has never seen such distances gets worse. YaRN stretches the
# rotation so that the longer window looks familiar; more on that in notebook 4. Perplexity is the exponential of
# the mean nats per byte: 4 means "as unsure as between 4 equally likely bytes".

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
show(picture, "quickstart")

# %% [markdown]
# Past the training length both get worse, RoPE faster. One seed of a tiny model proves little, but the paper finds
# the same with 354 million parameters. Each result file says which checkpoint, config, data and versions its
# numbers came from:

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
    max_new_tokens=10 if TINY else 200,
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
