"""`python -m train` and `rove-train`: train a model as a recipe says, or go on with a run. Two jobs beside it: `plan`
says what a run would take, `verify` whether what it saved is whole."""

import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rove_jax import config, distributed, recipes, storage
from rove_jax.cli import exits
from rove_jax.errors import UsageError, nearest
from rove_jax.training.stop import StopRequest

JOBS = ("plan", "verify")
"""Words before the arguments that ask for something else than training: modules of this package with a `main`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Train, or do one of JOBS; returns the exit code of the process."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in JOBS:
        return importlib.import_module(f"rove_jax.cli.{words[0]}").main(words[1:])
    return exits.run(lambda: train(words))


def parser() -> exits.Parser:
    """The arguments beside the fields of the recipe."""
    top = exits.Parser(
        prog="train",
        description="Train a language model as a recipe says. The same command again goes on where the run stopped.",
        epilog="Any field of the recipe can be given as well: --training.steps 50 --optimizer.peak-lr 3e-4 "
        "--evaluation.no-at-end. `--fields` lists them.",
    )
    top.add_argument("--config", type=Path, required=True, metavar="FILE", help="the recipe: a Python file")
    top.add_argument(
        "--workdir",
        type=Path,
        metavar="DIR",
        help="folder of the run, new or to go on with, on a disk or gs://BUCKET/...",
    )
    top.add_argument("--dry-run", action="store_true", help="print what would run, make nothing, and stop")
    top.add_argument("--fields", action="store_true", help="list the fields of a recipe, and stop")
    top.add_argument(
        "--distributed",
        choices=("auto", "on", "off"),
        default="auto",
        help="join other processes: if the environment tells of some (the default), or else fail, or never",
    )
    top.add_argument(
        "--allow-change",
        action="extend",
        nargs="+",
        default=[],
        metavar="FIELD",
        help="go on with a run though these fields differ from what it had, such as optimizer.peak_lr or "
        "data.source (for other data); the change is put on record",
    )
    top.add_argument("--profile", type=int, default=0, metavar="STEPS", help="trace so many steps with JAX's profiler")
    return top


def train(argv: Sequence[str]) -> int:
    """What `main` does, errors raised."""
    if argv and not argv[0].startswith("-"):
        raise UsageError(f"{argv[0]}: no such job{nearest(argv[0], JOBS)}; a recipe is given by --config FILE")
    with StopRequest(abrupt=True) as request:
        arguments, overrides = parser().parse_known_args(argv)
        settings = recipes.load(arguments.config, ["--help"] if arguments.fields else overrides)
        if arguments.profile < 0:
            raise UsageError(f"--profile {arguments.profile}: must be a number of steps")
        if arguments.workdir is not None:
            arguments.workdir = storage.place(arguments.workdir)
        elif not arguments.dry_run:
            raise UsageError("--workdir DIR is needed: a new folder, or that of a run to go on with")
        distributed.keep_freed_memory()
        peers = distributed.initialize(
            arguments.distributed,
            heartbeat_seconds=settings.training.heartbeat_seconds,
            join_seconds=settings.training.join_seconds,
            processes=settings.mesh.processes,
        )

        def work() -> int:
            if arguments.dry_run:
                return dry_run(settings, arguments.workdir, arguments.allow_change)
            return run(settings, arguments.workdir, arguments.profile, request, arguments.allow_change)

        if peers is None:
            return work()
        request.end = peers.leave
        exits.together(peers, work)


def dry_run(settings: config.Config, workdir: Path | None, allow_change: Sequence[str]) -> int:
    """Print the resolved config as JSON, and what it comes to here; make no folder, no cache, no array.

    Refuses what `loop.run` would refuse of them before it reads data and checkpoints.
    """
    from rove_jax.training import run_folder, setup, start

    run_folder.check_allowed(allow_change)
    if workdir is not None:
        run_folder.check_owner(workdir, settings, allow_change)
    lines = setup.make(settings).lines()
    start.check_sources(settings)
    if distributed.is_writer():
        print(json.dumps(config.to_dict(settings), indent=2))
        print("\n".join(lines))
    return 0


def run(
    settings: config.Config, workdir: Path, profile_steps: int, request: StopRequest, allow_change: Sequence[str]
) -> int:
    """Train, say where everything is, and evaluate a finished run if its config wants that."""
    cache = distributed.keep_compiled(settings.training.compilation_cache)
    from rove_jax.training import loop

    request.abrupt = False  # everything large is imported
    result = loop.run(settings, workdir, profile_steps=profile_steps, allow_change=allow_change, request=request)
    if distributed.is_writer():
        print(f"compiled       programs are kept in {cache}")
        summarize(result, settings, workdir, profile_steps)
    if result.finished and not result.exit_code and settings.evaluation.at_end and distributed.is_writer():
        from rove_jax.evaluation import at_end

        at_end.evaluate_run(workdir)
    return result.exit_code


def summarize(result, settings: config.Config, workdir: Path, profile_steps: int) -> None:
    """Where the run stands, and where everything was written."""
    from rove_jax.training.checkpoints import FOLDER
    from rove_jax.training.loop import PROFILE
    from rove_jax.training.metrics import EVENTS, FILE

    steps = settings.training.steps
    if result.finished:
        state = "was finished before" if not result.trained else "finished"
    elif result.exit_code:
        state = "asked to stop; the same command goes on"
    else:
        state = f"stopped by training.stop_after = {settings.training.stop_after}; without it, the same command goes on"
    print(f"step {result.step} of {steps}: {state}")
    saved = f"last step {result.step}" if result.step else "none yet"
    best = (
        "" if result.best_step is None else f", best step {result.best_step} (validation loss {result.best_loss:.4f})"
    )
    print(f"checkpoints    {workdir / FOLDER}: {saved}{best}")
    print(f"metrics        {workdir / FILE}, {workdir / EVENTS}/")
    if profile_steps and result.trained:
        print(f"profile        {workdir / PROFILE}/")
