"""The processes of a run, which end together: whatever happens to one of them, the others are gone within seconds.

Left to itself, the runtime (jax 0.10.2 and 0.12.0, seen by killing processes) aborts a survivor with a page of text
and code 134, at once if process 0 is gone and after the heartbeat's time otherwise; or a collective fails, and the exit
hangs in a barrier that nobody else comes to; or a process ends by itself, and the others wait for it in a collective.
"""

import contextlib
import ctypes
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from rove_jax.distributed import gathering
from rove_jax.errors import RunError, UsageError

DIED = 75
"""Exit code of the survivors: EX_TEMPFAIL of sysexits.h, "try again"."""

STOPPED = (130, 143)
"""Codes of a process that was asked to stop; the others then end with the same."""

PLACE = ("coordinator_address", "num_processes", "process_id", "cluster_detection_method")

ENDED = "rove/ended"
"""Key under which the first process that fails leaves its number and its exit code."""


class Peers:
    """The other processes, seen from one. Entered around the work; `finish` waits for theirs, `leave` ends this one.

    A thread meets those of all the others once in PACE seconds, at a barrier of the coordination service. That fails,
    and says for whom, when a process dies: the moment to say so and go. After each meeting it looks whether a process
    has left word that it is about to end by itself.
    """

    PACE, GRACE, LINGER = 1.0, 3.0, 6.0
    """Seconds between two meetings; that a process has to end by itself once another one has failed; that a process
    which fails stays, so that others can fail in the same way or hear of it."""

    def __init__(self, client: Any, index: int, count: int, heartbeat_seconds: int) -> None:
        self.client, self.index, self.count = client, index, count
        self.patience = 2.0 * heartbeat_seconds + 5.0  # the service is that slow to see a death on a busy machine
        self.code: int | None = None  # of this process, once it ends by itself
        self.leaving = False
        self.ending = threading.Lock()
        self.met = 0
        self.failed: tuple[float, int, int] | None = None
        threading.Thread(target=self.watch, name="peers", daemon=True).start()

    @classmethod
    def join(cls, heartbeat_seconds: int, *, join_seconds: int, **where: Any) -> "Peers | None":
        """Meet the others, `where` as `jax.distributed.initialize` has it. None if this process turns out to be alone.

        Ends the process with code 75 and one line that names those who do not come in `join_seconds`. A signal is
        heard.
        """
        import jax
        from jax._src import (
            clusters,
            distributed,
        )  # not public (jax 0.10 to 0.12); orbax takes the client from here too

        # The service would catch SIGTERM in place of our own handler, which knows Ctrl-C as well.
        jax.config.update("jax_enable_preemption_service", False)
        # On a CPU, programs that wait for other processes at the same time can take each other's threads (jax 0.10.2).
        jax.config.update("jax_cpu_enable_async_dispatch", False)
        address, count, index, method = (where.get(name) for name in PLACE)
        if method != "deactivate":
            detect = clusters.ClusterEnv.auto_detect_unset_distributed_params
            address, count, index, _ = detect(address, count, index, None, method, join_seconds)
        if address is not None and count is not None and index is not None:  # else jax says what it lacks
            try:
                gathering.gather(address, index, count, join_seconds)
            except gathering.Missing as error:
                say(f"{error}; look at its output for the reason{GO_ON}")
                os._exit(DIED)
        missing = f"the processes of the run did not all come together in {join_seconds} s"
        on_abort(lambda: (say(missing + GO_ON), os._exit(DIED)))
        timeouts = {"heartbeat_timeout_seconds": heartbeat_seconds, "initialization_timeout": join_seconds}
        attend(lambda: jax.distributed.initialize(**timeouts, **where))
        state = distributed.global_state
        if state.num_processes == 1:
            on_abort(lambda: None)
            return None
        peers = cls(state.client, state.process_id, state.num_processes, heartbeat_seconds)
        on_abort(lambda: peers.aborted(str(state.coordinator_address)))
        return peers

    def watch(self) -> None:
        """What the thread does."""
        grace = self.GRACE if self.index else self.LINGER + self.PACE  # process 0 must not be the first to go
        while True:
            problem = None
            try:
                self.client.wait_at_barrier("rove/alive", 1000 if self.failed else 10**9)
                self.met += 1
            except RuntimeError as error:
                problem = error
            self.failed = self.failed or self.word()
            if problem and not self.failed:
                self.end(named_in(str(problem)))
            if self.failed and self.failed[1] != self.index and time.monotonic() - self.failed[0] > grace:
                self.end(None)
            if self.index == 0 or problem:  # all others wait at the barrier, where they hear of a death
                time.sleep(self.PACE)

    def word(self) -> tuple[float, int, int] | None:
        """What the first process that failed has left: when it was seen here, which process, its exit code."""
        try:
            words = self.client.key_value_dir_get(ENDED)
        except RuntimeError:
            return None
        if not words:
            return None
        index, code = map(int, words[0][1].split())
        return time.monotonic(), index, code

    def aborted(self, address: str) -> None:
        """What to make of an abort: returns only if it has nothing to do with the others, so that it takes place.

        The watch may be in the way of what the runtime holds while it aborts, and then cannot say who died.
        """
        if self.index and not answers(address):
            self.end("process 0")
        met, until = self.met, time.monotonic() + 5.0
        while time.monotonic() < until:
            if self.met > met + 1:
                return
            time.sleep(0.1)
        self.end(None)

    def end(self, dead: str | None) -> NoReturn:
        """End this process because of another one: with our line and code, whatever the main thread is doing."""
        if self.leaving:
            sys.exit()  # of the thread
        if self.code is not None:
            os._exit(self.code)
        with self.ending:  # the watch and an abort may come here at the same time; never let go
            line, code = f"{dead or 'a process'} of {self.count} died, or can no longer be reached", DIED
            if self.failed and self.failed[1] != self.index:
                _, index, theirs = self.failed
                stopped = theirs in STOPPED
                what = "was asked to stop" if stopped else f"failed with exit code {theirs}, and its output says why"
                line, code = f"process {index} of {self.count} {what}", theirs if stopped else DIED
            say(line + GO_ON)
            if self.index == 0:
                time.sleep(self.PACE)  # so that the others hear who died before they lose this one
            os._exit(code)

    def __enter__(self) -> "Peers":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """An error that is not ours may be the first sign of a death, such as the `ValueError` of a failing collective:
        then the watch ends this process before this returns. If all are alive, the error is our own."""
        while isinstance(error, UsageError | RunError | OSError):
            error = error.__cause__ or error.__context__
        if isinstance(error, Exception) and "RESOURCE_EXHAUSTED" not in str(error):
            time.sleep(self.patience)

    def finish(self) -> None:
        """Return when all processes have come here. A signal is heard."""
        meet("finished")

    def leave(self, code: int) -> NoReturn:
        """End this process. With a code other than 0 the others get to know, and have some time to end as well."""
        import jax

        self.code = code
        sys.stdout.flush()
        sys.stderr.flush()
        if code:
            with contextlib.suppress(RuntimeError):  # another one was first, or there is nobody left to tell
                self.client.key_value_set(f"{ENDED}/first", f"{self.index} {code}")
        with contextlib.suppress(RuntimeError):  # they do not come: they end by their watch
            self.client.wait_at_barrier("rove/leave", round(1000 * self.LINGER))
            self.leaving = True
            on_abort(lambda: os._exit(code))
            jax.distributed.shutdown()
        os._exit(code)


