"""`python -m eval figure NAME`: one figure, as PNG and SVG, with the numbers in it as CSV."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rove_jax.cli.arguments import add_step
from rove_jax.errors import UsageError, require

NEEDS = {
    "nothing": (),
    "one run": ("--workdir",),
    "runs": ("--workdir",),
    "results": ("--results",),
}
"""What a kind of figure must be given."""

FIGURES: dict[str, tuple[str, str]] = {
    "mixer": ("nothing", "RoPE and RoVE as one matrix: weights, kernels, mixers (RoVE, figure 1)"),
    "score": ("nothing", "a score over distance, its high and low parts, its distribution (limits, figure 2)"),
    "inversion": ("nothing", "position inversion and aliasing by length and base (figure 3)"),
    "token": ("nothing", "token inversion and aliasing by length and base (figure 7)"),
    "tradeoff": ("nothing", "the four failures against the base (table 1)"),
    "swap": ("nothing", "two tokens change places: the output of RoPE and of RoVE"),
    "induction": ("nothing", "induction heads of RoPE and RoVE as they form; trains two-layer models here"),
    "head-inversion": ("one run", "score and inversions of one head (figure 4)"),
    "head-aliasing": ("one run", "equal scores of one head, and swaps that it cannot see (figure 5)"),
    "training": ("runs", "loss over the steps of training"),
    "layer": ("runs", "a trained layer as one matrix: weights, kernels, a head, all heads (RoVE, figure 1)"),
    "kernel": ("runs", "the value kernel psi of trained heads, by offset"),
    "energy": ("runs", "energy of head outputs by frequency and length"),
    "reach": ("runs", "where heads look: the characteristic function of their offsets"),
    "composition": ("runs", "how heads of two layers compose"),
    "heads": ("results", "failure rates of every head, of one result of `eval limits`"),
    "profile": ("results", "positional and semantic scores of every head, of one result of `eval limits`"),
    "lengths": ("results", "failure rates by length, of results of `eval limits`"),
    "swaps": ("results", "how often outputs cannot tell, of results of `eval limits`"),
    "model-swaps": ("results", "how often whole models cannot tell a swap, of results of `eval limits`"),
    "index": ("results", "accuracy at the k-th element, of results of `eval index` (figure 9)"),
}
"""Name -> (what it needs, what it shows)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the name, what models it is of, and where it goes."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    listed = "\n".join(f"  {name:<15} {what}" for name, (_, what) in FIGURES.items())
    parser.description = f"Draw one figure: NAME.png, NAME.svg and, with every number in it, NAME.csv.\n\n{listed}"
    parser.add_argument("name", metavar="NAME", choices=list(FIGURES), help="see above")
    parser.add_argument("--out", type=Path, required=True, help="folder")
    parser.add_argument("--workdir", type=Path, nargs="+", default=[], help="run folders, of figures of models")
    parser.add_argument("--results", type=Path, nargs="+", default=[], help="result files, of figures of results")
    add_step(parser)
    parser.add_argument("--length", type=int, help="distances, or tokens (default: the figure's own)")
    parser.add_argument(
        "--layer", type=int, default=0, help="of one head, a mixer, or that composes first (default: 0)"
    )
    parser.add_argument("--head", type=int, default=0, help="query head (default: 0)")
    parser.add_argument("--seed", type=int, default=0, help="of the query and the two keys drawn (default: 0)")
    parser.add_argument("--training-steps", type=int, default=800, help="of figure induction (default: 800)")


def run(arguments: argparse.Namespace) -> None:
    """Draw the figure and name the files written."""
    from rove_jax.evaluation import results

    need = FIGURES[arguments.name][0]
    for option in ("--workdir", "--results"):
        given, wanted = bool(getattr(arguments, option[2:])), option in NEEDS[need]
        if given and not wanted:
            raise UsageError(f"{option}: figure {arguments.name} is drawn without it; remove it")
        if wanted and not given:
            raise UsageError(f"{option}: needed for figure {arguments.name}; name {need}")
    if need == "one run" and len(arguments.workdir) > 1:
        raise UsageError(f"--workdir: figure {arguments.name} is of one run; name one")
    least = 4 if arguments.name in ("mixer", "layer") else 16
    require(arguments.length is None or least <= arguments.length <= 2**20, "--length", arguments.length,
            f"must lie between {least} and 2^20")  # fmt: skip
    require(arguments.training_steps >= 1, "--training-steps", arguments.training_steps, "must be at least 1")
    if arguments.out.is_file():
        raise UsageError(f"--out = {str(arguments.out)!r}: is a file; give a folder")
    results.check_writable(arguments.out / f"{arguments.name}.png", "--out")
    draw = {"nothing": drawn_of_nothing, "one run": drawn_of_head, "runs": drawn_of_runs, "results": drawn_of_results}
    print(*draw[need](arguments).save(arguments.out, arguments.name), sep="\n")


