"""`python -m eval suite`: everything that is asked for of several runs, then one report over all of it."""

import argparse
import dataclasses
import hashlib
import json
import shlex
from pathlib import Path
from typing import Any

from rove_jax import storage
from rove_jax.cli.arguments import add_distributed, add_runs
from rove_jax.cli.perplexity import protocol
from rove_jax.errors import UsageError

JOBS = ("perplexity", "core", "ruler", "index")
MANIFEST = "suite.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the runs, the folder, and an option for each job that holds the job's own options."""
    add_runs(parser)
    parser.add_argument("--out", type=Path, required=True, help="folder for the report and all result files")
    add_distributed(parser)
    for job in JOBS:
        parser.add_argument(
            f"--{job}",
            nargs="?",
            const="",
            metavar="OPTIONS",
            help=f'run `eval {job}` with these options, quoted as one word: --{job}="--..."',
        )


def run(arguments: argparse.Namespace) -> None:
    """Run the jobs that are not done yet, then write the report."""
    from rove_jax.distributed import is_writer
    from rove_jax.evaluation import results, runs
    from rove_jax.evaluation.processes import of_first
    from rove_jax.report import compare
    from rove_jax.report.cells import Result, Results

    asked = {name: getattr(arguments, name) for name in JOBS if getattr(arguments, name) is not None}
    if not asked:
        raise UsageError(f"suite: nothing to measure; give one or more of {', '.join(f'--{name}' for name in JOBS)}")
    if storage.remote(storage.place(arguments.out)):
        raise UsageError(f"--out = {str(arguments.out)!r}: a report needs a folder on a disk; give a path there")
    for name in ("report.md", "report.html") if is_writer() else ():
        results.check_writable(arguments.out / name, "--out")
    opened = [runs.open_run(workdir, step=arguments.step) for workdir in arguments.workdirs]
    alike = compare.COMPARABLE if "perplexity" in asked else () if set(asked) == {"core"} else compare.TOKENS
    compare.check_comparable([one.provenance for one in opened], alike)
    done = of_first(manifest(arguments.out) if is_writer() else None)
    jobs = []
    for place, (workdir, one) in enumerate(zip(arguments.workdirs, opened), 1):
        name = claim(done, f"{place}_{one.provenance['run']}", one.provenance)
        for kind, options in asked.items():
            file = f"results/{name}/{kind}.json"
            words = [kind, "--workdir", str(workdir), "--step", str(one.step), *options_of(kind, options)]
            words += ["--out", str(arguments.out / file)]
            # All are read before the first is run: a typo in the last one is not found out after hours.
            jobs.append((name, kind, file, words, arguments.parser.parse_args(words), one.provenance))
    check_lengths(asked.get("perplexity", ""), opened, [job[4] for job in jobs if job[1] == "perplexity"])
    if is_writer():
        results.write(arguments.out / MANIFEST, done)  # whose the folders are, for whoever goes on after a kill
    contents = of_first({job[1]: contents_of(job[1], job[4]) for job in jobs} if is_writer() else None)
    found: Results = {}
    for number, (name, kind, file, words, parsed, provenance) in enumerate(jobs, 1):
        what = {"job": [kind, *options_of(kind, asked[kind])], **{field: provenance[field] for field in results.SAME}}
        what["contents"] = contents[kind]
        known, title = done.get(file), f"job {number} of {len(jobs)}: {kind} of {provenance['run']}"
        if of_first(known == what and (arguments.out / file).is_file()):
            say(f"{title}, measured before")
        else:
            say(f"\n{title}\npython -m eval {shlex.join(words)}\n")
            if is_writer() and known and known.get("contents") not in (None, contents[kind]):
                say("the files behind its options have changed since it was measured; it begins anew")
                begin_anew(done, file, arguments.out)
            parsed.run(parsed)
            done[file] = what
            if is_writer():
                results.write(arguments.out / MANIFEST, done)
        if is_writer():
            found.setdefault(name, {})[kind] = Result(results.read(arguments.out / file), file)
    if is_writer():
        write(found, arguments.out)


