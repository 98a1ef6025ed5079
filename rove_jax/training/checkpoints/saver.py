"""Writing one checkpoint at a time in the background, all processes of a run together, and hearing of how that went."""

import contextlib
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import orbax.checkpoint as ocp
from etils import epath

from rove_jax import distributed
from rove_jax.training.checkpoints.stored import first_line

WRITE_FAULTS = (OSError, ValueError, RuntimeError)
"""What a failed write comes out of Orbax as: tensorstore reports a full disk as a ValueError."""

TIMEOUT_SECONDS = 24 * 3600
"""For a write; Orbax's own 20 minutes are too short for a slow disk, and a write that fails is heard of anyway."""


class Arrays(ocp.StandardCheckpointHandler):
    """Remembers its writers, of which Orbax forgets all but the first that fails."""

    writers: Any = ()

    async def async_save(self, *inputs: Any, **options: Any) -> Any:
        self.writers = await super().async_save(*inputs, **options) or ()
        return self.writers


@ocp.args.register_with_handler(Arrays, for_save=True, for_restore=True)
class ArraysArgs(ocp.args.StandardSave):
    """Orbax finds a handler by the class of its arguments."""


class OncePerWrite(logging.Filter):
    """Lets through what is logged, but for a traceback of each array of a write that fails."""

    def filter(self, record: logging.LogRecord) -> bool:
        background = threading.current_thread() is not threading.main_thread() or record.name == "asyncio"
        return not (record.exc_info and background)


@contextlib.contextmanager
def one_line_for_many() -> Iterator[None]:
    """While open: a write that fails is told of by who hears of it, and not once for each array on stderr as well.

    For Orbax 0.12.8, which logs each failure, and closes the event loop of writes that still go on.
    """
    hook, once = sys.unraisablehook, OncePerWrite()
    loggers = [logging.getLogger(name) for name in ("absl", "asyncio")]

    def unraisable(what: Any) -> None:
        if str(what.exc_value) != "Event loop is closed":
            hook(what)

    sys.unraisablehook = unraisable
    for logger in loggers:
        logger.addFilter(once)
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for logger in loggers:
            logger.removeFilter(once)


class Saver:
    """Begins to write, and says later whether that failed. Threads start with the first write.

    In a run of many processes a write fails in all of them or in none: what fails in one makes the barriers fail at
    which Orbax, before and after it renames what is written, waits for the others.
    """

    READY, WRITTEN, RENAMED = range(1, 4)
    """Stages of a write that have ended in all processes."""

    def __init__(self) -> None:
        self.arrays = {"params": Arrays(), "optimizer": Arrays()}
        self.checkpointer: ocp.AsyncCheckpointer | None = None
        self.error: BaseException | None = None
        self.writes = 0
        self.joint = distributed.Joint("no write")
        self.quiet = contextlib.ExitStack()
        self.fell = False
        """Whether a write has failed."""

    def save(
        self, where: epath.Path, items: dict[str, Any], metadata: dict[str, Any], prepare: Callable[[], object]
    ) -> None:
        """Begin to write trees of arrays by name, and `metadata`, to the new folder `where`, which appears when whole.

        The arrays may be changed when this returns. Raises one of WRITE_FAULTS if the beginning fails already, or
        `prepare`, which is called first; of many processes all raise if that fails in one, and are told of all else
        later.
        """
        if self.checkpointer is None:
            handlers: dict[str, Any] = {"metadata": ocp.JsonCheckpointHandler(), **self.arrays}
            options = ocp.AsyncOptions(timeout_secs=TIMEOUT_SECONDS, barrier_sync_fn=self.barrier)
            self.quiet.enter_context(one_line_for_many())
            self.checkpointer = ocp.AsyncCheckpointer(ocp.CompositeCheckpointHandler(**handlers), async_options=options)
        args = {"metadata": ocp.args.JsonSave(metadata), **{name: ArraysArgs(tree) for name, tree in items.items()}}
        self.writes += 1
        self.joint = distributed.Joint(f"write {self.writes}")
        try:
            prepare()
        except WRITE_FAULTS as error:
            self.joint.fail(first_line(error))
            raise
        self.joint.end_stage()
        try:
            self.checkpointer.save(where, args=ocp.args.Composite(**args))
        except WRITE_FAULTS as error:
            self.fell = True
            self.join()
            if self.joint.over:
                raise
            self.note(error)  # the others have begun

    def barrier(self, *, key: str, timeout_ms: int) -> None:
        """What Orbax calls, in its thread, to wait for the other processes."""
        del key
        self.joint.end_stage(timeout_ms)

    def failed(self) -> bool:
        """Whether the write has failed so far, without waiting for it."""
        if self.error is None and self.checkpointer is not None:
            try:
                self.checkpointer.check_for_errors()
            except WRITE_FAULTS as error:
                self.note(error)
        return self.error is not None

    def ended(self, last: epath.Path | None) -> bool:
        """Whether the write has failed, or is done, which one process alone sees by the file `last`, if it is given."""
        if self.joint.client is None:
            return self.failed() or (last is not None and last.exists())
        return self.failed() or self.joint.stage == self.RENAMED

    def note(self, error: BaseException) -> None:
        """Remember what a write failed with, and let the others know."""
        self.error = error
        self.joint.fail(first_line(error))

    def wait(self) -> None:
        """Return when the write is done. Raises what it failed with, once no thread writes to its folder any more."""
        if self.checkpointer is None:
            return
        if not self.failed():
            try:
                self.checkpointer.wait_until_finished()
            except WRITE_FAULTS as error:
                self.note(error)
        error, self.error = self.error, None
        if error is not None:
            self.fell = True
            self.checkpointer.wait_until_finished()
            self.join()
            raise error

    def join(self) -> None:
        """Return when no thread writes arrays any more, to a folder that is given up and about to be cleared."""
        for handler in self.arrays.values():
            for writer in handler.writers:
                with contextlib.suppress(*WRITE_FAULTS):
                    writer.result()
            handler.writers = ()

    def close(self) -> None:
        """End the threads. Nothing may be on its way."""
        if self.checkpointer is not None:
            self.checkpointer.close()
        if not self.fell:  # else futures of that write are told of when they are collected, after the last line
            self.quiet.close()
