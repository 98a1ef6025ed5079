"""When a checkpoint that could not be written is tried again, and when no more."""

import time
from collections.abc import Callable

PAUSES = (10.0, 30.0, 60.0)
"""Seconds before each of the tries that follow a failure, while training goes on. What fills a disk for a moment, such
as the checkpoints of another run before it deletes old ones, is over by then; and no more than these 100 seconds, with
the tries themselves, are ever learnt beyond a save that was due."""

HURRIED = 1.0
"""Seconds instead, of a run that has been asked to stop: what asks it gives it little time."""

LOOK = 0.1
"""Seconds between two looks at whether it has been."""


class Retries:
    """Failures in a row, and the time of the next try."""

    def __init__(self) -> None:
        self.failures = 0
        self.failed_at = 0.0

    def failed(self) -> bool:
        """Count a failure; whether it is to be tried again."""
        self.failures, self.failed_at = self.failures + 1, time.monotonic()
        return self.failures <= len(PAUSES)

    def succeeded(self) -> None:
        self.failures = 0

    def due(self, *, hurried: bool = False) -> bool:
        """Whether there was a failure, and the pause after it is over."""
        pause = HURRIED if hurried else PAUSES[self.failures - 1]
        return bool(self.failures) and time.monotonic() >= self.failed_at + pause

    def wait(self, hurried: Callable[[], object]) -> None:
        """Return when a try is due, which is sooner once the run is `hurried`."""
        while not self.due(hurried=bool(hurried())):
            time.sleep(LOOK)

    def __str__(self) -> str:
        return f"trying again in {PAUSES[self.failures - 1]:g} s ({self.failures} of {len(PAUSES)})"
