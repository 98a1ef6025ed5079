"""`python -m eval perplexity`: its arguments, and the job; the arguments of a protocol, which `compare` has too."""

import argparse
import dataclasses
from pathlib import Path
from typing import get_args

from rove_jax.cli.arguments import add_distributed, add_run
from rove_jax.config import Config, ScalingRule
from rove_jax.evaluation.protocol import Mode, Prefix, Protocol, Split


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that choose a checkpoint and a protocol."""
    add_run(parser)
    protocol_arguments(parser)
    parser.add_argument("--out", type=Path, help="result file (default: in the run folder)")
    add_distributed(parser)


def protocol_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that choose a `Protocol`."""
    parser.add_argument(
        "--lengths",
        type=int,
        nargs="+",
        help="context lengths in tokens (default: the recipe's; 1 to 16 times the training length)",
    )
    parser.add_argument(
        "--scaling", nargs="+", choices=get_args(ScalingRule), help="frequency scalings (default: the recipe's)"
    )
    parser.add_argument(
        "--value-scaling",
        choices=["same", "none"],
        help="scale the rotations of values like those of queries and keys (default), or leave them as trained",
    )
    parser.add_argument("--documents", type=int, help="how many documents (default: the recipe's)")
    parser.add_argument(
        "--mode",
        choices=get_args(Mode),
        help="the same text at every length, in windows (default); the first tokens of each document; or whole "
        "documents, in windows one after another or sliding",
    )
    parser.add_argument(
        "--stride", type=int, help="sliding: tokens from one window to the next (default: half a window)"
    )
    parser.add_argument(
        "--text",
        metavar="PATH",
        help="measure on this instead of the run's own data: a prepared folder, a file or folder of text, tfds:NAME or "
        "tfds:NAME@DATA_DIR",
    )
    parser.add_argument(
        "--split",
        choices=get_args(Split),
        help="which documents (default: validation; with --text that is not prepared: all)",
    )
    parser.add_argument(
        "--prefix",
        choices=get_args(Prefix),
        help="end-of-text before each document, before every window, or nowhere (default: as in training)",
    )


def protocol(config: Config, arguments: argparse.Namespace) -> Protocol:
    """The protocol the arguments ask for; what they leave out is as the run's config says."""
    from rove_jax.evaluation.runs import default_protocol, default_split

    usual = default_protocol(config)
    given = {
        name: getattr(arguments, name)
        for name in ("value_scaling", "mode", "stride", "text", "split", "prefix", "documents")
    }
    if arguments.text is not None and arguments.split is None:
        given["split"] = default_split(arguments.text)
    given["lengths"] = tuple(arguments.lengths) if arguments.lengths else None
    given["scalings"] = tuple(arguments.scaling) if arguments.scaling else None
    return dataclasses.replace(usual, **{name: value for name, value in given.items() if value is not None})


def run(arguments: argparse.Namespace) -> None:
    """Measure one run, print the table, write the result file."""
    from rove_jax.distributed import is_writer
    from rove_jax.evaluation import results, runs
    from rove_jax.evaluation.processes import everywhere
    from rove_jax.evaluation.tables import perplexity_caption, perplexity_table

    opened = runs.open_run(arguments.workdir, step=arguments.step)
    asked = protocol(opened.config, arguments)
    if arguments.out is not None and is_writer():
        results.check_writable(arguments.out, "--out")
    if arguments.out is None:
        document, path = runs.stored_perplexity(opened, asked, everywhere())
    else:
        document, path = runs.measure_perplexity(opened, asked, everywhere()), arguments.out
        if is_writer():
            results.write(path, document)
    if not is_writer():
        return
    print(f"{perplexity_caption(document)}\n\n{perplexity_table(document)}\n\nWritten: {path}")
