"""A run measured on RULER: samples made or found, requests scored, records kept, results summarised."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rove_jax.config import Model, ScalingRule
from rove_jax.errors import require
from rove_jax.evaluation import results
from rove_jax.evaluation.engine import Engine
from rove_jax.evaluation.generate import Sampling, generate_everywhere
from rove_jax.evaluation.journal import joint_journal
from rove_jax.evaluation.processes import everywhere, progress
from rove_jax.evaluation.protocol import scaled
from rove_jax.evaluation.ruler import cache, material, score
from rove_jax.evaluation.ruler.fit import Plan, Reserve, Sample, plan
from rove_jax.evaluation.ruler.item import Material
from rove_jax.evaluation.ruler.questions import Documents
from rove_jax.evaluation.ruler.tasks import ALL, NAMES
from rove_jax.evaluation.runs import Run

TOKENS_AT_ONCE = 2**16
"""About so many tokens of prompts are scored on each device before their records are written."""


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

    Of several processes each calls this and gets the document; the first one has the file.

    Args:
        samples_in: folder of the cache of samples. None: the user's.
        batch_size: rows of one forward pass; None: as many as the engine thinks good.

    Raises:
        UsageError: a length is too short for a task, a file is not of its form, or `journal` is of something else.
    """
    tasks = [task for task in ALL if task.name in asked.tasks]
    files = {
        name: Path(path).expanduser() if path else None
        for name, path in (("squad", asked.squad), ("hotpotqa", asked.hotpotqa))
    }
    texts = material.gather(run.tokenizer, tasks, haystack=asked.haystack, **files)
    plans = plan(tasks, asked.lengths, texts, samples=asked.samples, seed=asked.seed, reserve=asked.reserve)
    settings = {**dataclasses.asdict(asked), "texts": material.identity(texts), "format": cache.FORMAT}
    of = {**{name: run.provenance[name] for name in results.SAME}, **settings}
    engine = Engine(run.config.model, run.params, batch_size=batch_size, mesh=everywhere())
    found, where = [], samples_in or cache.folder()
    models = {one: readers(run, asked, one.length) for one in plans}
    count = asked.samples * sum(len(each) for each in models.values())
    with (
        joint_journal(journal, of) as kept,
        progress(count, f"{run.workdir.name}: ruler", "sample") as bar,
    ):
        for one in plans:
            at = f"{one.name}, {one.length} tokens"
            bar.now(f"{at}, making samples")
            kept_as = cache.file_name(one, run.origin.tokenizer_identity, texts, asked.samples)
            samples = cache.stored(one, run.origin.tokenizer_identity, texts, asked.samples, where)
            about = {**described(one, texts), "samples_file": kept_as}
            for model, rules in models[one].items():  # scalings that leave the model as it is are computed once
                named = {"task": one.name, "length": one.length, "scaling": rules[0]}
                done = {row["index"]: row for row in kept.records if named.items() <= row.items()}
                bar.now(at if rules[0] == "none" else f"{at}, {rules[0]}")
                bar.update(len(done))
                for part in parts([s for s in samples if s.index not in done], one.length, engine.mesh.size):
                    rows = [{**named, **row} for row in records(run, engine.reading(model), asked, one, part)]
                    kept.add(rows)
                    done |= {row["index"]: row for row in rows}
                    bar.update(len(part))
                factor = one.length / run.config.data.context_length if model != run.config.model else 1.0
                known = {**about, "factor": factor, **score.summarise(list(done.values()))}
                found += [{**named, "scaling": rule, **known} for rule in rules]
    return results.document("ruler", run.provenance, settings, found)


def described(one: Plan, texts: Material) -> dict[str, Any]:
    """What a result says of a plan beside its name."""
    questions = one.generator.questions if isinstance(one.generator, Documents) else None
    return {
        "published_task": one.task.name,
        "group": one.task.group,
        "form": "small" if one.generator is one.task.small else "published",
        "questions": texts.questions[questions].name if questions else None,
    }


def readers(run: Run, asked: Asked, length: int) -> dict[Model, list[ScalingRule]]:
    """The models that read `length` tokens, and under which of the scalings each does."""
    trained, values = run.config.data.context_length, asked.value_scaling == "same"
    found: dict[Model, list[ScalingRule]] = {}
    for rule in asked.scalings:
        model = scaled(run.config.model, rule, training_length=trained, length=length, values=values)
        found.setdefault(model, []).append(rule)
    return found


def parts(left: Sequence[Sample], length: int, devices: int) -> Iterator[Sequence[Sample]]:
    """The samples in pieces of about `TOKENS_AT_ONCE` tokens a device."""
    size = devices * max(1, TOKENS_AT_ONCE // length)
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
        new = generate_everywhere(
            engine,
            prompts,
            max_new_tokens=room,
            eot=run.tokenizer.eot,
            sampling=Sampling(temperature=0),
        )
        for row, sample, ids in zip(rows, part, new):
            row["generated"] = run.tokenizer.decode(ids)
            row["match"] = score.matched(row["generated"], sample.item, one.task.group)
    return rows
