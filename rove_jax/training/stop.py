"""Being asked to stop: SIGTERM and Ctrl-C, as a flag that the training loop looks at after each step."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn

from rove_jax import distributed

EXIT_CODES = {signal.SIGTERM: 143, signal.SIGINT: 130}


class StopRequest:
    """While entered, the first SIGTERM or Ctrl-C is remembered. It also ends the process as an exception does, except
    within `waiting`, where only a second Ctrl-C does.

    While `abrupt`, it ends the process at once by `end`: an exception in the middle of an import of an extension module
    becomes another one, or a crash. The process is then that of a command, and a second Ctrl-C within `waiting` ends it
    in the same way: thrown into a write of Orbax, an exception leaves threads that Python waits for without end. What
    is on disk bears a kill, too. Raised in a callback, such as those of jax at a collection of garbage, it is lost,
    so it is raised once more a moment later. Outside the main thread Python allows no handlers, and nothing changes.
    """

    AGAIN = 0.05
    """Seconds after which a signal is sent again whose exception was lost."""

    def __init__(self, *, abrupt: bool = False, end: Callable[[int], NoReturn] = os._exit) -> None:
        self.abrupt, self.end = abrupt, end
        self.command = abrupt
        self.signal: signal.Signals | None = None
        self.waits = False
        self.sender: threading.Timer | None = None
        self.previous: dict[signal.Signals, object] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            self.previous = {number: signal.signal(number, self.note) for number in EXIT_CODES}
        self.hook, sys.unraisablehook = sys.unraisablehook, self.unraisable
        return self

    def note(self, number: int, frame: FrameType | None) -> None:
        del frame
        again = self.signal is signal.SIGINT and number == signal.SIGINT and not self.sender
        self.sender = None
        self.signal = self.signal or signal.Signals(number)
        if self.abrupt or (again and self.waits and self.command):
            distributed.last_line("interrupted" if self.signal is signal.SIGINT else "asked to stop (SIGTERM)")
            self.end(EXIT_CODES[self.signal])
        if not self.waits or again:
            self.act()

    def act(self) -> NoReturn:
        """Raise what the first signal stands for."""
        if self.signal is signal.SIGTERM:
            sys.exit(EXIT_CODES[self.signal])
        raise KeyboardInterrupt

    def unraisable(self, what: "sys.UnraisableHookArgs") -> None:
        """Python's hook for exceptions that nobody can get."""
        if self.signal is None or not isinstance(what.exc_value, KeyboardInterrupt | SystemExit):
            self.hook(what)
        elif not self.waits:
            self.sender = threading.Timer(self.AGAIN, os.kill, (os.getpid(), self.signal))
            self.sender.daemon = True
            self.sender.start()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Around work that looks at `signal` itself."""
        self.waits = True
        try:
            yield
        finally:
            self.waits = False

    def __exit__(self, *exception: object) -> None:
        if self.sender:
            self.sender.cancel()
        sys.unraisablehook = self.hook
        for number, handler in self.previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
