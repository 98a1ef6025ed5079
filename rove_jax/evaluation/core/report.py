"""CORE as a table, and what must be known to read it."""

from typing import Any

from rove_jax.evaluation.core.tasks import TASKS
from rove_jax.evaluation.tables import table


def core_text(document: dict[str, Any]) -> str:
    """The table of a result of `evaluate`, the score, and every way in which it is not the published measurement."""
    [result], settings, provenance = document["results"], document["settings"], document["provenance"]
    by_label = {task["task"]: task for task in result["tasks"]}
    rows = []
    for task in TASKS:
        if task.label not in by_label:
            continue
        found = by_label[task.label]
        rows.append(
            [
                task.label,
                str(task.shots),
                str(found["examples"]),
                f"{found['accuracy']:.4f}",
                f"{found['standard_error']:.4f}",
                f"{task.v1:g}",
                f"{found['centered']['v1']:+.4f}",
                f"{task.v2:g}",
                f"{found['centered']['v2']:+.4f}",
            ]
        )
    header = ["task", "shots", "rows", "accuracy", "± s.e.", "base v1", "centered v1", "base v2", "centered v2"]
    lines = [
        f"CORE of {provenance['run']} at step {provenance['step']}, asked as {settings['protocol']} does, "
        f"{rows_asked(settings)}, prompts longer than {provenance['training_length']} tokens: {settings['overlong']}",
        "",
        table(header, rows),
        "",
    ]
    for name, found in result["by_baselines"].items():
        value = "core" if "core" in found else "core_partial"
        kind = "CORE" if value == "core" else f"partial, {found['tasks']} of {len(TASKS)} tasks, not comparable to CORE"
        chosen = " (chosen)" if name == result["baselines"] else ""
        lines.append(f"{value} {name}{chosen}: {found[value]:+.4f} ± {found['standard_error']:.4f} ({kind})")
    lines += [f"note: {note}" for note in notes(result)]
    return "\n".join(lines)


def rows_asked(settings: dict[str, Any]) -> str:
    """How much of each task was asked."""
    most = settings["max_examples"]
    if most is None:
        return "all rows"
    # llm-foundry's own subsets draw from the whole file too.
    whole = " (their shots are from the whole file, nanochat's own subsets draw from the subset)"
    return f"{most} rows of each task at most{whole if settings['protocol'] == 'nanochat' else ''}"


def by_reason(rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """(the rows, the first eight of them, why) of each reason."""
    found = []
    for why in sorted({one["why"] for one in rows}):
        places = [str(one["row"]) for one in rows if one["why"] == why]
        more = f" and {len(places) - 8} more" if len(places) > 8 else ""
        found.append((f"{', '.join(places[:8])}{more}", why))
    return found


def notes(result: dict[str, Any]) -> list[str]:
    """What differs from the published measurement, a line for each kind."""
    found = []
    for name, what in (("missing", "no file for"), ("not_asked", "not asked for")):
        if result[name]:
            found.append(f"{what} {', '.join(result[name])}")
    for task in result["tasks"]:
        name = task["task"]
        if task["file"]["unlike"]:
            found.append(f"{name}: not the published file ({task['file']['unlike']})")
        if task["overlong"]:
            cut = f", {task['truncated']} of them truncated" if task["truncated"] else ", read whole"
            found.append(f"{name}: {task['overlong']} rows with prompts longer than the training length{cut}")
        for rows, why in by_reason(task["unlike"]):
            found.append(f"{name}: rows {rows} are not scored as the reference does: {why}")
        for rows, why in by_reason(task["odd"]):
            found.append(f"{name}: rows {rows} are unlike the published task's: {why}")
        if task["ties"]:
            found.append(f"{name}: {task['ties']} ties, decided for the first choice")
    return found
