"""`python -m eval JOB` and `rove-eval JOB`: measure trained runs, compare them, sample text from them."""

import argparse
import codecs
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from rove_jax.cli import core, exits, figure, harness, index, limits, puzzles, ruler, speed, suite
from rove_jax.config import Config, ScalingRule
from rove_jax.errors import UsageError
from rove_jax.evaluation.protocol import Mode, Prefix, Protocol, Split


def main(argv: Sequence[str] | None = None) -> int:
    """Run one evaluation job; returns the exit code of the process."""
    return exits.run(lambda: job(argv))


def job(argv: Sequence[str] | None) -> None:
    """What `main` does, errors raised."""
    arguments = parser().parse_args(argv)
    from rove_jax import distributed

    distributed.keep_freed_memory()
    if arguments.run is not speed.run:  # which reports how long compiling takes
        distributed.keep_compiled()
    arguments.run(arguments)


def parser() -> exits.Parser:
    """The command line: a subcommand for each job, whose function is the default of `run`."""
    top = exits.Parser(prog="eval", description="Measure trained runs, compare them, sample text from them.")
    jobs = top.add_subparsers(required=True, metavar="JOB", title="jobs")

    new = jobs.add_parser("perplexity", help="perplexity against context length, to a result file")
    new.add_argument("--workdir", type=Path, required=True, help="a run folder")
    protocol_arguments(new)
    new.add_argument("--out", type=Path, help="result file (default: in the run folder)")
    new.set_defaults(run=perplexity)

    new = jobs.add_parser("generate", help="continue a prompt")
    new.add_argument("--workdir", type=Path, required=True, help="a run folder")
    new.add_argument("--step", type=step, default="last", help="checkpoint: last (default), best or a step")
    new.add_argument("--prompt", required=True, help='text to continue; "" begins a document')
    new.add_argument("--max-new-tokens", type=int, default=80, metavar="N", help="at most so many (default: 80)")
    new.add_argument(
        "--temperature", type=float, default=0.8, help="0 takes the most likely token each time (default: 0.8)"
    )
    new.add_argument("--top-k", type=int, metavar="K", help="draw from the K most likely tokens (default: all)")
    new.add_argument(
        "--top-p", type=float, metavar="P", help="draw from the fewest tokens of probability P together (default: all)"
    )
    new.add_argument("--seed", type=int, default=0, help="of the draws; the same one gives the same text (default: 0)")
    new.add_argument(
        "--scaling",
        choices=get_args(ScalingRule),
        default="none",
        help="frequency scaling, as in perplexity at a length of the prompt and all new tokens (default: none)",
    )
    new.add_argument("--value-scaling", choices=["same", "none"], default="same", help="as in perplexity")
    new.set_defaults(run=sample)

    new = jobs.add_parser("compare", help="perplexity of several runs: table, data and figure")
    new.add_argument("--workdirs", type=Path, nargs="+", required=True, help="run folders; ratios are to the first")
    protocol_arguments(new)
    new.add_argument("--out", type=Path, required=True, help="folder for report.md, report.json and perplexity.png")
    new.set_defaults(run=compare)

    new = jobs.add_parser("speed", help="tokens per second of variants side by side, or what a compiler plans for them")
    speed.add_arguments(new)
    new.set_defaults(run=speed.run)

    new = jobs.add_parser("core", help="DCLM's CORE: 22 few-shot tasks in nanochat's or llm-foundry's form")
    new.add_argument("--step", type=step, default="last", help="checkpoint: last (default), best or a step")
    core.add_arguments(new)
    new.set_defaults(run=core.run)

    new = jobs.add_parser("harness", help="tasks of the lm-evaluation-harness, or whether our adapter to it conforms")
    new.add_argument("--step", type=step, default="last", help="checkpoint: last (default), best or a step")
    harness.add_arguments(new)
    new.set_defaults(run=harness.run)

    new = jobs.add_parser("ruler", help="RULER's 13 tasks at any length, scored by the likelihood of the answer")
    new.add_argument("--step", type=step, default="last", help="checkpoint: last (default), best or a step")
    ruler.add_arguments(new)
    new.set_defaults(run=ruler.run)

    new = jobs.add_parser("index", help="accuracy at the k-th element of a list, against the length of the list")
    new.add_argument("--step", type=step, default="last", help="checkpoint: last (default), best or a step")
    index.add_arguments(new)
    new.set_defaults(run=index.run)

    new = jobs.add_parser("puzzles", help="accuracy of a run on the puzzles it was trained on, by size")
    new.add_argument("--step", type=step, default="last", help="checkpoint: last (default), best or a step")
    puzzles.add_arguments(new)
    new.set_defaults(run=puzzles.run)

    new = jobs.add_parser("limits", help="what the scores and outputs of each head can tell apart, by length")
    limits.add_arguments(new)
    new.set_defaults(run=limits.run)

    new = jobs.add_parser("figure", help="one figure of scores, mixers or heads, with its numbers")
    figure.add_arguments(new)
    new.set_defaults(run=figure.run)

    new = jobs.add_parser("suite", help="several of these jobs for several runs, and one report over all of it")
    new.add_argument("--step", type=step, default="last", help="checkpoint: last (default), best or a step")
    suite.add_arguments(new)
    new.set_defaults(run=lambda arguments: suite.run(arguments, top))
    return top


