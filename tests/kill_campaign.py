"""A run that is killed at random moments, a hundred times, against one that is not: nothing may be lost or changed.

    python tests/kill_campaign.py --kills 100

SIGKILL comes while the run starts, learns, validates, saves or is evaluated at its end, after a time drawn by chance;
the same command then goes on. At the end weights, optimizer state and rows of metrics must be the same bits as those of
a run straight through, and so must the scores. Takes some seconds a kill, so it is no part of the suite.
"""

import argparse
import collections
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = "1"

from tiny_runs import arrays, corpus, differing, rows, settings  # noqa: E402

from rove_jax.config import Config, to_dict  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
NUMBERS = ("step", "loss", "grad_norm", "parameter_norm", "learning_rate", "validation_loss")
RECIPE = "from rove_jax.config import Config, from_dict\n\ndef config():\n    return from_dict(Config, {values})\n"


def phase(workdir: Path, steps: int) -> str:
    """Where the run in `workdir` is, as its folder shows it just before a kill."""
    checkpoints = workdir / "checkpoints"
    names = [path.name for path in checkpoints.iterdir()] if checkpoints.is_dir() else []
    if str(steps) in names:
        return "evaluation"
    return "saving" if any(not name.isdigit() for name in names) else "training"


def at(aim: str, workdir: Path, steps: int, before: int) -> bool:
    """Whether the run has learnt something since `before` and is where a kill is aimed at."""
    now = phase(workdir, steps)
    return now == "evaluation" or (aim != "evaluation" and reached(workdir) > before and aim in (now, "training"))


def reached(workdir: Path) -> int:
    found = rows(workdir, "step")
    return found[-1][0] if found else 0


def scores(workdir: Path) -> list:
    """The evaluation at the end: numbers and text, without times and paths."""
    folder = workdir / "evaluation"
    documents = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    samples = [path.read_text() for path in sorted(folder.glob("sample*"))]
    return [[document.get("results") for document in documents], samples]


def campaign(kills: int, seed: int, folder: Path) -> dict:
    """Run it; returns what happened."""
    draw = random.Random(seed)
    steps = 30 * max(kills, 5)
    training = {
        "steps": steps,
        "checkpoint_every": 20,
        "validation_every": 50,
        "compilation_cache": str(folder / "programs"),
    }
    cfg: Config = settings(corpus(folder), training=training, evaluation={"at_end": True, "max_new_tokens": 8})
    recipe = folder / "recipe.py"
    recipe.write_text(RECIPE.format(values=to_dict(cfg)))

    def start(name: str) -> subprocess.Popen:
        words = [sys.executable, "-m", "train", "--config", str(recipe), "--workdir", str(folder / name)]
        with (folder / "errors.txt").open("w") as errors:
            return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=errors)

    def ended_well(process: subprocess.Popen) -> None:
        assert process.wait() == 0, (folder / "errors.txt").read_text()

    straight, killed = folder / "straight", folder / "killed"
    with start("straight") as process:
        ended_well(process)
    phases: collections.Counter[str] = collections.Counter()
    done = again = 0
    while done < kills:
        before, aim = reached(killed), draw.choices(("starting", "saving", "training"), (1, 3, 6))[0]
        if done >= 0.85 * kills or before == steps:
            aim = "evaluation"
        with start("killed") as process:
            if aim == "starting":
                time.sleep(draw.uniform(0.0, 3.0))
            while aim != "starting" and process.poll() is None and not at(aim, killed, steps, before):
                time.sleep(0.001)
            time.sleep(draw.uniform(0.0, {"saving": 0.02, "evaluation": 4.0}.get(aim, 0.3)))
            where = phase(killed, steps) if reached(killed) > before or aim == "evaluation" else "starting"
            process.send_signal(signal.SIGKILL)
            process.wait()
        if process.returncode == -signal.SIGKILL:
            phases[where] += 1
            done += 1
        else:
            ended_well(process)
            again += 1
            shutil.rmtree(killed / "evaluation")  # it got to its end; this makes it evaluate once more
        print(f"{done} kills, step {reached(killed)} of {steps}, last while {where}", file=sys.stderr, flush=True)
    with start("killed") as process:
        ended_well(process)
    return {
        "kills": done,
        "while": dict(phases),
        "ended before it was killed": again,
        "steps": steps,
        "arrays that differ": sorted(differing(arrays(cfg, killed, steps), arrays(cfg, straight, steps))),
        "rows that differ": sum(a != b for a, b in zip(rows(killed, *NUMBERS), rows(straight, *NUMBERS), strict=True)),
        "scores equal": scores(killed) == scores(straight),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = campaign(asked.kills, asked.seed, Path(folder))
    print(json.dumps(found, indent=2))
    return int(bool(found["arrays that differ"] or found["rows that differ"] or not found["scores equal"]))


if __name__ == "__main__":
    sys.exit(main())
