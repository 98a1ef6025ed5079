"""What a run folder says of the run in it: damaged, lost, or contradicted by a checkpoint of another run."""

import json
import shutil

import pytest
from tiny_runs import changed, corpus, keep_programs, settings, train

from rove_jax import zoo
from rove_jax.config import to_dict
from rove_jax.errors import UsageError
from rove_jax.training.checkpoints.stored import sealed


@pytest.fixture(scope="module")
def cfg(tmp_path_factory):
    keep_programs(tmp_path_factory)
    return settings(corpus(tmp_path_factory.mktemp("corpus")))


@pytest.mark.parametrize(
    "values, words",
    [
        ({"changes": 3}, "its `changes` are none"),
        ({"changes": [{"field": "seed"}]}, "its `changes` are none"),
        ({"run": 7}, "'run' is 7"),
        ([], "not of a run"),
    ],
)
def test_a_damaged_record_is_named(cfg, tmp_path, values, words):
    (tmp_path / "run.json").write_text(json.dumps(values))
    (tmp_path / "config.json").write_text(json.dumps(to_dict(cfg)))
    with pytest.raises(UsageError, match=f"run.json: is .*{words}"):
        train(cfg, tmp_path)


def test_a_run_outlives_its_config_and_its_record(cfg, tmp_path):
    short = changed(cfg, training={"stop_after": 2})
    train(short, tmp_path)
    before, run = (json.loads((tmp_path / name).read_text()) for name in ("config.json", "run.json"))
    for name in ("config.json", "run.json"):
        (tmp_path / name).unlink()
    assert zoo.load_model(tmp_path).config.training.stop_after == 2
    with pytest.raises(UsageError, match="seed = 1: the run in .* has 0"):
        train(changed(cfg, seed=1), tmp_path)
    assert train(short, tmp_path).trained == 0
    assert json.loads((tmp_path / "config.json").read_text()) == before
    assert train(changed(cfg, training={"stop_after": 3}), tmp_path).trained == 1
    assert json.loads((tmp_path / "run.json").read_text())["run"] == run["run"]
    (tmp_path / "config.json").write_text('{"model": {}}')
    assert zoo.load_model(tmp_path).config.evaluation == cfg.evaluation


def test_a_checkpoint_of_another_run_is_refused_by_whoever_opens_it(cfg, tmp_path):
    """Whole, of the same step, data and tokenizer: without an id nothing about it would be wrong."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder, seed in ((ours, 0), (theirs, 1)):
        train(changed(cfg, seed=seed, training={"stop_after": 2}), folder)
    ids = [json.loads((folder / "run.json").read_text())["run"] for folder in (ours, theirs)]
    assert len(set(ids)) == 2 and zoo.load_model(ours).metadata["run"] == ids[0]
    shutil.rmtree(ours / "checkpoints" / "2")
    shutil.copytree(theirs / "checkpoints" / "2", ours / "checkpoints" / "2")
    line = f"ours/checkpoints/2: is of run {ids[1]}, and .*ours is run {ids[0]} by its run.json; move away"
    for use in (
        lambda: train(changed(cfg, training={"stop_after": 3}), ours),
        lambda: train(changed(cfg, training={"stop_after": 2}), ours),
        lambda: train(changed(cfg, training={"init_from": str(ours)}), tmp_path / "new"),
        lambda: zoo.load_model(ours),
    ):
        with pytest.raises(UsageError, match=line):
            use()
    # Without the record it is known by the checkpoints that differ.
    shutil.copytree(ours / "checkpoints" / "2", ours / "checkpoints" / "1")
    metadata = ours / "checkpoints" / "1" / "metadata" / "metadata"
    told = {name: value for name, value in json.loads(metadata.read_text()).items() if name != "sha256"}
    metadata.write_text(json.dumps(sealed({**told, "step": 1, "run": ids[0]})))
    (ours / "run.json").unlink()
    with pytest.raises(UsageError, match="is of run .* by its checkpoint [12]; move away"):
        zoo.load_model(ours)
