"""A profiler trace of some updates of a run."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import jax

SKIPPED = 2
"""Updates of a call before the trace begins: the first ones are not like the rest."""


class Profile:
    """Traces `count` updates into `folder`, starting SKIPPED updates after `first` (fewer, if the call is shorter)."""

    def __init__(self, folder: Path, *, first: int, end: int, count: int) -> None:
        self.folder = folder
        self.begin = max(first, min(first + SKIPPED, end - count))
        self.end = min(self.begin + count, end)
        self.running = False

    @contextlib.contextmanager
    def update(self, step: int) -> Iterator[None]:
        """Around the call of the update after `step` updates."""
        if step == self.begin and self.begin < self.end:
            jax.profiler.start_trace(self.folder)
            self.running = True
        with jax.profiler.StepTraceAnnotation("update", step_num=step):
            yield

    def updated(self, step: int, result: object) -> None:
        """After it, with its result, so that the last traced update is in the trace whole."""
        if self.running and step >= self.end:
            jax.block_until_ready(result)
            self.stop()

    def __enter__(self) -> "Profile":
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def stop(self) -> None:
        if self.running:
            self.running = False
            jax.profiler.stop_trace()
