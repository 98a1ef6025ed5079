"""The train command as a person types it, in processes of its own."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny_runs import arrays, corpus, differing, rows, settings

from rove_jax.cli import train as command
from rove_jax.config import to_dict
from rove_jax.training import loop
from rove_jax.training.stop import StopRequest

RESULT = loop.Result(step=3, trained=3, finished=False, exit_code=0, best_step=None, best_loss=None)

RECIPE = """
from rove_jax.config import Config, from_dict

def config():
    return from_dict(Config, {values})
"""


@pytest.fixture(scope="module")
def cfg(tmp_path_factory):
    data = corpus(tmp_path_factory.mktemp("corpus"))
    programs = tmp_path_factory.mktemp("programs")
    training = {"steps": 150, "checkpoint_every": 10, "validation_every": 25, "compilation_cache": str(programs)}
    return settings(data, training=training)


@pytest.fixture(scope="module")
def recipe(cfg, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("recipe") / "tiny.py"
    path.write_text(RECIPE.format(values=to_dict(cfg)))
    return path


def words(recipe, workdir, *more: str) -> list[str]:
    return [sys.executable, "-m", "train", "--config", str(recipe), "--workdir", str(workdir), *more]


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch, checkout):
    monkeypatch.chdir(checkout)


def test_a_dry_run_says_what_would_run_and_makes_nothing(recipe, cfg, tmp_path, capsys):
    before = sorted(tmp_path.rglob("*"))
    assert command.main(["--config", str(recipe), "--dry-run", "--training.steps", "17"]) == 0
    out = capsys.readouterr().out
    described, end = json.JSONDecoder().raw_decode(out)
    assert described == to_dict(settings(cfg.data, base=cfg, training={"steps": 17}))
    for fact in (
        "parameters     8,592",
        "mesh           data 1, fsdp 1",
        "attention      xla: ",
        "not cudnn: needs an NVIDIA",
    ):
        assert fact in out[end:]
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "more, line",
    [
        (["--model.vocab", "100"], "model.vocab = 100: tokenizer bytes has 257 tokens; set model.vocab to 257"),
        (["--data.path", "/nowhere/at/all"], "data.path = '/nowhere/at/all': no such file or folder"),
        (["--data.prepared", "/nowhere"], "/nowhere: no prepared dataset"),
        (["--training.init-from", "/nowhere"], "training.init_from = '/nowhere': no such folder; give the folder of a"),
        (["--training.init-from", "."], "training.init_from = '.': holds no checkpoints/, so it is no run"),
        (["--training.init-from", ""], "training.init_from = ''"),
    ],
)
def test_a_dry_run_refuses_what_the_run_would_refuse(recipe, capsys, more, line):
    assert command.main(["--config", str(recipe), "--dry-run", *more]) == 2
    assert line in capsys.readouterr().err.splitlines()[-1]


def test_a_dry_run_looks_at_the_run_that_is_there(recipe, cfg, tmp_path, capsys):
    given = ["--config", str(recipe), "--dry-run", "--workdir", str(tmp_path / "run"), "--seed", "1"]
    assert command.main(given) == 0 and not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(json.dumps(to_dict(cfg)))
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 1}\n')
    assert command.main(given) == 2
    assert "seed = 1: the run in" in capsys.readouterr().err.splitlines()[-1]
    assert command.main([*given, "--allow-change", "seed"]) == 0
    assert command.main([*given, "--allow-change", "sed"]) == 2
    assert "--allow-change sed: no such field; did you mean seed?" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    "more, line",
    [
        (["--training.step", "5"], "--training.step: no such field; did you mean --training.steps?"),
        (["--model.attention", "flash"], "--model.attention"),
        (["--model.attention", "cudnn"], "attention = 'cudnn': needs an NVIDIA GPU, the mesh is on cpu"),
        (["--data.path", "/nowhere/at/all"], "/nowhere/at/all"),
        (["--optimizer.peak-lr", "-1"], "optimizer.peak_lr = -1.0: must be above 0"),
        (["--mesh.data", "99"], "needs 99 devices"),
        (["--profile", "-1"], "--profile -1"),
    ],
)
def test_a_wrong_word_is_one_line_and_exit_code_2(recipe, tmp_path, capsys, more, line):
    assert command.main(["--config", str(recipe), "--workdir", str(tmp_path / "run"), *more]) == 2
    err = capsys.readouterr().err.splitlines()
    assert err[-1].startswith("error: ") and line in err[-1]
    assert not (tmp_path / "run").exists()


def test_a_second_ctrl_c_ends_a_command_at_once(capfd):
    """By no exception: in the middle of a write of Orbax, one leaves threads that Python waits for without end."""
    ended = []
    request = StopRequest(abrupt=True, end=lambda code: ended.append(code) or sys.exit(code))
    with request, pytest.raises(SystemExit):
        request.abrupt = False
        with request.waiting():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
            assert not ended
            signal.raise_signal(signal.SIGINT)
    assert ended == [130] and capfd.readouterr().err == "error: interrupted\n"
    with StopRequest(end=ended.append) as request, pytest.raises(KeyboardInterrupt), request.waiting():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    assert ended == [130], "a process that only calls `run`, such as a notebook, lives on"


def test_a_word_that_is_no_job(recipe, capsys):
    for word, line in (("verfy", "did you mean verify?"), (str(recipe), "a recipe is given by --config FILE")):
        assert command.main([word, "--workdir", "runs/x"]) == 2
        err = capsys.readouterr().err
        assert err.startswith(f"error: {word}: no such job") and line in err


def test_a_folder_that_cannot_be_written_is_one_line_and_exit_code_1(recipe, capsys):
    assert command.main(["--config", str(recipe), "--workdir", "/proc/run"]) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: /proc/run: ")


def test_fields_that_may_change_reach_the_run(recipe, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(loop, "run", lambda *given, **named: seen.append(named["allow_change"]) or RESULT)
    given = ["--config", str(recipe), "--workdir", str(tmp_path)]
    assert command.main([*given, "--seed", "1", "--allow-change", "seed", "optimizer.peak_lr"]) == 0
    assert command.main([*given, "--allow-change", "seed", "--allow-change", "optimizer.peak_lr"]) == 0
    assert command.main(given) == 0
    assert seen == [["seed", "optimizer.peak_lr"], ["seed", "optimizer.peak_lr"], []]


def wait_for_rows(workdir: Path, count: int, process: subprocess.Popen) -> None:
    """Return when the run in `workdir` has written more than `count` rows."""
    deadline = time.monotonic() + 120
    while len(rows(workdir, "step")) <= count:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
def test_killed_at_any_moment_it_goes_on_as_if_nothing_had_been(recipe, cfg, tmp_path, capsys):
    """SIGKILL at a moment drawn by chance, then SIGTERM, then to the end; and once straight through."""
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    assert command.main(words(recipe, straight)[3:]) == 0
    out = capsys.readouterr().out
    assert "step 150 of 150: finished" in out and str(straight / "metrics.jsonl") in out

    draw = random.Random(0)
    saved = 0
    for sign in (signal.SIGKILL, signal.SIGTERM):
        with subprocess.Popen(words(recipe, killed), stdout=subprocess.DEVNULL) as process:
            wait_for_rows(killed, saved + 15, process)
            time.sleep(draw.uniform(0.0, 0.15))
            process.send_signal(sign)
            process.wait(timeout=60)
        assert process.returncode == (143 if sign == signal.SIGTERM else -signal.SIGKILL)
        # On a busy machine the first save may not be done when the first kill comes: then there is the start, 0.
        steps = [0, *(int(path.name) for path in (killed / "checkpoints").iterdir() if path.name.isdigit())]
        reached = rows(killed, "step")[-1][0]
        # One save may have been under way, and the rows of the steps after the last one are still there.
        assert reached - 20 <= max(steps) <= reached
        saved = reached
    assert max(steps) == saved, "SIGTERM saves the step it stops at"

    assert command.main(words(recipe, killed)[3:]) == 0
    assert differing(arrays(cfg, killed, 150), arrays(cfg, straight, 150)) == set()
    numbers = ("step", "loss", "validation_loss", "learning_rate")
    assert rows(killed, *numbers) == rows(straight, *numbers)
    capsys.readouterr()
    assert command.main(words(recipe, killed)[3:]) == 0
    assert "was finished before" in capsys.readouterr().out


HANGING = """
import sys, threading
from rove_jax.data import pipeline

batches = pipeline.batches

def hang(*inputs, **options):
    yield next(batches(*inputs, **options))
    threading.Event().wait()

pipeline.batches = hang
from rove_jax.cli import train

sys.exit(train.main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_data_that_hang_do_not_keep_the_process(recipe, tmp_path):
    more = ["--training.data-timeout-seconds", "2", "--training.checkpoint-every", "1"]
    command = [sys.executable, "-c", HANGING, *words(recipe, tmp_path / "run", *more)[3:]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: step 2: no batch came from data.source = 'files'")


@pytest.mark.slow
@pytest.mark.parametrize("after", [0.4, 0.8, 1.2])
def test_ctrl_c_during_the_imports_is_one_line(recipe, tmp_path, after):
    """At any moment after `main` has begun, extension modules half imported included."""
    with subprocess.Popen(words(recipe, tmp_path / "run"), stderr=subprocess.PIPE, text=True) as process:
        time.sleep(after)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == "error: interrupted\n"
