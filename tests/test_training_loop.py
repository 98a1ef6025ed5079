"""The loop: what it saves and when, what stops it, and in which order it does things."""

import json
import math
import os
import signal
import threading

import jax
import jax.numpy as jnp
import pytest
from tiny_runs import changed, corpus, keep_programs, rows, saved_steps, settings, train

from rove_jax import distributed, losses, zoo
from rove_jax.data import pipeline, prepare
from rove_jax.errors import RunError
from rove_jax.training import loop
from rove_jax.training.checkpoints import Checkpoints
from rove_jax.training.feed import Feed
from rove_jax.training.metrics import read_rows
from rove_jax.training.stop import StopRequest
from rove_jax.training.validation import Validation


@pytest.fixture(scope="module")
def cfg(tmp_path_factory):
    keep_programs(tmp_path_factory)
    return settings(corpus(tmp_path_factory.mktemp("corpus")))


def around_update(monkeypatch, act) -> None:
    """Call `act(step, state, metrics)` after each update; what it returns, if anything, replaces the metrics."""
    compile_update = loop.compile_update

    def compiled(*inputs):
        update = compile_update(*inputs)

        def wrapped(state, tokens):
            state, metrics = update(state, tokens)
            return state, act(int(state.step), state, metrics) or metrics

        return wrapped

    monkeypatch.setattr(loop, "compile_update", compiled)


def test_the_last_step_is_saved_and_a_finished_run_stays_as_it_is(cfg, tmp_path):
    short = changed(cfg, training={"checkpoint_every": 4, "validation_every": 0})
    first = train(short, tmp_path)
    assert (first.step, first.trained, first.finished, first.exit_code) == (6, 6, True, 0)
    assert saved_steps(tmp_path) == [4, 6]
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    again = train(short, tmp_path)
    assert (again.step, again.trained, again.finished) == (6, 0, True)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_the_run_folder_describes_the_run(cfg, tmp_path):
    train(changed(cfg, training={"stop_after": 2}), tmp_path)
    record = json.loads((tmp_path / "run.json").read_text())
    loaded = zoo.load_model(tmp_path)
    for described in (record, loaded.metadata):
        assert described["attention"]["backend"] == "xla" and described["attention"]["reason"]
        assert described["mesh"] == {"data": 1, "fsdp": 1, "tensor": 1}
        assert described["data_fingerprint"] == prepare.ensure(cfg.data).fingerprint
        assert described["versions"]["jax"] == jax.__version__
        assert len(described["tokenizer_identity"]) == 64
    assert record["parameters"] == sum(leaf.size for leaf in jax.tree.leaves(loaded.params)) - (320 - 257) * 16
    assert loaded.config.training.stop_after == 2
    assert list((tmp_path / "tensorboard").glob("events.out.tfevents.*"))
    row = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert set(row) == {
        "step",
        "loss",
        "validation_loss",
        "grad_norm",
        "parameter_norm",
        "learning_rate",
        "tokens_per_second",
        "step_seconds",
        "data_wait_share",
    }


def test_the_validation_loss_is_the_mean_over_all_its_tokens(cfg, tmp_path):
    """More tokens are asked for than there are; the last batch is not full, which must not matter."""
    train(changed(cfg, training={"validation_tokens": 10**6}), tmp_path)
    windows = prepare.ensure(cfg.data).windows("validation")
    assert len(windows) % 2, "two rows to a batch"
    tokens = jnp.stack([jnp.asarray(window) for window in windows.rows(range(len(windows)))])
    model = zoo.load_model(tmp_path)
    score = jax.jit(lambda tokens: losses.next_token_loss(cfg.model, model.params, tokens, eot=256, segments=False))
    total, weight = score(tokens)
    assert model.metadata["validation_loss"] == pytest.approx(float(total / weight), rel=1e-6)
    assert rows(tmp_path, "validation_loss")[-1][0] == model.metadata["validation_loss"]


def test_the_best_is_kept_beside_the_last(cfg, tmp_path, monkeypatch):
    """A validation loss that only gets worse, and no save due but the last: the first one is kept as well."""
    worsening = iter([1.0, 2.0, 3.0])
    monkeypatch.setattr(Validation, "loss", lambda self, params: next(worsening))
    result = train(changed(cfg, training={"keep_last": 1}), tmp_path)
    assert (result.best_step, result.best_loss) == (2, 1.0)
    assert saved_steps(tmp_path) == [2, 6]
    assert zoo.load_model(tmp_path, step="best").step == 2
    assert zoo.load_model(tmp_path).step == 6


