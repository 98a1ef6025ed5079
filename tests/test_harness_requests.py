"""What the adapter to lm_eval makes of requests: tokens, windows, settings of generation; and what it counts."""

import json
import subprocess
import sys

import jax
import numpy as np
import pytest
from harness_runs import MODEL, Merging, Plain, run

from rove_jax.cli import eval as command
from rove_jax.errors import RunError, UsageError
from rove_jax.evaluation import harness
from rove_jax.evaluation.generate import Sampling
from rove_jax.evaluation.harness import adapter, generation
from rove_jax.evaluation.harness.conformance import request
from rove_jax.evaluation.harness.pairs import Pair, encode_pair, fit, windows

TEXT = Merging()
EOT = TEXT.eot


def ids(text):
    return TEXT.encode(text).tolist()


def pair(context, continuation, prefix="document", encode=ids):
    return encode_pair(encode, context, continuation, eot=EOT, prefix=prefix)


def test_a_continuation_is_what_follows_the_context_in_the_whole_text():
    assert pair("We", " the union") == Pair([EOT, *ids("We")], ids(" the union"))
    assert pair("We ", "the union") == pair("We", " the union") == pair("We \n"[:3], "the union")
    assert pair("We\n\n", "the").continuation == ids("\n\nthe")
    assert len(ids(" the union")) == 2, "the tokenizer merges"


def test_a_token_across_the_join_leaves_both_whole():
    assert len(ids("Answer")) == 1
    for context, continuation in (("Ans", "wer"), ("peo", "ple said"), ("the un", "ion"), ("Answe", "r")):
        found = pair(context, continuation)
        assert found.apart and found.continuation == ids(continuation) != []
        assert TEXT.decode(found.context + found.continuation) == context + continuation
    assert pair("A", "nswer it").apart is not False
    assert not pair("We", " the").apart


def test_end_of_text_stands_before_a_context_once():
    def marked(text):  # a tokenizer that knows the marker in the text
        return [EOT, *ids(text[3:])] if text.startswith("<e>") else ids(text)

    assert pair("", "Yes") == Pair([EOT], ids("Yes")) == pair("", "Yes", "none")
    assert pair(" ", "Yes") == Pair([EOT], ids(" Yes")) and pair("", "") == Pair([EOT], [])
    assert pair("We", " the", "none").context == ids("We")
    for prefix in ("document", "window", "none"):
        assert pair("<e>We", " the", prefix, marked).context == [EOT, *ids("We")]
        assert pair("", "<e>We", prefix, marked) == Pair([EOT], ids("We")), "it is no part of what is scored"
    assert [part.context for part in windows([EOT, 1, 2], 4, eot=EOT, prefix="document")] == [[EOT]]


@pytest.mark.parametrize("prefix", ["document", "window", "none"])
def test_a_cut_leaves_the_continuation_and_the_end_of_the_context(prefix):
    context, after = [EOT, *range(20)], [90, 91, 92]
    for limit in (2, 3, 4, 10, 22, 23, 24, 30):
        found = fit(Pair(context, after), limit, eot=EOT, prefix=prefix)
        assert found.continuation == after and len(found.context) >= 1
        read = len(found.context) + len(after) - 1
        assert read == (23 if limit >= 23 else max(limit, 3)), "the last token is not read"
        tail = found.context[1:] if prefix == "window" else found.context
        assert tail == context[len(context) - len(tail) :]
        assert found.context.count(EOT) == (limit >= 23 or prefix == "window")


def test_windows_of_a_document_are_those_of_lm_eval():
    """Vectors of `get_rolling_token_windows` in lm_eval 0.4.13 with a context of 1, made disjoint."""

    def inputs(count, limit, prefix="document"):
        found = list(windows(list(range(count)), limit, eot=-1, prefix=prefix))
        assert [token for part in found for token in part.continuation] == list(range(count)), "each token once"
        return [(part.context + part.continuation[:-1], len(part.continuation)) for part in found]

    assert inputs(10, 4) == [([-1, 0, 1, 2], 4), ([3, 4, 5, 6], 4), ([5, 6, 7, 8], 2)]
    assert [count for _, count in inputs(1000, 256)] == [256, 256, 256, 232]
    assert all(len(read) == 256 for read, _ in inputs(1000, 256)) and inputs(1000, 256)[-1][0][0] == 1000 - 256 - 1
    assert inputs(10, 4, "window") == [([-1, 0, 1, 2], 4), ([-1, 4, 5, 6], 4), ([-1, 6, 7, 8], 2)]
    assert inputs(3, 4) == [([-1, 0, 1], 3)] and inputs(4, 4) == [([-1, 0, 1, 2], 4)] and inputs(0, 4) == []


