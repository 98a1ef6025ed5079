"""Commands that are asked to end: one line, whatever their main thread does."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from rove_jax.cli import exits, signals


@pytest.mark.parametrize("work", ["stop()", "gc.callbacks.append(stop); gc.collect()"])
def test_a_signal_ends_any_command_in_one_line(work: str, checkout) -> None:
    """In a callback as well, where an exception would be lost."""
    program = f"""
import gc, os, signal
from rove_jax.cli import exits

def stop(*_):
    os.kill(os.getpid(), signal.SIGTERM)

def main():
    {work}
    print("it went on")

raise SystemExit(exits.run(main))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=checkout)
    assert (done.returncode, done.stdout, done.stderr) == (143, "", "error: asked to stop (SIGTERM)\n")


def test_the_signal_is_the_callers_again_afterwards() -> None:
    assert exits.run(lambda: None) == 0
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_signal_that_the_caller_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        assert exits.run(lambda: os.kill(os.getpid(), signal.SIGTERM)) == 0
    finally:
        signal.signal(signal.SIGTERM, before)


STUCK = """
        lock = ctypes.create_string_buffer(64)

        def tell():
            while int.from_bytes(lock.raw[:4], "little") != 2:  # in glibc: locked, and waited for
                time.sleep(0.01)
            print("begins", flush=True)

        threading.Thread(target=tell, daemon=True).start()
        for _ in range(2):
            ctypes.CDLL(None).pthread_mutex_lock(lock)"""
"""A call into C that never returns, and lets other threads of Python work, as jax does. Says when it is there."""
BEGINS = "print('begins', flush=True); "


@contextlib.contextmanager
def started(
    work: str, checkout, *, around: str = "signals.prompt('interrupted; so')", before: str = "", grace: float = 1e6
):
    """A command that does `work`, which says that it has begun, with so many seconds to end by itself after Ctrl-C."""
    program = f"""
import contextlib, ctypes, os, signal, sys, threading, time
from rove_jax.cli import exits, signals

{before}

def main():
    signals.GRACE = {grace}
    with {around}:
        {work}

raise SystemExit(exits.run(main))
"""
    words, pipe = [sys.executable, "-c", program], subprocess.PIPE
    with subprocess.Popen(words, cwd=checkout, text=True, stdout=pipe, stderr=pipe) as process:
        try:
            assert process.stdout and process.stdout.readline() == "begins\n", process.communicate()
            yield process
        finally:
            process.kill()  # or a failure would be waited for


def ended(process, *numbers: signal.Signals) -> tuple[int, str, str]:
    """(exit code, rest of stdout, stderr) after signals, the last one again and again until the process ends."""
    for number in numbers[:-1]:
        process.send_signal(number)
    deadline = time.monotonic() + 60
    while numbers and process.poll() is None and time.monotonic() < deadline:
        process.send_signal(numbers[-1])
        time.sleep(0.05)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_an_evaluation_ends_while_its_main_thread_is_in_c(checkout) -> None:
    with started(STUCK, checkout, grace=0.1) as process:
        process.send_signal(signal.SIGINT)
        assert ended(process) == (130, "", "error: interrupted; so\n")
    with started(STUCK, checkout) as process:
        process.send_signal(signal.SIGTERM)
        assert ended(process) == (143, "", "error: asked to stop (SIGTERM)\n")
    with started(STUCK, checkout) as process:  # the second Ctrl-C does not wait for the grace
        assert ended(process, signal.SIGINT) == (130, "", "error: interrupted; so\n")
    with started(STUCK, checkout, around="contextlib.nullcontext()") as process:  # control: so it would not
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)


def test_an_evaluation_that_can_clean_up_does(checkout) -> None:
    work = "try: " + BEGINS + "time.sleep(1000)\n        finally: print('cleaned', flush=True)"
    with started(work, checkout) as process:
        process.send_signal(signal.SIGINT)
        assert ended(process) == (130, "cleaned\n", "error: interrupted; so\n")


def test_no_exception_is_thrown_where_it_would_be_another_or_lost(checkout, tmp_path) -> None:
    (tmp_path / "late.py").write_text(
        "import signal, sys\ndef now():\n    try: signal.raise_signal(signal.SIGINT)\n    except KeyboardInterrupt: "
        "print('thrown', file=sys.stderr); raise\nclass Gone:\n    def __del__(self): now()\n"
        "if hasattr(sys, 'ready'): now()\n"
    )
    imports = f"{BEGINS}sys.path.insert(0, {str(tmp_path)!r}); "
    for work, said in (
        ("sys.ready = 1; import late", ""),
        ("import late; late.Gone()", ""),
        ("import late; late.now()", "thrown\n"),
    ):
        with started(f"{imports}{work}; time.sleep(1000)", checkout) as process:
            assert ended(process) == (130, "", f"{said}error: interrupted; so\n")


def test_a_pool_that_ends_its_processes_does_not_end_the_evaluation(checkout) -> None:
    work = """
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writing, b"-")
            time.sleep(1000)
        os.read(reading, 1)
        os.kill(child, signal.SIGTERM)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=sys.stderr)"""
    with started(BEGINS + work, checkout) as process:
        code, _, err = ended(process)
        assert code == 0 and err.splitlines()[-1] == "143"


def test_what_the_caller_does_about_signals_stays(checkout) -> None:
    with started(STUCK, checkout, before="signal.signal(signal.SIGINT, signal.SIG_IGN)") as process:
        assert ended(process, signal.SIGINT, signal.SIGTERM) == (143, "", "error: asked to stop (SIGTERM)\n")

    def handlers() -> list:
        previous = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(previous)
        return [previous, *map(signal.getsignal, signals.CODES)]

    def inside() -> None:
        with signals.prompt("not reached"):
            seen.append(handlers())

    def elsewhere() -> None:
        with signals.prompt("not reached"):
            seen.append([signal.getsignal(number) for number in signals.CODES])

    seen: list[list] = []
    before = handlers()
    exits.run(inside)
    assert seen.pop() != before, "control: it takes them"
    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [before[1:]] and handlers() == before
