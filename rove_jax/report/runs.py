"""The tables of a report that say what was measured: the runs, and what their recipes differ in."""

from rove_jax.errors import UsageError
from rove_jax.report import compare
from rove_jax.report.cells import NONE, Cell, Result, Results, Table

KINDS = ("perplexity", "core", "ruler", "index")


def provenances(found: Results) -> dict[str, dict]:
    """Run's name -> where its results come from, which all of them agree in.

    Raises `UsageError` naming a result file of an earlier version, which kept less than a report shows.
    """
    for result in (result for kinds in found.values() for result in kinds.values()):
        if "config" not in result.document["provenance"]:
            raise UsageError(f"{result.file}: an earlier version made it and kept less; remove it and run this again")
    return {name: next(iter(kinds.values())).document["provenance"] for name, kinds in found.items()}


def labelled(found: Results) -> dict[str, str]:
    """Run's name -> the label it has in the report."""
    return dict(zip(found, compare.labels(list(provenances(found).values()))))


def table(found: Results, names: dict[str, str]) -> Table:
    """A line for each run: what it is, how far it was trained, where it lies, and its result files."""
    kinds = [kind for kind in KINDS if any(kind in one for one in found.values())]
    rows = []
    for name, origin in provenances(found).items():
        step = f"{origin['step']:,} of {origin['steps']:,}"
        sizes = [f"{origin['parameters']:,}", step, f"{origin['training_tokens']:,}", f"{origin['training_length']:,}"]
        identity = [origin["tokenizer"], origin["config_hash"], origin["data_fingerprint"], origin["checkpoint"]]
        files = [measured(found[name][kind]) if kind in found[name] else NONE for kind in kinds]
        rows.append([Cell(names[name]), *map(Cell, sizes), *files, *map(Cell, identity)])
    header = ["run", "parameters", "step", "trained on (tokens)", "context (tokens)", *kinds]
    header += ["tokenizer", "config", "data", "folder"]
    note = (
        "Step: which checkpoint was read, of how many steps the run has. Under the name of an evaluation, the day it "
    )
    note += "was made; its file has the command and all versions."
    early = [names[name] for name, origin in provenances(found).items() if origin["step"] < origin["steps"]]
    cautions = [f"Read before the end of training: {', '.join(early)}."] if early else []
    return Table("The runs", note, header, rows, tuple(cautions))


def measured(result: Result) -> Cell:
    """The day a result was made, leading to its file."""
    return result.cell(result.document["provenance"].get("created", "file")[:10], "provenance.created")


def told(document: dict, file: str, provenance: dict) -> Result:
    """A stored result with all that is known of its run, which is at hand: files of earlier versions say less."""
    return Result({**document, "provenance": document["provenance"] | provenance}, file)


def differences(found: Results, names: dict[str, str]) -> Table | None:
    """What the recipes differ in: a line for each field."""
    if len(found) < 2:
        return None
    fields = compare.differing([origin["config"] for origin in provenances(found).values()])
    rows = [[Cell(field), *(Cell(str(value)) for value in values)] for field, values in fields.items()]
    note = "Every setting that decides on what is learnt and is not the same for all."
    if not rows:
        note = "Nothing that decides on what is learnt: the runs have one recipe."
    return Table("What the runs differ in", note, ["setting", *names.values()], rows)