def test_settings_of_generation():
    def read(**settings):
        return generation.read_settings(settings)

    greedy = Sampling(0.0)
    assert read() == generation.Asked((), 256, greedy)
    assert read(until="ab").stops == ("ab",) and read(until=["ab", "", "c"]).stops == ("ab", "c")
    assert read(until=None).stops == () == read(until="").stops
    assert read(max_gen_toks=5, max_tokens=9).tokens == 5 and read(max_new_tokens=7).tokens == 7
    assert read(temperature=0.7).sampling == Sampling(0.7) and read(do_sample=True).sampling == Sampling(1.0)
    assert read(do_sample=False, temperature=0.7, top_p=0.9).sampling == greedy
    assert read(do_sample=True, temperature=0, top_k=3).sampling == greedy
    assert read(temperature=1, top_k=4, top_p=0.5).sampling == Sampling(1.0, 4, 0.5) and read(num_beams=1)
    for wrong in ({"num_beams": 4}, {"until": [3]}, {"max_gen_toks": 0}, {"temperature": -1.0}):
        with pytest.raises(UsageError, match=next(iter(wrong)).removeprefix("max_")):
            read(**wrong)


def test_text_ends_before_the_first_stop():
    assert generation.stopped("one two three", ("three", "two")) == "one "
    assert generation.stopped("one two", ("o", "x")) == "" and generation.stopped("one", ("two",)) == "one"


@pytest.fixture(scope="module")
def uniform():
    """A model to which all tokens are alike. The rows that pad its table would make that ln 320."""
    return run(params=jax.tree.map(np.zeros_like, run().params))


def test_a_uniform_model_costs_the_logarithm_of_the_vocabulary(uniform):
    assert MODEL.padded_vocab > MODEL.vocab
    lm = Plain(uniform, max_length=8)
    [(total, greedy)] = lm.loglikelihood([request("We", " the people")], disable_tqdm=True)
    count = len(ids(" the people"))
    assert total == pytest.approx(-count * np.log(257), rel=1e-6) and greedy is False
    page = "the union of the people, " * 5
    [rolled] = lm.loglikelihood_rolling([request("", page)], disable_tqdm=True)
    assert rolled == pytest.approx(-len(ids(page)) * np.log(257), rel=1e-6)
    # Of equal logits the first id wins, which is the byte 0.
    assert lm.loglikelihood([request("We", "\0")], disable_tqdm=True)[0][1] is True


def test_what_is_done_to_requests_is_counted_and_the_cache_is_told(uniform):
    lm = Plain(uniform, max_length=8)
    asked = [request("Ans", "wer"), request("We the people of this land", " is"), request("We", " it is, it is, it is")]
    found = lm.loglikelihood(asked, disable_tqdm=True)
    assert lm.counts == {"apart": 1, "truncated": 2, "beyond": 1}
    assert lm.cache_hook.parts == [("loglikelihood", one.args, result) for one, result in zip(asked, found)]
    [rolled] = lm.loglikelihood_rolling([request("We")], disable_tqdm=True)
    assert lm.cache_hook.parts[3:] == [("loglikelihood_rolling", ("We",), rolled)], "not the windows"
    json.dumps([found, rolled])


def test_from_version_0_5_on_rolling_results_are_pairs(uniform, monkeypatch):
    lm = Plain(uniform, max_length=8)
    for version, wanted in (("0.4.13", float), ("0.5.0.dev1", tuple), ("1.0", tuple)):
        monkeypatch.setattr(adapter.importlib.metadata, "version", lambda name, version=version: version)
        [found] = lm.loglikelihood_rolling([request("", "We")], disable_tqdm=True)
        assert type(found) is wanted and (found if wanted is float else found[0]) < 0
    assert found[1] is False


