"""lm_eval itself on local tasks through the adapter, where it is installed; and against CORE on the same strings."""

import json
import math

import numpy as np
import pytest
import tiny_runs
from harness_runs import run

from rove_jax.cli import eval as command
from rove_jax.errors import RunError, UsageError
from rove_jax.evaluation import harness
from rove_jax.evaluation.core import protocols
from rove_jax.evaluation.core import tasks as core_tasks
from rove_jax.evaluation.core.files import Files
from rove_jax.evaluation.engine import Engine, Request
from rove_jax.evaluation.harness.conformance import request

pytest.importorskip("lm_eval", reason="lm_eval is not installed: pip install lm-eval")
pytestmark = pytest.mark.slow

COPA = [
    {"query": "The state kept its laws, therefore", "choices": ["the union is sound.", "it rained."], "gold": 0},
    {"query": "Congress did not report because", "choices": ["it was late.", "the people of the state"], "gold": 1},
    {"query": "The people asked, so", "choices": ["they were told.", "they are.", "at"], "gold": 2},
]


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="module")
def lm():
    harness.register()
    harness.register()
    from lm_eval.api.registry import get_model

    kind = get_model("rove_jax")
    return lambda **options: kind(run(), **options)


def test_all_kinds_of_tasks_score_as_forward_passes_say(lm, tmp_path):
    from rove_jax.evaluation.harness import tasks

    found = list(tasks.local_tasks(lm, tmp_path))
    assert len(found) == 4 and [one.wrong for one in found] == [""] * 4

    # A model that is off by one place is found in each of them.
    class Late(harness.model_class()):
        def likelihoods(self, pairs, bar):
            late = [p._replace(context=p.context + p.continuation[:1]) for p in pairs]
            return super().likelihoods([p._replace(continuation=[*p.continuation[1:], 0]) for p in late], bar)

    late = [bool(one.wrong) for one in tasks.local_tasks(lambda **options: Late(run(), **options), tmp_path)]
    assert late[1:3] == [True, True], "perplexities; accuracies may come out the same"


def test_pairs_and_windows_are_those_of_lm_eval(lm):
    from lm_eval.api.model import TemplateLM
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

    from rove_jax.evaluation.harness.conformance import LONG
    from rove_jax.evaluation.harness.pairs import windows

    model = lm(prefix="none")
    draw = np.random.RandomState(0)
    apart = 0
    for _ in range(300):
        start, size, more = draw.randint(400), draw.randint(1, 60), draw.randint(1, 30)
        context, continuation = LONG[start : start + size], LONG[start + size : start + size + more]
        if not context.strip():
            continue
        found = model.pair(context, continuation)
        apart += found.apart
        if not found.apart:
            assert (found.context, found.continuation) == TemplateLM._encode_pair(model, context, continuation)
    assert apart > 0
    for _ in range(100):
        tokens, limit = list(range(draw.randint(0, 60))), draw.randint(1, 20)
        wanted = [make_disjoint_window(one) for one in get_rolling_token_windows(tokens, -1, limit, 1)]
        assert [one[:2] for one in windows(tokens, limit, eot=-1, prefix="document")] == wanted


def test_results_are_found_again_in_lm_evals_cache(lm, monkeypatch, tmp_path):
    from lm_eval.api.model import CachingLM

    model = lm(max_length=64)
    cached = CachingLM(model, str(tmp_path / "cache.db"))
    asked = [request("We the", " people"), request("", "Congress"), request("We the", " union")]
    found = cached.loglikelihood(asked), cached.loglikelihood_rolling([request("", "We the people")])
    monkeypatch.setattr(model, "likelihoods", lambda *given: pytest.fail("scored again"))
    assert (
        cached.loglikelihood(asked[::-1])[::-1],
        cached.loglikelihood_rolling([request("", "We the people")]),
    ) == found
    with pytest.raises(pytest.fail.Exception):
        cached.loglikelihood([request("We", " people")])


