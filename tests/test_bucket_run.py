"""Runs whose folder is in gs://: trained, killed, gone on with where nothing is left of the disk, verified, evaluated.

Against a server that answers as the storage service does. Not tried on the real one.
"""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from checkpoint_damage import flip
from reference import bucket as service
from tiny_runs import arrays, changed, corpus, differing, keep_programs, rows, saved_steps, settings, train

from rove_jax import config, storage, zoo
from rove_jax.cli import eval as evaluation
from rove_jax.cli import verify
from rove_jax.errors import RunError, UsageError
from rove_jax.storage.lease import Lease
from rove_jax.training import loop
from rove_jax.training.checkpoints import manager, retries

LEARNT = ("step", "loss", "validation_loss", "grad_norm", "learning_rate", "parameter_norm")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """The folder that is gs://bucket."""
    keep_programs(tmp_path_factory)
    folder = tmp_path_factory.mktemp("cloud") / "bucket"
    with pytest.MonkeyPatch.context() as patch, service.reached(folder, patch):
        yield folder


@pytest.fixture(scope="module")
def cfg(tmp_path_factory):
    data = corpus(tmp_path_factory.mktemp("data"))
    return settings(data, training={"heartbeat_seconds": 1, "checkpoint_every": 2, "keep_last": 3})


@pytest.fixture(scope="module")
def straight(cfg, root, tmp_path_factory):
    """A run on a disk that nothing has happened to."""
    workdir = tmp_path_factory.mktemp("straight") / "run"
    train(cfg, workdir)
    return workdir


@pytest.fixture(scope="module")
def trained(cfg, root, tmp_path_factory):
    """The same in a bucket, in two calls. Where its process has its temporary files, nothing is left of them."""
    scratch = tmp_path_factory.mktemp("scratch")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tempfile.tempdir", str(scratch))
        train(changed(cfg, training={"stop_after": 4}), "gs://bucket/run")
        assert saved_steps("gs://bucket/run") == [2, 4] and rows_at("run")[-1]["step"] == 4
        train(cfg, "gs://bucket/run")
    assert list(scratch.iterdir()) == []
    return storage.place("gs://bucket/run")


