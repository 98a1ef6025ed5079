"""SIGTERM or Ctrl-C to commands that do not train, as a person starts them: one line, and nothing half done."""

import json
import random
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from checkpoint_damage import saved
from tiny_runs import corpus, keep_programs, settings

from rove_jax.config import to_dict
from rove_jax.data import prepare, tokenizers
from rove_jax.training import setup, state

pytestmark = pytest.mark.slow  # commands are started


ENDS = {signal.SIGTERM: (143, "error: asked to stop (SIGTERM)"), signal.SIGINT: (130, "error: interrupted")}


def stopped(words: list[str], checkout, when: Callable[[], object], number=signal.SIGTERM) -> list[str]:
    """Start a command, send a signal once `when` holds, check its end, and return what it said on stderr."""
    command = [sys.executable, "-m", *map(str, words)]
    with subprocess.Popen(command, cwd=checkout, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        while not when():
            assert process.poll() is None, process.communicate()
            time.sleep(0.005)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    code, line = ENDS[number]
    assert process.returncode == code and "|" not in out, (out, err)
    lines = err.splitlines()
    assert lines[-1].startswith(line) and "Traceback" not in err
    return lines


def test_an_evaluation_that_is_stopped_leaves_no_result(tmp_path, tmp_path_factory, checkout):
    keep_programs(tmp_path_factory)
    cfg = settings(corpus(tmp_path))
    made, run = setup.make(cfg), tmp_path / "run"
    origin = {
        "data_fingerprint": prepare.ensure(cfg.data).fingerprint,
        "tokenizer_identity": tokenizers.load(cfg.data).identity,
    }
    fresh = state.create(cfg, made.optimizer, made.target)
    saved(run, fresh, {"config": to_dict(cfg), **origin}, {1: None})
    words = ["--lengths", "16", "32", "48", "--documents", "1"]
    stopped(["eval", "perplexity", "--workdir", run, *words], checkout, (run / "evaluation").is_dir)
    assert list((run / "evaluation").iterdir()) == []
    out = tmp_path / "report"
    words = ["eval", "suite", "--workdirs", run, "--out", out, f"--perplexity={shlex.join(words)}"]
    [line] = stopped(words, checkout, (out / "suite.json").is_file, signal.SIGINT)[-1:]
    assert line.endswith("the same command goes on") and not list(out.glob("**/perplexity*"))


def test_a_preparation_that_is_stopped_goes_on_to_the_same_dataset(tmp_path, checkout):
    draw, text = random.Random(0), tmp_path / "text"
    text.mkdir()
    words = "we the people of the union report to congress".split()
    for index in range(6):
        (text / f"{index}.txt").write_text(" ".join(draw.choices(words, k=500_000)))
    command = ["rove_jax.cli.prepare", "files", "--path", text, "--window", "129", "--held-out", "0.3", "--out"]
    stopped([*command, tmp_path / "out"], checkout, lambda: list(tmp_path.glob(".out*/**/*.array_record*")))
    assert not (tmp_path / "out").exists(), "it appears when it is whole"
    found = []
    for name in ("out", "straight"):
        subprocess.run([sys.executable, "-m", *map(str, [*command, tmp_path / name])], cwd=checkout, check=True)
        found.append(json.loads((tmp_path / name / "manifest.json").read_text()))
    assert found[0] == found[1] and not list(tmp_path.glob(".*"))
