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
import difflib
import errno
import io
import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from rove_jax import distributed
from rove_jax.cli import signals
from rove_jax.errors import RunError, UsageError

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
        with signals.terminable():
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
            return fail(143, signals.STOPPED)
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


def progress(line: str) -> None:
    """Print a line of progress, where it is not mixed up with results."""
    print(line, file=sys.stderr, flush=True)


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
