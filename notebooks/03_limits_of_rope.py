# %% [markdown]
# # 3. What RoPE's scores cannot tell apart
#
# A RoPE score is a sum of waves. Query and key fixed, and $m$ positions apart, it is
#
# $$S(m) = \sum_n a_n \cos(m\,\omega_n + \varphi_n)$$
#
# with an amplitude and a phase for each pair of channels. Du et al. (arXiv 2605.15514) ask what such a sum can
# still tell as contexts grow, and show four ways to fail: it may rank a far position above a near one, give two
# positions the same score, rank the wrong token first, or give two tokens the same score. This notebook draws all
# four, measures them in the two models of [notebook 1](01_quickstart.ipynb), and ends where that paper meets RoVE:
# when a *score* cannot tell, does the *output* know?
#
# A *reference* below is what came out once, with `SIZE = "full"`, seed 0, on 2 CPU cores; other numbers are computed
# from your run.

# %%
from install import CHECKOUT, RUNS, SMALLER, render, show, sized

# %%
from rove_jax import distributed, recipes
from rove_jax.analysis import aliasing, inversion, limits, model_figures, moments, score_figures, sweep
from rove_jax.analysis.product import coefficients, phase_set, rope_frequencies, rope_product
from rove_jax.cli.limits import tables
from rove_jax.evaluation import runs
from rove_jax.training import loop

_ = distributed.keep_compiled()  # where programs are kept
LENGTH = sized(32_768, 8192, 512)

# %% [markdown]
# ## A score over distance
#
# 64 pairs, all amplitudes 1 and all phases 0, which is the most orderly case there is: at distance 0 all waves are
# at their crest. (Real heads are less orderly. With random phases the curve shows no decay at all.)

# %%
show(score_figures.score(LENGTH), "score")

# %% [markdown]
# (These waves are a formula: they are the same on every machine.) (a): it falls, first steeply, about like minus the
# logarithm of the distance, and then it wobbles. (b): the slow pairs make the trend far off, and the fast ones the
# noise, whose size does not shrink. (c): the scores at all distances beside a normal variable. Theory takes them for
# one; the legend says how far that is from true here. (*KS* is the largest difference of the two distribution
# functions, and *skew* of a normal variable is 0; near distance 0 are more high scores than it would have.) What
# follows comes of the trend and the noise.
#
# ## Positions: inversion and aliasing
#
# *Inversion*: take one distance from the near half of the context and one from the far half. How often does the far
# one score higher? 1/2 would mean that the score says nothing. *Aliasing*: how often does a position have another
# with exactly the same score, once scores are rounded to bfloat16?

# %%
lengths = score_figures.octaves(LENGTH)
picture = score_figures.inversions(lengths)
show(picture, "inversions")

# %% [markdown]
# Theory says that both get worse with length, and that a larger base makes both worse, as long as the base is above the
# length. (Base 10,000 at length 32,768 is not: even its slowest wave is past half a turn there.) It speaks of a trend.
# What is counted in one wave goes up and down about it, so how often does a curve fall from one length to the next, and
# from one base to the next?

# %%
counted = {(panel, float(series.removeprefix("B = ")), length): value for panel, series, length, value in picture.rows
           if panel in "bc" and "closed" not in series}  # fmt: skip
larger = dict(zip(score_figures.BASES, score_figures.BASES[1:]))
for panel, what in (("b", "inversion"), ("c", "aliasing")):
    below = {(base, length): value for (of, base, length), value in counted.items() if of == panel and length < base}
    for along in ("length", "base"):
        steps = {}
        for base, length in below:
            after = (base, 2 * length) if along == "length" else (larger.get(base), length)
            if after in below:
                steps[base, length] = below[after] - below[base, length]
        (base, length), most = min(steps.items(), key=lambda step: step[1])
        falls = sum(step < 0 for step in steps.values())
        where = f", most by {-most:.3f}, at B = {base:,.0f} and M = {length:,.0f}" if falls else ""
        print(f"{what} over the {along}: falls in {falls} of {len(steps)} steps{where}")

# %% [markdown]
# Three ways to compute one case: by counting, by exact moments of a normal variable, by the closed form of the limit.