def say(line: str) -> None:
    """Print a line, of the first process alone."""
    from rove_jax.distributed import is_writer

    if is_writer():
        print(line, flush=True)


def contents_of(kind: str, parsed: argparse.Namespace) -> dict[str, str]:
    """Digests of what the paths among a job's options lead to, by option: it may change while the path does not.

    A dataset of TFDS is known by its name and version. What is not there is for the job to refuse.
    """
    from rove_jax.data import sources
    from rove_jax.data.prepared import MANIFEST as DATASET
    from rove_jax.evaluation.core.files import Files

    if kind == "core":
        return {"--data": Files(parsed.data).digest()}
    found = {}
    for option in {"ruler": ("squad", "hotpotqa", "haystack"), "perplexity": ("text",)}.get(kind, ()):
        name = getattr(parsed, option)
        if name is None or name == "sotu" or str(name).startswith("tfds:"):
            continue
        path = storage.place(name)
        if (path / DATASET).is_file():  # which has the fingerprint of the data
            path = path / DATASET
        if path.is_dir():
            found[f"--{option}"] = sources.files(path).fingerprint()
        elif path.is_file():
            found[f"--{option}"] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def begin_anew(done: dict[str, Any], file: str, folder: Path) -> None:
    """Forget a result and its records, which are of something else than is to be measured."""
    from rove_jax.evaluation import results

    del done[file]
    results.write(folder / MANIFEST, done)
    for suffix in (".records.jsonl", ".jsonl"):
        (folder / file).with_suffix(suffix).unlink(missing_ok=True)


def check_lengths(options: str, opened: list[Any], parsed: list[Any]) -> None:
    """Raise `UsageError` where the runs' own recipes would have their perplexities measured in different ways."""
    asked = [dataclasses.asdict(protocol(one.config, arguments)) for one, arguments in zip(opened, parsed)]
    for other, run in zip(asked, opened):
        for name, value in other.items():
            if value != asked[0][name]:
                option = {"scalings": "scaling"}.get(name, name).replace("_", "-")
                raise UsageError(
                    f"--perplexity = {options!r}: the recipe of {run.workdir.name} asks for {name} = {value}, that of "
                    f"the first run for {asked[0][name]}; give --{option} within the option"
                )


def claim(done: dict[str, Any], name: str, provenance: dict[str, Any]) -> str:
    """The folder of a run's results: `name`, or with a digest if that has those of another checkpoint (a run trained
    again or further, or runs in another order). Adds it to the manifest `done`."""
    from rove_jax.config import fingerprint
    from rove_jax.evaluation import results

    what = {field: provenance[field] for field in results.SAME}
    return name if done.setdefault(name, what) == what else claim(done, f"{name}_{fingerprint(what)}", provenance)


def write(found: dict[str, dict[str, Any]], folder: Path) -> None:
    """Write report.md, report.html and the figures, and say where they are."""
    from rove_jax.evaluation import results
    from rove_jax.report import figures, page, suite

    drawn = figures.draw(found, folder)
    tables = suite.make(found)
    results.write(folder / "report.md", suite.markdown(tables))
    results.write(folder / "report.html", page.page(found, tables, folder))
    print("\n\n".join(table.markdown() for table in tables))
    print(f"\nWritten: {folder / 'report.html'}\n         {folder / 'report.md'}")
    for name in drawn:
        print(f"         {folder / name}")


def options_of(kind: str, options: str) -> list[str]:
    """The words of a job's options. Raises `UsageError` for those that the suite sets."""
    try:
        words = shlex.split(options)
    except ValueError as error:
        raise UsageError(f"--{kind} = {options!r}: {error}") from error
    for word in words:
        name = word.partition("=")[0]
        if name in ("--workdir", "--out", "--step"):
            raise UsageError(f"--{kind} = {options!r}: {name} is given to the suite, not to the job")
    return words


def manifest(folder: Path) -> dict[str, Any]:
    """Which result files are made, by what command of which checkpoint; {} where none is."""
    path = folder / MANIFEST
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read ({error}); remove it, or choose another --out") from error
    if not isinstance(found, dict):
        raise UsageError(f"{path}: is not a list of results; remove it, or choose another --out")
    return found
