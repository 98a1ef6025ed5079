"""Arguments that several commands have."""

import argparse
from pathlib import Path
from typing import Any, get_args

from rove_jax.config import ScalingRule
from rove_jax.distributed import Mode


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add --workdir and --step: one checkpoint of one run."""
    parser.add_argument("--workdir", type=Path, required=True, help="a run folder")
    add_step(parser)


def add_runs(parser: argparse.ArgumentParser) -> None:
    """Add --workdirs and --step: a checkpoint of each of several runs."""
    parser.add_argument("--workdirs", type=Path, nargs="+", required=True, help="run folders; ratios are to the first")
    add_step(parser)


def add_step(parser: argparse.ArgumentParser) -> None:
    """Add --step."""
    parser.add_argument("--step", type=step, default="last", help="checkpoint: last (default), best or a step")


def add_scalings(parser: argparse.ArgumentParser) -> None:
    """Add --scaling and --value-scaling: with which rotations texts longer than in training are read."""
    parser.add_argument(
        "--scaling",
        nargs="+",
        choices=get_args(ScalingRule),
        default=["none"],
        help="frequency scalings beyond the training length, by length / training length (default: none)",
    )
    parser.add_argument("--value-scaling", choices=["same", "none"], default="same", help="as in perplexity")


def add_distributed(parser: argparse.ArgumentParser) -> None:
    """Add --distributed, which `eval` obeys: all processes do the job, of which the first one writes and prints."""
    parser.add_argument(
        "--distributed",
        choices=get_args(Mode),
        default="auto",
        help="join other processes: if the environment tells of some (default), or else fail, or never",
    )


def step(text: str) -> Any:
    """A checkpoint as the command line names it: "last", "best" or a number."""
    if text in ("last", "best"):
        return text
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is neither last, best nor a step")
    return int(text)
