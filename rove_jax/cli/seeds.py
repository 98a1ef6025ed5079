"""`python -m eval seeds`: two recipes, each trained with several seeds, as a report."""

import argparse
from pathlib import Path

from rove_jax.cli.arguments import add_distributed, add_step
from rove_jax.cli.perplexity import protocol, protocol_arguments
from rove_jax.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that choose the runs and a protocol."""
    what = "run folders of one recipe, one of each seed"
    parser.add_argument("--baseline", type=Path, nargs="+", required=True, help=what)
    parser.add_argument("--against", type=Path, nargs="+", required=True, help="of another, in the same order of seeds")
    add_step(parser)
    protocol_arguments(parser)
    parser.add_argument("--out", type=Path, required=True, help="folder for report.md, report.json and seeds.*")
    add_distributed(parser)


def run(arguments: argparse.Namespace) -> None:
    """Measure what is not measured yet, then write the report."""
    from rove_jax.distributed import is_writer
    from rove_jax.evaluation import results, runs
    from rove_jax.evaluation.processes import everywhere
    from rove_jax.report import compare, seeds
    from rove_jax.report.runs import labelled, table, told

    if arguments.out.is_file():
        raise UsageError(f"--out = {str(arguments.out)!r}: is a file; give a folder")
    groups = [
        [runs.open_run(workdir, step=arguments.step) for workdir in workdirs]
        for workdirs in (arguments.baseline, arguments.against)
    ]
    compare.check_comparable([one.provenance for group in groups for one in group])
    differ_in = seeds.check_pairs(*([one.config for one in group] for group in groups))
    asked = protocol(groups[0][0].config, arguments)
    text, data = arguments.out / "report.md", arguments.out / "report.json"
    for path in (text, data) if is_writer() else ():
        results.check_writable(path, "--out")
    measured = [[runs.stored_perplexity(one, asked, everywhere()) for one in group] for group in groups]
    if not is_writer():
        return
    documents = [[document for document, _ in group] for group in measured]
    found = {
        str(path): {"perplexity": told(document, str(path), one.provenance)}
        for ones, pairs in zip(groups, measured)
        for one, (document, path) in zip(ones, pairs)
    }
    rows = seeds.compared(*documents)
    drawn = seeds.figure(documents, rows).save(arguments.out, "seeds")
    results.write(
        data,
        {
            "schema": results.SCHEMA,
            "kind": "seeds",
            "differ_in": differ_in,
            "settings": documents[0][0]["settings"],
            "results": rows,
            "runs": [[document["provenance"] for document in group] for group in documents],
        },
    )
    origins = table(found, labelled(found)).markdown()
    results.write(text, f"{seeds.markdown(documents, rows, differ_in, drawn[0].name)}\n{origins}\n")
    print(text.read_text())
    for path in (text, data, *drawn):
        print(path)