def choice_task(folder, name, rows, field, delimiter):
    from rove_jax.evaluation.harness import tasks

    tasks.write(
        folder,
        name,
        rows,
        output_type="multiple_choice",
        doc_to_text=f"{{{{{field}}}}}",
        doc_to_choice="{{choices}}",
        doc_to_target="{{gold}}",
        target_delimiter=delimiter,
        **tasks.metrics("acc"),
    )


def core_sums(rows, task, one):
    """What CORE's own prompts of each choice cost from its first token on, given the query: the engine alone."""
    engine, sums = Engine(one.config.model, one.params), []
    for row in rows:
        for prompt in protocols.nanochat_prompts(task, row, [], one.tokenizer):
            context = [one.tokenizer.eot, *one.tokenizer.encode(row["query"]).tolist()]
            assert prompt.tokens[: len(context)] == context
            parts = np.array(prompt.tokens[: len(context)]), np.array(prompt.tokens[len(context) :])
            [score] = engine.score([Request(*parts)])
            sums.append(-float(score.nlls.sum(dtype=np.float64)))
    return sums


@pytest.fixture
def copa(request: pytest.FixtureRequest):
    """The task and its rows: made up, or the real ones."""
    task = next(task for task in core_tasks.TASKS if task.label == "copa")
    if request.param == "made up":
        return task, COPA
    file = Files(request.getfixturevalue("test_data") / "core").load(task)
    assert file is not None and not file.unlike
    return task, file.rows[:8]


@pytest.mark.parametrize("copa", ["made up", "real"], indirect=True)
def test_choices_cost_what_core_finds_them_to(copa, lm, tmp_path):
    from rove_jax.evaluation.harness.evaluate import evaluate

    task, rows = copa
    choice_task(tmp_path, "rove_copa", rows, "query", task.delimiter)
    model = lm(max_length=256)
    found = evaluate(model, ["rove_copa"], include=tmp_path, defaults=False)
    sums = [answer[0] for sample in found["samples"]["rove_copa"] for answer in flat(sample["filtered_resps"])]
    wanted = core_sums(rows, task, model.run)
    np.testing.assert_allclose(sums, wanted, atol=1e-3)
    assert np.ptp(wanted) > 1, "the weights tell choices apart"
    right, at = 0, 0
    for row in rows:
        part = wanted[at : at + len(row["choices"])]
        at += len(part)
        right += int(np.argmax(part)) == row["gold"]
    assert found["results"]["rove_copa"]["acc,none"] == pytest.approx(right / len(rows))


def test_last_words_cost_what_core_finds_them_to(lm, test_data, tmp_path):
    from rove_jax.evaluation.harness import tasks
    from rove_jax.evaluation.harness.evaluate import evaluate

    task = next(task for task in core_tasks.TASKS if task.label == "lambada_openai")
    file = Files(test_data / "core").load(task)
    if file is None:
        pytest.skip("ROVE_TEST_DATA has no lambada_openai.jsonl")
    rows = file.rows[:8]
    line = {"output_type": "loglikelihood", "doc_to_text": "{{context}}", "doc_to_target": "{{' ' + continuation}}"}
    tasks.write(tmp_path, "rove_lambada", rows, **line, **tasks.metrics("perplexity", "acc"))
    model = lm(max_length=1024)
    found = evaluate(model, ["rove_lambada"], include=tmp_path, defaults=False)
    sums = [answer[0] for sample in found["samples"]["rove_lambada"] for answer in flat(sample["filtered_resps"])]
    engine = Engine(model.run.config.model, model.run.params)
    for row, total in zip(rows, sums, strict=True):
        [prompt] = protocols.nanochat_prompts(task, row, [], model.run.tokenizer)
        parts = np.array(prompt.tokens[: prompt.start]), np.array(prompt.tokens[prompt.start :])
        [score] = engine.score([Request(*parts)])
        assert total == pytest.approx(-float(score.nlls.sum(dtype=np.float64)), abs=1e-3)


