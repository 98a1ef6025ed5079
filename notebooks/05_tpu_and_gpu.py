# %% [markdown]
# # 5. TPUs, GPUs, and machines that are not here
#
# Where a run will compute, by which attention kernel, how fast, and what a recipe would take on hardware that you
# have not rented yet. Everything below runs on a CPU, a T4 or a TPU, and says what it finds. On a CPU it plays with
# 8 virtual devices, so that meshes can be tried without any.

# %%
from install import CHECKOUT, RUNS, SIZE, SMALLER, render, show, sized

# %%
import importlib.util
import sys

import jax
import numpy as np

from rove_jax import attention, config, recipes, sharding
from rove_jax.analysis.picture import Picture
from rove_jax.attention.table import markdown
from rove_jax.evaluation import rates, results
from rove_jax.evaluation.tables import table
from rove_jax.evaluation.workload import PROGRAMS, Workload
from rove_jax.models import functional
from rove_jax.planning import document, executable, plan_table
from rove_jax.training import loop, metrics, setup

jax.config.update("jax_num_cpu_devices", 8)  # of the CPU only, and only before devices are first asked for
jax.devices()

# %% [markdown]
# ## A mesh
#
# Devices lie in a grid with three axes. Along `data` each has its own rows of the batch. Along `fsdp` too, and
# parameters and optimizer state are cut up as well: gathered when needed, a layer at a time. Along `tensor` the
# heads and the MLP of one layer are divided. A `-1` takes what is left. Nothing in a model knows of it: parameters
# carry *names* of axes, and one table says which name lies along what.

# %%
count = len(jax.devices())
layout = ["--mesh.data", "-1", "--mesh.fsdp", str(min(count, 4)), *SMALLER]
rove = recipes.load(CHECKOUT / "configs" / "tiny_rove.py", layout)
made = setup.make(rove)
print("\n".join(made.lines()))

# %%
names, shapes = functional.axes(rove.model), functional.abstract(rove.model)
places = sharding.parameters(names, shapes, made.mesh)
rows = []
for (path, leaf), place in zip(jax.tree_util.tree_leaves_with_path(shapes), jax.tree.leaves(places)):
    name = jax.tree_util.keystr(path, simple=True, separator=".")
    rows.append([name, str(leaf.shape), ", ".join(map(str, place.spec)), str(place.shard_shape(leaf.shape))])
render(table(["parameter", "shape", "lies along", "on one device"], rows))

# %% [markdown]
# ## The same run on another mesh
#
# The batch of a step is a function of seed and step, whatever the mesh, so losses agree up to the order in which
# numbers are added. (A run that was started on one mesh can also go on on another.) Half a minute a mesh on two CPU
# cores, most of it compiling.
#
# On other meshes, such as 2 x 2 of `data` and `fsdp`, XLA may print "[SPMD] Involuntary full rematerialization": its
# partitioner gathers one array of activations whole on its way between two layouts. Results are right; the step takes
# a little more memory and network.

# %%
meshes = {"one device": (1, 1, 1), "fsdp 4": (1, 4, 1), "data 2 x tensor 2": (2, 1, 2)}
tried = list(meshes)[sized(slice(None), slice(None, None, 2), slice(2, 3))] if count >= 4 else list(meshes)[:1]
steps = sized("20", "12", "2")
short = ["--training.steps", steps, "--training.log-every", "1", "--evaluation.no-at-end"]
losses = {}
for name in tried:
    sizes = meshes[name]
    words = [word for axis, size in zip(("data", "fsdp", "tensor"), sizes) for word in (f"--mesh.{axis}", str(size))]
    workdir = RUNS / "meshes" / "-".join(map(str, sizes))
    recipe = recipes.load(CHECKOUT / "configs" / "tiny_rove.py", [*SMALLER, *short, *words])
    print(f"{name}:", flush=True)
    loop.run(recipe, workdir, say=lambda line: None)
    losses[name] = np.array([row["loss"] for row in metrics.read_rows(workdir / metrics.FILE)])
    print(f"{name:20} first loss {losses[name][0]:.6f}, last {losses[name][-1]:.6f}")

# %% [markdown]
# Curves of losses would lie on each other, so these are their differences from the first mesh. Weights of float32
# have seven digits; from step to step a difference in the last one may grow a little.

# %%
picture = Picture([f"training loss, less that on {tried[0]}"], size=(6, 3.2))
for style, name in enumerate(tried[1:] or tried):
    picture.line(0, name, range(1, int(steps) + 1), losses[name] - losses[tried[0]], style, marked=True)
    print(f"{name}: at most {np.abs(losses[name] - losses[tried[0]]).max():.1e} of {losses[name][-1]:.2f} nats")
picture.dress(0, "step", "nats per byte")
picture.axes[0].ticklabel_format(axis="y", scilimits=(0, 0))
show(picture, "meshes")

# %% [markdown]
# ## Attention kernels
#
# RoVE needs no kernel of its own: values are turned before, outputs after, and any attention in between serves.
# There are four, and `auto` takes the first that can serve a call. A name serves or refuses with a reason; nothing
# falls back in silence. Refusals by feature:

