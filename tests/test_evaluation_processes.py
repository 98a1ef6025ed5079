"""Requests scored by two processes together: each gets all scores, and they are those of one process."""

import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_evaluation_engine import ROVE, requests

from rove_jax import config, sharding
from rove_jax.evaluation.engine import Engine

PROGRAM = """
import os, sys
os.environ["JAX_PLATFORMS"], os.environ["JAX_NUM_CPU_DEVICES"] = "cpu", "1"
sys.path[:0] = ["tests"]
import jax, numpy
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))
from reference.weights import random_params
from test_evaluation_engine import ROVE, requests
from rove_jax import config, sharding
from rove_jax.evaluation.engine import Engine
mesh = sharding.make_mesh(config.Mesh(data=-1))
assert mesh.size == 2
engine = Engine(ROVE, random_params(ROVE, seed=2), mesh=mesh)
assert engine.joint and not Engine(ROVE, random_params(ROVE, seed=2)).joint
scores = engine.score(requests())
numpy.save(sys.argv[3], numpy.concatenate([score.nlls for score in scores]))
"""


@pytest.mark.slow
def test_two_processes_score_as_one(tmp_path):
    from reference.weights import random_params

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, address, str(number), str(tmp_path / f"{number}.npy")],
            cwd=Path(__file__).resolve().parent.parent,
        )
        for number in (0, 1)
    ]
    assert [process.wait(timeout=240) for process in started] == [0, 0]
    one = Engine(ROVE, random_params(ROVE, seed=2), mesh=sharding.make_mesh(config.Mesh(data=1)))
    expected = np.concatenate([score.nlls for score in one.score(requests())])
    for number in (0, 1):
        np.testing.assert_allclose(np.load(tmp_path / f"{number}.npy"), expected, atol=2e-5)
