"""`python -m eval ruler`: its arguments, and the tables it prints."""

import argparse
from pathlib import Path

from rove_jax.cli.arguments import add_distributed, add_run, add_scalings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that choose a checkpoint, the tasks and their lengths."""
    add_run(parser)
    parser.add_argument(
        "--lengths", type=int, nargs="+", required=True, help="tokens of a prompt and the room for its answer"
    )
    parser.add_argument("--tasks", nargs="+", metavar="TASK", help="which of the 13 (default: all)")
    parser.add_argument("--samples", type=int, default=500, help="of each task and length (default: 500, as published)")
    parser.add_argument("--seed", type=int, default=42, help="of the samples (default: 42, as published)")
    add_scalings(parser)
    parser.add_argument(
        "--reserve",
        choices=["published", "answer"],
        default="published",
        help="tokens left for the answer: as published, 30 to 128 (default), or as many as it has",
    )
    parser.add_argument("--squad", type=Path, metavar="FILE", help="SQuAD's dev-v2.0.json (default: made-up questions)")
    parser.add_argument(
        "--hotpotqa", type=Path, metavar="FILE", help="hotpot_dev_distractor_v1.json (default: made-up questions)"
    )
    parser.add_argument(
        "--haystack", default="sotu", help="essays: sotu, held-out addresses (default), a text file or a folder of them"
    )
    parser.add_argument("--generate", action="store_true", help="also let the model write, scored by string match")
    parser.add_argument("--batch-size", type=int, help="rows of a forward pass (default: chosen)")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="where samples are kept (default: the user's cache)")
    parser.add_argument(
        "--out", type=Path, required=True, help="result file; records of samples go beside it, to a .jsonl"
    )
    add_distributed(parser)


def run(arguments: argparse.Namespace) -> None:
    """Measure one run on RULER, print two tables, write the result file."""
    from rove_jax.distributed import is_writer
    from rove_jax.errors import require
    from rove_jax.evaluation import results, runs
    from rove_jax.evaluation.ruler import cache, summary
    from rove_jax.evaluation.ruler.evaluate import Asked, measure
    from rove_jax.evaluation.ruler.tasks import NAMES

    asked = Asked(
        lengths=tuple(arguments.lengths),
        tasks=tuple(arguments.tasks or NAMES),
        samples=arguments.samples,
        seed=arguments.seed,
        reserve=arguments.reserve,
        scalings=tuple(arguments.scaling),
        value_scaling=arguments.value_scaling,
        haystack=arguments.haystack,
        squad=arguments.squad and str(arguments.squad),
        hotpotqa=arguments.hotpotqa and str(arguments.hotpotqa),
        generate=arguments.generate,
    )
    require(
        arguments.batch_size is None or arguments.batch_size >= 1,
        "--batch-size",
        arguments.batch_size,
        "must be at least 1",
    )
    journal = results.beside(arguments.out, ".jsonl", "--out", "records")
    opened = runs.open_run(arguments.workdir, step=arguments.step)
    document = measure(opened, asked, journal, samples_in=arguments.cache, batch_size=arguments.batch_size)
    if not is_writer():
        return
    results.write(arguments.out, document)
    print(f"{summary.caption(document)}\n\n{summary.ruler_table(document)}\n")
    print(
        f"{summary.control_table(document)}\n{summary.legend(document)}\n\nWritten: {arguments.out}\n         {journal}"
    )
    print(f"Samples: {arguments.cache or cache.folder()}, in the files that samples_file of each result names")