def drawn_of_nothing(arguments: argparse.Namespace) -> Any:
    """The figures that need no model."""
    from rove_jax.analysis import circuit_figures, mixer_figures, score_figures

    length = arguments.length
    own = {} if length is None else {"length": length}
    lengths = {} if length is None else {"lengths": score_figures.octaves(length, 16)}
    figures: dict[str, Callable] = {
        "mixer": lambda: mixer_figures.mixers(**own),
        "score": lambda: score_figures.score(**own),
        "inversion": lambda: score_figures.inversions(**lengths),
        "token": lambda: score_figures.tokens(**lengths),
        "tradeoff": lambda: score_figures.tradeoff(**lengths),
        "swap": lambda: score_figures.swap_of_two(**own),
        "induction": lambda: circuit_figures.formation(arguments.training_steps),
    }
    return figures[arguments.name]()


def drawn_of_head(arguments: argparse.Namespace) -> Any:
    """The figures of one head of one run."""
    from rove_jax.analysis import model_figures
    from rove_jax.analysis.limits import Asked, captured_text
    from rove_jax.evaluation import runs

    opened = runs.open_run(arguments.workdir[0], step=arguments.step)
    asked = Asked(layers=(arguments.layer,), heads=(arguments.head,))
    shown = model_figures.view(opened.config.model, captured_text(opened, asked), arguments.seed)
    figure = {"head-inversion": model_figures.head_inversion, "head-aliasing": model_figures.head_aliasing}
    return figure[arguments.name](shown, arguments.length or 8192)


def drawn_of_runs(arguments: argparse.Namespace) -> Any:
    """The figures of one or several runs side by side."""
    from rove_jax.analysis import circuit_figures, mixer_figures, training_figure
    from rove_jax.evaluation import runs

    if arguments.name == "training":
        return training_figure.training(arguments.workdir, [folder.resolve().name for folder in arguments.workdir])
    opened = [runs.open_run(workdir, step=arguments.step) for workdir in arguments.workdir]
    labels = [run.workdir.resolve().name for run in opened]
    if arguments.name == "energy":
        longest = arguments.length
        lengths = None if longest is None else [max(longest // 2**power, 2) for power in (4, 3, 2, 1, 0)]
        return circuit_figures.energy(opened, labels, lengths)
    if arguments.name == "reach":
        return circuit_figures.reach(opened, labels)
    if arguments.name == "layer":
        return mixer_figures.layers(opened, labels, arguments.layer, arguments.head, arguments.length)
    if arguments.name == "kernel":
        return mixer_figures.kernels(opened, labels, arguments.layer, arguments.head)
    return circuit_figures.compositions(opened, labels, arguments.layer)


def drawn_of_results(arguments: argparse.Namespace) -> Any:
    """The figures of result files."""
    from rove_jax.analysis import index_figure, model_figures
    from rove_jax.evaluation import results

    documents = [results.read(path) for path in arguments.results]
    kind = "index" if arguments.name == "index" else "limits"
    for path, document in zip(arguments.results, documents):
        if document["kind"] != kind:
            raise UsageError(f"{path}: holds {document['kind']}; figure {arguments.name} is of results of eval {kind}")
    labels = [document["provenance"]["run"] for document in documents]
    if len(set(labels)) < len(labels):
        labels = [f"{label}, {path.resolve().parent.name}" for label, path in zip(labels, arguments.results)]
    if len(set(labels)) < len(labels):
        labels = [f"{label}, {place}" for place, label in enumerate(labels)]
    if arguments.name in ("heads", "profile"):
        if len(documents) > 1:
            raise UsageError(f"--results: figure {arguments.name} is of one result; name one")
        return model_figures.heads(documents[0], getattr(model_figures, arguments.name.upper()))
    figure = {
        "lengths": model_figures.by_length,
        "swaps": model_figures.swaps,
        "model-swaps": model_figures.model_swaps,
        "index": index_figure.index_accuracy,
    }
    return figure[arguments.name](documents, labels)
