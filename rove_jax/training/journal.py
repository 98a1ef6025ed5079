"""Where the numbers of each update go: rows on disk every so many updates, and the progress bar."""

from pathlib import Path

import jax

from rove_jax import config
from rove_jax.training.feed import Feed
from rove_jax.training.metrics import Clock, Metrics, Progress


class Journal:
    """Where the numbers of each update go: rows on disk every `training.log_every` updates, the progress bar."""

    def __init__(self, workdir: Path, settings: config.Config, step: int, *, writer: bool) -> None:
        self.every, self.steps = settings.training.log_every, settings.training.steps
        self.tokens_per_step = settings.training.batch_size * settings.data.context_length
        self.metrics = Metrics(workdir, step=step) if writer else None
        end = min(self.steps, settings.training.stop_after or self.steps)
        self.progress = Progress(step=step, steps=end, shown=writer)
        self.clock = Clock(step)

    def fetch(self, feed: Feed, step: int) -> jax.Array | None:
        with self.clock.waiting():
            return feed.next(step)

    def row(self, step: int, numbers: dict[str, float], validation_loss: float | None = None) -> None:
        speed = self.clock.measure(step, self.tokens_per_step)
        self.progress.show(
            step,
            loss=numbers.get("loss") if "grad_norm" in numbers else None,
            skipped=int(numbers.get("skipped_steps", 0)),
            tokens_per_second=speed["tokens_per_second"],
            validation_loss=validation_loss,
        )
        if step % self.every and step != self.steps and validation_loss is None:
            return
        if self.metrics:
            validated = {} if validation_loss is None else {"validation_loss": validation_loss}
            first = {name: numbers[name] for name in ("loss",) if name in numbers}
            self.metrics.write({"step": step, **first, **validated, **numbers, **speed})
        self.clock.restart(step)

    def flush(self) -> None:
        """See to it that all rows are in the files. Raises `OSError`."""
        if self.metrics:
            self.metrics.flush()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.progress.close()
        if self.metrics:
            self.metrics.close(quietly=kind is not None)