def flat(answers):
    """[(ln p, greedy)] of a sample: 0.5 has a list for each repetition around each."""
    return [one[0] if isinstance(one[0], list | tuple) else one for one in answers]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    cfg = tiny_runs.settings(tiny_runs.corpus(folder), model={"dropout": 0.0}, training={"steps": 2, "accumulation": 1})
    tiny_runs.train(cfg, folder / "run")
    return folder / "run"


def test_the_command_writes_results_and_samples(trained, capsys, tmp_path):
    choice_task(tmp_path, "rove_copa", COPA, "query", " ")
    out = tmp_path / "out.json"
    words = ["harness", "--workdir", trained, "--tasks", "rove_cop*", "--include-path", tmp_path, "--out", out]
    assert command.main([str(word) for word in (*words, "--limit", "2", "--batch-size", "3")]) == 0
    printed, _ = capsys.readouterr()
    document = json.loads(out.read_text())
    [result] = document["results"]
    assert document["kind"] == "harness" and document["provenance"]["step"] == 2
    assert document["settings"]["max_length"] == 16 and document["settings"]["prefix"] == "document"
    assert result["counts"]["truncated"] == 4 and "note: 4 requests: the beginning" in printed
    samples = [json.loads(line) for line in out.with_suffix(".samples.jsonl").read_text().splitlines()]
    assert [sample["doc"]["query"] for sample in samples] == [row["query"] for row in COPA[:2]]
    sums = [[answer[0] for answer in flat(sample["filtered_resps"])] for sample in samples]
    assert all(math.isfinite(total) and total < 0 for row in sums for total in row)
    right = [int(np.argmax(row)) == COPA[place]["gold"] for place, row in enumerate(sums)]
    assert result["results"]["rove_copa"]["acc,none"] == np.mean(right) and "rove_copa" in printed


def test_a_task_that_is_not_there_and_data_that_cannot_be_had(lm, tmp_path, monkeypatch):
    from rove_jax.evaluation.harness.evaluate import evaluate

    choice_task(tmp_path, "rove_copa", COPA, "query", " ")
    with pytest.raises(UsageError, match="no task 'rove_cop'; did you mean rove_copa?"):
        evaluate(lm(), ["rove_cop"], include=tmp_path, defaults=False)
    (tmp_path / "rove_copa.jsonl").unlink()
    with pytest.raises(RunError, match=r"the data of a task cannot be had \(.*rove_copa.jsonl"):
        evaluate(lm(), ["rove_copa"], include=tmp_path, defaults=False)

    for raised in (OverflowError("math range error"), ZeroDivisionError("by zero")):

        def no_number(error=raised, **given):
            raise error

        monkeypatch.setattr("lm_eval.simple_evaluate", no_number)
        with pytest.raises(RunError, match=f"a metric is no number .{raised}"):
            evaluate(lm(), ["rove_copa"], include=tmp_path, defaults=False)


def test_lm_eval_opens_a_run_by_the_words_of_its_command_line(trained):
    from lm_eval.api.registry import get_model

    harness.register()
    words = f"workdir={trained},step=2,max_length=32,overlong=yarn,prefix=none"
    lm = get_model("rove_jax").create_from_arg_string(
        words, {"batch_size": "2", "device": "cuda:0", "max_batch_size": None}
    )
    assert (lm.max_length, lm.prefix, lm.batch_size, lm.run.step) == (32, "none", 2, 2)
    assert (lm.rank, lm.world_size, lm.eot_token_id, lm.prefix_token_id) == (0, 1, 256, 256)
    assert lm.get_model_info()["step"] == 2 and lm.tokenizer_name.startswith("bytes-")
    assert lm._encode_pair("a ", "b") == ([97], [32, 98]) and lm.chat_template() == ""


def test_any_checkpoint_can_be_checked_from_the_command_line(trained, capsys):
    assert command.main(["harness", "--workdir", str(trained), "--conformance"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line[:5] in ("holds", "FAILS")]
    assert len(lines) == 13 and all(line.startswith("holds") for line in lines)
