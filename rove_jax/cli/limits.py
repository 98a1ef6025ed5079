"""`python -m eval limits`: what the heads of a run can tell apart by their scores, and by their outputs."""

import argparse
from pathlib import Path
from typing import get_args

from rove_jax.cli.arguments import add_run
from rove_jax.config import ScalingRule
from rove_jax.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that choose a checkpoint, its heads and the lengths."""
    add_run(parser)
    parser.add_argument(
        "--lengths",
        type=int,
        nargs="+",
        default=[],
        help="contexts (default: 1, 4, 16 and 64 times the training length)",
    )
    parser.add_argument("--layers", type=int, nargs="+", help="from 0 (default: all)")
    parser.add_argument("--heads", type=int, nargs="+", help="query heads, from 0 (default: all)")
    parser.add_argument("--draws", type=int, default=8, help="queries of each head, with two keys each (default: 8)")
    parser.add_argument("--dtype", default="bfloat16", help="in which scores are equal (default: bfloat16)")
    parser.add_argument(
        "--scaling",
        choices=get_args(ScalingRule),
        default="none",
        help="frequency scaling beyond the training length, by length / training length (default: none)",
    )
    parser.add_argument("--documents", type=int, default=4, help="texts to draw from (default: 4)")
    parser.add_argument(
        "--swaps", type=int, default=24, help="of two tokens in a text, read by the whole model; 0: none (default: 24)"
    )
    parser.add_argument("--swap-length", type=int, help="tokens of those texts (default: as in training)")
    parser.add_argument("--seed", type=int, default=0, help="of the draws (default: 0)")
    parser.add_argument("--out", type=Path, required=True, help="folder for limits.json, limits.csv and figures")


def run(arguments: argparse.Namespace) -> None:
    """Measure one run, print the means over its heads, write data and figures."""
    from rove_jax.analysis import model_figures, model_swap
    from rove_jax.analysis.limits import Asked, mean_over_heads, measure_limits
    from rove_jax.analysis.picture import as_csv
    from rove_jax.evaluation import results, runs
    from rove_jax.evaluation.tables import number, table

    asked = Asked(
        lengths=tuple(arguments.lengths),
        layers=arguments.layers and tuple(arguments.layers),
        heads=arguments.heads and tuple(arguments.heads),
        draws=arguments.draws,
        dtype=arguments.dtype,
        scaling=arguments.scaling,
        documents=arguments.documents,
        swaps=arguments.swaps,
        swap_length=arguments.swap_length,
        seed=arguments.seed,
    )
    if arguments.out.is_file():
        raise UsageError(f"--out = {str(arguments.out)!r}: is a file; give a folder")
    data = arguments.out / "limits.json"
    results.check_writable(data, "--out")
    opened = runs.open_run(arguments.workdir, step=arguments.step)
    document = measure_limits(opened, asked)
    records = document["results"]
    results.write(data, document)
    results.write(data.with_suffix(".csv"), as_csv(list(records[0]), [list(record.values()) for record in records]))
    label = document["provenance"]["run"]
    written = [data, data.with_suffix(".csv"), *model_figures.heads(document).save(arguments.out, "heads")]
    written += model_figures.heads(document, model_figures.PROFILE).save(arguments.out, "profile")
    written += model_figures.by_length([document], [label]).save(arguments.out, "lengths")
    written += model_figures.swaps([document], [label]).save(arguments.out, "swaps")
    failures = [*model_figures.RATES, "swap_unseen", "swap_unseen_context", "effective_pairs"]
    for columns in (failures, list(model_figures.PROFILE)):
        means = {name: mean_over_heads(document, name) for name in columns}
        lengths = list(means[columns[0]])
        rows = [[str(length), *(number(means[name][length], 4) for name in columns)] for length in lengths]
        print(f"{label}, means over {len(records) // len(lengths)} heads; {model_figures.OWN}\n")
        print(table(["length", *(name.replace("_", " ") for name in columns)], rows), end="\n\n")
    if document["model_swaps"]:
        written += model_figures.model_swaps([document], [label]).save(arguments.out, "model-swaps")
        summary = model_swap.by_kind(document["model_swaps"])
        shown = model_swap.SUMMARY[1:]
        rows = [[one["kind"], str(one["swaps"]), *(number(one[name]) for name in shown)] for one in summary]
        print(f"{label}, two tokens of a text change places, and the whole model reads it\n")
        print(table(["places", *(name.replace("_", " ") for name in model_swap.SUMMARY)], rows))
    elif asked.swaps:
        print(f"{label}: no query attends to two different tokens, so none were swapped in a text")
    print("\nWritten:", *written, sep="\n")
