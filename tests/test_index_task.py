"""The index task: prompts that a reader could answer, picks among the right choices, and intervals of shares."""

import re
import tracemalloc

import jax
import numpy as np
import pytest
from reference import ruler as oracle

from rove_jax import config
from rove_jax.data import tokenizers
from rove_jax.errors import UsageError
from rove_jax.evaluation import engine, index_task, index_task_curve, packing
from rove_jax.evaluation.engine import Request, Score
from rove_jax.evaluation.index_task import make_index_task, ordinal, score_index_task
from rove_jax.models import functional

BYTES = tokenizers.ByteTokenizer()


def answered(prompt: str) -> str:
    """The answer, read from the text."""
    *shown, last = prompt.rstrip().split("\n")
    if last.startswith("arr"):
        k = int(re.fullmatch(r"arr\[(\d+)\] =", last)[1])
        if shown[0].startswith("arr = ["):
            return shown[0].removeprefix("arr = [").removesuffix("]").split(", ")[k]
        return next(line.split(" = ")[1] for line in shown if line.startswith(f"arr[{k}] = "))
    words = shown[0].split(", ")
    number, end = re.fullmatch(r"The (\d+)(?:st|nd|rd|th) item( from the end)? is", last).groups()
    return words[-int(number)] if end else words[int(number) - 1]


@pytest.mark.parametrize("variant", index_task.VARIANTS)
def test_the_text_gives_the_answer_and_the_choices_are_what_may_follow(variant):
    for n_items in (2, 5, 23):
        task = make_index_task(n_items, n_samples=20, seed=3, tokenizer=BYTES, variant=variant)
        for prompt, right, ids, place in zip(task.prompts, task.answers, task.choices, task.places):
            text = BYTES.decode(prompt)
            assert text.endswith((" = ", " is ")), "in bytes the space before the answer is a token of the prompt"
            assert BYTES.decode([ids[right]]) == answered(text)
            assert 0 <= place < n_items
            values = variant in ("list", "numbered")
            listed = ["0", "1", "2", "3"] if values else text.split("\n")[0].split(", ")
            assert [BYTES.decode([token]) for token in ids] == listed
            shots = len(re.findall(r"^The .+ is \w\.$", text, re.M))
            assert shots == (0 if values else 2)


def test_values_and_places_are_uniform_and_the_same_lists_grow():
    task = make_index_task(40, n_samples=200, tokenizer=BYTES)
    assert np.all(np.bincount(task.answers, minlength=4) > 30)
    assert np.all(np.histogram(task.places, 4, (0, 40))[0] > 30)
    longer = make_index_task(50, n_samples=200, tokenizer=BYTES)
    for one, other in zip(task.prompts, longer.prompts):
        assert BYTES.decode(other).startswith(BYTES.decode(one).split("]")[0])
    assert [BYTES.decode(p) for p in make_index_task(40, n_samples=3, seed=1, tokenizer=BYTES).prompts] != [
        BYTES.decode(p) for p in task.prompts[:3]
    ]


def test_ordinals():
    numbers = [1, 2, 3, 4, 10, 11, 12, 13, 21, 22, 23, 101, 111, 112, 1003]
    assert " ".join(map(ordinal, numbers)) == (
        "1st 2nd 3rd 4th 10th 11th 12th 13th 21st 22nd 23rd 101st 111th 112th 1003rd"
    )


def test_as_many_items_as_fit():
    for length in (32, 64, 100, 257):
        [(_, _, task)] = index_task_curve.index_tasks([length], ["list"], BYTES, samples=7, seed=42)
        longest = max(map(len, task.prompts))
        assert longest + 2 <= length < longest + 2 + 8, "end-of-text before it, the answer behind it"
    with pytest.raises(UsageError, match="--lengths = 16"):
        list(index_task_curve.index_tasks([16], ["numbered"], BYTES, samples=3, seed=42))
    found = list(index_task_curve.index_tasks([512, 1024, 2048], ["words"], BYTES, samples=2, seed=42))
    assert [(length, task.n_items) for _, length, task in found] == [(512, 52)], "letters are all the words of bytes"
    with pytest.raises(UsageError, match="52 words"):
        make_index_task(53, tokenizer=BYTES, variant="words")


