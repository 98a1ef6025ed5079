"""Which run a folder belongs to, what may change when a run goes on, and starting from another run's weights."""

import dataclasses
import json
import os

import jax
import numpy as np
import pytest
from tiny_runs import arrays, changed, corpus, keep_programs, rows, saved_steps, settings, train

from rove_jax import zoo
from rove_jax.config import Rotary
from rove_jax.errors import UsageError
from rove_jax.training import loop
from rove_jax.training.run_folder import take


@pytest.fixture(scope="module")
def cfg(tmp_path_factory):
    keep_programs(tmp_path_factory)
    return settings(corpus(tmp_path_factory.mktemp("corpus")))


@pytest.mark.parametrize(
    "parts, words",
    [
        ({"seed": 1}, "seed = 1: .* has 0"),
        ({"optimizer": {"peak_lr": 0.5}}, "optimizer.peak_lr = 0.5: .* has 0.01"),
        ({"training": {"batch_size": 8}}, "training.batch_size = 8"),
        ({"training": {"steps": 7}}, "training.steps = 7"),
        ({"model": {"width": 32}}, "model.width = 32"),
        ({"model": {"variant": "rope"}}, "model.variant = 'rope': .* has 'rove'"),
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


def test_a_finished_run_notes_what_is_to_be_evaluated_now(cfg, tmp_path):
    short = changed(cfg, training={"stop_after": 2})
    train(short, tmp_path)
    assert train(changed(short, evaluation={"documents": 3}), tmp_path).trained == 0
    assert zoo.load_model(tmp_path).config.evaluation.documents == 3


def test_a_run_that_came_to_nothing_may_be_replaced(cfg, tmp_path, monkeypatch):
    def fail(*inputs):
        raise MemoryError

    monkeypatch.setattr(loop, "compile_update", fail)
    for seed in (0, 1):
        with pytest.raises(MemoryError):
            train(changed(cfg, seed=seed), tmp_path)
        assert json.loads((tmp_path / "config.json").read_text())["seed"] == seed


def test_a_field_younger_than_the_run_has_its_default(cfg, tmp_path):
    train(changed(cfg, training={"stop_after": 1}), tmp_path)
    path = tmp_path / "config.json"
    stored = json.loads(path.read_text())
    del stored["model"]["norm_epsilon"]
    path.write_text(json.dumps(stored))
    with pytest.raises(UsageError, match="model.norm_epsilon = 0.1: .* has 1e-05"):
        train(changed(cfg, model={"norm_epsilon": 0.1}), tmp_path)
    assert train(changed(cfg, training={"stop_after": 1}), tmp_path).trained == 0


def test_other_data_are_refused(cfg, tmp_path):
    train(changed(cfg, training={"stop_after": 2}), tmp_path / "run")
    text = tmp_path / "text"
    text.mkdir()
    for index in range(2):
        (text / f"{index}.txt").write_text("other words " * 40)
    other = settings(dataclasses.replace(cfg.data, path=str(text)), base=cfg)
    with pytest.raises(UsageError, match="data.source .*: data_fingerprint is .*, the run in .* was trained with"):
        train(other, tmp_path / "run")
    assert saved_steps(tmp_path / "run") == [2]


@pytest.mark.parametrize(
    "allowed, parts",
    [
        (["optimizer.peak_lr"], {"optimizer": {"peak_lr": 0.5}}),
        (["optimizer", "training.batch_size"], {"optimizer": {"peak_lr": 0.5}, "training": {"batch_size": 8}}),
    ],
)
def test_what_is_named_may_change_and_is_put_on_record(cfg, tmp_path, allowed, parts):
    train(changed(cfg, training={"stop_after": 2}), tmp_path)
    new = changed(cfg, **parts)
    said = []
    result = loop.run(new, tmp_path, allow_change=allowed, say=said.append)
    assert (result.trained, result.finished) == (4, True)
    assert "changed        optimizer.peak_lr: 0.01 before, 0.5 from here on" in said
    record = json.loads((tmp_path / "run.json").read_text())["changes"]
    assert {"step": 2, "field": "optimizer.peak_lr", "before": 0.01, "now": 0.5} in record and len(record) == len(parts)
    assert zoo.load_model(tmp_path).metadata["changes"] == record and zoo.load_model(tmp_path).config == new
    # From then on it is the new run, which remembers; the old one is refused.
    assert train(new, tmp_path).trained == 0
    with pytest.raises(UsageError, match="optimizer.peak_lr = 0.01: .* has 0.5"):
        train(cfg, tmp_path)
    rates = [row[0] for row in rows(tmp_path, "learning_rate")]
    assert max(rates[:2]) <= 0.01 < max(rates[2:])


def test_permission_for_one_field_is_none_for_another(cfg, tmp_path):
    train(changed(cfg, training={"stop_after": 2}), tmp_path)
    before = (tmp_path / "config.json").read_text()
    other = changed(cfg, optimizer={"peak_lr": 0.5}, seed=1)
    with pytest.raises(UsageError, match="seed = 1: .* has 0; .* or --allow-change seed"):
        train(other, tmp_path, allow_change=["optimizer.peak_lr"])
    with pytest.raises(
        UsageError, match="--allow-change optimizer.peek_lr: no such field; did you mean optimizer.peak"
    ):
        train(other, tmp_path, allow_change=["optimizer.peek_lr", "seed"])
    assert (tmp_path / "config.json").read_text() == before


def test_a_run_is_not_made_shorter_than_it_is(cfg, tmp_path):
    train(changed(cfg, training={"stop_after": 3}), tmp_path)
    shorter = changed(cfg, training={"steps": 2})
    before = (tmp_path / "config.json").read_bytes()
    with pytest.raises(UsageError, match=r"training.steps = 2: the run in .* is at step 3; give no fewer"):
        train(shorter, tmp_path, allow_change=["training.steps"])
    assert (tmp_path / "config.json").read_bytes() == before
    assert train(changed(cfg, training={"steps": 3}), tmp_path, allow_change=["training.steps"]).finished


def test_other_data_may_be_gone_on_with_if_that_is_asked_for(cfg, tmp_path):
    train(changed(cfg, training={"stop_after": 2}), tmp_path / "run")
    text = tmp_path / "other"
    text.mkdir()
    for index in range(2):
        (text / f"{index}.txt").write_text("other words " * 40)
    other = settings(dataclasses.replace(cfg.data, path=str(text)), base=cfg)
    with pytest.raises(UsageError, match=r"data.source \(or data.mixture, .*--allow-change data.source"):
        train(other, tmp_path / "run", allow_change=["optimizer"])
    assert train(other, tmp_path / "run", allow_change=["data.path"]).finished
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert [(change["step"], change["field"]) for change in record["changes"]] == [(2, "data.source: data_fingerprint")]
    assert record["changes"][0]["now"] == record["data_fingerprint"] != record["changes"][0]["before"]
    assert train(other, tmp_path / "run").trained == 0, "it is the run's data now"
    with pytest.raises(UsageError, match="data.source"):
        train(cfg, tmp_path / "run")  # though there is nothing left to do
    text.rename(tmp_path / "moved")
    moved = settings(dataclasses.replace(cfg.data, path=str(tmp_path / "moved")), base=cfg)
    done = train(moved, tmp_path / "run")
    assert (done.trained, done.finished) == (0, True), "the same text elsewhere"


def test_a_folder_that_is_no_run_is_refused(cfg, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="holds files but no config.json"):
        train(cfg, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    "store, says",
    [
        ("s3://bucket/run", "s3://bucket/run: no such kind of storage is known here"),
        ("gs://bucket", "gs://bucket: give gs://BUCKET/FOLDER"),
        ("gs://a b/run", "gs://a b/run: give gs://BUCKET/FOLDER"),
    ],
)
def test_an_unknown_kind_of_storage_is_refused_everywhere(cfg, tmp_path, monkeypatch, store, says):
    monkeypatch.chdir(tmp_path)
    for use in (
        lambda: train(cfg, store),
        lambda: zoo.load_model(store),
        lambda: train(started_from(cfg, store), tmp_path / "run"),
    ):
        with pytest.raises(UsageError, match=says):
            use()
    assert not list(tmp_path.glob("[gs][s3]:"))


def test_a_name_that_is_no_utf_8_is_refused(cfg, tmp_path):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    for use in (lambda: train(cfg, folder), lambda: zoo.load_model(folder)):
        with pytest.raises(UsageError, match=r"caf\\udce9': its name is not UTF-8 here; rename it"):
            use()
    assert not folder.exists()


def test_a_name_in_which_orbax_loses_checkpoints_is_refused(cfg, tmp_path):
    with pytest.raises(UsageError, match=r"has a \[ in its name"):
        train(cfg, tmp_path / "[1]" / "run")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["", "[]", "\0", "[" * 99_999], ids=len)
def test_a_damaged_config_is_named(cfg, tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UsageError, match="config.json: is not"):
        train(cfg, tmp_path)


@pytest.mark.parametrize(
    "name, words",
    [(name, "a folder where a run has a file") for name in ("config.json", "run.json", "metrics.jsonl")]
    + [(name, "a file where a run has a folder") for name in ("checkpoints", "tensorboard")],
)
def test_a_folder_instead_of_a_file_is_named_and_the_other_way_round(cfg, tmp_path, name, words):
    (tmp_path / name).mkdir() if "." in name else (tmp_path / name).write_text("")
    with pytest.raises(UsageError, match=f"{name}: is {words}; move it away"):
        train(cfg, tmp_path)


@pytest.mark.parametrize("part", [{"steps": -1}, {"of_tomorrow": 1}, 3])
def test_a_config_that_is_none_of_ours_is_named(cfg, tmp_path, part):
    (tmp_path / "config.json").write_text(json.dumps({"training": part}))
    with pytest.raises(UsageError, match="config.json: training.*; the file is damaged or another version's"):
        train(cfg, tmp_path)


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
