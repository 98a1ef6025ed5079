"""CORE of a run: what is asked, in which order it is scored, and the result document."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rove_jax.errors import RunError, UsageError, nearest, require
from rove_jax.evaluation import results
from rove_jax.evaluation.core import protocols, scoring
from rove_jax.evaluation.core.files import Files, TaskFile, remark
from rove_jax.evaluation.core.tasks import TASKS, Baselines, Task
from rove_jax.evaluation.engine import Engine, Request
from rove_jax.evaluation.journal import Copy, Journal, joint_journal
from rove_jax.evaluation.overlong import Overlong, score
from rove_jax.evaluation.processes import everywhere, progress
from rove_jax.evaluation.runs import Run

FIRST, BLOCK = 50, 500
"""Requests that each device scores before records are kept: enough for tasks to share rows, few enough to lose. The
first time few, then twice as many each time, so that a measurement stopped in its first minute was not for nothing."""


@dataclass(frozen=True)
class Settings:
    """What decides on an example's record. Two results compare only if they are the same."""

    protocol: protocols.Protocol = "nanochat"
    overlong: Overlong = "extrapolate"
    max_examples: int | None = None
    """Of each task, the first ones in the protocol's order."""
    tasks: tuple[str, ...] = tuple(task.label for task in TASKS)

    def __post_init__(self) -> None:
        fewest = self.max_examples is None or self.max_examples >= 1
        require(fewest, "--max-examples", self.max_examples, "must be at least 1")
        for name in self.tasks:
            labels = [task.label for task in TASKS]
            if name not in labels:
                raise UsageError(f"--tasks = {name!r}: no such task{nearest(name, labels)}")
        require(len(set(self.tasks)) == len(self.tasks) > 0, "--tasks", " ".join(self.tasks), "name each once")


def evaluate(run: Run, data: Path, asked: Settings, baselines: Baselines, records: Path) -> dict[str, Any]:
    """The result document of CORE, with a progress bar on stderr; records go to the file `records`, or are found there.

    Every process of several calls this, and gets the document; the first one has the file.

    Raises:
        UsageError: no task's file is in `data`, a line of one is no row, or the records are of something else.
        RunError: the model gives a likelihood that is not finite.
    """
    source = Files(data)
    tasks = [task for task in TASKS if task.label in asked.tasks]
    loaded = {task.label: source.load(task) for task in tasks}
    present = {label: file for label, file in loaded.items() if file is not None}
    if not present:
        raise UsageError(f"--data = {str(data)!r}: holds no file such as {tasks[0].file}; give the folder above it")
    files = {task.file: file.sha256 for task in tasks if (file := loaded[task.label]) is not None}
    identity = {
        **{name: run.provenance[name] for name in results.SAME},
        **asdict(asked),
        "training_length": run.config.data.context_length,
        "files": files,
    }
    every = [
        (task, example)
        for task in tasks
        if task.label in present
        for example in protocols.examples(task, present[task.label].rows, asked.protocol, asked.max_examples)
    ]
    with joint_journal(records, identity) as journal:
        done = measured(journal.records, {(task.label, example.row) for task, example in every}, records)
        left = [(task, example) for task, example in every if (task.label, example.row) not in done]
        score_examples(run, left, present, asked, journal)
    # Where nothing is cut, the last token of a prompt is only predicted, so one more is within the training context.
    within = run.config.data.context_length + (asked.overlong != "truncate")
    by_task = defaultdict(list)
    for one in journal.records:
        by_task[one["task"]].append(one)
    found = [scoring.task_result(task, by_task[task.label], within) for task in tasks if task.label in present]
    by_label = {task.label: task for task in tasks}
    for one in found:
        file = present[one["task"]]
        one["file"] = {"sha256": file.sha256, "unlike": file.unlike}
        said = {kept["row"]: remark(file.rows[kept["row"]], by_label[one["task"]]) for kept in by_task[one["task"]]}
        one["odd"] = [{"row": row, "why": why} for row, why in said.items() if why]
    both = {name: scoring.aggregate(found, name) for name in ("v1", "v2")}
    result = {
        **{name: value for name, value in both[baselines].items() if name.startswith("core")},
        "standard_error": both[baselines]["standard_error"],
        "baselines": baselines,
        "by_baselines": both,
        "missing": [task.label for task in tasks if task.label not in present],
        "not_asked": [task.label for task in TASKS if task not in tasks],
        "tasks": found,
        "records": records.name,
    }
    settings = {**asdict(asked), "baselines": baselines}
    return results.document("core", {**run.provenance, "files": files}, settings, [result])


def measured(found: list[dict[str, Any]], asked: set[tuple[str, int]], file: Path) -> set[tuple[str, int]]:
    """(task, row) of each record. Raises `RunError` if one is of no example that is asked, or there twice."""
    done = set()
    for number, one in enumerate(found, 2):  # the first line says what the file is of
        example = (one.get("task"), one.get("row"))
        if example not in asked or example in done or not scoring.FIELDS <= set(one):
            why = "is there twice" if example in done else "is of no example that is asked"
            raise RunError(f"{file}: damaged: line {number} {why}; remove the line, or the file to begin anew")
        done.add(example)
    return done


def score_examples(
    run: Run,
    examples: list[tuple[Task, protocols.Example]],
    files: dict[str, TaskFile],
    asked: Settings,
    journal: Journal | Copy,
) -> None:
    """Score examples and add their records to the journal, block by block."""
    mesh = everywhere()
    params = Engine(run.config.model, run.params, mesh=mesh).params  # placed once for all blocks
    total = sum(max(task.choices, 1) for task, _ in examples)
    with progress(total, f"{run.workdir.name}: core", "choice") as bar:
        for block in blocks(examples, FIRST * mesh.size, BLOCK * mesh.size):
            labels = list(dict.fromkeys(task.label for task, _ in block))
            bar.now(labels[0] if len(labels) == 1 else f"{labels[0]} to {labels[-1]}")
            prompted = [
                protocols.prompts(task, files[task.label].rows, example, asked.protocol, run.tokenizer)
                for task, example in block
            ]
            scores, cut = score(
                run.config.model,
                params,
                [request(prompt) for prompts in prompted for prompt in prompts],
                asked.overlong,
                training_length=run.config.data.context_length,
                advance=bar.update,
                mesh=mesh,
            )
            at, made = 0, []
            for (task, example), prompts in zip(block, prompted):
                part = slice(at, at + len(prompts))
                at += len(prompts)
                if not all(np.isfinite(one.nlls).all() for one in scores[part]):
                    raise RunError(f"{task.label}, row {example.row}: the model gives a likelihood that is not finite")
                gold = files[task.label].rows[example.row].get("gold")
                made.append(scoring.record(task, gold, example, prompts, scores[part], cut[part]))
            journal.add(made)


def request(prompt: protocols.Prompt) -> Request:
    """What the engine is asked for a prompt."""
    tokens = np.array(prompt.tokens, np.int32)
    return Request(tokens[: prompt.start], tokens[prompt.start :])


def blocks(
    examples: list[tuple[Task, protocols.Example]], first: int, most: int
) -> Iterator[list[tuple[Task, protocols.Example]]]:
    """Examples in their order, as many at a time as make `first` requests, then twice as many, up to `most`."""
    block, requests, size = [], 0, min(first, most)
    for task, example in examples:
        block.append((task, example))
        requests += max(task.choices, 1)
        if requests >= size:
            yield block
            block, requests, size = [], 0, min(2 * size, most)
    if block:
        yield block
