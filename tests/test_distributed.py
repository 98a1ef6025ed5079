"""Runs of many processes, really started: one computation and one ending, whatever happens to one of them."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tiny_runs import SETTINGS, arrays, changed, corpus, rows, saved_steps, settings

from rove_jax import config

TOGETHER = """
import os, signal, sys, time
from rove_jax import distributed
from rove_jax.cli import exits, train
from rove_jax.errors import UsageError
from rove_jax.training.stop import StopRequest

def work():
    print("joined", flush=True)
    {work}
    return 0

distributed.Peers.GRACE, distributed.Peers.LINGER = 0.5, 2.0
with StopRequest():
    train.together(distributed.initialize("on", heartbeat_seconds=2, join_seconds=20), work)
"""
"""A program of one process of many, without arrays."""


BEFORE = "import os; os.environ['JAX_PROCESS_ID'] == '1' and exit(3)"
"""One of them fails with this."""


class Processes:
    """Processes that are one run, on this machine's CPU, a device each.

    With two devices to a process, collectives over gloo can wait for each other without end on jax 0.10.2.
    """

    def __init__(self, folder: Path, checkout: Path) -> None:
        self.folder, self.checkout = folder, checkout
        self.running: list[subprocess.Popen] = []
        self.outputs: list[Path] = []

    def start(self, count: int, words: list[str]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        self.running, self.outputs = [], []
        for index in range(count):
            place = {
                "JAX_COORDINATOR_ADDRESS": address,
                "JAX_NUM_PROCESSES": str(count),
                "JAX_PROCESS_ID": str(index),
            }
            environment = os.environ | {"JAX_NUM_CPU_DEVICES": "1"} | (place if count > 1 else {})
            self.outputs.append(self.folder / f"output-{index}.txt")
            with self.outputs[-1].open("w") as file:
                self.running.append(
                    subprocess.Popen(
                        [sys.executable, *words],
                        cwd=self.checkout,
                        env=environment,
                        stdout=file,
                        stderr=subprocess.STDOUT,
                    )
                )

    def wait_for(self, condition: Callable[[], bool], seconds: float = 240.0) -> None:
        """Return when `condition` holds; fail if a process ends first, or in so many seconds."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert all(process.poll() is None for process in self.running), self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.05)

    def said(self) -> str:
        return "\n".join(f"== {path.name}\n{path.read_text()}" for path in self.outputs)

    def codes(self, seconds: float = 240.0) -> list[int]:
        """The exit codes, once all have ended."""
        deadline = time.monotonic() + seconds
        return [process.wait(timeout=max(deadline - time.monotonic(), 0.1)) for process in self.running]

    def errors(self, index: int) -> list[str]:
        """Our own lines among what a process printed."""
        return re.findall(r"^error: .*$", self.outputs[index].read_text(), re.MULTILINE)


@pytest.fixture
def processes(tmp_path, checkout) -> Iterator[Processes]:
    made = Processes(tmp_path, checkout)
    yield made
    for process in made.running:
        process.kill()
        process.wait()


def joined(processes: Processes) -> bool:
    return all("joined" in path.read_text() for path in processes.outputs)


@pytest.mark.parametrize(
    "work, code, line",
    [
        ("if os.environ['JAX_PROCESS_ID'] == '1': raise UsageError('mine alone')", 2, "failed with exit code 2"),
        pytest.param(
            "if os.environ['JAX_PROCESS_ID'] == '1': sys.exit(143)", 143, "was asked to stop", marks=pytest.mark.slow
        ),
    ],
)
def test_a_process_that_ends_by_itself_ends_the_others(processes, work, code, line):
    program = TOGETHER.format(work=f"{work}\n    time.sleep(600)").replace(
        "heartbeat_seconds=2", "heartbeat_seconds=10"
    )
    processes.start(2, ["-c", program])
    assert processes.codes(60) == [code if code == 143 else 75, code]
    [told] = processes.errors(0)
    assert f"process 1 of 2 {line}" in told and "goes on from the last checkpoint" in told
    assert "Check failure" not in processes.said(), "the runtime had no time to abort"


@pytest.mark.slow
def test_the_same_failure_everywhere_keeps_its_code(processes):
    processes.start(2, ["-c", TOGETHER.format(work="raise UsageError('of all')")])
    assert processes.codes(60) == [2, 2]
    assert processes.errors(0) == processes.errors(1) == ["error: of all"]


@pytest.mark.slow
def test_a_bug_in_one_process_keeps_its_traceback(processes):
    processes.start(
        2, ["-c", TOGETHER.format(work="if os.environ['JAX_PROCESS_ID'] == '0': 1 / 0\n    time.sleep(99)")]
    )
    assert processes.codes(60) == [1, 75]
    assert "ZeroDivisionError" in processes.outputs[0].read_text()


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("work", ["time.sleep(99)", "distributed.meet(os.environ['JAX_PROCESS_ID'])", "pass"])
def test_a_killed_process_is_named_and_ends_the_others(processes, victim, work):
    """While they work, at a barrier, and at the end: the others then wait for the one that is killed."""
    waits = f"if os.environ['JAX_PROCESS_ID'] == '{victim}': time.sleep(99)\n    {work}"
    processes.start(3, ["-c", TOGETHER.format(work=waits)])
    processes.wait_for(lambda: joined(processes))
    time.sleep(1.5)
    processes.running[victim].kill()
    codes = processes.codes(30)
    assert codes.pop(victim) == -signal.SIGKILL and codes == [75, 75], processes.said()
    for index in {0, 1, 2} - {victim}:
        [line] = processes.errors(index)
        assert f"process {victim} of 3 died" in line or (victim and "a process of 3 died" in line)


