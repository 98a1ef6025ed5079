"""RULER's samples: each can be answered from its own text, fits its length, and is as published or says it is not."""

import dataclasses
import hashlib
import json
import os
import re
from pathlib import Path

import pytest
from reference import ruler as oracle

from rove_jax.config import Data
from rove_jax.data import tokenizers
from rove_jax.errors import UsageError
from rove_jax.evaluation.ruler import cache, essay, fit, material, tasks

BYTES = tokenizers.ByteTokenizer()
LENGTHS = (200, 256, 400, 1024, 1500, 4096)


@pytest.fixture(scope="module")
def texts():
    return material.gather(BYTES, tasks.ALL, haystack="sotu", squad=None, hotpotqa=None)


@pytest.fixture(scope="module")
def gpt2_texts(texts):
    """The same with GPT-2's tokens, where there is the vocabulary: in ROVE_TEST_DATA/gpt2 or in tiktoken's cache."""
    folder = Path(os.environ.get("ROVE_TEST_DATA", "")) / "gpt2"
    if not (folder / "vocab.bpe").is_file() and not os.environ.get("TIKTOKEN_CACHE_DIR"):
        pytest.skip("no GPT-2 vocabulary: neither ROVE_TEST_DATA/gpt2/{encoder.json,vocab.bpe} nor TIKTOKEN_CACHE_DIR")
    path = str(folder) if (folder / "vocab.bpe").is_file() else None
    tokenizer = tokenizers.load(Data(tokenizer="gpt2", tokenizer_path=path))
    return dataclasses.replace(texts, count=lambda text: len(tokenizer.encode(text)))


def plans(texts, length, seed=42, samples=3, names=tasks.NAMES, reserve="published"):
    chosen = [task for task in tasks.ALL if task.name in names]
    return fit.plan(chosen, [length], texts, samples=samples, seed=seed, reserve=reserve)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("seed", [42, 7])
def test_a_sample_fits_and_its_text_alone_gives_the_answer(texts, length, seed):
    for plan in plans(texts, length, seed):
        samples = fit.fit(plan, texts, 3)
        for sample in samples:
            item = sample.item
            assert sample.tokens == len(item.prompt.encode()) and sample.tokens + sample.room <= length
            longest = max(len(text) for text in (*item.references, item.distractor)) + 1
            assert sample.room >= max(longest, plan.generator.tokens)
            assert oracle.answer(plan.name, item.prompt, len(item.outputs)) == oracle.given(plan.name, item.outputs)
            assert (item.distractor in item.prompt) == item.present or plan.task.group != "QA"
            assert item.distractor not in item.references
        # The first is as long as can be: one more unit is too long, or there is none.
        more = plan.sample(texts, 0, samples[0].units + 1) if samples[0].units < plan.generator.most(texts) else None
        dots = plan.task.name == "fwe"  # whose lists do not grow where two words would be equally frequent
        assert more is None or dots or more.tokens + more.room > length
        assert max(sample.units for sample in samples) == samples[0].units


def test_without_what_answers_it_no_answer_is_left(texts):
    for length in (256, 4096):
        for plan in plans(texts, length):
            for sample in fit.fit(plan, texts, 3):
                item = sample.item
                if plan.task.group in ("CWE", "FWE"):
                    assert item.floor is None
                    continue
                assert item.floor.rsplit("\n", 1)[1] == item.prompt.rsplit("\n", 1)[1], "the question stays"
                assert len(item.floor) < len(item.prompt)
                if plan.task.group == "NIAH":
                    assert oracle.niah(item.floor) == [] and not any(value in item.floor for value in item.outputs)
                elif plan.task.group == "VT":
                    assert oracle.variables(item.floor) == [] and not any(
                        name in item.floor.split() for name in item.outputs
                    )
                else:
                    with pytest.raises(ValueError):  # the document is not there to be unpacked
                        oracle.made_up(item.floor)


