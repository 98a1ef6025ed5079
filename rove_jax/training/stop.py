"""Being asked to stop: SIGTERM and Ctrl-C, as a flag that the training loop looks at after each step."""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

EXIT_CODES = {signal.SIGTERM: 143, signal.SIGINT: 130}


class StopRequest:
    """While entered, the first SIGTERM or Ctrl-C is remembered. It also ends the process as an exception does, except
    within `waiting`, where only a second Ctrl-C does.

    Remembered in any case, because an exception is lost that is raised in a callback, such as jax's at each collection
    of garbage. Outside the main thread Python allows no handlers, and nothing changes.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self.waits = False
        self.previous: dict[signal.Signals, object] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            self.previous = {number: signal.signal(number, self.note) for number in EXIT_CODES}
        return self

    def note(self, number: int, frame: FrameType | None) -> None:
        del frame
        again = self.signal is signal.SIGINT and number == signal.SIGINT
        self.signal = self.signal or signal.Signals(number)
        if self.waits and not again:
            return
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        sys.exit(EXIT_CODES[self.signal])

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Around work that looks at `signal` itself."""
        self.waits = True
        try:
            yield
        finally:
            self.waits = False

    def __exit__(self, *exception: object) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
