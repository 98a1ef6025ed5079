# %% [markdown]
# # 6. Bring your own model
#
# You have a Flax model and would like to know what RoVE does in it. That takes one argument. And you have a
# checkpoint that was trained with RoPE: can it be turned into a RoVE model? There is a dial for that.
#
# A *reference* below is what came out once, with `SIZE = "full"`, seed 0, on 2 CPU cores; other numbers are computed
# from your run.

# %%
from install import CHECKOUT, RUNS, SMALLER, show, sized

# %%
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import rove_jax
from rove_jax import distributed, recipes
from rove_jax.analysis.picture import Picture
from rove_jax.evaluation import runs
from rove_jax.evaluation.protocol import Protocol
from rove_jax.training import loop

_ = distributed.keep_compiled()  # where programs are kept

# %% [markdown]
# ## Someone else's model
#
# This is plain Flax. It knows nothing of positions: Flax's attention has none, and this author has added none.


# %%
class Theirs(nnx.Module):
    def __init__(self, attention_fn=nnx.dot_product_attention, *, vocab=16, width=64, rngs):
        self.embed = nnx.Embed(vocab, width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(4, width, attention_fn=attention_fn, decode=False, rngs=rngs)
        self.norms = nnx.List([nnx.LayerNorm(width, rngs=rngs) for _ in range(3)])
        self.mlp = nnx.Sequential(nnx.Linear(width, 128, rngs=rngs), nnx.gelu, nnx.Linear(128, width, rngs=rngs))

    def __call__(self, tokens):
        x = self.embed(tokens)
        x = x + self.attention(self.norms[0](x), is_causal=True)
        x = x + self.mlp(self.norms[1](x))
        return self.embed.attend(self.norms[2](x))


# %% [markdown]
# `attention_fn` is the place. `rove_jax.attention_fn(rotary, value_rotary)` makes a function that Flax's attention
# takes there (linen's `MultiHeadDotProductAttention` too). No value rotation is RoPE; the same rotation twice is
# RoVE.

# %%
rotary = rove_jax.Rotary(base=100.0)
kinds = {
    "as it was": nnx.dot_product_attention,
    "RoPE": rove_jax.attention_fn(rotary, None),
    "RoVE": rove_jax.attention_fn(rotary, rotary),
}
models = {name: Theirs(fn, rngs=nnx.Rngs(0)) for name, fn in kinds.items()}
for name, model in models.items():
    print(f"{name:10} {sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param))):,} parameters")

# %% [markdown]
# The same parameters, to the number. Do they do the same? A task where it matters: random tokens, and at each
# position the model is to say which one stood four before. Trained on 32 tokens at a time.

# %%
BACK, LENGTH, STEPS = 4, 32, sized(150, 80, 3)


@nnx.jit
def loss(model, tokens):
    nll = optax.softmax_cross_entropy_with_integer_labels(model(tokens)[:, BACK:], tokens[:, :-BACK])
    return nll.mean()


@nnx.jit
def update(model, optimizer, tokens):
    value, gradient = nnx.value_and_grad(loss)(model, tokens)
    optimizer.update(model, gradient)
    return value


def trained(model):
    optimizer, chance = nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.Param), np.random.default_rng(0)
    return [float(update(model, optimizer, jnp.asarray(chance.integers(0, 16, (32, LENGTH))))) for _ in range(STEPS)]


# %%
picture, far = Picture(["what stood four before?", "the same, in longer texts"]), {}
lengths = sized([LENGTH, 64, 128, 256, 512], [LENGTH, 128, 512], [LENGTH])
for style, (name, model) in enumerate(models.items()):
    picture.line(0, name, np.arange(STEPS), trained(model), style)
    held_out = [jnp.asarray(np.random.default_rng(1).integers(0, 16, (8, length))) for length in lengths]
    found = [float(loss(model, tokens)) for tokens in held_out]
    picture.line(1, name, lengths, found, style, marked=True)
    far[name] = found[-1]
    print(f"{name:10} nats per token:", ", ".join(f"{nats:.2f} at {length}" for length, nats in zip(lengths, found)))
for panel in (0, 1):
    picture.axes[panel].axhline(np.log(16), color="0.45", linewidth=1, zorder=0)
picture.dress(0, "step", "nats per token; grey: chance", ylim=(0, None))
picture.dress(1, "length", "nats per token", xscale="log", ylim=(0, None))
picture.tick(1, lengths)
better, worse = sorted(("RoPE", "RoVE"), key=far.get)
print(f"of the two rotations at {lengths[-1]} tokens: {better} {far[better]:.2f}, {worse} {far[worse]:.2f} nats; "
      f"chance {np.log(16):.2f}")  # fmt: skip
show(picture, "theirs")

# %% [markdown]
# Without positions a model can but say which tokens are about. With a rotation, the task asks for no more than a
# *score* can say, "the one four before me". (For tasks that need a position in what is *read*, see the `substring`
# recipes.) Reference: with either rotation it was learnt in 40 steps, and in texts much longer than those of training
# both lost their aim: base 100 is small, so distances that have never been seen come round to angles that have. RoVE
# lost more of it, 0.67 against 0.55 nats at 256 tokens and 1.47 against 1.00 at 512: what it reads from far off is
# turned too, in ways that its training has not shown, and of no use for this task. One seed.
#
# ## A layer of ours
#
# `RotaryAttention` is a whole layer, projections included, with grouped key heads, windows, positions and packed
# documents. `rotary_attention` is the same without projections, as a function of arrays.

