"""`python -m eval limits`: what the heads of a run can tell apart by their scores, and by their outputs."""

import argparse
from pathlib import Path
from typing import get_args

from rove_jax.cli.arguments import add_run
from rove_jax.cli.figure import check_folder
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
        "--swaps",
        type=int,
        default=24,
        help="of two tokens in a text, read by the whole model: as many where scores change least and as many "
        "anywhere; 0: none (default: 24)",
    )
    parser.add_argument("--swap-length", type=int, help="tokens of those texts (default: as in training)")
    parser.add_argument("--seed", type=int, default=0, help="of the draws (default: 0)")
    parser.add_argument("--out", type=Path, required=True, help="folder for limits.json, limits.csv and figures")


def run(arguments: argparse.Namespace) -> None:
    """Measure one run, print the means over its heads, write data and figures."""
    from rove_jax.analysis import model_figures
    from rove_jax.analysis.limits import Asked, measure_limits
    from rove_jax.analysis.picture import as_csv
    from rove_jax.evaluation import results, runs

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
    check_folder(arguments.out, "limits.json")
    data = arguments.out / "limits.json"
    opened = runs.open_run(arguments.workdir, step=arguments.step)
    check_same(arguments.out, opened.provenance)
    document = measure_limits(opened, asked)
    records, label = document["results"], document["provenance"]["run"]
    pictures = {
        "heads": model_figures.heads(document),
        "profile": model_figures.profile(document),
        "lengths": model_figures.by_length([document], [label]),
        "swaps": model_figures.swaps([document], [label]),
    }
    if document["model_swaps"]:
        pictures["model-swaps"] = model_figures.model_swaps([document], [label])
    else:
        for kind in ("png", "svg", "csv"):  # of an earlier result, which this one replaces
            (arguments.out / f"model-swaps.{kind}").unlink(missing_ok=True)
    written = [data, data.with_suffix(".csv")]
    results.write(data, document)
    results.write(written[1], as_csv(list(records[0]), [list(record.values()) for record in records]))
    for name, picture in pictures.items():
        written += picture.save(arguments.out, name)
    print("\n\n".join(tables(document)))
    if asked.swaps and not document["model_swaps"]:
        print(f"\n{label}: no query attends to two different tokens, so none were swapped in a text")
    print("\nWritten:", *written, sep="\n")


def check_same(out: Path, provenance: dict) -> None:
    """Raise `UsageError` where `out` holds the limits of another checkpoint: results of two are not to be mixed."""
    from rove_jax.evaluation import results

    if (out / "limits.json").exists():
        known = results.read(out / "limits.json")["provenance"]
        if any(known.get(name) != provenance[name] for name in results.SAME):
            held = f"{known.get('run')} at step {known.get('step')}"
            raise UsageError(f"--out = {str(out)!r}: holds the limits of {held}; give another folder, or remove it")


def tables(document: dict) -> list[str]:
    """Titles and tables of a result: the failures, the swaps in heads, the follow-up's measures, the swaps in texts."""
    from rove_jax.analysis import model_figures
    from rove_jax.analysis.limits import mean_over_heads
    from rove_jax.evaluation.tables import number, span, table

    records, label = document["results"], document["provenance"]["run"]
    heads = len({(record["layer"], record["head"]) for record in records})
    parts, over = [], f"means over {heads} heads of {document['settings']['draws']} draws each"
    for columns in ([*model_figures.RATES, "effective_pairs"], list(model_figures.PROFILE)):
        means = {name: mean_over_heads(document, name) for name in columns}
        rows = [[str(length), *(number(means[name][length], 4) for name in columns)] for length in means[columns[0]]]
        parts += [f"{label}, {over}; {model_figures.OWN}"]
        parts += [table(["length", *(name.replace("_", " ") for name in columns)], rows)]

    def share(summary: dict, name: str, of: str = "") -> str:
        value = summary[name]
        shown = f"{round(value * summary[of])} of {summary[of]}" if of and value is not None else number(value)
        return f"{shown} {span(summary['intervals'].get(name))}".strip()

    rows = [
        [
            *(str(one[name]) for name in ("length", "heads", "draws", "pairs")),
            *(share(one, name) for name in ("swap_unseen", "swap_unseen_context")),
            *(number(one[name]) for name in ("swap_change", "swap_change_context")),
        ]
        for one in document["swaps_by_length"]
    ]
    header = ["length", f"heads of {heads}", "draws", "pairs", "unseen alone", "unseen in text", "change alone"]
    parts[2:2] = [
        f"{label}, two tokens change places where the head scores both the same; means over the heads, and draws of "
        "them, that have such places; [95% by draws]",
        table([*header, "change in text"], rows),
    ]
    if document["model_swaps"]:
        rows = [
            [
                one["kind"],
                str(one["swaps"]),
                number(one["gap"]),
                share(one, "matter", "swaps"),
                share(one, "blind", "mattering"),
                share(one, "argmax_kept", "mattering"),
                number(one["change"]),
                share(one, "unseen", "swaps"),
            ]
            for one in document["model_swaps_by_kind"]
        ]
        header = ["places", "swaps", "median gap", "matter", "blind", "argmax kept", "median change", "unseen"]
        parts += [f"{label}, two tokens of a text change places, and the whole model reads it; [95%]"]
        parts += [table(header, rows)]
    return parts
