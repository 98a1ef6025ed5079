"""How the processes of a run end together, whatever happens to one of them."""

import signal
import time
from collections.abc import Iterator

import pytest
from many_processes import Processes

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
    exits.together(distributed.initialize("on", heartbeat_seconds=2, join_seconds=20), work)
"""
"""A program of one process of many, without arrays."""


BEFORE = "import os; os.environ['JAX_PROCESS_ID'] == '1' and exit(3)"
"""One of them fails with this."""


@pytest.fixture
def processes(tmp_path, checkout) -> Iterator[Processes]:
    with Processes(tmp_path, checkout) as made:
        yield made


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
    assert f"process 1 of 2 {line}" in told and "goes on from what was saved" in told
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
@pytest.mark.parametrize(
    "victim, work",
    [(0, "time.sleep(99)"), (1, "time.sleep(99)"), (0, "distributed.meet(os.environ['JAX_PROCESS_ID'])"), (1, "pass")],
)
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
