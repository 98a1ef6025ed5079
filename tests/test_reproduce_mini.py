"""The small reproduction: that its commands, as a dry run prints them, are taken by the programs they name."""

import shlex
import subprocess
from pathlib import Path

from rove_jax import recipes
from rove_jax.cli import eval as evaluate
from rove_jax.cli import train

ROOT = Path(__file__).resolve().parent.parent


def script(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run([ROOT / "train/reproduce_mini.sh", *words], capture_output=True, text=True)


def test_every_pair_is_trained_and_all_are_compared() -> None:
    dry = script("--out", "/a b", "--seeds", "2", "--dry-run", "--", "--training.steps", "5")
    *training, last = [shlex.split(line)[1:] for line in dry.stdout.splitlines()]
    asked = [train.parser().parse_known_args(words[2:]) for words in training]
    assert [str(known.workdir) for known, _ in asked] == [f"/a b/{v}-{k}" for k in (0, 1) for v in ("rope", "rove")]
    settings = [recipes.load(ROOT / known.config, rest) for known, rest in asked]
    assert [(s.model.variant, s.seed, s.training.steps) for s in settings] == [
        (variant, seed, 5) for seed in (0, 1) for variant in ("rope", "rove")
    ]
    report = evaluate.parser().parse_args(last[2:])
    for variant, folders in {"rope": report.baseline, "rove": report.against}.items():
        assert [str(folder) for folder in folders] == [f"/a b/{variant}-{seed}" for seed in (0, 1)]


def test_a_wrong_call_is_refused_in_one_line() -> None:
    for words, complaint in {
        ("--dry-run",): "--out is missing",
        ("--out", "x", "--seeds", "0"): "--seeds 0: must be",
        ("--out", "x", "--training.steps", "5"): "--training.steps: unknown option",
    }.items():
        refused = script(*words)
        assert refused.returncode == 2 and not refused.stdout
        assert refused.stderr.startswith(f"error: {complaint}") and refused.stderr.count("\n") == 1