@pytest.mark.parametrize("variant", ["list", "words_end"])
def test_picks_are_the_likeliest_choices(variant):
    task = make_index_task(9, n_samples=30, tokenizer=BYTES, variant=variant)
    draw = np.random.RandomState(0)
    table = [draw.rand(len(ids)) for ids in task.choices]
    scores = [Score(np.array([nll], np.float32), np.array([nll < 0.2])) for row in table for nll in row]
    found = score_index_task(task, scores)
    picks = [int(row.argmin()) for row in table]
    right = sum(pick == answer for pick, answer in zip(picks, task.answers))
    assert (found["correct"], found["samples"], found["picked"]) == (right, 30, picks)
    assert found["interval"] == pytest.approx(oracle.wilson(right, 30), abs=1e-9)
    assert found["nll"] == pytest.approx(np.mean([row[a] for row, a in zip(table, task.answers)]), rel=1e-6)
    assert found["top_1"] == pytest.approx(np.mean([row[a] < 0.2 for row, a in zip(table, task.answers)]))
    distance = np.mean([abs(pick - place) for pick, place in zip(picks, task.places)])
    assert found["distance"] == (None if variant == "list" else pytest.approx(distance))
    assert found["chance"] == (1 / 4 if variant == "list" else 1 / 9)
    cells = index_task.by_depth(found)
    assert sum(count for count, _ in cells) == 30 and sum(hits for _, hits in cells) == right
    assert cells[0][0] == sum(place == 0 for place in task.places)
    # One who always knows is always right, and one who is always wrong never.
    for knows in (True, False):
        sure = [
            Score(np.array([0.0 if (choice == answer) == knows else 9.0], np.float32), np.array([True]))
            for ids, answer in zip(task.choices, task.answers)
            for choice in range(len(ids))
        ]
        assert score_index_task(task, sure)["accuracy"] == float(knows)


@pytest.mark.slow  # compiles
def test_a_curve_of_a_model_that_knows_nothing_is_chance(tmp_path):
    cfg = config.Model(layers=1, width=8, query_heads=1, kv_heads=1, head_dim=8, mlp_width=8, vocab=257)
    params = jax.tree.map(np.zeros_like, functional.init(cfg, jax.random.key(0)))
    tasks = list(index_task_curve.index_tasks([64, 128], ["list", "words"], BYTES, samples=12, seed=42))
    given = {"training_length": 100, "first": [256], "scalings": ["none", "yarn"]}
    records = index_task_curve.index_curve(cfg, params, tasks, **given)
    assert [(r["variant"], r["length"], r["scaling"], r["factor"]) for r in records] == [
        (variant, length, rule, 1.28 if length == 128 and rule == "yarn" else 1.0)
        for variant in ("list", "words")
        for length in (64, 128)
        for rule in ("none", "yarn")
    ]
    for record in records:
        assert record["nll"] == pytest.approx(np.log(257), rel=1e-6) and record["picked"] == [0] * 12
        assert record["correct"] == record["answers"].count(0) and record["top_1"] == 0
    image = index_task_curve.figure(records, 100, "nothing")
    assert image.startswith(b"\x89PNG") and len(image) > 10_000
    assert len(index_task_curve.index_table(records).split("\n")) == 2 + len(records)
    assert len(index_task_curve.depth_table(records).split("\n")) == 2 + len(records)


def test_choices_of_a_question_take_the_memory_of_one():
    draw = np.random.RandomState(0)
    prompts, ids = draw.randint(0, 200, (3, 10_000), np.int32), np.arange(200, dtype=np.int32)
    task = index_task.IndexTask([*prompts], np.zeros(3, int), [ids] * 3, np.zeros(3, int), 200)

    def peak(given: list[Request]) -> int:
        tracemalloc.start()
        named, forest = engine.names(given), packing.trees(given)
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len(set(named)) == 600 and [len(tree.spans) for tree in forest] == [200] * 3
        return size

    found = index_task_curve.requests(task, [256])
    assert [one.context.tolist() for one in found[::200]] == [[256, *prompt] for prompt in prompts.tolist()]
    assert [int(one.continuation[0]) for one in found] == [*ids] * 3
    assert peak(found) < 3 * prompts.nbytes
    copies = [Request(one.context.copy(), one.continuation) for one in found]
    assert peak(copies) < 3 * prompts.nbytes, "the copies are their maker's; here is no further one"
