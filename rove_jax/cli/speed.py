"""`python -m eval speed`: its arguments, and which of its two jobs they ask for."""

import argparse
from pathlib import Path

from rove_jax.cli import exits
from rove_jax.errors import require


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that make a `Workload`, and how it is measured or compiled for."""
    parser.add_argument("--preset", required=True, help="a model size, such as gpt2-small")
    parser.add_argument(
        "--variants", nargs="+", default=["rope", "rove"], help="the others are compared with the first"
    )
    parser.add_argument("--backends", nargs="+", default=["auto"], help="attention backends (default: auto)")
    parser.add_argument("--what", nargs="+", choices=["train", "prefill", "decode"], help="default: all three")
    parser.add_argument("--batch-size", type=int, default=8, help="rows, over all devices (default: 8)")
    parser.add_argument("--context-length", type=int, default=1024, help="tokens (default: 1024)")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], help="of activations (default: the preset's)")
    parser.add_argument("--layers", type=int, help="instead of the preset's, for a quick look")
    parser.add_argument("--scan-layers", action="store_true", help="loop over one compiled layer instead of unrolling")
    for axis, default in (("data", -1), ("fsdp", 1), ("tensor", 1)):
        parser.add_argument(
            f"--{axis}", type=int, default=default, help=f"size of mesh axis {axis} (default: {default})"
        )
    parser.add_argument("--rounds", type=int, help="how often each program is measured (default: 10)")
    parser.add_argument("--topology", metavar="KIND:SIZES", help="compile the train step for this instead, run nothing")
    parser.add_argument("--out", type=Path, help="result file")


def run(arguments: argparse.Namespace) -> None:
    """Measure variants side by side here, or compile them for another machine; print a table, write a result file."""
    from rove_jax.config import Mesh
    from rove_jax.evaluation import rates, results
    from rove_jax.evaluation.workload import PROGRAMS, Workload

    asked = Workload(
        preset=arguments.preset,
        variants=tuple(arguments.variants),
        backends=tuple(arguments.backends),
        batch_size=arguments.batch_size,
        context_length=arguments.context_length,
        dtype=arguments.dtype,
        layers=arguments.layers,
        scan_layers=arguments.scan_layers,
        mesh=Mesh(arguments.data, arguments.fsdp, arguments.tensor),
    )
    if arguments.out is not None:
        results.check_writable(arguments.out, "--out")
    if arguments.topology is None:
        rounds = 10 if arguments.rounds is None else arguments.rounds
        require(rounds >= 1, "--rounds", rounds, "must be at least 1")
        document = rates.run(asked, tuple(dict.fromkeys(arguments.what or PROGRAMS)), rounds)
        text = f"{rates.speed_caption(document)}\n\n{rates.speed_table(document)}"
    else:
        from rove_jax.planning import executable

        runs_nothing = "is not read with --topology, which compiles the train step and runs nothing; remove it"
        require(arguments.rounds is None, "--rounds", arguments.rounds, runs_nothing)
        require(arguments.what in (None, ["train"]), "--what", arguments.what, runs_nothing)
        document = executable.run(asked, arguments.topology, exits.progress)
        text = executable.plan_text(document)
    print(text)
    if arguments.out is not None:
        results.write(arguments.out, document)
        print(f"\nWritten: {arguments.out}")
