"""Checkpoints written by two processes, and read by two, by one, and when they are damaged."""

import os
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest
from checkpoint_damage import data_file, flip, place
from tiny_runs import SETTINGS, saved_steps, settings

from rove_jax import config
from rove_jax.training import setup, state
from rove_jax.training.checkpoints import Checkpoints
from rove_jax.training.checkpoints.digest import by_path

CFG = settings(SETTINGS.data, training={"batch_size": 8}, mesh={"data": 1, "fsdp": 2, "tensor": 2})

PROGRAM = """
import sys
import jax, jax.numpy as jnp
sys.path.insert(0, "tests")
where, job, address, index = sys.argv[1:]
jax.distributed.initialize(address, 2, int(index))
from checkpoint_damage import at
from test_checkpoint_processes import CFG
from rove_jax import config
from rove_jax.training import setup, state
from rove_jax.training.checkpoints import Checkpoints
from pathlib import Path
made = setup.make(CFG)
with Checkpoints(Path(where), keep_last=2) as checkpoints:
    if job == "save":
        fresh = state.create(CFG, made.optimizer, made.target)
        for step in (1, 2, 3):
            checkpoints.save(at(fresh, step), {"config": config.to_dict(CFG)}, float(step))
            checkpoints.settle()
    else:
        step, found, skipped = checkpoints.newest(lambda step: checkpoints.restore(step, made.target))
        total = jax.jit(lambda tree: sum(jnp.abs(leaf).sum() for leaf in jax.tree.leaves(tree)))(found.params)
        print("found", step, float(total), len(skipped), *skipped, flush=True)
"""


def run(workdir, job: str) -> list[str]:
    """What each of two processes of two devices prints of `job`."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        address = f"localhost:{probe.getsockname()[1]}"
    words = [sys.executable, "-c", PROGRAM, str(workdir), job, address]
    around = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "2", "PYTHONPATH": "."}
    processes = [
        subprocess.Popen([*words, str(index)], env=around, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for index in range(2)
    ]
    ended = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], ended
    return [out for out, _ in ended]


@pytest.mark.slow
def test_two_processes_write_and_agree_on_what_is_whole(tmp_path, checkout, monkeypatch):
    monkeypatch.chdir(checkout)
    run(tmp_path, "save")
    assert saved_steps(tmp_path) == [1, 2, 3], "the best and the last two"

    # One process of one device reads what two of two wrote, and finds what it would have written itself.
    alone = setup.make(settings(CFG.data, base=CFG, mesh={"data": 1, "fsdp": 1, "tensor": 1}))
    expected = state.create(alone.settings, alone.optimizer, alone.target)
    with Checkpoints(tmp_path) as checkpoints:
        found = checkpoints.restore(3, alone.target)
        checkpoints.check_arrays(2)
    for name, leaf in by_path(found.params).items():
        np.testing.assert_array_equal(leaf, by_path(expected.params)[name], err_msg=name)

    flip(data_file(tmp_path, 3))
    place(tmp_path, 2).joinpath("params", "manifest.ocdbt").unlink()
    said = run(tmp_path, "read")
    total = float(sum(np.abs(leaf).sum() for leaf in map(np.float64, jax.tree.leaves(expected.params))))
    for out in said:
        step, sum_read, skipped = out[out.index("found") :].split()[1:4]
        assert (step, skipped) == ("1", "2") and float(sum_read) == pytest.approx(total, rel=1e-5), said
        assert "3: damaged: " in out and "2: damaged: params." in out
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["1", "2.damaged", "3.damaged"]
    assert config.from_dict(config.Config, Checkpoints(tmp_path).metadata(1)["config"]) == CFG
