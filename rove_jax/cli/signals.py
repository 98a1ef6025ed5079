"""How commands end that are asked to: by SIGTERM at once, by Ctrl-C within seconds where nothing is to be saved."""

import contextlib
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn

from rove_jax import distributed

STOPPED = "asked to stop (SIGTERM)"
GO_ON = "; what is measured is kept, and the same command goes on"
"""What is said to Ctrl-C where it is so."""
CODES: dict[int, int] = {signal.SIGINT: 130, signal.SIGTERM: 143}
LOST = ("_xla_gc_callback", "__del__")
"""Functions whose exceptions Python prints and forgets: jax's of the garbage collector (0.10, 0.12), and the usual."""
GRACE = 2.0
"""Seconds that an evaluation has to end by itself after Ctrl-C."""


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """While open, SIGTERM ends the process at once, with our line and 143; what is on disk bears that.

    An exception would be lost if raised in a callback, of jax's for instance, or in the middle of an import. Nothing
    changes if whoever called us ignores the signal or catches it. Outside the main thread Python allows no handlers.
    """

    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def terminate(*_: object) -> NoReturn:
    """The handler of SIGTERM."""
    distributed.last_line(STOPPED)
    os._exit(CODES[signal.SIGTERM])


@contextlib.contextmanager
def prompt(line: str, end: Callable[[int], object] = os._exit) -> Iterator[None]:
    """While open, Ctrl-C and SIGTERM end the process by `end`, with one line, even while jax computes.

    Python's handlers wait until a call into C++ returns, which takes minutes where a long text is read, and so does
    the exit. So a thread hears of signals. After Ctrl-C (`line`) the main thread has GRACE seconds to unwind, or until
    the next one; but not in the middle of an import, where an exception becomes another one, or a crash, nor where one
    is lost. Nothing changes for signals that our caller ignores or catches, nor outside the main thread. Not for
    training, which saves.
    """
    usual: dict[int, Callable[..., object]] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: terminate}
    main = threading.current_thread() is threading.main_thread()
    taken = [number for number, handler in usual.items() if main and signal.getsignal(number) is handler]
    if not taken:
        yield
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)

    def watch() -> None:
        number = -1
        while number not in taken:
            [number] = os.read(reading, 1)
            if number == 0:  # the work is done
                return
        if number == signal.SIGINT:
            select.select([reading], [], [], GRACE)
        distributed.last_line(STOPPED if number == signal.SIGTERM else line)
        end(CODES[number])

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(number, nothing)
        while frame:
            code = frame.f_code
            if code.co_filename == "<frozen importlib._bootstrap>" or code.co_name in LOST:
                os.write(writing, b"\0")
                return
            frame = frame.f_back
        raise KeyboardInterrupt

    def restore() -> None:
        if taken:
            signal.set_wakeup_fd(-1)
        while taken:
            number = taken.pop()
            signal.signal(number, usual[number])

    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in taken:
        signal.signal(number, interrupt if number == signal.SIGINT else nothing)
    os.register_at_fork(after_in_child=restore)  # a pool ends its processes by SIGTERM, and means them
    watcher = threading.Thread(target=watch, name="signals", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        os.write(writing, b"\0")
        watcher.join()  # which ends the process if it has heard of a signal
        restore()
        os.close(reading)
        os.close(writing)


def nothing(*_: object) -> None:
    """A handler for what the thread of `prompt` sees to."""