def rows_at(name):
    text = (storage.place(f"gs://bucket/{name}") / "metrics.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def lines(monkeypatch):
    """What a run says about its checkpoints; tries follow each other at once."""
    found = []
    monkeypatch.setattr(manager, "say", found.append)
    monkeypatch.setattr(zoo, "say", found.append)
    monkeypatch.setattr(retries, "PAUSES", (0.1, 0.1, 0.1))
    return found


def test_a_run_in_a_bucket_learns_what_one_on_a_disk_does(cfg, root, straight, trained):
    assert differing(arrays(cfg, trained, 6), arrays(cfg, straight, 6)) == set()
    assert rows(trained, *LEARNT) == rows(straight, *LEARNT) and len(rows(straight, *LEARNT)) == 6
    assert saved_steps(trained) == saved_steps(straight)
    there = {path.name for path in (root / "run").iterdir()}
    assert there == {path.name for path in straight.iterdir()} - {".lock"}
    assert len(list((root / "run" / "tensorboard").iterdir())) == 2  # of each call the events


def test_a_finished_run_is_left_alone(cfg, root, trained):
    before = {path: path.stat().st_mtime_ns for path in (root / "run").rglob("*") if path.is_file()}
    assert train(cfg, trained).trained == 0
    assert before == {path: path.stat().st_mtime_ns for path in (root / "run").rglob("*") if path.is_file()}


def test_one_process_at_a_time(cfg, root):
    lease = Lease(storage.place("gs://bucket/held/.lock"), seconds=1)
    with pytest.raises(UsageError, match="gs://bucket/held: another process is training in it"):
        train(cfg, "gs://bucket/held")
    lease.close()
    assert not (root / "held").exists()


def test_a_run_whose_folder_another_one_has_taken_over_ends(cfg, root):
    def say(line):
        if line.startswith("run  "):
            storage.place("gs://bucket/taken/.lock").write_text("another's")

    with pytest.raises(RunError, match="gs://bucket/taken: another process has taken this folder over"):
        loop.run(cfg, "gs://bucket/taken", say=say)
    assert (root / "taken" / ".lock").read_text() == "another's"
    assert not (root / "taken" / "checkpoints").exists() and not (root / "taken" / "metrics.jsonl").exists()


def test_damaged_and_unfinished_checkpoints_are_stepped_over(cfg, root, trained, straight, lines, capsys):
    for path in (root / "run").rglob("*"):
        if path.is_file():
            (root / "hurt" / path.relative_to(root / "run")).parent.mkdir(parents=True, exist_ok=True)
            (root / "hurt" / path.relative_to(root / "run")).write_bytes(path.read_bytes())
    steps = root / "hurt" / "checkpoints"
    (steps / "6" / "commit_success.txt").unlink()  # as a write leaves it that was killed
    flip(max((path for path in (steps / "4" / "params").rglob("d/*")), key=lambda path: path.stat().st_size))
    assert saved_steps("gs://bucket/hurt") == [2, 4]
    assert verify.main(["--workdir", "gs://bucket/hurt"]) == 1
    assert "step 4: DAMAGED: " in (said := capsys.readouterr().out) and "step 2: whole: " in said
    assert zoo.load_model("gs://bucket/hurt").step == 2 and "/4: damaged" in lines[-1]
    train(cfg, "gs://bucket/hurt")
    assert sorted(path.name for path in steps.iterdir()) == ["2", "4", "4.damaged", "6"]
    assert differing(arrays(cfg, "gs://bucket/hurt", 6), arrays(cfg, straight, 6)) == set()
    assert len(rows_at("hurt")) == 6


@pytest.mark.parametrize("first", ["2/commit_success.txt", "4"], ids=["before a write", "in a write"])
def test_a_service_that_fails_for_a_while_costs_nothing(cfg, root, straight, lines, first):
    workdir = f"gs://bucket/while {first[0]}"

    def fail():
        while not (root / f"while {first[0]}" / "checkpoints" / first).exists():
            time.sleep(0.001)
        (root / service.FAULT).write_text("503 POST")
        end = time.monotonic() + 2  # what Orbax writes itself is tried again without a word
        while not lines and time.monotonic() < end:
            time.sleep(0.01)
        (root / service.FAULT).unlink()

    thread = threading.Thread(target=fail)
    thread.start()
    train(cfg, workdir)
    thread.join()
    assert all("failed (" in line and "trying again" in line for line in lines)
    assert first == "4" or "does not answer" in lines[0]
    assert differing(arrays(cfg, workdir, 6), arrays(cfg, straight, 6)) == set()


def test_a_service_that_fails_for_ever_ends_the_run(cfg, root, lines, monkeypatch):
    say = lambda line: (root / service.FAULT).write_text("503 POST") if line.startswith("run  ") else None  # noqa: E731
    try:
        with pytest.raises(RunError, match="gs://bucket/ever/checkpoints: writing step [0-9] failed .*does not answer"):
            loop.run(cfg, "gs://bucket/ever", say=say)
    finally:
        (root / service.FAULT).unlink()
    assert len(lines) == 3
    assert not (root / "ever" / "checkpoints").exists()


def test_the_result_of_an_evaluation_goes_to_the_run(root, trained, capsys, tmp_path):
    words = ["perplexity", "--workdir", str(trained), "--lengths", "8", "--scaling", "none", "--documents", "1"]
    assert evaluation.main(words) == 0
    (result,) = (root / "run" / "evaluation").iterdir()
    assert f"Written: gs://bucket/run/evaluation/{result.name}" in capsys.readouterr().out
    before = result.stat().st_mtime_ns
    assert evaluation.main(words) == 0 and result.stat().st_mtime_ns == before  # it was found there
    (root / service.FAULT).write_text("403 POST")
    try:
        assert evaluation.main([*words, "--mode", "sliding"]) == 2
        assert "not permitted" in capsys.readouterr().err.splitlines()[-1]
        assert evaluation.main([*words, "--mode", "sliding", "--out", str(tmp_path / "out.json")]) == 0
    finally:
        (root / service.FAULT).unlink()
    assert json.loads((tmp_path / "out.json").read_text())["provenance"]["checkpoint"] == "gs://bucket/run"


@pytest.mark.slow
def test_a_killed_run_goes_on_where_no_disk_is_left(cfg, root, straight, tmp_path, checkout):
    recipe = tmp_path / "recipe.py"
    values = config.to_dict(changed(cfg, training={"checkpoint_every": 1}, evaluation={"at_end": False}))
    made = f"from_dict(Config, json.loads({json.dumps(values)!r}))"
    recipe.write_text(f"import json\nfrom rove_jax.config import Config, from_dict\ndef config():\n    return {made}\n")
    words = [sys.executable, "-m", "train", "--config", str(recipe), "--workdir", "gs://bucket/killed"]

    def start(home: Path) -> subprocess.Popen:
        (home / "tmp").mkdir(parents=True)
        programs = str(tmp_path / "programs")  # the one thing that is kept: it costs time alone
        return subprocess.Popen(
            [*words, "--training.compilation-cache", programs, "--data.cache", str(home / "data")],
            cwd=checkout,
            env=os.environ | {"HOME": str(home), "TMPDIR": str(home / "tmp")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    killed = start(tmp_path / "one")
    while not (root / "killed" / "checkpoints" / "1" / "commit_success.txt").exists() and killed.poll() is None:
        time.sleep(0.005)
    killed.kill()
    killed.communicate()
    assert (root / "killed" / ".lock").exists()
    after = start(tmp_path / "two")
    said = after.communicate()[0]
    assert after.returncode == 0 and "continues from step" in said, said
    workdir = storage.place("gs://bucket/killed")
    assert rows(workdir, *LEARNT) == rows(straight, *LEARNT)
    assert differing(arrays(cfg, workdir, 6), arrays(cfg, straight, 6)) == set()
    assert verify.main(["--workdir", str(workdir)]) == 0
