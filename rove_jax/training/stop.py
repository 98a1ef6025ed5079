"""Being asked to stop: SIGTERM and Ctrl-C, as a flag that the training loop looks at after each step."""

import signal
import threading
from types import FrameType

EXIT_CODES = {signal.SIGTERM: 143, signal.SIGINT: 130}


class StopRequest:
    """While entered, the first SIGTERM or Ctrl-C is remembered instead of ending the process; a second Ctrl-C ends it.

    Outside the main thread Python allows no handlers, and nothing changes.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self.previous: dict[signal.Signals, object] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            self.previous = {number: signal.signal(number, self.note) for number in EXIT_CODES}
        return self

    def note(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.signal is signal.SIGINT and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = self.signal or signal.Signals(number)

    def __exit__(self, *exception: object) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
