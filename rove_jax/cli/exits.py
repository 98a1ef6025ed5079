"""How every command ends: one `error: ...` line on stderr, an exit code, and a traceback only for a bug.

| code | meaning |
|---|---|
| 0 | done |
| 1 | the run failed; what is on disk is whole |
| 2 | a wrong argument, recipe or input |
| 75 | another process of the run died, or ended by itself (`distributed.peers`) |
| 130, 143 | asked to stop by Ctrl-C or SIGTERM; a training run has saved a checkpoint |
| 141 | the reader of our output went away, as in `... | head` |
"""

import argparse
import contextlib
import difflib
import errno
import io
import os
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn

from rove_jax import distributed
from rove_jax.errors import RunError, UsageError

STOPPED = "asked to stop (SIGTERM)"
GO_ON = "; what is measured is kept, and the same command goes on"
"""What is said to Ctrl-C where it is so."""
CODES: dict[int, int] = {signal.SIGINT: 130, signal.SIGTERM: 143}
GRACE = 2.0
"""Seconds that an evaluation has to end by itself after Ctrl-C."""

MACHINE_FAULTS = {
    errno.EACCES,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EIO,
    errno.EMFILE,
    errno.ENAMETOOLONG,
    errno.ENOSPC,
    errno.ENOTDIR,
    errno.EPERM,
    errno.EROFS,
}
"""What an operating system refuses in a program without a bug. Others, such as a missing file, keep their traceback
unless the code that opened the file has turned them into a `UsageError`."""


def run(main: Callable[[], int | None]) -> int:
    """Call `main` and return the exit code of the process; `None` from `main` is 0.

    A `SystemExit` raised inside keeps its code. Anything that is not listed above propagates.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by whoever started us
            setattr(sys, name, open(os.devnull, "w"))
        elif isinstance(stream, io.TextIOWrapper):  # an encoding that lacks a character must not end the command
            stream.reconfigure(errors="backslashreplace")
    try:
        with terminable():
            code = main()
        sys.stdout.flush()
        return code or 0
    except UsageError as error:
        return fail(2, str(error))
    except RunError as error:
        return fail(1, str(error))
    except KeyboardInterrupt:
        return fail(130, "interrupted")
    except SystemExit as stop:
        if stop.code == 143:
            return fail(143, STOPPED)
        if isinstance(stop.code, str):
            return fail(1, stop.code)
        return stop.code or 0
    except BrokenPipeError:
        # Python flushes stdout once more on its way out, which must not raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        if error.errno not in MACHINE_FAULTS:
            raise
        at = f"{error.filename}: " if error.filename else ""
        return fail(1, f"{at}{error.strerror}")
    except RuntimeError as error:  # the class that jax's own errors derive from; jax is not imported for its name
        if str(error).startswith("Unable to initialize backend"):
            return fail(1, str(error))
        if not str(error).startswith("RESOURCE_EXHAUSTED"):
            raise
        what = str(error).splitlines()[0].removeprefix("RESOURCE_EXHAUSTED: ")
        return fail(1, f"out of device memory ({what}); use a smaller batch, training.accumulation or model.remat")


def together(peers: distributed.Peers, work: Callable[[], int | None]) -> NoReturn:
    """Do `work` as one process of many, and end the process so that the others end as well."""

    def work_and_wait() -> int | None:
        with peers:
            code = work()
            peers.finish()
        return code

    code = 1
    try:
        code = run(work_and_wait)
    finally:
        error = sys.exception()
        if error is not None:
            traceback.print_exception(error)
        peers.leave(code)


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
    the next one; but not in the middle of an import, where an exception becomes another one, or a crash. Nothing
    changes for signals that our caller ignores or catches, nor outside the main thread. Not for training, which saves.
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
            if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
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


def fail(code: int, message: str) -> int:
    """Print `error: message` as one line on stderr, after everything printed so far, and return `code`."""
    sys.stdout.flush()
    print("error:", " ".join(message.split()), file=sys.stderr, flush=True)
    return code


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` whose errors are `UsageError`s that name the nearest option.

    It takes no abbreviations: they would swallow overrides of a recipe, which other code parses.
    """

    def __init__(self, **settings) -> None:
        super().__init__(**{"allow_abbrev": False, **settings})

    def parse_known_args(self, args=None, namespace=None):
        """As argparse has it; but what is nearly an option of ours is a mistake, not an argument for someone else."""
        known = self._option_string_actions
        for word in sys.argv[1:] if args is None else args:
            name = word.partition("=")[0]
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.8) if name.startswith("--") else []
            if close and name not in known:
                self.error(f"{name}: no such option; did you mean {close[0]}?")
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Raise the message as a `UsageError`, with where to read on unless it says already what to do."""
        raise UsageError(message if message.endswith("?") else f"{message}; see --help")
