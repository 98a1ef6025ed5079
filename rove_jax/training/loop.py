"""A training run, from its first step or its last checkpoint to its end or to where it is asked to stop."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from rove_jax import config, distributed, sharding, storage
from rove_jax.data import pipeline, prepare, tokenizers
from rove_jax.errors import RunError, UsageError
from rove_jax.training import record as records
from rove_jax.training import setup as setups
from rove_jax.training import start as starts
from rove_jax.training.agreement import Agreement
from rove_jax.training.checkpoints import FOLDER, RETRY, SETTLE, Checkpoints
from rove_jax.training.feed import Feed
from rove_jax.training.journal import Journal
from rove_jax.training.profile import Profile
from rove_jax.training.run_folder import (
    CONFIG,
    RECORD,
    Origin,
    RunFolder,
    check_allowed,
    check_owner,
    versions,
    written_config,
)
from rove_jax.training.step import Update, compile_update
from rove_jax.training.stop import EXIT_CODES, StopRequest
from rove_jax.training.validation import Validation

PROFILE = "profile"

SKIPS = 100
"""Steps in a row that are skipped since they are not finite. One more, and the run ends."""


@dataclasses.dataclass(frozen=True)
class Result:
    """How a call of `run` ended."""

    step: int
    """Updates done; all of them are in the last checkpoint."""
    trained: int
    """How many of them this call did."""
    finished: bool
    """Whether the run is at its last step."""
    exit_code: int
    """143 after SIGTERM, 130 after Ctrl-C, else 0."""
    best_step: int | None
    best_loss: float | None
    """Validation loss at `best_step`, nats per token."""


def run(
    settings: config.Config,
    workdir: str | Path,
    *,
    profile_steps: int = 0,
    allow_change: Sequence[str] = (),
    say: Callable[[str], None] = print,
    request: StopRequest | None = None,
) -> Result:
    """Train until `training.steps` or `training.stop_after`, from the last checkpoint in `workdir` if there is one.

    `say` gets lines about set-up; `profile_steps` updates are traced with JAX's profiler. Fields in `allow_change`
    may differ from those that the run has had, from here on. `request`, entered by the caller, knows of signals from
    before the first update; without it they are looked for from there on.

    Raises `UsageError`, before any training, for settings that cannot run here or are not those of the run in
    `workdir`; `RunError` for a loss that is not finite or a disk that takes no more, the last good checkpoint kept.
    """
    workdir = storage.place(workdir)
    end = min(settings.training.steps, settings.training.stop_after or settings.training.steps)
    check_allowed(allow_change)
    changed = check_owner(workdir, settings, allow_change)
    done = None if changed else already_there(settings, workdir, end)
    if done is not None:
        return done
    setup = setups.make(settings)
    tokenizer = tokenizers.load(settings.data)
    writer = distributed.is_writer()
    prepared = prepare.ensure(settings.data, progress=writer)
    for split in ("train", "validation"):
        prepared.windows(split)  # from a bucket they are fetched now, when nobody waits for a batch
    origin = Origin(prepared.fingerprint, tokenizer.identity)

    with contextlib.ExitStack() as stack:
        request = request or stack.enter_context(StopRequest())
        folder = stack.enter_context(RunFolder(workdir, settings, allow_change)) if writer else None
        distributed.meet("run folder")  # the others write to it once it is known to be ours
        checkpoints = stack.enter_context(
            Checkpoints(workdir, keep_last=settings.training.keep_last, keep_every=settings.training.keep_every)
        )
        if folder:
            checkpoints.before.append(folder.send)
        start = starts.find(setup, checkpoints, origin, workdir, allow_change)
        if start.step > settings.training.steps:
            steps = settings.training.steps
            raise UsageError(f"training.steps = {steps}: the run in {workdir} is at step {start.step}; give no fewer")
        record = {**setup.record(), **dataclasses.asdict(origin), "versions": versions(), "start": start.source}
        changed = [*changed, *start.changes]
        record |= {"changes": records.changes(workdir, start.step, changed), records.ID: checkpoints.run.known()}
        if folder:
            folder.write(RECORD, record)
            folder.write(CONFIG, config.to_dict(settings))
            data = prepared.about(settings.training.steps * settings.training.batch_size)
            lines = [*setup.lines(), f"data           {data}", f"run            {workdir}: {start.source}"]
            lines += [f"skipped        {line}" for line in start.skipped]
            lines += [
                f"changed        {what}: {before!r} before, {now!r} from here on" for what, before, now in changed
            ]
            for line in lines:
                say(line)
        trainer = Trainer(setup, tokenizer.eot, prepared, checkpoints, {"config": config.to_dict(settings), **record})
        with request.waiting():
            work = folder.work if folder else workdir
            if storage.remote(work):
                profile_steps = 0  # of one process alone, which sends what it writes
            return trainer.train(start, end, work, request, profile_steps=profile_steps, writer=writer)


def already_there(settings: config.Config, workdir: Path, end: int) -> Result | None:
    """The result of a call that has nothing to do, since the run in `workdir` is where it is to go; else None."""
    known = written_config(workdir)
    if not (workdir / FOLDER).is_dir() or known and known["data"] != config.to_dict(settings)["data"]:
        return None  # other names of the data may mean other data, which must be opened to be told
    with Checkpoints(workdir) as checkpoints:
        if (checkpoints.latest() or 0) < end:
            return None
        newest = checkpoints.newest(checkpoints.check_arrays)  # a run is not done if what it came to is damaged
        step = newest[0] if newest else 0
        if step < end:
            return None
        if distributed.is_writer() and written_config(workdir) != config.to_dict(settings):
            with RunFolder(workdir, settings):
                pass  # what may change has changed, such as what to evaluate, and is on record now
        return Result(step, 0, step >= settings.training.steps, 0, checkpoints.best(), checkpoints.best_loss())


class Trainer:
    """The loop over updates, with all that it needs."""

    def __init__(
        self,
        setup: setups.Setup,
        eot: int,
        prepared: prepare.Prepared,
        checkpoints: Checkpoints,
        record: dict[str, Any],
    ) -> None:
        self.setup, self.settings = setup, setup.settings.training
        self.eot, self.prepared = eot, prepared
        self.checkpoints, self.record = checkpoints, record
        self.validation = Validation(setup, prepared, eot)
        self.in_a_row = 0  # steps that were not finite

    def batches(self, step: int) -> Iterator[jax.Array]:
        """The batches of the updates after `step` updates, on the devices: int32 [B, T + 1]."""
        where = sharding.batch(self.setup.mesh)
        for rows in pipeline.batches(
            self.prepared,
            split="train",
            batch_size=self.settings.batch_size,
            seed=self.setup.settings.seed,
            start_step=step,
            process_index=jax.process_index(),
            process_count=jax.process_count(),
        ):
            yield jax.make_array_from_process_local_data(where, rows)

    def train(
        self, start: starts.Start, end: int, workdir: Path, request: StopRequest, *, profile_steps: int, writer: bool
    ) -> Result:
        """Updates `start.step` + 1 to `end`, or to a signal; all of it is saved when this returns."""
        setup = self.setup
        update = compile_update(setup.settings, setup.model, self.eot, setup.optimizer, setup.target, setup.mesh)
        journal = Journal(workdir, setup.settings, start.step, writer=writer)
        profile = Profile(workdir / PROFILE, first=start.step, end=end, count=profile_steps)
        self.checkpoints.before.insert(0, journal.flush)
        agreement = Agreement(request, setup.mesh)
        feed = Feed(
            self.batches(start.step),
            source=f"data.source = {setup.settings.data.source!r}, prepared in {self.prepared.path}",
            timeout=self.settings.data_timeout_seconds,
            agreement=agreement,
        )
        with journal, profile, feed:
            step = self.updates(update, start, end, journal, profile, feed)
        code = EXIT_CODES[agreement.signal] if agreement.signal else 0
        best, best_loss = self.checkpoints.best(), self.checkpoints.best_loss()
        return Result(step, step - start.step, step == self.settings.steps, code, best, best_loss)

    def updates(
        self, update: Update, start: starts.Start, end: int, journal: Journal, profile: Profile, feed: Feed
    ) -> int:
        """The loop itself; returns the step it got to. The numbers of an update are read while the next one runs."""
        step, state = start.step, start.state
        self.agreement = feed.agreement
        batch = None if self.agreement.ask() else journal.fetch(feed, step + 1)
        unread: dict[str, jax.Array] | None = None
        while step < end and batch is not None and not self.agreement.signal:
            with profile.update(step):
                state, metrics = update(state, batch)
            metrics |= self.agreement.vote(self.checkpoints.wish())
            batch = journal.fetch(feed, step + 2) if step + 1 < end else None
            if unread is not None:
                journal.row(step, self.read(step, unread))
            step, unread = step + 1, metrics
            profile.updated(step, state)
            validates, saves = self.due(step, end)
            if validates or saves or self.agreement.signal:
                # Only a state whose own numbers have been read, and are finite, is validated and saved.
                numbers, unread = self.read(step, unread), None
                with journal.clock.pausing():
                    loss = self.validation.loss(state.params) if validates else None
                # The row first: a kill in between then costs a row that is written again, not one that is missing.
                journal.row(step, numbers, loss)
                best = self.checkpoints.best_loss()
                better = loss is not None and (best is None or loss < best)
                if saves or ((better or self.agreement.signal) and not self.checkpoints.owed):
                    with journal.clock.pausing():
                        self.checkpoints.save(state, self.record, loss)
                self.agreement.wish = 0  # about the write before
        if unread is not None:
            journal.row(step, self.read(step, unread))
            if not self.checkpoints.owed:
                self.checkpoints.save(state, self.record)
        self.checkpoints.finish(state, self.record, lambda: self.agreement.request.signal)
        return step

    def due(self, step: int, end: int) -> tuple[bool, bool]:
        """Whether to validate, and whether to save, after `step` updates; sees to a write that has come to its end."""
        every = self.settings.validation_every
        validates = bool(every) and (step % every == 0 or step == self.settings.steps)
        if self.agreement.wish == SETTLE:
            self.checkpoints.settle()
        if self.checkpoints.owed:
            return validates, self.agreement.wish == RETRY
        return validates, step % self.settings.checkpoint_every == 0 or step == end

    def read(self, step: int, metrics: dict[str, jax.Array]) -> dict[str, float]:
        """The numbers of update `step`, waiting for them, without those that are not finite if the step was skipped.

        Raises `RunError` if one is not finite and steps are not to be skipped, or have been for too long.
        """
        numbers = {name: float(value) for name, value in jax.device_get(metrics).items()}
        self.agreement.count(numbers)
        bad = [name for name, value in numbers.items() if not math.isfinite(value)]
        skips = self.settings.on_nonfinite == "skip" and "parameter_norm" not in bad
        self.in_a_row = self.in_a_row + 1 if bad else 0
        if bad and not (skips and self.in_a_row <= SKIPS):
            with contextlib.suppress(RunError):  # of a write that fails as well; this is what ends the run
                self.checkpoints.settle()
            advice = "try a lower optimizer.peak_lr or a longer optimizer.warmup_steps"
            again = f", after {SKIPS} steps that were skipped" if skips else ""
            raise RunError(f"step {step}: {bad[0]} is {numbers[bad[0]]}{again}; {self.checkpoints.kept()}; {advice}")
        return {name: value for name, value in numbers.items() if name not in bad}
