"""The memory of a plan against what a run on this machine takes."""

import subprocess
import sys
from pathlib import Path

import pytest

RUN = """
import re
import jax, numpy as np
from rove_jax import config, sharding
from rove_jax.planning import recipe
from rove_jax.training import setup, state
from rove_jax.training.step import compile_update

def resident(what):
    return int(re.search(rf"{what}:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024

model = config.Model(layers=2, width=256, query_heads=4, kv_heads=4, mlp_width=1024, vocab=50_257, scan_layers=True)
cfg = config.Config(
    model=model,
    data=config.Data(tokenizer="gpt2", context_length=128),
    training=config.Training(batch_size=16),
    mesh=config.Mesh(1),
)
made = setup.make(cfg)
compiled = compile_update(cfg, made.model, 50_256, made.optimizer, made.target, made.mesh)
planned = recipe.memory(made, compiled, None)["total"]
before = resident("VmRSS")
open("/proc/self/clear_refs", "w").write("5")  # the peak starts here
current = state.create(cfg, made.optimizer, made.target)
tokens = jax.device_put(np.tile(np.arange(129, dtype=np.int32), (16, 1)), sharding.batch(made.mesh))
for _ in range(2):
    current, metrics = compiled(current, tokens)
    jax.block_until_ready(current)
print(planned, resident("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc to measure peaks")
def test_a_run_takes_the_memory_that_was_planned(checkout):
    """Most of it logits; a process of its own, whose memory nothing else has touched."""
    done = subprocess.run([sys.executable, "-c", RUN], capture_output=True, text=True, cwd=checkout)
    assert done.returncode == 0, done.stderr
    planned, taken = map(int, done.stdout.split())
    assert planned > 500e6, "far more than what a process needs beside"
    assert 0.8 < taken / planned < 1.3
