"""`python -m eval compare`: perplexities of several runs, as a report."""

import argparse
from pathlib import Path

from rove_jax.cli.arguments import add_distributed, add_runs
from rove_jax.cli.perplexity import protocol, protocol_arguments
from rove_jax.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that choose the runs and a protocol."""
    add_runs(parser)
    protocol_arguments(parser)
    parser.add_argument("--out", type=Path, required=True, help="folder for report.md, report.json and perplexity.*")
    add_distributed(parser)


def run(arguments: argparse.Namespace) -> None:
    """Measure what is not measured yet, then write the report."""
    from rove_jax.distributed import is_writer
    from rove_jax.evaluation import results, runs
    from rove_jax.evaluation.processes import everywhere
    from rove_jax.report import compare, figures, suite
    from rove_jax.report.runs import told

    if arguments.out.is_file():
        raise UsageError(f"--out = {str(arguments.out)!r}: is a file; give a folder")
    opened = [runs.open_run(workdir, step=arguments.step) for workdir in arguments.workdirs]
    compare.check_comparable([one.provenance for one in opened])
    asked = protocol(opened[0].config, arguments)
    text, data = arguments.out / "report.md", arguments.out / "report.json"
    for path in (text, data) if is_writer() else ():
        results.check_writable(path, "--out")
    measured = [runs.stored_perplexity(one, asked, everywhere()) for one in opened]
    if not is_writer():
        return
    documents = [document for document, _ in measured]
    differing = compare.differences([one.config for one in opened])
    found = {
        str(path): {"perplexity": told(document, str(path), one.provenance)}
        for one, (document, path) in zip(opened, measured)
    }
    drawn = figures.draw(found, arguments.out)
    results.write(
        data,
        {
            "schema": results.SCHEMA,
            "kind": "comparison",
            "differ_in": differing,
            "ratios": compare.ratios(documents),
            "runs": documents,
        },
    )
    results.write(text, suite.markdown(suite.make(found), "Perplexity against context length"))
    print(text.read_text())
    for path in (*(path for _, path in measured), text, data, *(arguments.out / name for name in drawn)):
        print(path)
