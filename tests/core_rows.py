"""Rows written for the tests in the forms of CORE's files, with every trap of the real ones, and a vocabulary."""

import json
import re
from pathlib import Path
from typing import ClassVar

import numpy as np

CHOICES = [
    # One begins the other; the query ends in a line break.
    {"query": "Question: What melts?\n", "choices": ["ice", "ice in the sun"], "gold": 0},
    # Two equal ones; the query ends in a space.
    {"query": "Question: Which is red? ", "choices": ["the sky", "the sky", "the rose"], "gold": 2},
    # They begin alike.
    {"query": "Question: Where do fish live?", "choices": ["in the sea", "in the sand"], "gold": 0},
    {"query": "Question: Who runs?\nAnswer: ", "choices": ["A", "B", "C", "D"], "gold": 3},
    {"query": "Question: What barks?", "choices": ["dogs, mostly", ", cats", "unbelievably"], "gold": 0},
]
SCHEMAS = [
    {"context_options": ["The cup fell off the desk since the cup", "The cup fell off the desk since the desk"],
     "continuation": "was not even.", "gold": 1},
    {"context_options": ["Ann thanked Mary since Ann was", "Ann thanked Mary since Mary was"],
     "continuation": "kind.", "gold": 1},  # contexts that end alike
    # White space within lists stays with llm-foundry too.
    {"context_options": ["The dog saw the dog", "The dog saw the cat "], "continuation": " and barked.", "gold": 0},
]  # fmt: skip
CONTINUATIONS = [
    {"context": "RIVERS: It runs through Cairo  ", "continuation": "the Nile", "category": "rivers"},
    {"context": "RIVERS: It runs through Vienna", "continuation": "the Danube ", "category": "rivers"},
    {"context": "HILLS: It is in Nepal", "continuation": "\n\nEverest", "category": "hills"},
    {"context": "HILLS: It is in Rome", "continuation": "seven of them", "category": "hills"},
    {"context": "HILLS: It is in Spain\n", "continuation": "Ans", "category": "hills"},
]
ROWS = {
    "arc_easy": CHOICES,
    "openbook_qa": CHOICES,
    "winograd": SCHEMAS,
    "jeopardy": CONTINUATIONS,
    "lambada_openai": CONTINUATIONS,
}


def write(folder: Path, rows: dict[str, list[dict]] = ROWS) -> Path:
    """The rows as files under `folder`, which is returned."""
    from rove_jax.evaluation.core.tasks import TASKS

    for task in TASKS:
        if task.label in rows:
            path = folder / task.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(json.dumps(row) + "\n" for row in rows[task.label]))
    return folder


class Words:
    """A vocabulary of pieces that GPT-2's rules might make, numbered as they are met: parts of words and signs with the
    space before them, runs of space but for the last. "Answer" is one."""

    eot = 0
    vocab = 257
    name = "words"
    identity = "words"

    ids: ClassVar[dict[str, int]] = {}
    """The same for all, in whatever order they read."""

    def encode(self, text: str) -> np.ndarray:
        parts = re.findall(r" ?Answer| ?\w{1,5}| ?[^\s\w]+|\s+(?!\S)|\s", text)
        assert "".join(parts) == text
        assert len(self.ids) < self.vocab - 1
        return np.array([self.ids.setdefault(part, len(self.ids) + 1) for part in parts], np.int32)

    def decode(self, ids) -> str:
        names = {id: part for part, id in self.ids.items()}
        return "".join("" if id == self.eot else names[int(id)] for id in ids)