@pytest.mark.slow
def test_an_abort_that_is_our_own_stays_one(processes):
    """All are alive: the runtime's reason is its own. Without a look at the others it would pass for a death."""
    processes.start(
        2, ["-c", TOGETHER.format(work="os.environ['JAX_PROCESS_ID'] == '1' and os.abort()\n    time.sleep(99)")]
    )
    assert processes.codes(60) == [75, -signal.SIGABRT]
    assert processes.errors(1) == []


@pytest.mark.slow
def test_a_process_that_fails_before_it_joins_is_named_by_the_others(processes):
    processes.start(3, ["-c", BEFORE + TOGETHER.format(work="pass").replace("seconds=20", "seconds=5")])
    assert processes.codes(60) == [75, 3, 75]
    for index in (0, 2):
        [line] = processes.errors(index)
        assert "process 1 of 3 did not come within 5 s" in line and processes.outputs[index].read_text().strip() == line


@pytest.mark.slow
def test_a_signal_is_heard_while_others_have_not_come(processes):
    processes.start(2, ["-c", TOGETHER.format(work="pass")])
    processes.running[1].kill()
    time.sleep(4)
    processes.running[0].terminate()
    assert processes.running[0].wait(20) == 143


RECIPE = """
from rove_jax.config import Config, from_dict

def config():
    return from_dict(Config, {values})
"""


@pytest.fixture(scope="module")
def cfg(tmp_path_factory) -> config.Config:
    programs = tmp_path_factory.mktemp("programs")
    training = {"steps": 8, "batch_size": 8, "checkpoint_every": 4, "compilation_cache": str(programs)}
    base = settings(corpus(tmp_path_factory.mktemp("corpus")), base=SETTINGS, training=training)
    return changed(base, mesh={"data": -1})


@pytest.fixture
def command(cfg, tmp_path) -> Callable[..., list[str]]:
    recipe = tmp_path / "recipe.py"
    recipe.write_text(RECIPE.format(values=config.to_dict(cfg)))
    return lambda *more: ["-m", "train", "--config", str(recipe), *map(str, more)]


def numbers(workdir: Path) -> np.ndarray:
    return np.array(rows(workdir, "step", "loss", "grad_norm", "learning_rate"), np.float64)


@pytest.mark.slow
def test_any_number_of_processes_is_the_same_run(processes, command, cfg, tmp_path):
    """1 and 2 processes straight through, and one run that goes through 1, 2, 4 and 1 of them, two steps each."""
    for count in (1, 2):
        workdir = tmp_path / str(count)
        processes.start(count, command("--workdir", workdir, "--mesh.processes", count, "--mesh.fsdp", count))
        assert processes.codes() == [0] * count, processes.said()
        assert saved_steps(workdir)[-1] == 8
        assert "step 8 of 8: finished" in processes.outputs[0].read_text()
        for output in processes.outputs[1:]:
            assert "step 8" not in output.read_text() and "attention" not in output.read_text(), "one of them speaks"
        assert len(list((workdir / "tensorboard").iterdir())) == 1
    straight = numbers(tmp_path / "1")
    assert straight[:, 0].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    for stop, count in ((2, 1), (4, 2), (6, 4), (8, 1)):
        more = ("--workdir", tmp_path / "resumed", "--training.stop-after", stop, "--mesh.fsdp", min(count, 2))
        processes.start(count, command(*more))
        assert processes.codes() == [0] * count, processes.said()
    for other in ("2", "resumed"):
        np.testing.assert_allclose(numbers(tmp_path / other), straight, rtol=1e-5, err_msg=other)
    one, resumed = (arrays(changed(cfg, mesh={"data": 1, "fsdp": 1}), tmp_path / name, 8) for name in ("1", "resumed"))
    for name, leaf in one.items():
        np.testing.assert_allclose(resumed[name], leaf, rtol=0, atol=2e-5, err_msg=name)


@pytest.mark.slow
def test_a_signal_to_one_process_saves_the_same_step_in_all(processes, command, tmp_path):
    workdir = tmp_path / "run"
    words = ("--workdir", workdir, "--training.steps", 10**6, "--training.validation-every", 0)
    processes.start(2, command(*words, "--training.checkpoint-every", 10**6))
    processes.wait_for(lambda: len(rows(workdir, "step")) > 3)
    processes.running[1].terminate()
    assert processes.codes(60) == [143, 143], processes.said()
    last = rows(workdir, "step")[-1][0]
    assert saved_steps(workdir) == [last] and last > 3


FAILING = """
import errno, os, resource, sys
import orbax.checkpoint as ocp
from rove_jax.cli import train
from rove_jax.training import retries
from rove_jax.training.saver import Saver

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
    words = ["-c", FAILING, *command("--workdir", tmp_path / "run", "--mesh.fsdp", 2)[2:]]
    long = ("--training.steps", 10**6, "--training.validation-every", 0, "--training.checkpoint-every", 5)
    processes.start(2, [*words, *map(str, long)])
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


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_killed_in_training_costs_nothing_but_time(processes, command, cfg, tmp_path, victim):
    workdir = tmp_path / "run"
    words = ("--workdir", workdir, "--training.steps", 400, "--training.checkpoint-every", 5)
    processes.start(2, command(*words, "--training.heartbeat-seconds", 5))
    processes.wait_for(lambda: len(rows(workdir, "step")) > 12)
    processes.running[victim].kill()
    assert processes.codes(30)[1 - victim] == 75, processes.said()
    [line] = processes.errors(1 - victim)
    assert "died" in line and "The same command" in line
    reached = saved_steps(workdir)[-1]
    processes.start(2, command(*words, "--training.stop-after", reached + 2))
    assert processes.codes() == [0, 0], processes.said()
    assert [step for (step,) in rows(workdir, "step")] == list(range(1, reached + 3))


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
