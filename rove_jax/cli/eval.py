"""`python -m eval JOB` and `rove-eval JOB`: measure trained runs, compare them, sample text from them."""

import os
from collections.abc import Sequence

from rove_jax.cli import (
    compare,
    core,
    exits,
    figure,
    generate,
    harness,
    index,
    limits,
    perplexity,
    puzzles,
    ruler,
    seeds,
    signals,
    speed,
    suite,
)

JOBS = {
    "perplexity": (perplexity, "perplexity against context length, to a result file"),
    "generate": (generate, "continue a prompt"),
    "compare": (compare, "perplexity of several runs: table, data and figure"),
    "seeds": (seeds, "ratio of the perplexities of two recipes over several seeds of each"),
    "core": (core, "DCLM's CORE: 22 few-shot tasks in nanochat's or llm-foundry's form"),
    "ruler": (ruler, "RULER's 13 tasks at any length, scored by the likelihood of the answer"),
    "index": (index, "accuracy at the k-th element of a list, against the length of the list"),
    "puzzles": (puzzles, "accuracy of a run on the puzzles it was trained on, by size"),
    "limits": (limits, "what the scores and outputs of each head can tell apart, by length"),
    "figure": (figure, "one figure of scores, mixers or heads, with its numbers"),
    "suite": (suite, "several of these jobs for several runs, and one report over all of it"),
    "harness": (harness, "tasks of the lm-evaluation-harness, or whether our adapter to it conforms"),
    "speed": (speed, "tokens per second of variants side by side, or what a compiler plans for them"),
}
"""Name -> (module with `add_arguments` and `run`, what `--help` says of it)."""
KEEPING = ("compare", "seeds", "core", "ruler", "suite")
"""Those that keep what they have measured before they are done."""


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
    peers = distributed.initialize(arguments.distributed) if "distributed" in arguments else None

    def work() -> None:
        with signals.prompt(arguments.interrupted, os._exit if peers is None else peers.leave):
            arguments.run(arguments)

    if peers is None:
        work()
    else:
        exits.together(peers, work)


def parser() -> exits.Parser:
    """The command line: a subcommand for each job, whose function is the default of `run`."""
    top = exits.Parser(prog="eval", description="Measure trained runs, compare them, sample text from them.")
    jobs = top.add_subparsers(required=True, metavar="JOB", title="jobs")
    for name, (module, what) in JOBS.items():
        new = jobs.add_parser(name, help=what)
        module.add_arguments(new)
        interrupted = "interrupted" + (signals.GO_ON if name in KEEPING else "")
        new.set_defaults(run=module.run, parser=top, interrupted=interrupted)
    return top
