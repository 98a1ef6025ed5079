"""`python -m eval harness`: its arguments, and the job."""

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rove_jax.cli.arguments import add_run
from rove_jax.errors import RunError, UsageError, require


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that choose tasks, and what is read of long texts."""
    add_run(parser)
    parser.add_argument("--tasks", nargs="+", metavar="TASK", help="by lm_eval's names, or those of --include-path")
    parser.add_argument("--include-path", type=Path, metavar="DIR", help="a folder with more tasks, in YAML files")
    parser.add_argument("--limit", type=int, metavar="N", help="only so many rows of each task (default: all)")
    parser.add_argument("--num-fewshot", type=int, metavar="K", help="examples before a question (default: the task's)")
    parser.add_argument("--batch-size", type=int, metavar="B", help="rows of a forward pass (default: chosen)")
    parser.add_argument(
        "--max-length", type=int, metavar="T", help="tokens read at once (default: the training length)"
    )
    parser.add_argument(
        "--overlong",
        choices=["truncate", "extrapolate", "yarn"],
        default="truncate",
        help="longer requests: leave out their first tokens (default), read them all, or with frequencies scaled. The "
        "windows of whole documents have --max-length tokens in any case",
    )
    parser.add_argument(
        "--prefix",
        choices=["trained", "document", "window", "none"],
        default="trained",
        help="end-of-text before each context and document, before every window, or where nothing else is "
        "(default: as in training)",
    )
    parser.add_argument(
        "--max-gen-tokens", type=int, metavar="N", help="generate at most so many (default: the task's, else 256)"
    )
    parser.add_argument(
        "--conformance",
        action="store_true",
        help="no tasks: check what must hold of any adapter on this checkpoint, against plain forward passes",
    )
    parser.add_argument("--out", type=Path, help="result file; samples go beside it")


def run(arguments: argparse.Namespace) -> None:
    """Measure tasks, print the table, write the result file and the samples; or print the checks."""
    from rove_jax.evaluation import harness, results

    if arguments.conformance:
        if arguments.tasks or arguments.out:
            raise UsageError("--conformance: has tasks of its own and writes nothing; leave out --tasks and --out")
        check(arguments)
        return
    if not arguments.tasks or not arguments.out:
        raise UsageError("eval harness: give --tasks and --out, or --conformance")
    for name in ("limit", "batch_size", "max_gen_tokens"):
        value = getattr(arguments, name)
        require(value is None or value >= 1, f"--{name.replace('_', '-')}", value, "must be at least 1")
    shots = arguments.num_fewshot
    require(shots is None or shots >= 0, "--num-fewshot", shots, "must be at least 0")
    include = arguments.include_path
    require(include is None or include.is_dir(), "--include-path", str(include), "no such folder")
    harness.check_installed()
    samples = results.beside(arguments.out, ".samples.jsonl", "--out", "samples")
    lm = harness.model_class()(
        arguments.workdir,
        step=arguments.step,
        overlong=arguments.overlong,
        max_length=arguments.max_length,
        prefix=arguments.prefix,
        batch_size=arguments.batch_size,
    )
    from lm_eval.utils import make_table  # pyright: ignore[reportMissingImports]

    from rove_jax.evaluation.harness import evaluate

    found = evaluate.evaluate(
        lm,
        arguments.tasks,
        include=include,
        limit=arguments.limit,
        shots=shots,
        max_gen_tokens=arguments.max_gen_tokens,
    )
    if found is None:
        return
    settings = {name: getattr(arguments, name) for name in ("tasks", "limit", "num_fewshot", "max_gen_tokens")}
    results.write(samples, "".join(lines(found, evaluate.plain)))
    results.write(arguments.out, evaluate.document(lm, found, settings))
    print(make_table(found))
    for note in evaluate.notes(lm):
        print(note)
    print(f"\nWritten: {arguments.out}\n         {samples}")


def lines(found: dict[str, Any], plain: Any) -> Iterator[str]:
    """The samples of all tasks, a JSON object a line."""
    for task, samples in found.get("samples", {}).items():
        for sample in samples:
            yield json.dumps({"task": task, **plain(sample)}, allow_nan=False) + "\n"


def check(arguments: argparse.Namespace) -> None:
    """Print each check and whether it holds; `RunError` if one does not."""
    from rove_jax.evaluation import harness, runs
    from rove_jax.evaluation.harness import adapter, conformance, tasks

    opened = runs.open_run(arguments.workdir, step=arguments.step)
    installed = harness.installed()
    kind = harness.model_class() if installed else adapter.Adapter

    def outcomes() -> Iterator[conformance.Outcome]:
        yield from conformance.conformance(lambda **options: kind(opened, **options))
        if installed:
            with tempfile.TemporaryDirectory() as folder:
                yield from tasks.local_tasks(lambda **options: kind(opened, **options), Path(folder))

    failed = 0
    for name, wrong in outcomes():
        failed += bool(wrong)
        print(f"{'FAILS' if wrong else 'holds'}  {name}{f': {wrong}' if wrong else ''}", flush=True)
    if not installed:
        print("not checked: tasks of lm_eval, which is not installed; pip install 'rove-jax[harness]'")
    if failed:
        raise RunError(f"{failed} checks do not hold")
