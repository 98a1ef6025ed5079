"""`python -m eval puzzles`: its arguments, and the table it prints."""

import argparse
from pathlib import Path

from rove_jax.cli.arguments import add_distributed, add_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that choose a run and the sizes."""
    add_run(parser)
    parser.add_argument("--sizes", type=int, nargs="+", help="letters of a string, digits of a number (default: some)")
    parser.add_argument("--samples", type=int, default=200, help="puzzles of each size (default: 200)")
    parser.add_argument("--seed", type=int, default=42, help="of the puzzles (default: 42)")
    parser.add_argument("--out", type=Path, help="result file")
    add_distributed(parser)


def run(arguments: argparse.Namespace) -> None:
    """Ask one run, print the table, write the result file."""
    from rove_jax.distributed import is_writer
    from rove_jax.errors import require
    from rove_jax.evaluation import puzzles, results, runs
    from rove_jax.evaluation.processes import everywhere, progress

    require(arguments.samples >= 1, "--samples", arguments.samples, "must be at least 1")
    if arguments.out is not None and is_writer():
        results.check_writable(arguments.out, "--out")
    opened = runs.open_run(arguments.workdir, step=arguments.step)
    kind = opened.config.data.source
    sizes = arguments.sizes or puzzles.default_sizes(kind)
    with progress(len(sizes) * arguments.samples, f"{opened.workdir.name}: puzzles", "puzzle") as bar:
        records = puzzles.accuracies(
            opened.config.model,
            opened.params,
            opened.tokenizer,
            kind,
            sizes,
            samples=arguments.samples,
            seed=arguments.seed,
            first=[] if opened.config.data.segments else [opened.tokenizer.eot],
            mesh=everywhere(),
            advance=bar.update,
        )
    if not is_writer():
        return
    settings = {"sizes": list(sizes), "samples": arguments.samples, "seed": arguments.seed}
    document = results.document("puzzles", opened.provenance, {"puzzle": kind, **settings}, records)
    print(f"{kind}: {opened.workdir.resolve().name}, step {opened.step}\n\n{puzzles.puzzle_table(records)}")
    if arguments.out is not None:
        results.write(arguments.out, document)
        print(f"\nWritten: {arguments.out}")
