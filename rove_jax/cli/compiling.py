"""Commands that wait for a compiler: what they say meanwhile, and how they are stopped.

A compiler returns to Python, and so to signal handlers, only when it is done.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator

from rove_jax.cli import exits

ENDS = {signal.SIGINT: (130, "interrupted"), signal.SIGTERM: (143, exits.STOPPED)}


def say(line: str) -> None:
    """Print a line of progress, where it is not mixed up with results."""
    print(line, file=sys.stderr, flush=True)


@contextlib.contextmanager
def ends_at_once() -> Iterator[None]:
    """Within, the first SIGTERM or Ctrl-C prints one line and ends the process, whatever its main thread does.

    For work that has nothing to save. A thread waits for the byte that Python writes when a signal arrives. Outside the
    main thread Python allows no handlers, and nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours, pythons = socket.socketpair()
    pythons.setblocking(False)

    def watch() -> None:
        for byte in ours.recv(1):
            code, words = ENDS[signal.Signals(byte)]
            exits.fail(code, words)
            os._exit(code)

    before = {number: signal.signal(number, lambda *_: None) for number in ENDS}
    descriptor = signal.set_wakeup_fd(pythons.fileno(), warn_on_full_buffer=False)
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(descriptor)
        for number, handler in before.items():
            signal.signal(number, handler)
        pythons.close()  # the thread reads nothing, and ends
        thread.join()
        ours.close()
