"""`python -m eval core`: its arguments, and the job."""

import argparse
from pathlib import Path

from rove_jax import storage
from rove_jax.cli.arguments import add_distributed, add_run
from rove_jax.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that choose the data and how it is asked."""
    add_run(parser)
    parser.add_argument("--data", type=Path, required=True, help="nanochat's or llm-foundry's evaluation data")
    parser.add_argument(
        "--protocol",
        choices=["nanochat", "foundry"],
        default="nanochat",
        help="how questions are asked: as nanochat does (default), or llm-foundry and so DCLM",
    )
    parser.add_argument(
        "--baselines",
        choices=["v1", "v2"],
        default="v1",
        help="which guesses count as 0 in the headline: those of nanochat and of most published numbers (default), or "
        "DCLM's of September 2025; both are reported",
    )
    parser.add_argument(
        "--max-examples",
        type=int,
        metavar="N",
        help="of each task (default: all); with foundry the same number of each of jeopardy's five categories",
    )
    parser.add_argument("--tasks", nargs="+", metavar="TASK", help="by their labels (default: all 22)")
    parser.add_argument(
        "--overlong",
        choices=["truncate", "extrapolate", "yarn"],
        default="extrapolate",
        help="prompts longer than the training context: leave out their first tokens, read them all (default), or read "
        "them with frequencies scaled",
    )
    parser.add_argument("--out", type=Path, required=True, help="result file; records of examples go beside it")
    add_distributed(parser)


def run(arguments: argparse.Namespace) -> None:
    """Measure, or go on measuring; the first process prints the table and writes the result file."""
    from rove_jax.distributed import is_writer
    from rove_jax.evaluation import results, runs
    from rove_jax.evaluation.core.evaluate import Settings, evaluate
    from rove_jax.evaluation.core.report import core_text
    from rove_jax.evaluation.core.tasks import TASKS

    asked = Settings(
        protocol=arguments.protocol,
        overlong=arguments.overlong,
        max_examples=arguments.max_examples,
        tasks=tuple(arguments.tasks or (task.label for task in TASKS)),
    )
    if storage.remote(storage.place(arguments.out)):
        raise UsageError(f"--out = {str(arguments.out)!r}: records are added to a file on a disk; give a path there")
    records = results.beside(arguments.out, ".records.jsonl", "--out", "records")
    document = evaluate(
        runs.open_run(arguments.workdir, step=arguments.step), arguments.data, asked, arguments.baselines, records
    )
    if not is_writer():
        return
    results.write(arguments.out, document)
    print(f"{core_text(document)}\n\nWritten: {arguments.out}\n         {records}")
