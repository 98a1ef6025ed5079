"""Training by many processes, really started: one computation, one writer, and what happens to one happens to all."""

import json
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import numpy as np
import pytest
from many_processes import Processes
from tiny_runs import SETTINGS, arrays, changed, corpus, keep_programs, rows, saved_steps, settings, train

from rove_jax import config
from rove_jax.evaluation import at_end
from rove_jax.training import setup


@pytest.fixture
def processes(tmp_path, checkout) -> Iterator[Processes]:
    with Processes(tmp_path, checkout) as made:
        yield made


RECIPE = """
from rove_jax.config import Config, from_dict

def config():
    return from_dict(Config, {values})
"""


@pytest.fixture(scope="module")
def cfg(tmp_path_factory) -> config.Config:
    """Eight steps and a small evaluation. Runs differ in little, so that few programs are compiled."""
    keep_programs(tmp_path_factory)
    training = {
        "steps": 8,
        "batch_size": 8,
        "checkpoint_every": 4,
        "heartbeat_seconds": 5,
        "compilation_cache": str(tmp_path_factory.mktemp("programs")),
    }
    asked = {"at_end": True, "lengths": (16,), "scalings": ("none",), "documents": 1, "max_new_tokens": 2}
    base = changed(SETTINGS, model={"layers": 1}, training=training, evaluation=asked)
    return changed(settings(corpus(tmp_path_factory.mktemp("corpus")), base=base), mesh={"data": -1})


@pytest.fixture
def command(cfg, tmp_path) -> Callable[..., list[str]]:
    recipe = tmp_path / "recipe.py"
    recipe.write_text(RECIPE.format(values=config.to_dict(cfg)))
    return lambda *more: ["-m", "train", "--config", str(recipe), *map(str, more)]


def numbers(workdir: Path) -> np.ndarray:
    return np.array(rows(workdir, "step", "loss", "grad_norm", "learning_rate"), np.float64)


@pytest.mark.slow
def test_any_number_of_processes_is_the_same_run(processes, command, cfg, tmp_path):
    """One process straight through, and a run that goes through 4, 1 and 2 of them, to its end."""
    alone = changed(cfg, mesh={"data": 1})
    assert train(alone, tmp_path / "straight").finished
    straight, resumed = numbers(tmp_path / "straight"), tmp_path / "resumed"
    assert straight[:, 0].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    for stop, count in ((3, 4), (5, 1), (8, 2)):
        if count == 1:
            assert train(changed(alone, training={"stop_after": stop}), resumed).trained == 2
            continue
        more = ("--workdir", resumed, "--training.stop-after", stop, "--mesh.processes", count, "--mesh.fsdp", 2)
        processes.start(count, command(*more))
        assert processes.codes() == [0] * count, processes.said()
        assert f"step {stop} of 8: " in processes.outputs[0].read_text()
        for output in processes.outputs[1:]:
            assert not re.search(r"step \d|attention  |Evaluated", output.read_text()), "one of them speaks"
    np.testing.assert_allclose(numbers(resumed), straight, rtol=1e-5)
    one, many = (arrays(alone, folder, 8) for folder in (tmp_path / "straight", resumed))
    for name, leaf in one.items():
        np.testing.assert_allclose(many[name], leaf, rtol=0, atol=2e-5, err_msg=name)
    assert len(list((resumed / "tensorboard").iterdir())) == 3, "one of them writes"

    # The last two evaluated the run at its end, as one process does.
    [scored] = [json.loads(path.read_text()) for path in (resumed / "evaluation").glob("perplexity-8-*.json")]
    again = at_end.evaluate_run(tmp_path / "straight")["perplexity"]
    for found, expected in zip(scored["results"], again["results"], strict=True):
        assert found["nll"] == pytest.approx(expected["nll"], rel=1e-4) and found["tokens"] == expected["tokens"] > 0
    assert (resumed / "evaluation" / "sample-8.txt").read_text().startswith(cfg.evaluation.prompt)
    assert "Evaluated in" in processes.outputs[0].read_text()


LONG = ("--training.steps", 10**6, "--training.validation-every", 0, "--mesh.fsdp", 2)


