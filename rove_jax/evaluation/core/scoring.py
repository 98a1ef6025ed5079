"""From scores to answers, from answers to accuracies, from accuracies to CORE."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rove_jax.config import fingerprint
from rove_jax.evaluation.core.protocols import Example, Prompt
from rove_jax.evaluation.core.tasks import TASKS, Baselines, Task
from rove_jax.evaluation.engine import Score
from rove_jax.evaluation.intervals import combined, wilson

FIELDS = {"task", "row", "category", "correct", "sum", "mean", "greedy", "spans", "truncated", "unlike"}
"""Those of a record that a result is made from."""


def record(
    task: Task,
    gold: int | None,
    example: Example,
    prompts: Sequence[Prompt],
    scores: Sequence[Score],
    cut: Sequence[int],
) -> dict[str, Any]:
    """What is kept of an example: see eval/README.md for the fields.

    The choice of the smallest mean NLL per token is the answer, the first of equal ones; without choices, the answer is
    right if every token is the most likely one. `cut`: how many tokens each prompt was shortened by.
    """
    sums = [float(score.nlls.sum(dtype=np.float64)) for score in scores]
    means = [total / len(score.nlls) for total, score in zip(sums, scores)]
    prediction = int(np.argmin(means)) if task.choices else None
    greedy = [int(score.greedy.sum()) for score in scores]
    correct = prediction == gold if task.choices else greedy[0] == len(scores[0].greedy)
    return {
        "task": task.label,
        "row": example.row,
        "category": example.category,
        "shots": example.shots,
        "gold": gold,
        "prediction": prediction,
        "correct": bool(correct),
        "sum": sums,
        "mean": means,
        "greedy": greedy,
        "spans": [[prompt.start, len(prompt.tokens)] for prompt in prompts],
        "truncated": list(cut),
        "unlike": prompts[0].unlike,
    }


def outcomes(records: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Of each category, "" where there are none: a character for each example in the order of rows, 1 if right."""
    groups: dict[str, str] = {}
    for one in sorted(records, key=lambda record: record["row"]):
        groups[one["category"]] = groups.get(one["category"], "") + str(int(one["correct"]))
    return groups


def accuracy(groups: Sequence[str]) -> dict[str, Any]:
    """Share of right answers, of several categories the mean of theirs, unweighted; from `outcomes`, a text of each.

    `interval`: 95%, Wilson's, of categories combined. `standard_error`: binomial; None where the answers of a category
    are all alike, for which it would be 0 however few they are.
    """
    rights, counts = [group.count("1") for group in groups], [len(group) for group in groups]
    shares = [right / count for right, count in zip(rights, counts)]
    alike = any(share in (0, 1) for share in shares)
    variance = sum(share * (1 - share) / count for share, count in zip(shares, counts))
    intervals = [wilson(right, count) for right, count in zip(rights, counts)]
    return {
        "accuracy": sum(shares) / len(shares),
        "standard_error": None if alike else math.sqrt(variance) / len(shares),
        "interval": list(combined(shares, intervals, [1 / len(shares)] * len(shares))),
    }


def centered(value: float, baseline: float) -> float:
    """Accuracy with guessing at 0 and all right at 1; worse than guessing is negative."""
    return (value - baseline) / (1 - baseline)


def task_result(task: Task, records: Sequence[Mapping[str, Any]], training_length: int) -> dict[str, Any]:
    """The figures of one task: see eval/README.md."""
    groups = outcomes(records)
    found = accuracy(list(groups.values()))
    return {
        "task": task.label,
        "examples": len(records),
        **found,
        "centered": {name: centered(found["accuracy"], task.baseline(name)) for name in ("v1", "v2")},
        "categories": {name: groups[name].count("1") / len(groups[name]) for name in sorted(set(groups) - {""})},
        "outcomes": groups,
        "overlong": sum(any(end > training_length for _, end in one["spans"]) for one in records),
        "truncated": sum(any(one["truncated"]) for one in records),
        "unlike": [{"row": one["row"], "why": one["unlike"]} for one in records if one["unlike"]],
        "ties": sum(tied(one["mean"]) for one in records if task.choices),
    }


def tied(means: Sequence[float]) -> bool:
    """Whether the best choice is not the only best one."""
    return sorted(means)[0] == sorted(means)[1] if len(means) > 1 else False


def aggregate(results: Sequence[Mapping[str, Any]], baselines: Baselines) -> dict[str, Any]:
    """The mean of the centered accuracies: `core` of all 22 tasks, `core_partial` of fewer, and how sure it is.

    `interval`: 95%, of the tasks' combined. `standard_error`: None if a task has none. Both take tasks to be
    independent, which HellaSwag with and without shots are not.
    """
    by_label = {result["task"]: result for result in results}
    tasks = [task for task in TASKS if task.label in by_label]
    name = "core" if len(tasks) == len(TASKS) else "core_partial"
    values = [by_label[task.label]["centered"][baselines] for task in tasks]
    bases = [task.baseline(baselines) for task in tasks]
    bounds = [by_label[task.label]["interval"] for task in tasks]
    intervals = [(centered(low, base), centered(high, base)) for (low, high), base in zip(bounds, bases)]
    errors = [by_label[task.label]["standard_error"] for task in tasks]
    scaled = [error / (1 - base) for error, base in zip(errors, bases) if error is not None]
    return {
        name: sum(values) / len(tasks),
        "standard_error": None if len(scaled) < len(tasks) else math.hypot(*scaled) / len(tasks),
        "interval": list(combined(values, intervals, [1 / len(tasks)] * len(tasks))),
        "tasks": len(tasks),
        "baselines_hash": fingerprint({task.label: task.baseline(baselines) for task in TASKS}),
    }