@pytest.mark.slow
def test_long_requests_are_read_whole_or_scaled_if_asked():
    long = [request("We the people. " * 10, " is"), request("We", " is")]
    cut, whole, scaled, wide = (
        Plain(run(), overlong=overlong, max_length=limit).loglikelihood(long, disable_tqdm=True)
        for overlong, limit in (("truncate", None), ("extrapolate", None), ("yarn", None), ("truncate", 512))
    )
    assert len({cut[0], whole[0], scaled[0]}) == 3 and whole[0] == pytest.approx(wide[0], abs=1e-3)
    assert cut[1][0] == pytest.approx(scaled[1][0], abs=1e-4), "a short one is left as it is"
    # A window of the training length is read as in training: its last token is only predicted.
    lm = Plain(run(), overlong="yarn")
    assert (lm.window, lm.max_length) == (64, 2**20)
    page = "We the people said it. " * 9
    rolled = [one.loglikelihood_rolling([request(page)], disable_tqdm=True)[0] for one in (lm, Plain(run()))]
    assert rolled[0] == pytest.approx(rolled[1], abs=1e-4)


@pytest.mark.slow
def test_drawn_texts_depend_on_the_prompt_and_how_often_it_came():
    lm = Plain(run(), batch_size=4)
    drawn = {"max_gen_toks": 6, "temperature": 1.5, "until": []}
    texts = lm.generate_until([request(text, drawn) for text in ("We", "The", "We")], disable_tqdm=True)
    assert texts[0] != texts[2]
    again = lm.generate_until([request(text, drawn) for text in ("The", "We", "We")], disable_tqdm=True)
    assert again == [texts[1], texts[0], texts[2]]


def test_a_run_whose_documents_were_trained_apart_has_no_end_of_text_before_contexts():
    assert Plain(run(segments=True)).prefix == "none" and Plain(run()).prefix == "document"
    assert Plain(run(segments=True), prefix="window").prefix == "window"


def test_what_cannot_be_is_refused(uniform):
    lm = Plain(uniform, max_length=8)
    with pytest.raises(UsageError, match="max_gen_toks = 8.*--max-gen-tokens"):
        lm.generate_until([request("We", {"max_gen_toks": 8})], disable_tqdm=True)
    assert lm.prompt("We the people", 3) == ids("We the people")[-5:] and lm.counts["truncated"] == 1
    assert Plain(uniform, batch_size="auto").batch_size is None and Plain(uniform, batch_size="4").batch_size == 4
    for wrong in ({"batch_size": 0}, {"batch_size": "x"}, {"max_length": 1}, {"prefix": "bos"}, {"overlong": "x"}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            Plain(uniform, **wrong)
    broken = run(params=jax.tree.map(lambda leaf: np.full_like(leaf, np.nan), uniform.params))
    with pytest.raises(RunError, match="not finite"):
        Plain(broken, max_length=8).loglikelihood([request("We", " the")], disable_tqdm=True)


def test_without_the_package_the_extra_is_named(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(harness.importlib.util, "find_spec", lambda name: None)
    words = ["harness", "--workdir", str(tmp_path), "--tasks", "x", "--out", str(tmp_path / "out.json")]
    assert command.main(words) == 2
    assert capsys.readouterr().err == (
        "error: eval harness: needs the package lm-eval; pip install 'rove-jax[harness]'\n"
    )
    with pytest.raises(UsageError, match="pip install"):
        harness.register()
    with pytest.raises(UsageError, match="pip install"):
        _ = harness.RoveLM
    with pytest.raises(AttributeError, match="RoveML"):
        _ = harness.RoveML


def test_wrong_arguments_are_one_line(capsys, tmp_path):
    for words in (
        ["--tasks", "x"],
        ["--out", "x.json"],
        ["--conformance", "--tasks", "x"],
        ["--tasks", "x", "--out", "x.json", "--limit", "0"],
        ["--tasks", "x", "--out", "x.json", "--num-fewshot", "-1"],
        ["--tasks", "x", "--out", "x.json", "--include-path", str(tmp_path / "none")],
    ):
        assert command.main(["harness", "--workdir", str(tmp_path), *words]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_telling_lm_eval_of_the_model_imports_no_jax():
    program = "import sys; import rove_jax.evaluation.harness; print({'jax', 'lm_eval'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "set()", done.stderr
