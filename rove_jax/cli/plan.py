"""`python -m train plan`: what a recipe would take on hardware that is not here, and how it is best laid out there."""

import os
from collections.abc import Sequence
from pathlib import Path

from rove_jax import recipes
from rove_jax.cli import exits, signals
from rove_jax.errors import require


def main(argv: Sequence[str]) -> int:
    """Print the plan that `argv` asks for; returns the exit code of the process."""
    return exits.run(lambda: plan(argv))


def parser() -> exits.Parser:
    """The arguments beside the fields of the recipe."""
    top = exits.Parser(
        prog="train plan",
        description="Compile the train step of a recipe for hardware that is not here, and say per device what it "
        "needs and does, whether it fits, how long a step takes at least, and how to lay the run out better. "
        "Needs no accelerator and no data; libtpu (extra `tpu`) for TPUs, the CUDA plugin (extra `cuda`) for GPUs.",
        epilog="Any field of the recipe can be given as well: --mesh.fsdp 16 --training.accumulation 2.",
    )
    top.add_argument("--config", type=Path, required=True, metavar="FILE", help="the recipe: a Python file")
    top.add_argument(
        "--topology", required=True, metavar="KIND:SIZES", help="such as v5e:16x16, v5p:4x4x4, h100:8; or cpu:8"
    )
    top.add_argument("--compiles", type=int, default=6, metavar="N", help="programs tried in all (default: 6; 1: none)")
    top.add_argument("--out", type=Path, metavar="FILE", help="the same as JSON")
    return top


def plan(argv: Sequence[str]) -> int:
    """What `main` does, errors raised."""
    arguments, overrides = parser().parse_known_args(argv)
    settings = recipes.load(arguments.config, overrides)
    require(arguments.compiles >= 1, "--compiles", arguments.compiles, "must be at least 1")
    # Only the CPU is looked for here, and the compilers for what is not here stay silent about it.
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ.setdefault("TPU_STDERR_LOG_LEVEL", "3")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from rove_jax.evaluation import results
    from rove_jax.planning import document, plan_table

    if arguments.out is not None:
        results.check_writable(arguments.out, "--out")

    with signals.prompt("interrupted"):
        found = document.make(str(arguments.config), settings, arguments.topology, arguments.compiles, exits.progress)
    print(plan_table.plan_text(found))
    if arguments.out is not None:
        results.write(arguments.out, found)
        print(f"\nWritten: {arguments.out}")
    return 0
