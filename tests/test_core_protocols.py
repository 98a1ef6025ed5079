"""CORE's questions: which examples, in which text, scored over which tokens."""

import random
from dataclasses import replace

import core_rows
import pytest
from reference import core as oracle

from rove_jax.config import Data
from rove_jax.data import tokenizers
from rove_jax.errors import UsageError
from rove_jax.evaluation.core import files, protocols
from rove_jax.evaluation.core.tasks import TASKS

BY_LABEL = {task.label: task for task in TASKS}
LABELS = list(core_rows.ROWS)


def asked(label: str, protocol: protocols.Protocol, tokenizer, shots: int | None = None):
    """[(example, prompts)] of the hand-written rows of a task."""
    task = BY_LABEL[label] if shots is None else replace(BY_LABEL[label], shots=shots)
    rows = core_rows.ROWS[label]
    return task, [
        (one, protocols.prompts(task, rows, one, protocol, tokenizer))
        for one in protocols.examples(task, rows, protocol)
    ]


@pytest.mark.parametrize("shots", [0, 2])
@pytest.mark.parametrize("label", LABELS)
def test_nanochat_prompts_equal_the_oracle(label, shots):
    words = core_rows.Words()
    task, found = asked(label, "nanochat", words, shots)
    rows = core_rows.ROWS[label]
    assert sorted(one.row for one, _ in found) == list(range(len(rows)))
    differing = 0
    for place, (one, prompts) in enumerate(found):
        row, expected = oracle.nanochat(task.kind, task.delimiter, rows, place, shots, words.encode, words.eot)
        assert rows[one.row] == row and one.row not in one.shots and len(set(one.shots)) == shots
        assert [p.tokens for p in prompts] == [tokens for tokens, *_ in expected]
        if any(start == end for _, start, end in expected):
            differing += 1
            assert all(p.unlike for p in prompts)
            continue
        assert [(p.start, len(p.tokens)) for p in prompts] == [(start, end) for _, start, end in expected]
        assert not any(p.unlike for p in prompts)
    assert differing == (1 if task.kind == "choice" else 0), "a choice that begins the other one"


@pytest.mark.parametrize("shots", [0, 2])
@pytest.mark.parametrize("label", LABELS)
def test_foundry_prompts_equal_the_oracle(label, shots):
    words = core_rows.Words()
    task, found = asked(label, "foundry", words, shots)
    rows = core_rows.ROWS[label]
    groups = [rows]
    if label == "jeopardy":
        groups = [[row for row in rows if row["category"] == name] for name in ("rivers", "hills")]
    expected = [
        pair for group in groups for pair in oracle.foundry(task.kind, task.delimiter, group, shots, words.encode)
    ]
    assert len(found) == len(expected) == len(rows)
    for (one, prompts), (row, wanted) in zip(found, expected):
        assert core_rows.ROWS[label][one.row]["gold" if "gold" in row else "category"] == row.get(
            "gold", row.get("category")
        )
        assert [(p.tokens, p.start, len(p.tokens)) for p in prompts] == wanted
        assert not any(p.unlike for p in prompts)


def test_the_texts_are_those_of_the_references():
    words, rows = core_rows.Words(), core_rows.CHOICES
    melts = protocols.Example(0, [2], "")
    task = BY_LABEL["piqa"]
    nanochat = protocols.prompts(task, rows, melts, "nanochat", words)
    shown = "Question: Where do fish live?\nAnswer: in the sea"
    assert words.decode(nanochat[1].tokens) == f"{shown}\n\nQuestion: What melts?\n\nAnswer: ice in the sun"
    foundry = protocols.prompts(task, rows, melts, "foundry", words)
    assert words.decode(foundry[1].tokens) == f"{shown}\nQuestion: What melts?\nAnswer: ice in the sun"
    # An empty span is scored whole, and so are the choices beside it.
    assert [words.decode(p.tokens[p.start :]) for p in nanochat] == [" ice", " ice in the sun"]
    assert [words.decode(p.tokens[p.start :]) for p in foundry] == [" ice", " ice in the sun"]
    fish = protocols.Example(2, [], "")
    parts = [
        [words.decode(p.tokens[p.start :]) for p in protocols.prompts(task, rows, fish, name, words)]
        for name in ("nanochat", "foundry")
    ]
    assert parts == [[" sea", " sand"], [" in the sea", " in the sand"]], "what choices share is left out, or not"

    kind = protocols.Example(1, [], "")
    task, rows = BY_LABEL["winograd"], core_rows.SCHEMAS
    parts = [
        [words.decode(p.tokens[p.start :]) for p in protocols.prompts(task, rows, kind, name, words)]
        for name in ("nanochat", "foundry")
    ]
    assert parts == [[" was kind.", " was kind."], [" kind.", " kind."]], "what contexts share counts, or not"

    task, rows = BY_LABEL["jeopardy"], core_rows.CONTINUATIONS
    for name, scored in (("nanochat", [" the", " Danub", "e", " "]), ("foundry", [" the", " Danub", "e"])):
        [prompt] = protocols.prompts(task, rows, protocols.Example(1, [], ""), name, words)
        assert [words.decode([token]) for token in prompt.tokens[prompt.start :]] == scored, "a space nobody predicts"