def test_what_is_asked_is_the_same_at_every_length(texts):
    """Of one form: the hay grows around the same needles, in the same places."""
    for name in ("niah_single_2", "niah_multikey_2", "niah_multiquery", "vt", "qa_2"):
        short, long = (fit.fit(plan, texts, 2) for at in (4096, 6000) for plan in plans(texts, at, names=[name]))
        for one, other in zip(short, long):
            assert one.item.outputs == other.item.outputs and one.units < other.units
            assert name.startswith("qa") or one.item.depth == other.item.depth
            assert name.startswith("qa") or one.item.prompt.rsplit("\n", 1)[1] == other.item.prompt.rsplit("\n", 1)[1]


def test_needles_lie_all_over_the_text(texts):
    [plan] = plans(texts, 4096, names=["niah_single_1"])
    depths = []
    for index in range(60):
        item = plan.sample(texts, index, 30).item
        lines = item.prompt.split("\n")[1:-1]
        [line] = [place for place, text in enumerate(lines) if "special magic" in text]
        assert line == int(30 * item.depth)
        depths.append(item.depth)
    assert min(depths) < 0.1 and max(depths) > 0.9 and 0.35 < sum(depths) / 60 < 0.65
    [plan] = plans(texts, 4096, names=["niah_single_2"])
    allowed = {round(100 * step / 39) / 100 for step in range(40)}
    found = {plan.sample(texts, index, 50).item.depth for index in range(60)}
    assert found <= allowed and len(found) > 20


def test_prompts_are_worded_as_published(texts):
    """Letter by letter, from the published templates with what was drawn put in."""
    [plan] = plans(texts, 4096, names=["niah_single_1"])
    item = plan.sample(texts, 0, 2).item
    key = re.search(r"numbers for (\S+) is: ", item.prompt)[1]
    noise = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
    lines = [noise, noise]
    lines.insert(int(2 * item.depth), f"One of the special magic numbers for {key} is: {item.outputs[0]}.")
    assert item.prompt == (
        "A special magic number is hidden within the following text. Make sure to memorize it. I will quiz you about "
        "the number afterwards.\n"
        + "\n".join(lines)
        + f"\nWhat is the special magic number for {key} mentioned in the "
        f"provided text? The special magic number for {key} mentioned in the provided text is"
    )
    [plan] = plans(texts, 4096, names=["niah_multiquery"])
    item = plan.sample(texts, 0, 100).item
    last = item.prompt.rsplit("\n", 1)[1]
    one, two, three, four = oracle.listed(re.search(r"numbers for (.+) mentioned in the provided text\?", last)[1])
    names = f"{one}, {two}, {three}, and {four}"
    assert last == (
        f"What are all the special magic numbers for {names} mentioned in the provided text? The special magic numbers "
        f"for {names} mentioned in the provided text are"
    )
    assert item.prompt.startswith(
        "Some special magic numbers are hidden within the following text. Make sure to memorize it. I will quiz you "
        "about the numbers afterwards.\n"
    )
    assert item.references == (", ".join(item.outputs),) and len(item.outputs) == 4
    [plan] = plans(texts, 4096, names=["vt"])
    item = plan.sample(texts, 0, 6).item
    value = re.findall(r"VAR [A-Z]{5} = (\d{5})", item.prompt)[0]
    assert item.prompt.endswith(
        f"\nQuestion: Find all variables that are assigned the value {value} in the text above. Answer: According to "
        f"the chain(s) of variable assignment in the text above, 5 variables are assigned the value {value}, they are: "
    )
    assert item.prompt.count("Memorize and track the chain(s)") == 2 and len(item.outputs) == 5
    for index in range(20):  # RULER draws different lines of noise to put the chain before
        text = plan.sample(texts, index, 5 + index % 3).item.prompt
        assert text.count("\nVAR") >= 8 and not re.search(r"VAR [^\n]+\nVAR", text)
    for name, end, count in (
        ("cwe", "?  Answer: The top 10 words that appear most often in the list are:", 10),
        ("fwe", "?  Answer: According to the coded text above, the three most frequently appeared words are:", 3),
    ):
        item = plans(texts, 9000, names=[name])[0].sample(texts, 0, 60).item
        assert item.prompt.endswith(end.replace("?  ", "? ")) and len(item.outputs) == count
    item = plans(texts, 4096, names=["qa_1"])[0].sample(texts, 0, 2).item
    assert re.match(r"Answer the question based on .+ words\.\n\nThe following are given documents\.\n\nDocument 1:\n",
                    item.prompt)  # fmt: skip
    assert re.search(r"output any other words\.\n\nQuestion: .+\? Answer:$", item.prompt)


