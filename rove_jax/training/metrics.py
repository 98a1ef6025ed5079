"""What a run says of itself while it goes: `metrics.jsonl`, TensorBoard event files, a progress bar."""

import contextlib
import datetime
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from rove_jax import distributed, storage
from rove_jax.errors import RunError, UsageError

FILE = "metrics.jsonl"
EVENTS = "tensorboard"


class Metrics:
    """Rows of numbers by step, each to `metrics.jsonl` and to TensorBoard.

    Rows after `step`, which a killed run may have written and a resumed one will write again, are dropped first, and
    so is a row that was cut short.
    """

    FLUSH_SECONDS = 10.0
    """Between two flushes of the event file, each of which waits for the disk."""

    def __init__(self, folder: Path, *, step: int) -> None:
        # EventsWriter, not SummaryWriter: that one writes from a thread, where a full disk goes unnoticed.
        from tensorboardX.event_file_writer import EventsWriter

        self.path = folder / FILE
        whole = [row for row in read_rows(self.path) if row["step"] <= step]
        storage.replace(self.path, "".join(encode(row) for row in whole))
        self.file = self.path.open("a")
        (folder / EVENTS).mkdir(exist_ok=True)
        self.events = EventsWriter(str(folder / EVENTS / "events"))
        self.flushed = time.monotonic()
        if step:
            self.write_event(step=step + 1, session_log=True)

    def write(self, row: dict[str, Any]) -> None:
        """Append one row, whole on disk when this returns (short of a power cut). Raises `RunError` on a full disk."""
        try:
            self.file.write(encode(row))
            self.file.flush()
            self.write_event(step=row["step"], values={name: value for name, value in row.items() if name != "step"})
            if time.monotonic() - self.flushed > self.FLUSH_SECONDS:
                self.events.flush()
                self.flushed = time.monotonic()
        except OSError as error:
            raise RunError(f"{self.path}: {error.strerror}; the run stops at step {row['step']}") from error

    def flush(self) -> None:
        """See to it that all rows are in the files. Raises `OSError`."""
        self.events.flush()

    def write_event(self, *, step: int, values: dict[str, float] | None = None, session_log: bool = False) -> None:
        """One TensorBoard event. `session_log` tells it to forget what it has from `step` on."""
        # Classes of a protobuf module are made when it is imported, so a type checker sees none.
        from tensorboardX.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]

        event = Event(wall_time=time.time(), step=step)
        for tag, value in (values or {}).items():
            event.summary.value.add(tag=tag, simple_value=value)
        if session_log:
            event.session_log.status = SessionLog.START
        self.events.write_event(event)

    def close(self, *, quietly: bool = False) -> None:
        """`quietly`: a full disk has been told of already."""
        try:
            self.file.close()
            self.events.close()
        except OSError as error:
            if not quietly:
                raise RunError(f"{self.path.parent}: {error.strerror}; the last rows of metrics are lost") from error


def encode(row: dict[str, Any]) -> str:
    """A row as a line of JSON, which knows no NaN: such a step ends the run and has no row."""
    return json.dumps(row, allow_nan=False) + "\n"


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics file in order, without what follows the last whole line. No file: no rows.

    Raises `UsageError` for whole lines that are no rows.
    """
    if not path.exists():
        return []
    try:
        rows = [json.loads(line) for line in path.read_text().split("\n")[:-1]]
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: is damaged ({error}); mend it, or move it away") from error
    if not all(isinstance(row, dict) and isinstance(row.get("step"), int) for row in rows):
        raise UsageError(f"{path}: is damaged (a line is no row with a step); mend it, or move it away")
    return rows


class Clock:
    """Seconds of training since the last row, without pauses, and how many of them went into waiting for data."""

    def __init__(self, step: int) -> None:
        self.restart(step)

    def restart(self, step: int) -> None:
        self.step, self.began, self.paused, self.waited = step, time.perf_counter(), 0.0, 0.0

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Around fetching a batch."""
        began = time.perf_counter()
        yield
        self.waited += time.perf_counter() - began

    @contextlib.contextmanager
    def pausing(self) -> Iterator[None]:
        """Around what is not training: validation, saving."""
        began = time.perf_counter()
        yield
        self.paused += time.perf_counter() - began

    def measure(self, step: int, tokens_per_step: int) -> dict[str, float]:
        """Mean figures of the updates since the last row; `step` has just been seen to be done."""
        seconds = max(time.perf_counter() - self.began - self.paused, 1e-9)
        count = max(step - self.step, 1)
        return {
            "tokens_per_second": count * tokens_per_step / seconds,
            "step_seconds": seconds / count,
            "data_wait_share": min(self.waited / seconds, 1.0),
        }


class Progress:
    """A bar on a terminal; elsewhere a line now and then, since a log file does not want a thousand of them.

    `steps`: those at which this call ends.
    """

    SECONDS = 10.0
    """Between two lines outside a terminal."""

    def __init__(self, *, step: int, steps: int, stream: TextIO | None = None, shown: bool = True) -> None:
        from tqdm import tqdm

        self.stream = stream or sys.stderr
        self.steps, self.start = steps, step
        self.began = self.last_line = time.monotonic()
        self.bars = shown and self.stream.isatty()
        self.lines = shown and not self.bars
        layout = "{desc} {n_fmt}/{total_fmt} |{bar}| {postfix} [{elapsed}, {remaining} left]"
        self.bar = tqdm(
            initial=step,
            total=steps,
            desc="step",
            bar_format=layout,
            file=self.stream,
            disable=not self.bars,
            **distributed.screen(),
        )

    def show(
        self,
        step: int,
        *,
        loss: float | None,
        tokens_per_second: float,
        validation_loss: float | None = None,
        skipped: int = 0,
    ) -> None:
        """Show that `step` updates are done, `skipped` of them in name only; no `loss`: the last one, just now."""
        if loss is None:
            self.note(f"step {step}: loss or gradient is not finite; skipped, {skipped} in all")
        numbers = f"loss {'-' if loss is None else f'{loss:.4f}'}, {tokens_per_second:,.0f} tokens/s"
        numbers += f", {skipped} steps skipped" if skipped else ""
        self.bar.set_postfix_str(numbers, refresh=False)
        self.bar.update(step - self.bar.n if self.bars else 0)
        now = time.monotonic()
        if validation_loss is not None:
            self.note(f"step {step}: validation loss {validation_loss:.4f}")
        if self.lines and (now - self.last_line >= self.SECONDS or step == self.steps):
            self.last_line = now
            left = round((now - self.began) / max(step - self.start, 1) * (self.steps - step))
            self.note(f"step {step}/{self.steps}: {numbers}, {datetime.timedelta(seconds=left)} left")

    def note(self, line: str) -> None:
        """A line of its own, above the bar."""
        if self.bars:
            self.bar.write(line, file=self.stream)
        elif self.lines:
            print(line, file=self.stream, flush=True)

    def close(self) -> None:
        self.bar.close()