GO_ON = "; this one ends too. The same command, given to all again, goes on from what was saved, if anything was"


def meet(place: str) -> None:
    """Return when all processes of the run have come here; at once if there is one. A signal is heard."""
    from jax._src import distributed

    client = distributed.global_state.client
    if client is not None:
        attend(lambda: client.wait_at_barrier(f"rove/{place}", 10**9))


def named_in(text: str) -> str | None:
    """The processes that an error of the coordination service is about, in words."""
    if text.startswith("UNAVAILABLE"):
        return "process 0"
    found = sorted(set(map(int, re.findall(r"[Tt]ask[: ]+(\d+)", text))))
    return f"process{'es' if len(found) > 1 else ''} {', '.join(map(str, found))}" if found else None


def answers(address: str) -> bool:
    """Whether something listens at host:port."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=3.0).close()
    except OSError:
        return False
    return True


def attend(call: Callable[[], Any]) -> None:
    """Make a call that blocks deep in the runtime, in a thread, so that this one can be reached by a signal."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except Exception as error:  # handed over, not dealt with
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.2)
    if errors:
        raise errors[0]


def say(line: str) -> None:
    """Print `error: line` past all buffers and locks."""
    os.write(2, f"\nerror: {line}\n".encode())


_handlers: list[Any] = []  # C holds no reference to a Python function


def on_abort(act: Callable[[], object]) -> None:
    """Call `act` when the runtime aborts this process; if it returns, the abort takes place.

    In Python, because the runtime calls `abort` from a thread of its own, as a function like any other.
    """
    libc = ctypes.CDLL(None)

    def aborted(number: int) -> None:
        act()
        libc.signal(number, ctypes.c_void_p(0))  # the default, which ends the process

    _handlers.append(ctypes.CFUNCTYPE(None, ctypes.c_int)(aborted))
    libc.signal(int(signal.SIGABRT), _handlers[-1])