def test_a_loss_that_is_not_finite_stops_the_run_and_is_not_saved(cfg, tmp_path, monkeypatch):
    def spoil(step, state, metrics):
        return {**metrics, "loss": jnp.float32(math.nan)} if step == 4 else None

    with monkeypatch.context() as patch, pytest.raises(RunError, match="step 4: loss is nan; .*last good.* is step 2"):
        around_update(patch, spoil)
        train(changed(cfg, training={"checkpoint_every": 2}), tmp_path)
    assert saved_steps(tmp_path) == [2]
    assert [row[0] for row in rows(tmp_path, "step")] == [1, 2, 3]
    assert train(changed(cfg, training={"checkpoint_every": 2}), tmp_path).trained == 4


@pytest.mark.parametrize("name, cause", [("grad_norm", math.inf), ("parameter_norm", math.nan)])
def test_a_state_that_is_not_finite_stops_it_though_the_loss_is(cfg, tmp_path, monkeypatch, name, cause):
    around_update(monkeypatch, lambda step, state, metrics: {**metrics, name: jnp.float32(cause)})
    with pytest.raises(RunError, match=f"step 1: {name} is {cause}; no checkpoint was saved before"):
        train(cfg, tmp_path)
    assert saved_steps(tmp_path) == []


def test_weights_that_overflow_are_seen_in_the_step_that_made_them(cfg, tmp_path):
    """The loss and the gradient of that step come from the weights before it, and are finite."""
    with pytest.raises(RunError, match="step 1: parameter_norm is inf"):
        train(changed(cfg, optimizer={"peak_lr": 3e38, "warmup_steps": 0}, training={"checkpoint_every": 1}), tmp_path)
    assert saved_steps(tmp_path) == []


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_and_stops(cfg, tmp_path, monkeypatch, number, code):
    handlers = [signal.getsignal(kind) for kind in (signal.SIGTERM, signal.SIGINT)]
    with monkeypatch.context() as patch:
        around_update(patch, lambda step, state, metrics: os.kill(os.getpid(), number) if step == 3 else None)
        result = train(changed(cfg, training={"validation_every": 0}), tmp_path)
    assert (result.step, result.finished, result.exit_code) == (3, False, code)
    assert saved_steps(tmp_path) == [3]
    assert [signal.getsignal(kind) for kind in (signal.SIGTERM, signal.SIGINT)] == handlers
    assert train(changed(cfg, training={"validation_every": 0}), tmp_path).trained == 3


def test_a_signal_whose_exception_was_lost_still_stops(cfg, tmp_path):
    """One that came before the updates, while a callback ran: Python prints such an exception and forgets it."""
    with StopRequest() as request:
        with pytest.raises(SystemExit):
            os.kill(os.getpid(), signal.SIGTERM)
        result = train(cfg, tmp_path, request=request)
    assert (result.step, result.exit_code) == (0, 143)


def test_the_update_is_traced_once(cfg, tmp_path, monkeypatch):
    traces = []
    original = losses.next_token_loss

    def counted(*inputs, **options):
        traces.append(options.get("rows") is None)
        return original(*inputs, **options)

    monkeypatch.setattr(losses, "next_token_loss", counted)
    train(cfg, tmp_path)
    assert traces.count(True) == 1, "traces of the update"
    assert traces.count(False) == 1, "traces of validation"


def test_numbers_are_read_one_step_late(cfg, tmp_path, monkeypatch):
    events = []
    read = loop.Trainer.read
    monkeypatch.setattr(
        loop.Trainer, "read", lambda self, step, metrics: (events.append(f"read {step}"), read(self, step, metrics))[1]
    )
    around_update(monkeypatch, lambda step, state, metrics: events.append(f"update {step}"))
    train(changed(cfg, training={"stop_after": 4, "validation_every": 0}), tmp_path)
    assert events == ["update 1", "update 2", "read 1", "update 3", "read 2", "update 4", "read 3", "read 4"]


def test_a_row_written_after_the_last_checkpoint_is_not_there_twice(cfg, tmp_path):
    train(changed(cfg, training={"stop_after": 2}), tmp_path)
    path = tmp_path / "metrics.jsonl"
    # What a kill leaves behind: rows of steps that were never saved, and one cut short.
    path.write_text(path.read_text() + '{"step": 3, "loss": 1.0}\n{"step": 4, "lo')
    train(cfg, tmp_path)
    assert [row[0] for row in rows(tmp_path, "step")] == [1, 2, 3, 4, 5, 6]


def test_a_profile_is_written_of_the_steps_asked_for(cfg, tmp_path):
    train(changed(cfg, training={"validation_every": 0}), tmp_path, profile_steps=2)
    assert list((tmp_path / "profile").rglob("*.xplane.pb"))


