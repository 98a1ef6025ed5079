"""Batches as the loop gets them: from a thread, so that a source that hangs is told of and a signal is heard."""

import queue
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import jax

from rove_jax import distributed
from rove_jax.errors import RunError
from rove_jax.training.agreement import Agreement
from rove_jax.training.stop import EXIT_CODES


class Feed:
    """The batches of an endless iterator, one of them fetched ahead."""

    LOOK = 0.1
    """Seconds between two looks for a signal while there is no batch."""
    HURRY = 10.0
    """Seconds that a batch may still take once this process, one of many, has been asked to stop."""

    def __init__(self, batches: Iterator[jax.Array], *, source: str, timeout: float, agreement: Agreement) -> None:
        self.batches, self.source, self.timeout, self.agreement = batches, source, timeout, agreement
        self.queue: queue.Queue[Any] = queue.Queue(maxsize=1)
        self.closed = False
        threading.Thread(target=self.fill, name="feed", daemon=True).start()

    def fill(self) -> None:
        """What the thread does; an error of the source is handed over to whoever waits for a batch."""
        try:
            while not self.closed:
                self.queue.put(next(self.batches))
        except Exception as error:
            self.queue.put(error)

    def next(self, step: int) -> jax.Array | None:
        """The batch of update `step`; None if there is none yet and the run, of one process, has been asked to stop.

        One of many processes cannot end the run without the next update, so it ends itself if that takes too long.
        Raises `RunError` after `training.data_timeout_seconds`, and what the source raises.
        """
        began, asked = time.monotonic(), None
        while True:
            try:
                batch = self.queue.get(timeout=self.LOOK)
            except queue.Empty:
                now, number = time.monotonic(), self.agreement.request.signal
                if number and not self.agreement.together:
                    return None
                asked = asked or (now if number else None)
                if number and asked and now - asked > self.HURRY:
                    sys.exit(EXIT_CODES[number])
                if now - began > self.timeout:
                    distributed.end_within(30.0, 1)  # readers that hang are waited for when Python ends
                    limit = f"training.data_timeout_seconds = {self.timeout:g}"
                    raise RunError(f"step {step}: no batch came from {self.source} within {limit}") from None
                continue
            if isinstance(batch, Exception):
                raise batch
            return batch

    def __enter__(self) -> "Feed":
        return self

    def __exit__(self, *exception: object) -> None:
        self.closed = True
        while not self.queue.empty():  # a thread that waits for room sees it, and ends
            self.queue.get_nowait()
