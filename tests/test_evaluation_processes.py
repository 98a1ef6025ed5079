"""Evaluations by two processes, through the command line: one of them writes, and the numbers are those of one process.

That one has eight devices and other batches, so that this also says that none of it moves a score.
"""

import json
import math
import re
import signal

import jax
import pytest
import tiny_runs
from many_processes import Processes

from rove_jax.cli import eval as command
from rove_jax.cli import exits

JOBS = {
    "perplexity": "--lengths 16 --documents 2",
    "ruler": "--lengths 128 160 --tasks niah_single_1 --samples 5 --generate",
    "index": "--lengths 48 --variants list --samples 5",
}


@pytest.fixture
def workdir(tmp_path, tmp_path_factory, monkeypatch):
    """A run; programs are kept in a cache that all processes share."""
    kept = {name: getattr(jax.config, name) for name in ("jax_compilation_cache_dir",)}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    cfg = tiny_runs.settings(
        tiny_runs.corpus(tmp_path),
        model={"layers": 1, "dropout": 0.0, "variant": "rove"},
        training={"steps": 2, "accumulation": 1, "validation_every": 100},
    )
    tiny_runs.train(cfg, tmp_path / "rove")
    yield tmp_path / "rove"
    for name, value in kept.items():
        jax.config.update(name, value)


def close(one, other, at: str = "") -> int:
    """How many numbers two JSON values hold, which are alike: numbers to 1e-4, all else exactly."""
    assert type(one) is type(other), at
    if isinstance(one, dict):
        assert one.keys() == other.keys(), at
        return sum(close(one[key], other[key], f"{at}.{key}") for key in one)
    if isinstance(one, list):
        assert len(one) == len(other), at
        return sum(close(*pair, f"{at}[{place}]") for place, pair in enumerate(zip(one, other)))
    if isinstance(one, float):
        assert math.isclose(one, other, rel_tol=1e-5, abs_tol=1e-4), (at, one, other)
        return 1
    assert one == other, at
    return 0


@pytest.mark.slow
def test_two_processes_measure_what_one_does_also_after_a_kill(workdir, tmp_path, checkout):
    def words(out: str, more: str = "") -> list[str]:
        options = [f"--{job}={given}{more if job != 'perplexity' else ''}" for job, given in JOBS.items()]
        return ["suite", "--workdirs", str(workdir), "--out", str(tmp_path / out), *options]

    journal = tmp_path / "two" / "results" / "1_rove" / "ruler.jsonl"
    with Processes(tmp_path, checkout) as processes:
        processes.start(2, ["-m", "eval", *words("two"), "--distributed", "on"])
        processes.wait_for(lambda: journal.is_file() and journal.read_text().count("\n") > 5)
        processes.running[1].send_signal(signal.SIGKILL)
        assert processes.codes() == [75, -signal.SIGKILL], processes.said()
        [line] = processes.errors(0)
        assert re.match("error: (process 1|a process) of 2 died", line), line
        before = journal.read_text().splitlines()
        assert len(before) == 1 + 5 and not journal.with_suffix(".json").exists()
        processes.start(2, ["-m", "eval", *words("two"), "--distributed", "on"])
        assert processes.codes() == [0, 0], processes.said()
        first, second = (path.read_text() for path in processes.outputs)
    assert "python -m eval ruler" in first and "python -m eval perplexity" not in first, "it was measured before"
    assert "Written" not in second and "eval" not in second, "one of them speaks"
    lines = journal.read_text().splitlines()
    assert lines[: len(before)] == before and len(lines) == 1 + 10, "what was scored is not scored again"

    assert exits.run(lambda: command.main(words("one", " --batch-size 3"))) == 0
    for name in ("perplexity.json", "ruler.json", "index.json", "ruler.jsonl"):
        one, two = (
            [json.loads(line) for line in (tmp_path / out / "results" / "1_rove" / name).read_text().splitlines()]
            if name.endswith("l")
            else json.loads((tmp_path / out / "results" / "1_rove" / name).read_text())["results"]
            for out in ("one", "two")
        )
        assert close(one, two, name) > 5