# %%
render(markdown())

# %% [markdown]
# The choice depends on shapes and hardware alone, so it can be asked for machines that are not here. A T4 (compute
# capability 7.5) has no fused kernel for us, and computes in float32; a TPU has ours, which turns all four vectors
# while they are in fast memory anyway.

# %%
machines = {
    "a CPU": attention.Target("cpu"),
    "a T4": attention.Target("gpu", 7.5),
    "an H100": attention.Target("gpu", 9.0),
    "a TPU": attention.Target("tpu"),
}
for name, target in machines.items():
    for dtype in ("float32", "bfloat16"):
        call = attention.Call(8, 1024, 1024, 12, 12, 64, dtype)
        chosen = attention.resolve("auto", call, target)
        print(f"{name:8} {dtype:9} {chosen.backend:8} {chosen.reason}")
        for refused, why in chosen.refused.items():
            print(f"{'':18} not {refused}: {why}")

# %% [markdown]
# ## How fast is it here?
#
# Two variants side by side, in turns, so that what slows the machine down meets both. Ratios are paired by round:
# the median of each round's ratio, and its quartiles. If the caption says that other work was running, rates say
# little, and ratios no more than their quartiles do. (Set `preset="gpt2-small"` and a longer context where there is
# an accelerator.) About a minute on two CPU cores.
#
# *% of product* compares with one large matrix product, measured in the same rounds: 2,048 by 2,048 on a CPU, in
# float32. It is a yardstick and no ceiling. Smaller products may stay in a core's cache and run faster than it, and
# on a busy machine it may meet more of the other work than a program does; then a program has more than 100%.

# %%
asked = Workload(
    preset="tiny",
    variants=sized(("rope", "rove"), ("rope", "rove"), ("rove",)),
    batch_size=sized(8, 8, 1),
    context_length=sized(256, 256, 32),
    layers=sized(None, None, 1),
    scan_layers=SIZE == "tiny",
    mesh=config.Mesh(data=1),
)
measured = rates.run(asked, sized(PROGRAMS, PROGRAMS, ("train",)), rounds=sized(10, 5, 1))
render(rates.speed_caption(measured), rates.speed_table(measured))

# %%
load, warning = measured["provenance"]["load_before"], rates.busy(measured["provenance"])
print(f"load as it began: {load}{warning or ', which is quiet enough'}")
for record in measured["results"]:
    if ratio := record["ratio"]:
        low, high = ratio["lower_quartile"], ratio["upper_quartile"]
        verdict = "not told apart" if low <= 1 <= high else "told apart in most rounds"
        verdict = "take it again on a quiet machine" if warning else verdict
        print(f"{rates.name_of(record):13} RoVE / RoPE {ratio['median']:.2f} ({low:.2f} to {high:.2f}): {verdict}")

# %% [markdown]
# ## What would it take elsewhere?
#
# `train plan` compiles the train step of a recipe for a machine that is not here: memory, arithmetic, GB moved in
# memory, collectives, and from the data sheet a bound on the time. For TPUs it needs `libtpu` (`pip install libtpu`,
# no TPU; half a minute); without it, and where `SIZE` is not full, the plan below is for 8 virtual CPU devices, of
# which no data sheet is known. (A token is a byte here.)

# %%
there = importlib.util.find_spec("libtpu") is not None and jax.default_backend() == "cpu" and SIZE == "full"
topology = "v5e:2x2" if there else "cpu:8"
plain = recipes.load(CHECKOUT / "configs" / "tiny_rove.py", SMALLER)
planned = document.make("configs/tiny_rove.py", plain, topology, 1, lambda line: print(line, file=sys.stderr))
render(plan_table.plan_text(planned))

# %% [markdown]
# The paper's models are worth planning for: [configs/README.md](../configs/README.md) has them for several
# machines. One question is what RoVE costs. Here are the train steps of `gpt2-small` with RoPE and with RoVE,
# compiled for four v5e chips some time ago:

# %%
stored = results.read(CHECKOUT / "eval" / "results" / "plan-gpt2-small-v5e-2x2.json")
render(executable.plan_text(stored))

# %% [markdown]
# Reference, since it was compiled once and is not here: look at *GB moved*, the bytes read and written in the memory
# of one chip. The turns of RoVE happen inside the attention kernel, so next to nothing is added.
#
# ## Starting a real run
#
# ```bash
# python -m train plan --config configs/gpt2_small_rove.py --topology v5e:4x4      # first
# python -m train --config configs/gpt2_small_rove.py --dry-run                    # on the machine, before it costs
# python -m train --config configs/gpt2_small_rove.py --workdir runs/gpt2_small_rove
# ```
#
# The same command on every host of a slice or a cluster; [train/README.md](../train/README.md) has launch scripts.
# On a T4, add `--model.dtype float32`, since it has no units for bfloat16.
#
# Next: [RoVE in a model of your own](06_bring_your_own.ipynb).
