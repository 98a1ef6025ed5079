"""CORE as a table, and what must be known to read it."""

from typing import Any

from rove_jax.evaluation.core.tasks import TASKS
from rove_jax.evaluation.tables import counted, listed, span, table


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
                span(found["interval"]),
                f"{task.v1:g}",
                f"{found['centered']['v1']:+.4f}",
                f"{task.v2:g}",
                f"{found['centered']['v2']:+.4f}",
            ]
        )
    header = ["task", "shots", "rows", "accuracy", "95%", "base v1", "centered v1", "base v2", "centered v2"]
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
        lines.append(f"{value} {name}{chosen}: {found[value]:+.4f} {span(found['interval'], 4)} ({kind})")
    lines.append(
        "95%: what other examples of these tasks would give; Wilson's interval of each, combined for the score."
    )
    lines += [f"note: {note}" for note in notes(result)]
    return "\n".join(lines)


def rows_asked(settings: dict[str, Any]) -> str:
    """How much of each task was asked."""
    most = settings["max_examples"]
    if most is None:
        return "all rows"
    # llm-foundry's own subsets draw from the whole file too.
    notes = {
        "nanochat": " (their shots are from the whole file, nanochat's own subsets draw from the subset)",
        "foundry": " (of jeopardy spread over its categories, one of each at least)",
    }
    return f"{counted(most, 'row')} of each task at most{notes[settings['protocol']]}"


def by_reason(rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """("row 3", "rows 3, 5 and 7 more", why) of each reason."""
    found = []
    for why in sorted({one["why"] for one in rows}):
        places = [str(one["row"]) for one in rows if one["why"] == why]
        found.append((f"row{'s' if len(places) > 1 else ''} {listed(places)}", why))
    return found


def notes(result: dict[str, Any]) -> list[str]:
    """What differs from the published measurement, a line for each kind of it."""
    found, tasks = [], result["tasks"]
    if result["missing"]:
        found.append(f"no file for {', '.join(result['missing'])}")
    if result["not_asked"]:
        found.append(f"{len(result['not_asked'])} of {len(TASKS)} tasks not asked for")
    for task in tasks:
        if task["file"]["unlike"]:
            found.append(f"{task['task']}: not the published file ({task['file']['unlike']})")
    for cut, what in ((False, "read whole"), (True, "cut")):
        rows = {one["task"]: one["truncated"] if cut else one["overlong"] - one["truncated"] for one in tasks}
        if total := sum(rows.values()):
            each = ", ".join(f"{name} {count}" for name, count in rows.items() if count)
            found.append(f"{counted(total, 'row')} with prompts longer than the training length, {what}: {each}")
    for task in tasks:
        for rows, why in by_reason(task["unlike"]):
            found.append(f"{task['task']}: not scored as the reference does, {rows}: {why}")
        for rows, why in by_reason(task["odd"]):
            found.append(f"{task['task']}: unlike the published task's, {rows}: {why}")
    if total := sum(one["ties"] for one in tasks):
        each = ", ".join(f"{one['task']} {one['ties']}" for one in tasks if one["ties"])
        found.append(f"{counted(total, 'tie')}, decided for the first choice: {each}")
    return found
