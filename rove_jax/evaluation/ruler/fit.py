"""Samples of a task, as long as a length in tokens allows and never longer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from rove_jax.data.draws import Draw
from rove_jax.errors import UsageError
from rove_jax.evaluation.ruler.item import Generator, Item, Material
from rove_jax.evaluation.ruler.tasks import Task

Reserve = Literal["published", "answer"]
"""Tokens left for the answer: as many as the published task generates (more if an answer has more), or as it has."""


class Sample(NamedTuple):
    """An item that fits, and how."""

    index: int
    units: int
    tokens: int
    """Of the prompt, without end-of-text before it."""
    room: int
    """Left behind the prompt; `tokens` + `room` is at most the length."""
    item: Item


@dataclass(frozen=True)
class Plan:
    """What a task is at one length."""

    task: Task
    name: str
    """The task's; with `_small` for the small form, before it `_standin` where the questions are made up."""
    generator: Generator
    length: int
    seed: int
    reserve: Reserve

    def draw(self, index: int) -> Draw:
        """What decides a sample: the same at every length, so that they differ in their hay alone."""
        return Draw(self.seed, self.name, index)

    def sample(self, material: Material, index: int, units: int) -> Sample:
        """Sample `index` with so many units, whatever its length."""
        item = self.generator.item(material, self.draw(index), index, units, self.length)
        answers = (*item.references, item.distractor, *item.alone, *item.others)
        room = max(material.count(f" {text}") for text in answers)
        if self.reserve == "published":
            room = max(room, self.generator.tokens)
        return Sample(index, units, material.count(item.prompt), room, item)

    def needs(self, material: Material, samples: int) -> int:
        """The length that the longest of the samples has with the fewest units."""
        shortest = (self.sample(material, index, self.generator.least) for index in range(samples))
        return max(sample.tokens + sample.room for sample in shortest)


def plan(
    tasks: Sequence[Task], lengths: Sequence[int], material: Material, *, samples: int, seed: int, reserve: Reserve
) -> list[Plan]:
    """What each task is at each length: the published form if it fits, else the small one.

    Raises:
        UsageError: a length is too short for a task; it names the shortest for every such task.
    """
    plans, refused = [], {}
    for length in lengths:
        for task in tasks:
            made_up = task.group == "QA" and material.questions[task.name].name.startswith("standin")
            name = f"{task.name}_standin" if made_up else task.name
            needs = []
            for form, generator in ((name, task.published), (f"{name}_small", task.small)):
                made = Plan(task, form, generator, length, seed, reserve)
                needs.append(made.needs(material, samples))
                if needs[-1] <= length:
                    plans.append(made)
                    break
            else:
                refused[task.name] = min(needs)
    if refused:
        short = ", ".join(f"{name} (at least {tokens} tokens)" for name, tokens in refused.items())
        raise UsageError(
            f"--lengths = {min(lengths)}: too short for {short}; choose longer ones, or --tasks without these"
        )
    return plans


def fit(
    plan: Plan, material: Material, samples: int, advance: Callable[[int], object] = lambda done: None
) -> list[Sample]:
    """The samples of a plan. As in RULER the first decides how many units all of them have; where that makes one too
    long it has as few less as are needed (RULER takes 5 to 500 less)."""
    generator, length = plan.generator, plan.length
    most = generator.most(material)

    def size(sample: Sample) -> int:
        return sample.tokens + sample.room

    def made(index: int, units: int) -> Sample:
        return plan.sample(material, index, units)

    low, high = generator.least, generator.least + 1
    while high <= most and size(made(0, high)) <= length:
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:  # `low` fits, `high` does not or there is no material for it
        middle = (low + high) // 2
        low, high = (middle, high) if size(made(0, middle)) <= length else (low, middle)
    found = []
    for index in range(samples):
        units = low
        sample = made(index, units)
        while size(sample) > length:  # fewer every time, and with the fewest it fits
            each = max(1, sample.tokens // units)
            units = max(generator.least, units - max(1, (size(sample) - length) // each))
            sample = made(index, units)
        found.append(sample)
        advance(1)
    return found
