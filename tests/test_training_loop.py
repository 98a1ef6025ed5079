"""The loop: what it saves and when, what stops it, and in which order it does things."""

import dataclasses
import json
import math
import os
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_runs import arrays, corpus, keep_programs, rows, settings, train

from rove_jax import losses, zoo
from rove_jax.config import Rotary
from rove_jax.data import prepare
from rove_jax.errors import RunError, UsageError
from rove_jax.training import loop
from rove_jax.training.checkpoint import Checkpoints
from rove_jax.training.run_folder import take
from rove_jax.training.validation import Validation


@pytest.fixture(scope="module")
def cfg(tmp_path_factory):
    keep_programs(tmp_path_factory.mktemp("programs"))
    return settings(corpus(tmp_path_factory.mktemp("corpus")))


def changed(cfg, **parts):
    return settings(cfg.data, base=cfg, **parts)


def saved_steps(workdir) -> list[int]:
    with Checkpoints(workdir) as checkpoints:
        return checkpoints.steps()


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


def test_a_gradient_that_is_not_finite_stops_it_too(cfg, tmp_path, monkeypatch):
    around_update(monkeypatch, lambda step, state, metrics: {**metrics, "grad_norm": jnp.float32(math.inf)})
    with pytest.raises(RunError, match="step 1: grad_norm is inf; no checkpoint was saved before"):
        train(cfg, tmp_path)


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


@pytest.mark.parametrize(
    "parts, words",
    [
        ({"seed": 1}, "seed = 1: .* began with 0"),
        ({"optimizer": {"peak_lr": 0.5}}, "optimizer.peak_lr = 0.5: .* began with 0.01"),
        ({"training": {"batch_size": 8}}, "training.batch_size = 8"),
        ({"training": {"steps": 7}}, "training.steps = 7"),
        ({"model": {"width": 32}}, "model.width = 32"),
        ({"model": {"variant": "rope"}}, "model.variant = 'rope': .* began with 'rove'"),
    ],
)
def test_another_run_is_refused_by_the_field_that_differs(cfg, tmp_path_factory, parts, words):
    workdir = tmp_path_factory.getbasetemp() / "two_steps"
    if not workdir.exists():
        train(changed(cfg, training={"stop_after": 2}), workdir)
    before = (workdir / "config.json").read_text()
    with pytest.raises(UsageError, match=words):
        train(changed(cfg, **parts), workdir)
    assert (workdir / "config.json").read_text() == before and saved_steps(workdir) == [2]


@pytest.mark.slow
def test_what_makes_no_other_run_may_change(cfg, tmp_path):
    train(changed(cfg, training={"stop_after": 3}), tmp_path / "run")
    free = changed(
        cfg,
        training={"log_every": 2, "keep_last": 5, "checkpoint_every": 1, "validation_every": 3},
        model={"attention": "chunked", "remat": "full"},
        evaluation={"documents": 3},
        mesh={"data": 2},
    )
    result = train(free, tmp_path / "run")
    assert (result.trained, result.finished) == (3, True)
    assert zoo.load_model(tmp_path / "run").config == free
    train(cfg, tmp_path / "straight")
    left, right = arrays(cfg, tmp_path / "run", 6), arrays(cfg, tmp_path / "straight", 6)
    assert all(abs(left[name] - right[name]).max() < 1e-4 for name in left)


def test_a_run_that_came_to_nothing_may_be_replaced(cfg, tmp_path, monkeypatch):
    def fail(*inputs):
        raise MemoryError

    monkeypatch.setattr(loop, "compile_update", fail)
    for seed in (0, 1):
        with pytest.raises(MemoryError):
            train(changed(cfg, seed=seed), tmp_path)
        assert json.loads((tmp_path / "config.json").read_text())["seed"] == seed


def test_other_data_are_refused(cfg, tmp_path):
    train(changed(cfg, training={"stop_after": 2}), tmp_path / "run")
    text = tmp_path / "text"
    text.mkdir()
    for index in range(2):
        (text / f"{index}.txt").write_text("other words " * 40)
    other = settings(dataclasses.replace(cfg.data, path=str(text)), base=cfg)
    with pytest.raises(UsageError, match="data.source: data_fingerprint is .*, the run in .* was trained with"):
        train(other, tmp_path / "run")
    assert saved_steps(tmp_path / "run") == [2]


def test_a_folder_that_is_no_run_is_refused(cfg, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="holds files but no config.json"):
        train(cfg, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_folder_in_use_is_refused(cfg, tmp_path):
    with take(tmp_path / ".lock"), pytest.raises(UsageError, match="another process is training in it"):
        train(cfg, tmp_path)
    assert train(changed(cfg, training={"stop_after": 1}), tmp_path).step == 1


def test_a_vocabulary_smaller_than_the_tokenizer_is_refused(cfg, tmp_path):
    with pytest.raises(UsageError, match="model.vocab = 200: tokenizer bytes has 257 tokens"):
        train(changed(cfg, model={"vocab": 200}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def rope_run(cfg, tmp_path_factory):
    """Two steps of a RoPE run."""
    workdir = tmp_path_factory.mktemp("rope") / "run"
    train(changed(cfg, model={"variant": "rope"}, training={"stop_after": 2}), workdir)
    return workdir


def started_from(cfg, source, **model):
    return changed(cfg, model=model, training={"init_from": str(source), "stop_after": 1})


def test_rope_weights_start_a_rove_run(cfg, rope_run, tmp_path, monkeypatch):
    begun = []
    find = loop.starts.find

    def watched(*inputs):
        start = find(*inputs)
        begun.append(jax.device_get(start.state))
        return start

    monkeypatch.setattr(loop.starts, "find", watched)
    train(started_from(cfg, rope_run), tmp_path)
    assert begun[0].step == 0
    jax.tree.map(np.testing.assert_array_equal, begun[0].params, jax.device_get(zoo.load_model(rope_run).params))
    assert not any(leaf.any() for leaf in jax.tree.leaves(begun[0].optimizer)), "weights alone"
    assert rows(tmp_path, "step", "learning_rate") == [(1, pytest.approx(0.005))]
    assert zoo.load_model(tmp_path).metadata["start"].endswith("at step 2")


@pytest.mark.parametrize(
    "model, words",
    [
        ({"rotary": Rotary(pairing="interleaved")}, "model.rotary.pairing is 'half' there and 'interleaved' here"),
        ({"rotary": Rotary(base=5e5)}, "model.rotary.base is 10000.0 there and 500000.0 here"),
        ({"rotary": Rotary(dims=4)}, "model.rotary.dims is 8 there and 4 here"),
        ({"mlp_width": 64}, "params blocks.mlp.down.kernel: stored is float32.*wanted is float32"),
    ],
)
def test_weights_that_mean_something_else_are_refused(cfg, rope_run, tmp_path, model, words):
    with pytest.raises(UsageError, match=words):
        train(started_from(cfg, rope_run, **model), tmp_path)


def test_a_folder_without_weights_is_no_start(cfg, tmp_path):
    with pytest.raises(UsageError, match="training.init_from = .*: no such folder"):
        train(started_from(cfg, tmp_path / "nowhere"), tmp_path / "run")


def test_a_profile_is_written_of_the_steps_asked_for(cfg, tmp_path):
    train(changed(cfg, training={"validation_every": 0}), tmp_path, profile_steps=2)
    assert list((tmp_path / "profile").rglob("*.xplane.pb"))
