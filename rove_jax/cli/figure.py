"""`python -m eval figure NAME`: one figure, as PNG and SVG, with the numbers in it as CSV."""

import argparse
import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from rove_jax.cli.arguments import add_step
from rove_jax.errors import UsageError, require


class Subject(NamedTuple):
    """What a figure is drawn from."""

    read: Callable[[argparse.Namespace], tuple]
    """The first arguments of its function."""
    option: str = ""
    """Of the command line, that names it."""
    takes: tuple[str, ...] = ()
    """The other options that it looks at."""


class Figure(NamedTuple):
    """A figure."""

    draw: str
    """"module.function" of `rove_jax.analysis`, loaded when drawn: from its subject and `takes` to a `Picture`."""
    of: str
    """A name in `SUBJECTS`."""
    takes: Mapping[str, str]
    """Keyword of the function: option that is given for it, if it is there."""
    shows: str
    least: int = 16
    """Of --length."""


def nothing(_: argparse.Namespace) -> tuple:
    """No argument at all."""
    return ()


def folders(arguments: argparse.Namespace) -> tuple:
    """Folders and labels of runs."""
    return arguments.workdir, [folder.resolve().name for folder in arguments.workdir]


def opened(arguments: argparse.Namespace) -> tuple:
    """Runs, and their labels."""
    from rove_jax.evaluation import runs

    found = [runs.open_run(workdir, step=arguments.step) for workdir in arguments.workdir]
    return found, [run.workdir.resolve().name for run in found]


def head(arguments: argparse.Namespace) -> tuple:
    """A query and two keys of one head."""
    from rove_jax.analysis import model_figures
    from rove_jax.analysis.limits import Asked, captured_text
    from rove_jax.analysis.mixer_figures import check_head
    from rove_jax.evaluation import runs

    require(len(arguments.workdir) == 1, "--workdir", len(arguments.workdir), "the figure is of one run; name one")
    require((arguments.seed or 0) >= 0, "--seed", arguments.seed, "must be at least 0")
    run = runs.open_run(arguments.workdir[0], step=arguments.step)
    layer, head = arguments.layer or 0, arguments.head or 0
    check_head(run, layer, head)
    asked = Asked(layers=(layer,), heads=(head,))
    name = f"{run.workdir.resolve().name}, step {run.step}"
    return (model_figures.view(run.config.model, captured_text(run, asked), arguments.seed or 0, name),)


def documents(arguments: argparse.Namespace, kind: str = "limits") -> tuple:
    """Result documents of one job, and labels that differ."""
    from rove_jax.evaluation import results

    found = [results.read(path) for path in arguments.results]
    for path, document in zip(arguments.results, found):
        if document["kind"] != kind:
            raise UsageError(f"{path}: holds {document['kind']}; figure {arguments.name} is of results of eval {kind}")
    labels = [document["provenance"]["run"] for document in found]
    if len(set(labels)) < len(labels):
        labels = [f"{label}, {path.resolve().parent.name}" for label, path in zip(labels, arguments.results)]
    if len(set(labels)) < len(labels):
        labels = [f"{label}, {place}" for place, label in enumerate(labels)]
    return found, labels


def one_document(arguments: argparse.Namespace) -> tuple:
    """A result document of `eval limits`."""
    found, _ = documents(arguments)
    require(len(found) == 1, "--results", len(found), f"figure {arguments.name} is of one result; name one")
    return (found[0],)


SUBJECTS = {
    "nothing": Subject(nothing),
    "one run": Subject(head, "workdir", ("step", "layer", "head", "seed")),
    "runs": Subject(opened, "workdir", ("step",)),
    "run folders": Subject(folders, "workdir"),
    "one result": Subject(one_document, "results"),
    "results": Subject(documents, "results"),
    "results of eval index": Subject(lambda arguments: documents(arguments, "index"), "results"),
}
"""By what an error calls it."""
SAID = {
    "runs": "one run or several",
    "run folders": "one run or several",
    "one result": "one limits.json of `eval limits`",
    "results": "one limits.json of `eval limits` or several",
    "results of eval index": "one result of `eval index` or several",
}
"""What --help calls it, where that is not the same."""

LENGTH, LENGTHS, LAYER, HEAD = {"length": "length"}, {"lengths": "length"}, {"layer": "layer"}, {"head": "head"}
PHASES = {"phases": "phases"}
OPTIONS = ("workdir", "results", "step", "length", "phases", "layer", "head", "seed", "training_steps")