def nan_at(steps):
    """Make the numbers of these steps those of a step that was skipped."""
    return lambda step, state, metrics: {**metrics, "loss": jnp.float32(math.nan)} if step in steps else None


def test_skipped_steps_are_counted_told_of_and_do_not_end_the_run(cfg, tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        around_update(patch, nan_at({2, 3, 6}))
        train(changed(cfg, training={"on_nonfinite": "skip", "checkpoint_every": 3, "keep_last": 3}), tmp_path)
    assert [loss is None for (loss,) in rows(tmp_path, "loss")] == [False, True, True, False, False, True]
    assert all("skipped_steps" in row for row in read_rows(tmp_path / "metrics.jsonl"))
    assert 3 in saved_steps(tmp_path) and 6 in saved_steps(tmp_path), "the state is finite, though the loss was not"
    assert "step 2: loss or gradient is not finite; skipped" in capsys.readouterr().err


def test_too_many_skipped_steps_in_a_row_end_it(cfg, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "SKIPS", 2)
    with monkeypatch.context() as patch, pytest.raises(RunError, match="step 5: loss is nan, after 2 steps that were"):
        around_update(patch, nan_at({1, 3, 4, 5}))
        train(changed(cfg, training={"on_nonfinite": "skip"}), tmp_path)


def test_weights_that_are_not_finite_end_it_though_steps_are_to_be_skipped(cfg, tmp_path, monkeypatch):
    spoil = {"parameter_norm": jnp.float32(math.inf)}
    around_update(monkeypatch, lambda step, state, metrics: {**metrics, **spoil} if step == 2 else None)
    with pytest.raises(RunError, match="step 2: parameter_norm is inf; "):
        train(changed(cfg, training={"on_nonfinite": "skip"}), tmp_path)


def holding_up(monkeypatch, *, at: int) -> threading.Event:
    """Let the data hang at the batch of step `at`, until the event is set."""
    batches, release = pipeline.batches, threading.Event()

    def slow(prepared, *, start_step, **asked):
        for step, batch in enumerate(batches(prepared, start_step=start_step, **asked), start_step + 1):
            if step == at:
                release.wait(60)
            yield batch

    monkeypatch.setattr(pipeline, "batches", slow)
    return release


def test_data_that_do_not_come_end_the_run_and_are_named(cfg, tmp_path, monkeypatch):
    ends = []
    monkeypatch.setattr(distributed, "end_within", lambda seconds, code: ends.append(code))
    release = holding_up(monkeypatch, at=4)
    source = "data.source = 'files', prepared in .* within training.data_timeout_seconds = 0.5"
    with pytest.raises(RunError, match=f"step 4: no batch came from {source}"):
        train(changed(cfg, training={"data_timeout_seconds": 0.5, "checkpoint_every": 2}), tmp_path)
    release.set()
    assert saved_steps(tmp_path) == [2] and ends == [1]


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_while_data_do_not_come_saves_and_stops(cfg, tmp_path, monkeypatch, number, code):
    release = holding_up(monkeypatch, at=4)
    waits = Feed.next

    def next_batch(self, step):
        if step == 4:
            threading.Timer(0.3, os.kill, (os.getpid(), number)).start()
        return waits(self, step)

    monkeypatch.setattr(Feed, "next", next_batch)
    result = train(changed(cfg, training={"validation_every": 0}), tmp_path)
    release.set()
    assert (result.step, result.exit_code) == (3, code)
    assert saved_steps(tmp_path) == [3]


def test_an_error_of_the_data_comes_out_as_it_is(cfg, tmp_path, monkeypatch):
    def broken(prepared, **asked):
        raise RunError("a shard is cut short")
        yield

    monkeypatch.setattr(pipeline, "batches", broken)
    with pytest.raises(RunError, match="a shard is cut short"):
        train(cfg, tmp_path)


@pytest.mark.parametrize("where", ["compile_update", "validation", "save"])
def test_a_signal_during_anything_long_is_acted_upon_after_it(cfg, tmp_path, monkeypatch, where):
    """Compiling: nothing is learnt yet. Validating or saving after step 2: the run ends there."""
    owner, name = {
        "compile_update": (loop, "compile_update"),
        "validation": (Validation, "loss"),
        "save": (Checkpoints, "save"),
    }[where]
    original = getattr(owner, name)

    def interrupted(*inputs, **options):
        os.kill(os.getpid(), signal.SIGTERM)
        return original(*inputs, **options)

    monkeypatch.setattr(owner, name, interrupted)
    result = train(changed(cfg, training={"checkpoint_every": 2}), tmp_path)
    assert (result.step, result.exit_code) == (0 if where == "compile_update" else 2, 143)
    assert saved_steps(tmp_path) == ([] if where == "compile_update" else [2])
