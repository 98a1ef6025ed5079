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
from install import CHECKOUT, RUNS, SMALLER, show, sized

# %%
from rove_jax import distributed, recipes
from rove_jax.analysis import aliasing, inversion, limits, model_figures, model_swap, moments, score_figures, sweep
from rove_jax.analysis.product import coefficients, phase_set, rope_frequencies, rope_product
from rove_jax.evaluation import runs
from rove_jax.evaluation.tables import number, table
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
# (These waves are a formula: they are the same on every machine.) Left: it falls, and then it wobbles. Middle: the slow
# pairs make the trend and the fast ones the noise, whose size does not shrink. Right: over all distances the score is
# roughly a normal variable. Everything that follows is a consequence: a trend that grows like a logarithm, and noise.
#
# ## Positions: inversion and aliasing
#
# *Inversion*: take one distance from the near half of the context and one from the far half. How often does the far
# one score higher? 1/2 would mean that the score says nothing. *Aliasing*: how often does a position have another
# with exactly the same score, once scores are rounded to bfloat16?

# %%
lengths = score_figures.octaves(LENGTH)
show(score_figures.inversions(lengths), "inversions")

# %% [markdown]
# Theory says that both get worse with length, and that a larger base makes both worse, as long as the base is above the
# length. (Base 10,000 at length 32,768 is not: even its slowest wave is past half a turn there.) Three ways to compute
# one case, by counting, by exact moments of a normal variable and by the closed form of the limit:

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
# Wherever the base is above the length, two failures are to rise with the base and two to fall: no base helps all four.
# That is table 1 of the paper. `against_table` says where a sweep disagrees with it:

# %%
cells = sweep.base_sweep(
    64, [base for base in bases if base > LENGTH], (LENGTH // 16, LENGTH), token_phases="uniform", draws=6
)
sweep.against_table(cells) or "as the paper has it"

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
# distance is swept, far beyond the 128 bytes that the models were trained on. The same from a shell: `python -m
# eval limits --workdir runs/tiny_rope --out limits`.

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
# An inversion rate of 1/2 is a coin toss. Reference: up to the training length, 128, near positions tended to score
# higher; beyond it, inversion was close to 1/2 for positions and for tokens, and nearly every position had an equal.
# The two models were alike in this, since their scores are of one kind. Head by head, at the longest length:

# %%
show(model_figures.heads(measured["RoPE"]), "heads")

# %% [markdown]
# The last panel counts *effective* frequencies: a head has 32 pairs, but only so many carry weight, and theory should
# be read with that number in place of 32. (Reference: 4 to 9, and so far out no head was better than another.) Now for
# one head in detail: its score over distance for two keys, and how often their order flips.

# %%
text = limits.captured_text(models["RoPE"], limits.Asked(layers=(0,), heads=(0,), documents=2))
view = model_figures.view(models["RoPE"].config.model, text, seed=0)
show(model_figures.head_inversion(view, LENGTH // 4), "head_inversion")

# %% [markdown]
# Does it decay? Not if the head's phases are unlike those of theory, which is the most orderly case. (Reference: no
# decay at all.) Where do equal scores lie, and how many would chance have?

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
names = (*model_figures.RATES, "swap_unseen", "swap_unseen_context", "swap_change")
means = {one: {name: limits.mean_over_heads(found, name) for name in names} for one, found in measured.items()}
longest = asked.lengths[-1]
rows = [[name.replace("_", " "), *(number(means[one][name][longest]) for one in models)] for name in names]
print(table([f"mean over heads at {longest}", *models], rows))

# %% [markdown]
# *swap unseen* is the share of swaps of two tokens alone that leave a head's output as it was, *swap unseen context*
# the same in the text around them, where the two are a small part of what a head reads and rounding hides some. RoPE's
# heads see none of it, by construction (1 in both). Reference for RoVE's: every swap was seen of two tokens alone, and
# about nine of ten in the text.
#
# ## And the model as a whole?
#
# A model has many heads, at several layers. So here two tokens of a real text change places, and the model reads it.
# Both matter to the prediction (it changes if either is lost), and in half of the swaps the places are those that the
# scores of *all* heads of the first layer notice least. How often is the prediction the same, to one part in a hundred?

# %%
show(model_figures.model_swaps(list(measured.values()), list(measured)), "model_swaps")

# %%
for name, found in measured.items():
    rows = [
        [one["kind"], *(number(one[what]) for what in model_swap.SUMMARY)]
        for one in model_swap.by_kind(found["model_swaps"])
    ]
    print(name, table(["places", *model_swap.SUMMARY], rows), sep="\n\n", end="\n\n")

# %% [markdown]
# *gap* is the median change of a logit in the first layer, *matter* the share of swaps whose tokens matter. Of these,
# *blind* is the share that goes unseen and *argmax_kept* the share with the same likeliest token; *change* is the
# median change of the output over that of losing the tokens. *unseen*, of all: not one logit differs.
#
# Reference, of smaller models (width 64, 400 steps, 512 bytes): at the nearest places and at random ones, with one
# layer 92 and 29% were blind for RoPE, 38 and 7% for RoVE; with four layers 49 and 21% for RoPE, 27 and 5% for RoVE. So
# more layers help, since the tokens between have seen the swap, and values that know their distance help too.
#
# Next: [long contexts](04_long_context.ipynb).