# %%
turning = rope_frequencies(64, 1e5)
orderly = coefficients(phase_set("aligned", 64))
wave = rope_product(orderly, turning, range(LENGTH))
for method in ("empirical", "normal", "closed"):
    share = inversion.position_inversion(orderly, turning, LENGTH, method=method, base=1e5)
    print(f"P(far half scores higher), {method:9}: {float(share):.3f}")
found = aliasing.position_aliasing(wave, "bfloat16")
print(f"pairs of positions with the same score: {found.pairs:,}; positions in one: {found.share:.1%}")
fit = moments.normal_fit(wave)
print("scores beside a normal variable:", ", ".join(f"{name} {value:.3g}" for name, value in fit._asdict().items()))

# %% [markdown]
# ## Tokens: inversion and aliasing
#
# Now two keys. One scores higher when both are near. At how many distances is the order the other way, and at how
# many are the scores equal?

# %%
show(score_figures.tokens(lengths), "tokens")

# %% [markdown]
# Here theory says that a larger base *helps*: its waves are slower, and what two tokens differ in survives longer. So
# positions want a small base and tokens a large one.
#
# ## The trade-off

# %%
bases = sized((*score_figures.BASES, 1e9), (*score_figures.BASES, 1e9), (1e4, 1e5, 1e7))
show(score_figures.tradeoff((LENGTH // 16, LENGTH), bases), "tradeoff")

# %% [markdown]
# Above the length, a larger base is to make two failures more frequent and two less: no base helps all four. That is
# table 1 of the paper, and a trend again. `against_table` compares the ends of a sweep with it, the least base with the
# largest and the shortest length with the longest; from base to base there may be steps the other way:

# %%
cells = sweep.base_sweep(
    64, [base for base in bases if base > LENGTH], (LENGTH // 16, LENGTH), token_phases="uniform", draws=6
)
print("Ends:", "; ".join(sweep.against_table(cells)) or "as the paper has it")
for one, other in zip(cells, cells[2:]):  # the same length, and the next base
    for name in sweep.FAILURES:
        before, after = getattr(one, name), getattr(other, name)
        if (after - before) * (1 if name in sweep.WORSE_WITH_BASE else -1) < 0:
            step = f"from B = {one.base:,.0f} to {other.base:,.0f}"
            print(f"the other way: {name.replace('_', ' ')} {before:.3g} to {after:.3g}, {step} at M = {one.length}")

# %% [markdown]
# ## Where the two papers meet
#
# Suppose that both of two keys score the same at distance $m_1$ as at $m_2$. Let the two tokens change places. All
# scores stay, so all weights stay; and a RoPE head, whose values know no position, gives the *same output to the
# last bit*. It cannot know that anything happened. A RoVE head has the same scores, but reads each value turned by
# its distance.

# %%
show(score_figures.swap_of_two(LENGTH // 4), "swap")

# %% [markdown]
# Each dot is one such swap: at exactly 0 for RoPE (a theorem), away from it for RoVE. So RoVE does not mend the scores
# (they are the same ones), but its outputs can tell where its scores cannot.
#
# ## On trained models
#
# That was theory, with amplitudes of 1. The models of notebook 1 have amplitudes and phases of their own; if you
# have not trained them yet, this does (four minutes on two CPU cores, one where `SIZE` is short).

# %%
for name in ("tiny_rope", "tiny_rove"):
    print(f"{name}:", flush=True)
    loop.run(recipes.load(CHECKOUT / "configs" / f"{name}.py", SMALLER), RUNS / name, say=lambda line: None)
models = {"RoPE": runs.open_run(RUNS / "tiny_rope"), "RoVE": runs.open_run(RUNS / "tiny_rove")}

# %% [markdown]
# Queries, keys and values are taken from held-out text as each head computes them, before rotation. Then the
# distance is swept, far beyond the 128 bytes that the models were trained on. Half a minute on two CPU cores, one where
# they are busy; a bar for each model shows how far it is. The same from a shell: `python -m eval limits --workdir
# runs/tiny_rope --out limits`.

# %%
asked = limits.Asked(
    lengths=sized((128, 512, 2048, 8192), (128, 512, 2048), (64, 128)),
    draws=sized(8, 4, 2),
    documents=2,
    swaps=sized(48, 24, 2),
    swap_length=sized(512, 256, 64),
)
measured = {name: limits.measure_limits(run, asked) for name, run in models.items()}
for what in model_figures.RATES:
    for name, found in measured.items():
        rates = limits.mean_over_heads(found, what)
        print(f"{name} {model_figures.RATES[what]:24}", ", ".join(f"{rates[m]:.3f} at {m}" for m in asked.lengths))
show(model_figures.by_length(list(measured.values()), list(measured)), "lengths")

# %% [markdown]
# An inversion rate of 1/2 is a coin toss, and where a position has an equal its score does not say which of them it is.
# (Training was at 128.) From which of these lengths on is it as bad as that?

# %%
tosses = {"position_inversion": (0.45, "a coin toss"), "token_inversion": (0.45, "a coin toss"),
          "position_partner": (0.9, "nine of ten have one")}  # fmt: skip
for what, (least, words) in tosses.items():
    for name, found in measured.items():
        rates = limits.mean_over_heads(found, what)
        bad = [m for m in asked.lengths if all(rates[other] >= least for other in asked.lengths if other >= m)]
        when = f"from {bad[0]} on" if bad else f"not up to {asked.lengths[-1]}"
        print(f"{name} {model_figures.RATES[what]:24} at least {least:g} ({words}): {when}")

# %% [markdown]
# (The scores of both models are of one kind, so what theory says holds for both.) Head by head, at the longest length:

# %%
show(model_figures.heads(measured["RoPE"]), "heads")

# %% [markdown]
# The last panel counts *effective* frequencies: a head has 32 pairs, but only so many carry weight, and theory should
# be read with that number in place of 32. (Reference: 4 to 9, and so far out no head was better than another.) Now for
# one head in detail: (a) its score over distance for two keys, (b) how often a position in the far half scores higher
# than one in the near half, (c) at how many distances the keys' order is the other way.

# %%
text = limits.captured_text(models["RoPE"], limits.Asked(layers=(0,), heads=(0,), documents=2))
view = model_figures.view(models["RoPE"].config.model, text, seed=0, run="tiny_rope")
show(model_figures.head_inversion(view, LENGTH // 4), "head_inversion")

# %% [markdown]
# Does it decay with distance? Where (b) is below 1/2 it does, and at 1/2 it does not: the phases of a head need not be
# those of theory, which are the most orderly case. Where do equal scores lie, and how many would chance have?

# %%
show(model_figures.head_aliasing(view, LENGTH // 4), "head_aliasing")

# %% [markdown]
# ## When the score cannot tell, does the output know?
#
# For every head: find places where the scores of both of two real tokens are equal, let the tokens change places,
# and look at the head's output. A point is a head; "unseen" means that the output is the same number by number in
# bfloat16.

# %%
show(model_figures.swaps(list(measured.values()), list(measured)), "swaps")

# %%
for found in measured.values():
    render(*tables(found)[2:4])

# %% [markdown]
# *unseen alone* is the share of swaps of two tokens alone that leave a head's output as it was, *unseen in text* the
# same in the text around them, where the two are a small part of what a head reads and rounding hides some. RoPE's
# heads see none of it, by construction (1 in both). Reference for RoVE's: every swap was seen of two tokens alone, and
# about nine of ten in the text.
#
# ## And the model as a whole?
#
# A model has many heads, at several layers. So here two tokens of a real text change places, and the model reads it.
# Both matter to the prediction (it changes if either is lost), and in half of the swaps the places are those that the
# scores of *all* heads of the first layer notice least. How often is the output *blind* to it, which is to say that the
# prediction is the same to one part in a hundred?

# %%
show(model_figures.model_swaps(list(measured.values()), list(measured)), "model_swaps")

# %%
for found in measured.values():
    render(*tables(found)[-2:])

# %% [markdown]
# *gap* is the largest change of a logit of attention in the first layer, and *matter* says how many swaps are of tokens
# that matter. To how many of these is the output *blind*, and how many keep the likeliest token (*argmax kept*)?
# *change* is that of the output over that of losing the tokens. *unseen*, of all: no number of the output differs.
#
# Reference, of smaller models (width 64, 400 steps, 512 bytes): at the nearest places and at random ones, with one
# layer 92 and 29% were blind for RoPE, 38 and 7% for RoVE; with four layers 49 and 21% for RoPE, 27 and 5% for RoVE. So
# more layers help, since the tokens between have seen the swap, and values that know their distance help too.
#
# Next: [long contexts](04_long_context.ipynb).
