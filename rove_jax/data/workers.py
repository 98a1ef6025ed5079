"""Pieces of a job spread over processes of this machine.

The processes are spawned, so that none inherits a lock, a thread or a device; each takes a piece when it has done one.
One that ends is seen at once, since the pipe from it closes; and all of them end when this process does.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from multiprocessing import connection, get_context, parent_process, resource_tracker
from typing import Any

from rove_jax.data.shards import Job, Maker, Report
from rove_jax.errors import RunError, UsageError

EVERY = 0.25
"""Seconds between two reports of a worker."""


class Worker:
    """A process that does one piece at a time."""

    def __init__(self, number: int, job: Job) -> None:
        self.number, self.job = number, job
        spawn = get_context("spawn")
        self.pipe, theirs = spawn.Pipe()
        self.process = spawn.Process(target=serve, args=(theirs, job), name=f"prepare-{number}", daemon=True)
        with uninterrupted():
            self.process.start()
        theirs.close()  # else the pipe would stay open when the process ends
        self.piece = -1

    def take(self, piece: int) -> None:
        self.piece = piece
        # A process that has just died cannot be sent anything; the next look at its pipe says so.
        with contextlib.suppress(OSError):
            self.pipe.send(piece)

    def receive(self) -> Any:
        """What it says next. Raises `RunError` if it has ended."""
        try:
            return self.pipe.recv()
        except (EOFError, ConnectionError) as error:
            self.process.join(5)
            units = [self.job.source.units[unit].name for unit in self.job.pieces[self.piece]]
            between = units[0] if len(units) == 1 else f"{units[0]} to {units[-1]}"
            raise RunError(
                f"worker {self.number} (process {self.process.pid}) {ending(self.process.exitcode)} while it prepared "
                f"{between}; the same command goes on from what is finished, with fewer --workers if memory is short"
            ) from error


def ending(code: int | None) -> str:
    """How a process ended, in words."""
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def run(job: Job, pieces: Iterable[int], count: int, report: Report) -> None:
    """Do `pieces` of `job` with `count` processes; all of them have ended when this returns or raises.

    Raises what a worker raised for want of room, damage and the like, and `RunError` if one dies.
    """
    left = iter(pieces)
    workers: list[Worker] = []
    try:
        busy = {}
        for number, piece in zip(range(1, count + 1), left):
            workers.append(Worker(number, job))
            workers[-1].take(piece)
            busy[workers[-1].pipe] = workers[-1]
        while busy:
            for pipe in connection.wait(list(busy)):
                worker = busy[pipe]
                message = worker.receive()
                if isinstance(message, Exception):
                    raise message
                if message is not None:
                    report(*message)
                    continue
                piece = next(left, None)
                if piece is None:
                    del busy[pipe]
                else:
                    worker.take(piece)
    finally:
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.process.join(5)
            worker.process.kill()
            worker.pipe.close()


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """While open, no Ctrl-C, which goes to all processes of a terminal, reaches this thread; nor, ever, those started
    meanwhile, so the parent alone answers. Python's own way to ignore it in a process comes after its imports."""
    resource_tracker.ensure_running()  # when started by the first process, it lets Ctrl-C through again (up to 3.12)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def serve(pipe: connection.Connection, job: Job) -> None:
    """What a worker does: pieces as they come, until the pipe closes.

    It sends (bytes, tokens) done since the last time, None at the end of a piece, or the error that ended it.
    """
    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        reporter = Reporter(pipe)
        maker = Maker(job)
        while True:
            maker.make(pipe.recv(), reporter.add)
            reporter.flush()
            pipe.send(None)
    except (EOFError, ConnectionError):
        pass  # whoever started us is gone, or has had enough
    except (UsageError, RunError) as error:
        tell(pipe, error)
    except OSError as error:
        tell(pipe, RunError(f"{job.folder}: {error.strerror or error}"))
    os._exit(0)  # threads of libraries need not be waited for


def end_with_parent() -> None:
    """Wait for the process that started this one to end, and end this one, whatever it is waiting for."""
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def tell(pipe: connection.Connection, error: Exception) -> None:
    """Send an error to whoever is still there."""
    with contextlib.suppress(OSError):
        pipe.send(error)


class Reporter:
    """Adds up what is done, and sends it now and then."""

    def __init__(self, pipe: connection.Connection) -> None:
        self.pipe = pipe
        self.bytes = self.tokens = 0
        self.last = time.monotonic()

    def add(self, bytes: int, tokens: int) -> None:
        self.bytes += bytes
        self.tokens += tokens
        if time.monotonic() - self.last >= EVERY:
            self.flush()

    def flush(self) -> None:
        """Send what has not been sent. Raises `ConnectionError` if no one is there to read it."""
        self.pipe.send((self.bytes, self.tokens))
        self.bytes = self.tokens = 0
        self.last = time.monotonic()
