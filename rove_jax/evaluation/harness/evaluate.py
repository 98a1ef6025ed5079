"""Tasks of lm_eval on one of our models, and a result document of what it finds."""

import fnmatch
import importlib.metadata
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rove_jax.distributed import is_writer
from rove_jax.errors import RunError, UsageError, nearest
from rove_jax.evaluation import results

KEPT = ("results", "groups", "group_subtasks", "configs", "versions", "n-shot", "higher_is_better", "n-samples")
"""What is kept of lm_eval's results; `samples` go to a file of their own."""

DRAWS = 10_000
"""For the standard error of what is no mean, which it settles to a percent; lm_eval's own 100,000 take minutes."""


def evaluate(
    lm: Any,
    tasks: Sequence[str],
    *,
    include: Path | None = None,
    limit: int | None = None,
    shots: int | None = None,
    max_gen_tokens: int | None = None,
    defaults: bool = True,
) -> dict[str, Any] | None:
    """`lm_eval.simple_evaluate` of an instance of `RoveLM`, its samples included.

    Of several processes the first does it all, on its own devices: lm_eval orders requests differently in each. The
    others get None.

    Args:
        tasks: names as lm_eval knows them, and of the YAML files in the folder `include`; `*` and `?` stand for others.
        limit: only so many first rows of each task.
        shots: examples before each question. None: as the task has it.
        max_gen_tokens: generated at most, whatever the task says.
        defaults: whether lm_eval's own tasks are known, whose thousands of files it reads first.

    Raises:
        UsageError: a task that there is not.
        RunError: its data cannot be had.
    """
    if not is_writer():
        return None
    import lm_eval  # pyright: ignore[reportMissingImports]
    from datasets.exceptions import DatasetsError  # pyright: ignore[reportMissingImports]
    from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]

    manager = TaskManager(include_path=None if include is None else str(include), include_defaults=defaults)
    known = list(manager.all_tasks)
    matching = {name: fnmatch.filter(known, name) for name in tasks}
    for name, matches in matching.items():
        if not matches:
            raise UsageError(f"--tasks: lm_eval has no task {name!r}{nearest(name, known)}")
    logging.getLogger("huggingface_hub.utils._http").setLevel(logging.ERROR)  # which warns of each retry, twice
    asked: Any = lm_eval.simple_evaluate  # its decorator gives it the arguments of another function (0.4.13)
    try:
        found = asked(
            model=lm,
            tasks=list(dict.fromkeys(match for matches in matching.values() for match in matches)),
            num_fewshot=shots,
            limit=limit,
            gen_kwargs=None if max_gen_tokens is None else {"max_gen_toks": max_gen_tokens},
            task_manager=manager,
            bootstrap_iters=DRAWS,
        )
    except (ConnectionError, DatasetsError, FileNotFoundError) as error:
        reason = str(error.__cause__ or error).splitlines()  # what `datasets` raises says that an error occurred
        raise RunError(
            f"the data of a task cannot be had ({reason[0] if reason else type(error).__name__}); fetch them once "
            "where there is a network, with the same command (they stay in HF_HOME), or ask for tasks over local files"
        ) from error
    except ArithmeticError as error:  # lm_eval takes exp of nats per text or word, and draws of texts without a word
        raise RunError(
            f"lm_eval: a metric is no number ({error}): a perplexity too large for one, or of empty texts; "
            "ask for metrics per byte, and leave empty texts out"
        ) from error
    assert found is not None, "process 0 has the results"
    return dict(found)


def document(lm: Any, found: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """A result document of what `evaluate` found."""
    provenance = {**lm.run.provenance, "lm_eval": importlib.metadata.version("lm_eval")}
    kept = {name: plain(found[name]) for name in KEPT if name in found}
    read = {"max_length": lm.max_length, "window": lm.window, "prefix": lm.prefix, "overlong": lm.overlong}
    return results.document("harness", provenance, {**settings, **read}, [{**kept, "counts": dict(lm.counts)}])


def plain(value: Any) -> Any:
    """`value` in what JSON has: a number that is none as null, functions and the like by their text."""
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int | bool) else str(value)


def notes(lm: Any) -> list[str]:
    """What was done to requests, a line for each kind."""
    words = {
        "apart": "a token spans the join of context and continuation; the two were encoded apart",
        "truncated": f"the beginning of the context left out, since {lm.max_length} tokens are read at most",
        "beyond": f"a continuation of more than {lm.max_length} tokens by itself; it was read whole",
    }
    return [f"note: {lm.counts[name]} requests: {text}" for name, text in words.items() if lm.counts[name]]
