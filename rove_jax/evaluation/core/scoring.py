"""From scores to answers, from answers to accuracies, from accuracies to CORE."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rove_jax.config import fingerprint
from rove_jax.evaluation.core.protocols import Example, Prompt
from rove_jax.evaluation.core.tasks import TASKS, Baselines, Task
from rove_jax.evaluation.engine import Score


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


def accuracy(records: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """(share of right answers, its standard error); of categories, the mean of theirs, unweighted."""
    groups: dict[str, list[bool]] = {}
    for one in records:
        groups.setdefault(one["category"], []).append(one["correct"])
    shares = [sum(right) / len(right) for right in groups.values()]
    variances = [share * (1 - share) / len(right) for share, right in zip(shares, groups.values())]
    return sum(shares) / len(shares), math.sqrt(sum(variances)) / len(shares)


def centered(value: float, baseline: float) -> float:
    """Accuracy with guessing at 0 and all right at 1; worse than guessing is negative."""
    return (value - baseline) / (1 - baseline)


def task_result(task: Task, records: Sequence[Mapping[str, Any]], training_length: int) -> dict[str, Any]:
    """The figures of one task: see eval/README.md."""
    value, error = accuracy(records)
    categories = sorted({one["category"] for one in records} - {""})
    return {
        "task": task.label,
        "examples": len(records),
        "accuracy": value,
        "standard_error": error,
        "centered": {name: centered(value, task.baseline(name)) for name in ("v1", "v2")},
        "categories": {name: accuracy([r for r in records if r["category"] == name])[0] for name in categories},
        "overlong": sum(any(end > training_length for _, end in one["spans"]) for one in records),
        "truncated": sum(any(one["truncated"]) for one in records),
        "unlike": [{"row": one["row"], "why": one["unlike"]} for one in records if one["unlike"]],
        "ties": sum(tied(one["mean"]) for one in records if task.choices),
    }


def tied(means: Sequence[float]) -> bool:
    """Whether the best choice is not the only best one."""
    return sorted(means)[0] == sorted(means)[1] if len(means) > 1 else False


def aggregate(results: Sequence[Mapping[str, Any]], baselines: Baselines) -> dict[str, Any]:
    """The mean of the centered accuracies: `core` of all 22 tasks, `core_partial` of fewer, and its standard error.

    The error takes tasks to be independent, which HellaSwag with and without shots are not.
    """
    by_label = {result["task"]: result for result in results}
    tasks = [task for task in TASKS if task.label in by_label]
    name = "core" if len(tasks) == len(TASKS) else "core_partial"
    values = [by_label[task.label]["centered"][baselines] for task in tasks]
    errors = [by_label[task.label]["standard_error"] / (1 - task.baseline(baselines)) for task in tasks]
    return {
        name: sum(values) / len(values) if values else None,
        "standard_error": math.sqrt(sum(error**2 for error in errors)) / len(errors) if errors else None,
        "tasks": len(tasks),
        "baselines_hash": fingerprint({task.label: task.baseline(baselines) for task in TASKS}),
    }
