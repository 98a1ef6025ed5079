"""Generated puzzles: every document's answers are right, sizes are even, and accuracy counts whole answers."""

import collections
import hashlib
import itertools
import re

import numpy as np
import pytest

from rove_jax.config import Config, Data
from rove_jax.data import puzzles, sources, tokenizers
from rove_jax.data.draws import Draw
from rove_jax.errors import RunError, UsageError
from rove_jax.evaluation import puzzles as evaluation
from rove_jax.evaluation.engine import Score

BYTES = tokenizers.ByteTokenizer()


def answers(kind: str, document: str) -> list[tuple[str, str]]:
    """(given, right) answers of a document, from its text."""
    if kind == "addition":
        assert re.fullmatch(r"(\[\d+\+\d+=\d+\])+", document)
        sums = re.findall(r"\[(\d+)\+(\d+)=(\d+)\]", document)
        return [(total, str(int(left) + int(right))) for left, right, total in sums]
    text, questions = re.fullmatch(r"\[([a-z]+)\](.+)", document).groups()
    pairs = [part.split("=") for part in questions.split(",")]
    return [(given, text[int(place) : int(place) + 3]) for place, given in pairs]


@pytest.mark.parametrize("kind", puzzles.SIZES)
def test_documents_are_right_and_of_all_sizes(kind):
    source = sources.load(Data(source=kind))
    found = list(itertools.islice(source.documents(), 400))
    sizes = collections.Counter()
    for document in found:
        pairs = answers(kind, document.text)
        assert len(pairs) == puzzles.QUESTIONS[kind] and document.split == "train"
        assert all(given == right and (kind == "addition" or len(right) == 3) for given, right in pairs)
        sizes[document.text.index("]") - 1 if kind == "substring" else 1] += 1
    assert kind == "addition" or set(sizes) == set(puzzles.SIZES[kind])
    assert len({document.text for document in found}) > 390
    digest = hashlib.sha256("\n".join(document.text for document in found).encode()).hexdigest()[:12]
    assert digest == {"substring": "07d73664bf6f", "addition": "459ca31cd3b6"}[kind], "the same everywhere"


def test_training_and_validation_differ(monkeypatch):
    monkeypatch.setattr(puzzles, "COUNTS", {"train": 30, "validation": 20})
    found = list(sources.load(Data(source="addition")).documents())
    assert [document.split for document in found] == ["train"] * 30 + ["validation"] * 20
    texts = [document.text for document in found]
    assert len(set(texts)) == 50 and len({document.id for document in found}) == 50


@pytest.mark.parametrize("kind", puzzles.SIZES)
def test_accuracy_counts_whole_answers(kind, monkeypatch):
    """A scorer that knows every answer but those to prompts of an even sum of bytes, where it misses one token."""

    class Knowing:
        def __init__(self, cfg, params, *, batch_size, mesh):
            pass

        def score(self, requests, advance):
            found = []
            for context, continuation in requests:
                [(given, right)] = answers(kind, BYTES.decode([*context, *continuation]).removesuffix(","))
                assert given == right and context[0] == ord("[")
                greedy = np.ones(len(continuation), bool)
                greedy[-1] = sum(context.tolist()) % 2
                found.append(Score(np.full(len(continuation), nats, np.float32), greedy))
                prompts.append(context)
            return found

    prompts: list[np.ndarray] = []
    nats = 0.5
    monkeypatch.setattr(evaluation, "Engine", Knowing)
    cfg = Config().model
    records = evaluation.accuracies(cfg, {}, BYTES, kind, [4, 30], samples=40)
    for record, part in zip(records, (prompts[:40], prompts[40:])):
        right = sum(sum(prompt.tolist()) % 2 for prompt in part)
        assert 0 < right < 40 and record["correct"] == right and record["accuracy"] == right / 40
        assert record["token_accuracy"] == 1 and record["nll"] == 0.5
    assert [record["trained"] for record in records] == [kind == "substring", False]
    assert evaluation.puzzle_table(records).count("\n") == 3
    for sizes, words in (([0], "--sizes = 0"), ([10**9], "--sizes = 10{9}: must lie"), ([4, 4], "must differ")):
        with pytest.raises(UsageError, match=words):
            evaluation.accuracies(cfg, {}, BYTES, kind, sizes, samples=1)
    with pytest.raises(UsageError, match="'sotu'.*substring, addition"):
        evaluation.accuracies(cfg, {}, BYTES, "sotu", [4], samples=1)
    nats = np.nan
    with pytest.raises(RunError, match=f"{kind}, size 4: the model gives a likelihood that is not finite"):
        evaluation.accuracies(cfg, {}, BYTES, kind, [4], samples=1)


def test_a_puzzle_of_a_size_is_of_that_size():
    for size in (3, 9, 40):
        for one in puzzles.puzzles("substring", size, Draw("x", size), 5):
            assert one.prompt.index("]") == size + 1 and len(one.answer) == 3
    totals = [one.prompt.strip("[=").split("+") for one in puzzles.puzzles("addition", 5, Draw("y"), 300)]
    digits = collections.Counter(len(number) for pair in totals for number in pair)
    assert set(digits) == {1, 2, 3, 4, 5} and digits[5] > 60
