"""The two public ways to ask CORE's questions: the examples before them, the text, the tokens that are scored.

nanochat's is that of its `core_eval.py` (July 2026); llm-foundry's that of its in-context-learning datasets as DCLM
runs them (version 0.9.0). Both are followed to the token where they are sound; where not, `Prompt.unlike` says so.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from rove_jax.data.tokenizers import Tokenizer
from rove_jax.evaluation.core.tasks import Task

Protocol = Literal["nanochat", "foundry"]
Row = dict[str, Any]


@dataclass(frozen=True)
class Example:
    """A row to be asked, and the rows shown before it."""

    row: int
    """Its place in the file."""
    shots: list[int]
    """Places in the file, in the order in which they are shown."""
    category: str
    """Whose accuracy it counts to; empty where there are none."""


@dataclass(frozen=True)
class Prompt:
    """One choice of an example in tokens."""

    tokens: list[int]
    start: int
    """The first of the scored tokens, which reach to the end. At least 1."""
    unlike: str = ""
    """Where this is not what the reference does, in words."""


def examples(task: Task, rows: Sequence[Row], protocol: Protocol, most: int | None = None) -> list[Example]:
    """The examples of a task in the order in which `protocol` asks them, the first `most` of them.

    Shots come from the whole file, so that an example is the same in any run (nanochat's own subsets draw from the
    subset). With llm-foundry and categories, `most` is spread over the categories.
    """
    if protocol == "nanochat":
        order = list(range(len(rows)))
        random.Random(1337).shuffle(order)
        found = []
        for place in range(len(rows) if most is None else min(most, len(rows))):
            others = range(len(rows) - 1)  # all rows but this one: from it on they are one further
            drawn = random.Random(1234 + place).sample(others, min(task.shots, len(others))) if task.shots else []
            found.append(Example(order[place], [order[shot + (shot >= place)] for shot in drawn], ""))
        return found
    groups: dict[str, list[int]] = {}
    for place, row in enumerate(rows):
        groups.setdefault(row.get("category", "") if task.label == "jeopardy" else "", []).append(place)
    share = None if most is None else -(-most // len(groups))
    return [example for name, places in groups.items() for example in foundry(task, name, places, share)]


def foundry(task: Task, category: str, places: list[int], most: int | None) -> Iterator[Example]:
    """llm-foundry's draws: one stream of random numbers for all rows, shots shown in the order of a Python set."""
    draw = random.Random(1234)
    count = len(places)
    for place in range(count if most is None else min(most, count)):
        shots: set[int] = set()
        if task.shots and count > 1:
            shots = set(draw.sample(range(count), min(task.shots, count - 1)))
            if place in shots:
                shots.remove(place)
                other = draw.choice(range(count))
                while other in shots or other == place:
                    other = draw.choice(range(count))
                shots.add(other)
        yield Example(places[place], [places[shot] for shot in shots], category)


def prompts(
    task: Task, rows: Sequence[Row], example: Example, protocol: Protocol, tokenizer: Tokenizer
) -> list[Prompt]:
    """One prompt for each choice of an example; one alone for kind continuation."""
    ask = nanochat_prompts if protocol == "nanochat" else foundry_prompts
    return ask(task, rows[example.row], [rows[shot] for shot in example.shots], tokenizer)


def nanochat_prompts(task: Task, row: Row, shots: Sequence[Row], tokenizer: Tokenizer) -> list[Prompt]:
    """Text as one string, end-of-text before it, an empty line after every shot; nothing stripped but what contexts of
    kind continuation have around them. Answers are scored from where the choices begin to differ, continuations of
    schemas from where they begin to agree."""

    def shown(context: str, continuation: str) -> str:
        return f"{context.strip() if task.kind == 'continuation' else context}{task.delimiter}{continuation}"

    before = "".join(f"{shown(*answered(task, shot))}\n\n" for shot in shots)
    texts = [before + shown(context, continuation) for context, continuation in alternatives(task, row)]
    tokens = [[tokenizer.eot, *tokenizer.encode(text).tolist()] for text in texts]

    def joint(place: int) -> int:
        """Where the tokens of the continuation begin: with the first that the text without it does not have."""
        context, continuation = alternatives(task, row)[place]
        bare = before + shown(context, "")
        if task.kind == "continuation":
            bare = bare.strip()
        start = common([[tokenizer.eot, *tokenizer.encode(bare).tolist()], tokens[place]])
        return min(start, len(tokens[place]) - 1)

    if task.kind == "continuation":
        bare = [tokenizer.eot, *tokenizer.encode((before + shown(row["context"], "")).strip()).tolist()]
        start, unlike = joint(0), ""
        if start != len(bare):
            unlike = "the context's last token is not one of the whole text: scored from where they differ"
        return [Prompt(tokens[0], start, unlike)]
    if task.kind == "choice":
        starts = [common(tokens)] * len(tokens)
    else:
        same = common([part[::-1] for part in tokens])
        starts = [len(part) - same for part in tokens]
    if all(1 <= start < len(part) for start, part in zip(starts, tokens)):
        return [Prompt(part, start) for part, start in zip(tokens, starts)]
    unlike = "no token of a choice is its own: all choices scored whole"
    return [Prompt(part, max(1, joint(place)), unlike) for place, part in enumerate(tokens)]


def foundry_prompts(task: Task, row: Row, shots: Sequence[Row], tokenizer: Tokenizer) -> list[Prompt]:
    """Shots, context and continuation tokenized apart, nothing before them, a line break between examples. All fields
    are stripped, choices within lists are not; a continuation begins with a space and is scored whole. (There, only if
    " a" is one token, as it is to GPT-2; without the space, other vocabularies would read another text.)"""
    row, shots = stripped(row), [stripped(shot) for shot in shots]
    before = "\n".join(task.delimiter.join(answered(task, shot)) for shot in shots)
    preamble = tokenizer.encode(before).tolist()
    found = []
    for context, continuation in alternatives(task, row):
        text = ("\n" if before else "") + context
        if task.kind != "schema":
            text = (text + task.delimiter).rstrip()
        elif before:  # contexts within lists are not stripped
            text += task.delimiter.rstrip()
        answer = continuation if continuation.startswith(" ") else f" {continuation}"
        context_tokens = preamble + tokenizer.encode(text).tolist()
        unlike = "" if context_tokens else "no context: end-of-text stands for it"
        context_tokens = context_tokens or [tokenizer.eot]
        found.append(Prompt(context_tokens + tokenizer.encode(answer).tolist(), len(context_tokens), unlike))
    return found


def answered(task: Task, row: Row) -> tuple[str, str]:
    """(context, continuation) of a row as a shot shows it."""
    return alternatives(task, row)[row.get("gold", 0)]


def alternatives(task: Task, row: Row) -> list[tuple[str, str]]:
    """(context, continuation) of every choice of a row."""
    if task.kind == "choice":
        return [(row["query"], choice) for choice in row["choices"]]
    if task.kind == "schema":
        return [(context, row["continuation"]) for context in row["context_options"]]
    return [(row["context"], row["continuation"])]


def stripped(row: Row) -> Row:
    """The row with its text fields stripped; lists stay as they are."""
    return {name: value.strip() if isinstance(value, str) else value for name, value in row.items()}


def common(sequences: Sequence[Sequence[int]]) -> int:
    """How many first tokens all of them share."""
    size = min(map(len, sequences))
    block = np.array([sequence[:size] for sequence in sequences]).reshape(len(sequences), size)
    differ = np.flatnonzero((block != block[0]).any(axis=0))
    return int(differ[0]) if len(differ) else size