def test_counts_are_as_published(gpt2_texts, texts):
    """Words 30 and 3 times from 4096 tokens on, 6 and 1 below; coded words by the inverse square of their rank."""
    for length, often, seldom in ((2048, 6, 1), (4096, 30, 3)):
        [plan] = plans(gpt2_texts, length, names=["cwe"])
        item = fit.fit(plan, gpt2_texts, 1)[0].item
        body = item.prompt[item.prompt.rindex("Below is") :].split("\n")[1]
        words = [word for _, word in re.findall(r"(\d+)\. (.+?)(?= \d+\. |$)", body)]
        assert {words.count(word) for word in set(words)} == {often, seldom}


def test_units_that_fit_are_those_of_the_published_generator(gpt2_texts):
    """With GPT-2's tokens; the needle takes the place of one line, and samples differ by what they draw."""
    expected = {
        "niah_single_1": (156, 320, 0.01),
        "niah_multikey_2": (207, 428, 0.02),
        "niah_multikey_3": (62, 128, 0.02),
        "cwe": (176, 481, 0.05),
    }
    for which, length in enumerate((4096, 8192)):
        for plan in plans(gpt2_texts, length, names=list(expected), samples=8):
            samples = fit.fit(plan, gpt2_texts, 8)
            needle = plan.task.group == "NIAH"
            mean = sum(sample.units for sample in samples) / len(samples) + needle
            wanted, tolerance = expected[plan.task.name][which], expected[plan.task.name][2]
            assert abs(mean / wanted - 1) <= tolerance, (plan.name, length, mean)
            assert all(sample.tokens + sample.room <= length for sample in samples)
            assert plan.name == plan.task.name, "the published form"


@pytest.mark.parametrize("length", [64, 96, 128, 160])
def test_a_length_that_is_too_short_is_refused_at_once_with_the_least(texts, length):
    refused = []
    for name in tasks.NAMES:
        try:
            [plan] = plans(texts, length, names=[name])
        except UsageError as error:
            [least] = re.findall(rf"{name} \(at least (\d+) tokens\)", str(error))
            assert "\n" not in str(error) and str(length) in str(error)
            refused.append(name)
            [plan] = plans(texts, int(least), names=[name])
            with pytest.raises(UsageError):
                plans(texts, int(least) - 1, names=[name])
            length_of = int(least)
        else:
            length_of = length
        assert plan.name.endswith("_small")
        assert all(sample.tokens + sample.room <= length_of for sample in fit.fit(plan, texts, 3))
    assert set(refused) == {64: set(tasks.NAMES)}.get(length, set(refused))
    assert length < 128 or set(refused) <= {"qa_1", "qa_2"}, "in bytes; in other tokens everything fits into 128"


def test_samples_are_the_same_everywhere(texts):
    """A digest of some of every form, taken once: another Python, machine or hash seed changes nothing."""
    digest, prose = hashlib.sha256(), "A man of Ayr, Mr. Bo, said so. It was so. " * 9
    texts = dataclasses.replace(texts, essay=essay.Essay("prose", prose))
    for length in (256, 4096):
        for plan in plans(texts, length):
            for sample in fit.fit(plan, texts, 2):
                digest.update(json.dumps([plan.name, *sample]).encode())
    assert (cache.FORMAT, digest.hexdigest()[:16]) == (2, "2ca1c70281f944b3"), "raise FORMAT when samples change"
