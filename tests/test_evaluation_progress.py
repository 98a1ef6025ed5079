"""What is on a terminal while an evaluation works: at once, and on terminals that do not know their size."""

import os
import pty
import select
import subprocess
import sys
import time

import jax
import pytest

from rove_jax.evaluation import processes

BAR = """
from rove_jax.evaluation import processes

processes.SECONDS = 0.01
with processes.progress(8, "run: perplexity", "window") as bar:
    bar.now("65536 tokens")
    bar.bar.start_t -= 60  # a minute goes by
    processes.compiler().set()
    input()
"""
TQDM = "import tqdm; tqdm.tqdm(total=8, desc='run', leave=False).refresh(); print('at the end'); input()"


@pytest.fixture
def shown(checkout):
    """What a program draws on a terminal of 0 by 0 until all of `words` are there; it is ended then."""

    def call(program: str, *words: str) -> str:
        ours, theirs = pty.openpty()
        command = [sys.executable, "-c", program]
        with subprocess.Popen(command, cwd=checkout, stdin=theirs, stdout=theirs, stderr=theirs) as process:
            os.close(theirs)
            drawn, deadline = "", time.monotonic() + 60
            while not all(word in drawn for word in words) and time.monotonic() < deadline:
                if select.select([ours], [], [], 1)[0]:
                    drawn += os.read(ours, 4096).decode()
            process.kill()
        assert all(word in drawn for word in words), drawn[-200:]
        os.close(ours)
        return drawn

    return call


def test_a_bar_is_there_before_the_first_unit_is_done_and_stays_current(shown):
    shown(BAR, "run: perplexity, window 0/8 |    ", "| 01:0", ", ? left, compiling, 65536 tokens")  # ends if they are
    assert "run" not in shown(TQDM, "at the end"), "control: if tqdm draws there by itself, `distributed.screen` may go"


def test_it_is_known_when_jax_compiles():
    busy, seen = processes.compiler(), []
    assert not busy.is_set()
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: seen.append((event.split("/")[-1], busy.is_set()))
    )
    jax.jit(lambda x: x + 12345)(1)
    assert ("jaxpr_to_mlir_module_duration", True) in seen and seen[-1] == ("backend_compile_duration", False)
