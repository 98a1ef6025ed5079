"""`python -m eval index`: its arguments, and the tables and the figure it makes."""

import argparse
from pathlib import Path

from rove_jax.cli.arguments import add_distributed, add_run, add_scalings

VARIANTS = ("list", "numbered", "words", "words_end")
"""Those of `evaluation.index_task`, which is imported only when they are run."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that choose a run, the variants and their lengths."""
    add_run(parser)
    parser.add_argument("--lengths", type=int, nargs="+", required=True, help="tokens; lists have as many items as fit")
    parser.add_argument(
        "--variants",
        nargs="+",
        choices=VARIANTS,
        default=["list", "numbered"],
        help="arr[k] of a list of 0 to 3; of a numbered one, which can be looked up; the k-th of words, from the "
        "beginning or the end (default: list numbered)",
    )
    parser.add_argument("--samples", type=int, default=100, help="lists of each length (default: 100)")
    parser.add_argument("--seed", type=int, default=42, help="of the lists (default: 42)")
    parser.add_argument(
        "--shots", type=int, help="questions on the same list answered before (default: words 2, else 0)"
    )
    add_scalings(parser)
    parser.add_argument("--batch-size", type=int, help="rows of a forward pass (default: chosen)")
    parser.add_argument("--out", type=Path, required=True, help="result file; the figure goes beside it, to a .png")
    add_distributed(parser)


def run(arguments: argparse.Namespace) -> None:
    """Ask one run, print the tables, write the result file and the figure."""
    from rove_jax.distributed import is_writer
    from rove_jax.errors import require
    from rove_jax.evaluation import index_task_curve as curve
    from rove_jax.evaluation import results, runs
    from rove_jax.evaluation.processes import everywhere, progress

    for name in ("lengths", "variants", "scaling"):
        values = getattr(arguments, name)
        require(len(set(values)) == len(values), f"--{name}", values, "must differ from each other")
    for length in arguments.lengths:
        require(16 <= length <= 2**20, "--lengths", length, "must lie between 16 and 2^20 tokens")
    require(arguments.samples >= 1, "--samples", arguments.samples, "must be at least 1")
    require(arguments.shots is None or arguments.shots >= 0, "--shots", arguments.shots, "must be at least 0")
    given = arguments.batch_size
    require(given is None or given >= 1, "--batch-size", given, "must be at least 1")
    image = results.beside(arguments.out, ".png", "--out", "figures")
    opened = runs.open_run(arguments.workdir, step=arguments.step)
    settings = {
        name: getattr(arguments, name)
        for name in ("lengths", "variants", "samples", "seed", "shots", "scaling", "value_scaling")
    }
    asked = {name: settings[name] for name in ("samples", "seed", "shots")}
    tasks = list(curve.index_tasks(arguments.lengths, arguments.variants, opened.tokenizer, **asked))
    total = len(arguments.scaling) * sum(sum(map(len, task.choices)) for _, _, task in tasks)
    with progress(total, f"{opened.workdir.name}: index", "choice") as bar:
        records = curve.index_curve(
            opened.config.model,
            opened.params,
            tasks,
            training_length=opened.config.data.context_length,
            # Where documents were trained apart, none of them has ever followed an end-of-text token.
            first=[] if opened.config.data.segments else [opened.tokenizer.eot],
            scalings=arguments.scaling,
            value_scaling=arguments.value_scaling,
            batch_size=given,
            mesh=everywhere(),
            advance=bar.update,
        )
    if not is_writer():
        return
    document = results.document("index", opened.provenance, settings, records)
    trained = opened.config.data.context_length
    title = f"{opened.workdir.resolve().name}, step {opened.step}, trained on {trained} tokens"
    results.write(image, curve.figure(records, trained, title))
    results.write(arguments.out, document)
    print(f"Index task, {title}\n\n{curve.index_table(records)}\n{curve.legend()}\n\nAccuracy by place in the list\n")
    print(f"{curve.depth_table(records)}\n\nWritten: {arguments.out}\n         {image}")