# %%
layer = rove_jax.RotaryAttention(
    64, query_heads=4, kv_heads=2, head_dim=16, rotary=rotary, value_rotary=rotary, window=128, rngs=nnx.Rngs(0)
)
x = jax.random.normal(jax.random.key(0), (2, 32, 64))
print("output", layer(x).shape)
apart = jnp.concatenate([jnp.full((2, 20), 1), jnp.full((2, 12), 2)], axis=1)  # two documents in one row
print("packed", layer(x, segments=apart).shape)
jax.tree.map(jnp.shape, nnx.to_pure_dict(nnx.state(layer, nnx.Param)))

# %% [markdown]
# ## The dial
#
# RoPE and RoVE have the same weights, so a RoPE checkpoint can be *read* as a RoVE model, though each layer then
# gets values at angles it has never seen. A `Rotary` has a dial for it, `alpha`, which multiplies all angles: on
# values, 0 is exactly RoPE and 1 is RoVE. Variant `custom` gives values a rotation of their own.
#
# First without training. The RoPE twin of [notebook 1](01_quickstart.ipynb), read at several settings. (Trained now if
# it is not there: two minutes on two CPU cores, half a minute where `SIZE` is short.)

# %%
loop.run(recipes.load(CHECKOUT / "configs" / "tiny_rope.py", SMALLER), RUNS / "tiny_rope", say=lambda line: None)
rope = runs.open_run(RUNS / "tiny_rope")
protocol = Protocol((rope.config.data.context_length,), documents=sized(6, 4, 2))


def nats(run):
    return runs.measure_perplexity(run, protocol)["results"][0]["nll"]


settings = sized((0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0), (0.0, 0.1, 0.4, 1.0), (0.0, 1.0))
read = [nats(runs.dialled(rope, alpha)) for alpha in settings]
print(f"as trained {nats(rope):.4f}, dial at 0 {read[0]:.4f}, dial at 1 {read[-1]:.4f} nats per byte")

# %%
picture = Picture(["a RoPE checkpoint, values turned by alpha"], size=(5.5, 3.3))
picture.line(0, "no training", settings, read, marked=True)
picture.dress(0, "alpha of the values", "nats per byte")
show(picture, "dial")

# %% [markdown]
# At 0 it is the model as trained, to the last digit. Reference: a little turn cost nothing, and a full one 0.07 nats,
# which is less than one might fear. It may be that this tiny model looks mostly at its nearest neighbours, whose values
# are turned little. (The authors of katgpt-rs report of gemma-2-2b, turned the same way, that its perplexity rose by
# half on 65 tokens and to two and a half times on 162.)
#
# ## Turning it while training
#
# `training.init_from` starts a run from another's weights; the variant may differ. Three ways to spend the same
# number of steps: stay with RoPE; turn the dial to 1 at once; or turn it in stages. Each stage is a run in its own
# folder. (A minute on two CPU cores.)

# %%
steps = sized(120, 60, 4)
ways = {"stay with RoPE": (0.0,), "to 1 at once": (1.0,), "in three stages": (0.1, 0.4, 1.0)}
ways = sized(ways, ways, {"to 1 at once": (1.0,)})


def stage(source, alpha, count, name):
    words = ["--model.variant", "custom", "--model.value-rotary.alpha", alpha, "--training.init-from", source]
    words += ["--training.steps", count, "--optimizer.peak-lr", 1e-3, "--optimizer.warmup-steps", 10]
    recipe = recipes.load(CHECKOUT / "configs" / "tiny_rope.py", [*SMALLER, *map(str, words), "--evaluation.no-at-end"])
    loop.run(recipe, RUNS / "dial" / name, say=lambda line: None)
    return RUNS / "dial" / name


ends = {}
for way, alphas in ways.items():
    source = RUNS / "tiny_rope"
    for number, alpha in enumerate(alphas):
        print(f"{way}, values turned by {alpha}:", flush=True)
        source = stage(source, alpha, steps // len(alphas), f"{way.replace(' ', '-')}-{number}")
    ends[way] = runs.open_run(source)
    print(f"{way:16} {nats(ends[way]):.4f} nats per byte")

# %% [markdown]
# Reference: 120 steps (a seventh of the training) brought the turned model level with the one that stayed with RoPE,
# 1.149 against 1.148 nats, and stages were no better than the whole turn at once, 1.152. Is anything gained in longer
# texts?

# %%
reached, perplexities = sized((128, 256, 512, 1024), (128, 512, 1024), (64, 128)), {}
picture = Picture(["after a short retraining"], size=(5.5, 3.5))
for style, (way, run) in enumerate(ends.items()):
    found = runs.measure_perplexity(run, dataclasses.replace(protocol, lengths=reached))["results"]
    perplexities[way] = [record["perplexity"] for record in found]
    picture.line(0, way, reached, perplexities[way], style, marked=True)
    print(f"{way:16} perplexity", ", ".join(f"{value:.2f} at {n}" for value, n in zip(perplexities[way], reached)))
first, *others = perplexities.values()
for way, values in zip(list(perplexities)[1:], others):
    changes = ", ".join(f"{value / base - 1:+.1%} at {n}" for value, base, n in zip(values, first, reached))
    print(f"{way:16} against staying with RoPE: {changes}")
picture.dress(0, "bytes in a window", "perplexity per byte", xscale="log")
picture.tick(0, reached)
show(picture, "retrained")

# %% [markdown]
# Below 0, the turned model is the better one. Reference: the more the text exceeded the training length, the more the
# turn helped, 5.3 against 5.7 at 1024 bytes. One seed, one tiny model, few steps: a way to ask the question, and no
# answer to it. Whatever you find with larger ones, `python -m eval compare` puts it side by side with intervals, and
# each number says where it is from.