def protocol_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that choose a checkpoint and a `Protocol`."""
    parser.add_argument("--step", type=step, default="last", help="checkpoint: last (default), best or a step")
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


def step(text: str) -> int | str:
    """A checkpoint as the command line names it."""
    if text in ("last", "best"):
        return text
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is neither last, best nor a step")
    return int(text)


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


def perplexity(arguments: argparse.Namespace) -> None:
    """Measure one run, print the table, write the result file."""
    from rove_jax.evaluation import results, runs
    from rove_jax.evaluation.tables import perplexity_caption, perplexity_table

    run = runs.open_run(arguments.workdir, step=arguments.step)
    asked = protocol(run.config, arguments)
    if arguments.out is not None:
        results.check_writable(arguments.out, "--out")
    if arguments.out is None:
        document, path = runs.stored_perplexity(run, asked)
    else:
        document, path = runs.measure_perplexity(run, asked), arguments.out
        results.write(path, document)
    print(f"{perplexity_caption(document)}\n\n{perplexity_table(document)}\n\nWritten: {path}")


def sample(arguments: argparse.Namespace) -> None:
    """Print the prompt and its continuation, piece by piece as it is drawn."""
    from rove_jax.evaluation import runs
    from rove_jax.evaluation.generate import Sampling, generate
    from rove_jax.evaluation.protocol import scaled

    sampling = Sampling(arguments.temperature, arguments.top_k, arguments.top_p)
    if not 1 <= arguments.max_new_tokens <= 2**20:
        raise UsageError(
            f"--max-new-tokens = {arguments.max_new_tokens}: must lie between 1 and 2^20, the last position"
        )
    run = runs.open_run(arguments.workdir, step=arguments.step)
    tokenizer = run.tokenizer
    prompt = tokenizer.encode(arguments.prompt)
    trained = run.config.data.context_length
    length = max(len(prompt), 1) + arguments.max_new_tokens
    sizes = f"{len(prompt)} + {arguments.max_new_tokens} tokens"
    if length > trained:
        print(f"note: {sizes} go past the training length, {trained}", file=sys.stderr)
    elif arguments.scaling != "none":
        print(f"note: {sizes} are within the training length, {trained}; nothing is scaled", file=sys.stderr)
    # A character may be spread over several tokens: the decoder holds its bytes back until it is whole.
    decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def emit(tokens_b) -> None:
        if tokens_b[0] != tokenizer.eot:
            print(decoder.decode(tokenizer.decode_bytes(tokens_b)), end="", flush=True)

    print(tokenizer.decode(prompt), end="", flush=True)
    values = arguments.value_scaling == "same"
    generate(
        scaled(run.config.model, arguments.scaling, training_length=trained, length=length, values=values),
        run.params,
        [prompt],
        max_new_tokens=arguments.max_new_tokens,
        eot=tokenizer.eot,
        sampling=sampling,
        seeds=[arguments.seed],
        emit=emit,
    )
    print(decoder.decode(b"", final=True))


def compare(arguments: argparse.Namespace) -> None:
    """Measure what is not measured yet, then write the report."""
    from rove_jax.evaluation import results, runs
    from rove_jax.report import compare as report

    names = ("report.md", "report.json", "perplexity.png")
    if arguments.out.is_file():
        raise UsageError(f"--out = {str(arguments.out)!r}: is a file; give a folder")
    opened = [runs.open_run(workdir, step=arguments.step) for workdir in arguments.workdirs]
    report.check_comparable([run.provenance for run in opened])
    asked = protocol(opened[0].config, arguments)
    for name in names:
        results.check_writable(arguments.out / name, "--out")
    measured = [runs.stored_perplexity(run, asked) for run in opened]
    documents = [document for document, _ in measured]
    differing = report.differences([run.config for run in opened])
    text, data, image = (arguments.out / name for name in names)
    results.write(image, report.figure(documents))
    results.write(
        data,
        {
            "schema": results.SCHEMA,
            "kind": "comparison",
            "differ_in": differing,
            "ratios": report.ratios(documents),
            "runs": documents,
        },
    )
    results.write(text, report.markdown(documents, differing, image.name))
    print(text.read_text())
    for path in (*(path for _, path in measured), text, data, image):
        print(path)