FIGURES: dict[str, Figure] = {
    "mixer": Figure(
        "mixer_figures.mixers", "nothing", LENGTH,
        "RoPE and RoVE as one matrix: weights, kernels, mixers (A, figure 1)", 4,
    ),
    "score": Figure(
        "score_figures.score", "nothing", LENGTH | PHASES,
        "a score over distance, its high and low parts, its distribution (B, figure 2)",
    ),
    "inversion": Figure(
        "score_figures.inversions", "nothing", LENGTHS | PHASES,
        "position inversion and aliasing by length and base (B, figure 3)",
    ),
    "token": Figure(
        "score_figures.tokens", "nothing", LENGTHS | PHASES,
        "token inversion and aliasing by length and base (B, figure 7)",
    ),
    "tradeoff": Figure(
        "score_figures.tradeoff", "nothing", LENGTHS, "the four failures against the base (B, table 1)",
    ),
    "swap": Figure(
        "score_figures.swap_of_two", "nothing", LENGTH, "two tokens change places: the output of RoPE and of RoVE",
    ),
    "induction": Figure(
        "circuit_figures.formation", "nothing", {"steps": "training_steps"},
        "induction heads of RoPE and RoVE as they form; trains four small models here, minutes",
    ),
    "head-inversion": Figure(
        "model_figures.head_inversion", "one run", LENGTH, "score and inversions of one head (B, figure 4)",
    ),
    "head-aliasing": Figure(
        "model_figures.head_aliasing", "one run", LENGTH,
        "equal scores of one head, and swaps that change no weight (B, figure 5)",
    ),
    "training": Figure("training_figure.training", "run folders", {}, "loss over the steps of training"),
    "layer": Figure(
        "mixer_figures.layers", "runs", LAYER | HEAD | LENGTH,
        "a trained layer as one matrix: weights, kernels, a head, all heads (A, figure 1)", 4,
    ),
    "kernel": Figure(
        "mixer_figures.kernels", "runs", LAYER | HEAD, "the value kernel psi of trained heads, by offset",
    ),
    "energy": Figure("circuit_figures.energy", "runs", LENGTHS, "energy of head outputs by frequency and length"),
    "reach": Figure(
        "circuit_figures.reach", "runs", {}, "where heads look: the characteristic function of their offsets",
    ),
    "composition": Figure("circuit_figures.compositions", "runs", LAYER, "how heads of two layers compose"),
    "heads": Figure(
        "model_figures.heads", "one result", {}, "failure rates of every head",
    ),
    "profile": Figure(
        "model_figures.profile", "one result", {},
        "positional and semantic scores of every head",
    ),
    "lengths": Figure("model_figures.by_length", "results", {}, "failure rates by length"),
    "swaps": Figure("model_figures.swaps", "results", {}, "how often outputs of heads cannot tell a swap"),
    "model-swaps": Figure(
        "model_figures.model_swaps", "results", {},
        "how often whole models cannot tell a swap",
    ),
    "index": Figure(
        "index_figure.index_accuracy", "results of eval index", {},
        "accuracy at the k-th element (B, figure 9)",
    ),
}  # fmt: skip
"""By name: a new one is a function that returns a `Picture`, and a row."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the name, what it is drawn from, the options of figures, and where it goes."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parts = []
    for of, subject in SUBJECTS.items():
        from_what = f"--{subject.option}: {SAID.get(of, of)}" if subject.option else "no run"
        rows = [f"  {name:<15} {figure.shows}" for name, figure in FIGURES.items() if figure.of == of]
        parts.append("\n".join([f"of {from_what}", *rows]))
    parser.description = "\n\n".join(
        [
            "Draw one figure: NAME.png, NAME.svg and, with every number in it, NAME.csv.",
            *parts,
            "A: arXiv 2606.11275 (RoVE); B: arXiv 2605.15514 (the limits of RoPE)",
        ]
    )
    parser.add_argument("name", metavar="NAME", choices=list(FIGURES), help="see above")
    parser.add_argument("--out", type=Path, required=True, help="folder")
    parser.add_argument("--workdir", type=Path, nargs="+", help="run folders, of figures of models")
    parser.add_argument("--results", type=Path, nargs="+", help="result files, of figures of results")
    add_step(parser)
    parser.add_argument("--length", type=int, help="distances, or tokens (default: the figure's own)")
    parser.add_argument("--phases", help="by name: aligned, uniform, ... (default: the figure's own; all state theirs)")
    parser.add_argument("--layer", type=int, help="of one head, a mixer, or that composes first (default: 0)")
    parser.add_argument("--head", type=int, help="query head (default: 0)")
    parser.add_argument("--seed", type=int, help="of the query and the two keys of one head (default: 0)")
    parser.add_argument("--training-steps", type=int, help="of figure induction (default: 800)")


def check_folder(out: Path, name: str) -> None:
    """Raise `UsageError` unless a file `name` can be put into the folder `out`."""
    from rove_jax.evaluation import results

    if out.is_file():
        raise UsageError(f"--out = {str(out)!r}: is a file; give a folder")
    if (out / name).is_dir():
        raise UsageError(f"--out = {str(out)!r}: {name} in it is a folder; give another, or remove that")
    results.check_writable(out / name, "--out")


def run(arguments: argparse.Namespace) -> None:
    """Draw the figure and name the files written."""
    name, figure = arguments.name, FIGURES[arguments.name]
    subject = SUBJECTS[figure.of]
    looked_at = {subject.option, *subject.takes, *figure.takes.values()}
    for option in OPTIONS:
        if option not in looked_at and getattr(arguments, option) not in (None, "last"):
            raise UsageError(f"--{option.replace('_', '-')}: figure {name} is drawn without it; remove it")
    if subject.option and not getattr(arguments, subject.option):
        raise UsageError(f"--{subject.option}: needed for figure {name}; name {figure.of}")
    if arguments.length is not None:
        least = figure.least
        require(least <= arguments.length <= 2**20, "--length", arguments.length, f"must lie between {least} and 2^20")
    steps = arguments.training_steps
    require(steps is None or steps >= 1, "--training-steps", steps, "must be at least 1")
    check_folder(arguments.out, f"{name}.png")
    options = {keyword: getattr(arguments, option) for keyword, option in figure.takes.items()}
    given = {keyword: value for keyword, value in options.items() if value is not None}
    module, function = figure.draw.split(".")
    draw = getattr(importlib.import_module(f"rove_jax.analysis.{module}"), function)
    print(*draw(*subject.read(arguments), **given).save(arguments.out, name), sep="\n")