@pytest.mark.slow
def test_neither_kills_nor_a_signal_to_one_process_cost_anything_but_time(processes, command, tmp_path):
    """Process 1 is killed, then process 0; then process 1 is asked to stop. Each time the same command goes on."""
    workdir = tmp_path / "run"
    words = command("--workdir", workdir, *LONG, "--training.checkpoint-every", 3)
    for victim, number in ((1, signal.SIGKILL), (0, signal.SIGKILL), (1, signal.SIGTERM)):
        before = max([0, *saved_steps(workdir)]) if workdir.exists() else 0
        processes.start(2, words)
        processes.wait_for(lambda: [row for row in rows(workdir, "step") if row[0] > before + 6])  # noqa: B023
        processes.running[victim].send_signal(number)
        codes = processes.codes(60)
        if number == signal.SIGKILL:
            assert (codes[victim], codes[1 - victim]) == (-number, 75), processes.said()
            [line] = processes.errors(1 - victim)
            assert "died" in line and "The same command" in line
            assert saved_steps(workdir)[-1] > before
    assert codes == [143, 143], processes.said()
    steps = [step for (step,) in rows(workdir, "step")]
    assert steps == list(range(1, steps[-1] + 1)) and saved_steps(workdir)[-1] == steps[-1]


FAILING = """
import errno, os, resource, sys
import orbax.checkpoint as ocp
from rove_jax.cli import train
from rove_jax.training.checkpoints import retries
from rove_jax.training.checkpoints.saver import Saver

retries.PAUSES = (0.5, 0.5, 0.5)
index, write, save, finalize = os.environ["JAX_PROCESS_ID"], 0, Saver.save, ocp.CompositeCheckpointHandler.finalize

def full():
    raise OSError(errno.ENOSPC, "no space at all")

def limited(self, where, items, metadata, prepare):
    global write
    write += 1
    limit = 10_000 if index == "1" and (write == 2 or write > 6) else resource.RLIM_INFINITY
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    save(self, where, items, metadata, full if index == "1" and write == 3 else prepare)

def finalized(self, directory):
    if write == 5:
        full()
    finalize(self, directory)

Saver.save, ocp.CompositeCheckpointHandler.finalize = limited, finalized
sys.exit(train.main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_save_that_fails_in_one_process_is_tried_again_by_all(processes, command, tmp_path):
    """Process 1 cannot write arrays, then has no room; later process 0 cannot rename; then process 1 never can."""
    words = command("--workdir", tmp_path / "run", *LONG, "--training.checkpoint-every", 5)
    processes.start(2, ["-c", FAILING, *words[2:]])
    assert processes.codes() == [1, 1], processes.said()
    said = [line for line in processes.outputs[0].read_text().splitlines() if "trying again in 0.5 s" in line]
    for line, why, count in zip(
        said,
        [
            "process 1: ValueError: ",
            "process 1: OSError: [Errno 28] no space at all",
            "OSError: [Errno 28] no space at all",
            *["process 1: ValueError: "] * 3,
        ],
        [1, 2, 1, 1, 2, 3],
        strict=True,
    ):
        assert why in line and line.endswith(f"({count} of 3)"), line
    saved = saved_steps(tmp_path / "run")
    assert len(saved) == 2 and saved[0] > 5, "the first two that could be saved are behind it"
    for index in (0, 1):
        [line] = processes.errors(index)
        assert "failed (" in line and line.endswith(f"the last good checkpoint is step {saved[-1]}")


def test_several_devices_to_a_process_of_a_cpu_are_warned_of(cfg, monkeypatch):
    def warned() -> bool:
        return any(
            "JAX_NUM_CPU_DEVICES=1" in line for line in setup.make(changed(cfg, mesh={"data": 4, "tensor": 2})).lines()
        )

    assert jax.local_device_count() > 1 and not warned()
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    assert warned()


@pytest.mark.parametrize(
    "more, line",
    [
        (["--distributed", "on"], "--distributed on: no other process to join"),
        (["--mesh.processes", "3"], "mesh.processes = 3: the run has 1; start that many, or set it to 1"),
    ],
)
def test_a_process_that_ought_not_to_be_alone_is_refused(command, capsys, monkeypatch, more, line):
    from rove_jax.cli import train

    monkeypatch.delenv("JAX_COORDINATOR_ADDRESS", raising=False)
    assert train.main([*command("--dry-run", *more)[2:]]) == 2
    assert line in capsys.readouterr().err.splitlines()[-1]