def test_draws_are_those_of_the_references():
    """Published draws on a file of as many rows as arc_easy has."""
    task, rows = BY_LABEL["arc_easy"], [{}] * 2376
    order = list(range(2376))
    random.Random(1337).shuffle(order)
    [first] = protocols.examples(task, rows, "nanochat", 1)
    assert [order.index(row) for row in first.shots] == [1806, 479, 31, 372, 144, 344, 404, 1453, 970, 72]
    found = protocols.examples(task, rows, "foundry", 2)
    assert found[0].shots == [71, 969, 1452, 1805, 143, 371, 343, 403, 30, 478] and found[0].row == 0
    assert found[1].shots != found[0].shots, "one stream, which goes on"


def test_fewer_examples_are_the_first_ones_and_few_rows_give_few_shots():
    task = BY_LABEL["arc_easy"]
    for protocol in ("nanochat", "foundry"):
        every = protocols.examples(task, [{}] * 40, protocol)
        assert protocols.examples(task, [{}] * 40, protocol, 5) == every[:5]
        assert {len(one.shots) for one in protocols.examples(task, [{}] * 4, protocol)} <= {2, 3}
        assert protocols.examples(task, [{}], protocol)[0].shots == []
    rows = [{"category": name} for name in "aaaabbc"]
    spread = protocols.examples(BY_LABEL["jeopardy"], rows, "foundry", 5)
    assert [(one.category, one.row) for one in spread] == [("a", 0), ("a", 1), ("b", 4), ("b", 5), ("c", 6)]
    for one in protocols.examples(BY_LABEL["jeopardy"], rows, "foundry"):
        assert {rows[shot]["category"] for shot in one.shots} <= {one.category}
    assert {one.category for one in protocols.examples(BY_LABEL["jeopardy"], rows, "nanochat")} == {""}


def test_a_context_that_a_tokenizer_does_not_keep_is_said_to_be():
    class Merging(core_rows.Words):
        def encode(self, text):
            return super().encode(text.replace(": ", "_"))

    [prompt] = protocols.prompts(
        BY_LABEL["jeopardy"],
        [{"context": "Which", "continuation": "the", "category": ""}],
        protocols.Example(0, [], ""),
        "nanochat",
        Merging(),
    )
    assert "last token" in prompt.unlike and 1 <= prompt.start < len(prompt.tokens)


@pytest.fixture(scope="module")
def gpt2(test_data):
    """GPT-2's tokenizer, from the folder gpt2 of the test data or from tiktoken's cache."""
    folder = test_data / "gpt2"
    try:
        return tokenizers.load(Data(tokenizer="gpt2", tokenizer_path=str(folder) if folder.is_dir() else None))
    except UsageError as error:
        pytest.skip(str(error))


def test_the_real_files_hold_as_many_traps_as_were_counted(test_data, gpt2):
    source = files.Files(test_data / "core")

    def prompts(label: str):
        """(row, its prompts without shots in nanochat's form, in llm-foundry's)."""
        task = replace(BY_LABEL[label], shots=0)
        found = source.load(task)
        assert found is not None and not found.unlike
        for one in protocols.examples(task, found.rows, "nanochat"):
            both = (protocols.prompts(task, found.rows, one, name, gpt2) for name in ("nanochat", "foundry"))
            yield found.rows[one.row], *both

    def scored(prompts) -> list[int]:
        return [len(p.tokens) - p.start for p in prompts]

    rows = {label: list(prompts(label)) for label in ("copa", "openbook_qa", "piqa", "winograd")}
    empty = [row for row, ours, _ in rows["piqa"] if ours[0].unlike]
    assert len(empty) == 4
    shorter = {
        label: sum(bool(ours[0].unlike) or scored(ours) != scored(theirs) for _, ours, theirs in rows[label])
        for label in ("copa", "openbook_qa", "piqa")
    }
    assert shorter == {"copa": 74, "openbook_qa": 65, "piqa": 1517}
    assert sum(scored(ours) != scored(theirs) for _, ours, theirs in rows["winograd"]) == 36
    begin = ("Political violence broke out", "The kidnappers released", "The bowling ball knocked")
    assert all(row["query"].startswith(words) for (row, *_), words in zip(rows["copa"], begin))
