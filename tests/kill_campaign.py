"""A run that is killed at random moments, a hundred times, against one that is not: nothing may be lost or changed.

    python tests/kill_campaign.py --kills 100
    python tests/kill_campaign.py --kills 25 --processes 2

SIGKILL comes while the run starts, compiles, learns, validates, saves or is evaluated at its end, after a time drawn by
chance, to one of its processes or to all; those that are left must end by themselves. The same command then goes on. At
the end weights, optimizer state and rows of metrics must be the same bits as those of a run straight through, and so
must the scores. Takes some seconds a kill, so it is no part of the suite.
"""

import argparse
import collections
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = "1"
os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0"  # compiling is most of what a small run costs

from tiny_runs import arrays, changed, corpus, differing, rows, settings  # noqa: E402

from rove_jax.config import Config, to_dict  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
NUMBERS = ("step", "loss", "grad_norm", "parameter_norm", "learning_rate", "validation_loss")
RECIPE = "from rove_jax.config import Config, from_dict\n\ndef config():\n    return from_dict(Config, {values})\n"


AIMS = {"starting": 1, "compiling": 2, "saving": 4, "training": 5}
"""What a kill is aimed at, and how often. The last ones are aimed at the evaluation."""
AFTER = {"starting": 3.0, "compiling": 1.5, "saving": 0.02, "training": 0.3, "evaluation": 4.0}
"""Seconds until it comes, at most."""
HEARTBEAT = 3


class Run:
    """The processes of a run in a folder, and what they have come to."""

    def __init__(self, workdir: Path, recipe: Path, steps: int, count: int, *more: str) -> None:
        self.workdir, self.steps = workdir, steps
        self.said = workdir.with_name("output.txt")
        self.before = reached(workdir)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        words = [sys.executable, "-m", "train", "--config", str(recipe), "--workdir", str(workdir), *more]
        self.processes = []
        for index in range(count):
            place = {"COORDINATOR_ADDRESS": address, "NUM_PROCESSES": str(count), "PROCESS_ID": str(index)}
            around = os.environ | ({f"JAX_{name}": value for name, value in place.items()} if count > 1 else {})
            output = self.said if index == 0 else workdir.with_name(f"output-{index}.txt")
            with output.open("w") as file:
                start = subprocess.Popen(words, cwd=ROOT, env=around, stdout=file, stderr=subprocess.STDOUT)
            self.processes.append(start)

    def phase(self) -> str:
        """Where the run is, as its folder and its output show it."""
        folder = self.workdir / "checkpoints"
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        if str(self.steps) in names:
            return "evaluation"
        if reached(self.workdir) <= self.before:
            return "compiling" if "\nrun   " in self.said.read_text() else "starting"
        return "saving" if any(not name.isdigit() for name in names) else "training"

    def wait_for(self, aim: str) -> None:
        """Return when the run is where a kill is aimed at, or past it, or has ended."""
        order = ["starting", "compiling", "training", "saving", "evaluation"]
        while self.processes[0].poll() is None:
            now = self.phase()
            if now in (aim, "evaluation") or (aim == "compiling" and order.index(now) > 1):
                return
            time.sleep(0.001)

    def kill(self, draw: random.Random) -> list[int]:
        """Kill one process, or all; returns the exit codes, or those of all if they had ended before."""
        victims = draw.choice([[process] for process in self.processes] + [self.processes])
        for process in victims:
            process.send_signal(signal.SIGKILL)
        return self.codes()

    def codes(self) -> list[int]:
        return [process.wait(timeout=900) for process in self.processes]


def reached(workdir: Path) -> int:
    found = rows(workdir, "step")
    return found[-1][0] if found else 0


def scores(workdir: Path) -> list:
    """The evaluation at the end: numbers and text, without times and paths."""
    folder = workdir / "evaluation"
    documents = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    samples = [path.read_text() for path in sorted(folder.glob("sample*"))]
    return [[document.get("results") for document in documents], samples]


def campaign(kills: int, seed: int, processes: int, folder: Path) -> dict:
    """Run it; returns what happened."""
    draw = random.Random(seed)
    steps = (30 if processes == 1 else 6) * max(kills, 5)
    programs = folder / "programs"
    training = {
        "steps": steps,
        "checkpoint_every": 20 if processes == 1 else 4,
        "validation_every": 50 if processes == 1 else 10,
        "compilation_cache": str(programs),
        "heartbeat_seconds": HEARTBEAT,
        "join_seconds": 20,
    }
    asked = {"at_end": True, "max_new_tokens": 8}
    cfg: Config = settings(corpus(folder), training=training, evaluation=asked, mesh={"data": processes})
    recipe = folder / "recipe.py"
    recipe.write_text(RECIPE.format(values=to_dict(cfg)))

    def start(name: str, *more: str) -> Run:
        return Run(folder / name, recipe, steps, processes, *more)

    def ended_well(run: Run) -> None:
        assert run.codes() == [0] * processes, run.said.read_text()

    straight, killed = folder / "straight", folder / "killed"
    ended_well(start("straight"))
    phases: collections.Counter[str] = collections.Counter()
    ends: collections.Counter[str] = collections.Counter()
    done = again = 0
    while done < kills:
        aim = draw.choices(list(AIMS), list(AIMS.values()))[0]
        if done >= 0.85 * kills or reached(killed) == steps:
            aim = "evaluation"
        fresh = ("--training.compilation-cache", str(folder / "none" / str(done))) if aim == "compiling" else ()
        run = start("killed", *fresh)
        if aim != "starting":
            run.wait_for(aim)
        time.sleep(draw.uniform(0.0, AFTER[aim]))
        where = run.phase()
        codes = run.kill(draw)
        if -signal.SIGKILL in codes:
            phases[where] += 1
            ends.update(str(code) for code in codes if code != -signal.SIGKILL)
            done += 1
        else:
            assert codes == [0] * processes, run.said.read_text()
            again += 1
            shutil.rmtree(killed / "evaluation")  # it got to its end; this makes it evaluate once more
        print(
            f"{done} kills, step {reached(killed)} of {steps}, last while {where}: {codes}", file=sys.stderr, flush=True
        )
    ended_well(start("killed"))
    cfg = changed(cfg, mesh={"data": 1})
    return {
        "kills": done,
        "processes": processes,
        "while": dict(phases),
        "how those left ended": dict(ends),
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
    parser.add_argument("--processes", type=int, default=1)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = campaign(asked.kills, asked.seed, asked.processes, Path(folder))
    print(json.dumps(found, indent=2))
    wrong = set(found["how those left ended"]) - {"75"}
    return int(bool(wrong or found["arrays that differ"] or found["rows that differ"] or not found["scores equal"]))


if __name__ == "__main__":
    sys.exit(main())
