"""A checkout with the scripts of train/ in it, and stand-ins for the commands they call.

`gcloud`, `sbatch`, `srun`, `scontrol`, `xpk`, `ssh` and the trainer record the words they are called with. Those that
start something elsewhere start it here instead, so that every layer of quoting is undone by the shell it was made for.
"""

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

RECORD = """#!/usr/bin/env bash
words=$(mktemp "$RECORDS/$(date +%s%N)-XXXXXX")
printf '%s\\0' "$(basename "$0")" "$@" >"$words"
if [ "${FAILS:-}" = "$(basename "$0")" ]; then echo "stand-in: no quota" >&2; exit 7; fi
"""
# A machine is a folder: its home, and where ssh and gcloud put one.
ELSEWHERE = 'mkdir -p "$MACHINES/$machine" && cd "$MACHINES/$machine" && HOME=$PWD WORKER=${machine##*-} exec bash -c'
STAND_INS = {
    "gcloud": "machine=none command=''\n"
    'for w in "$@"; do case $w in --worker=*) machine=worker-${w#*=} ;; --command=*) command=${w#*=} ;; esac; done\n'
    f'machine=${{machine/all/${{WORKER:-0}}}}\n[ -z "$command" ] && exit\n{ELSEWHERE} "$command"',
    "ssh": f'machine=${{3#*@}}\n{ELSEWHERE} "$4"',
    "xpk": "",
    "sbatch": 'for w in "$@"; do case $w in --wrap=*) SLURM_JOB_NODELIST="n[1-2]" exec sh -c "${w#*=}" ;; esac; done',
    "scontrol": '[ "$*" = "show hostnames n[1-2]" ] && printf "n1\\nn2\\n"',
    "srun": 'while [ "$1" != sh ]; do shift; done\n'
    'for i in 0 1; do SLURM_NTASKS=2 SLURM_PROCID=$i SLURM_LOCALID=$i "$@" || exit; done',
    # The metadata of a slice of two workers, in one of the two forms that there are.
    "curl": 'case ${*: -1} in */agent-worker-number) echo "${WORKER:?}" ;; '
    '*/worker-network-endpoints) echo "${ENDPOINTS:?}" ;; *) exit 22 ;; esac',
}
TRAINER = """#!/usr/bin/env bash
# Says who it is and what it was asked for; `fail` and `wait` among its words make it do so.
trap 'echo saved >>"$RECORDS/../trained-$JAX_PROCESS_ID"; exit 143' TERM
printf '%s\\0' "${JAX_COORDINATOR_ADDRESS-none}" "${JAX_NUM_PROCESSES-}" "${JAX_PROCESS_ID-}" \\
    "${JAX_LOCAL_DEVICE_IDS-}" "$PWD" "$@" >"$RECORDS/../trained-${JAX_PROCESS_ID-}"
echo "training as ${JAX_PROCESS_ID-}"
[[ " $* " != *" fail${JAX_PROCESS_ID-} "* ]] || exit 3
[[ " $* " != *" wait "* ]] || for _ in {1..300}; do sleep 0.1; done
"""


BASH = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execvp("bash", ["bash", *sys.argv[1:]])
"""
"""A suite started in the background ignores Ctrl-C, and bash cannot trap what it was born to ignore."""


@dataclass
class Cluster:
    """A checkout with the scripts in it, the stand-ins, and what these recorded."""

    place: Path
    environment: dict[str, str]

    @property
    def checkout(self) -> Path:
        return self.place / "a checkout"

    def start(self, script: str, *words: str, **environment: str) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-c", BASH, str(self.checkout / "train" / script), *words],
            env=self.environment | environment,
            cwd=self.checkout,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, script: str, *words: str, **environment: str) -> subprocess.CompletedProcess:
        process = self.start(script, *words, **environment)
        out, errors = process.communicate(timeout=60)
        return subprocess.CompletedProcess(words, process.returncode, out, errors)

    def recorded(self, *, of: tuple[str, ...] = ("gcloud", "sbatch", "xpk", "ssh")) -> list[list[str]]:
        """The commands that were run since the last call, without those that others of them ran."""
        found = []
        for path in sorted((self.place / "records").iterdir()):
            found.append(path.read_text().split("\0")[:-1])
            path.unlink()
        return [words for words in found if words[0] in of]

    def trained(self, process: int | str) -> list[str]:
        """Address, count, id, devices, folder and words of a process of the trainer."""
        return (self.place / f"trained-{process}").read_text().split("\0")[:-1]


def build(place: Path) -> Cluster:
    """The cluster in the empty folder `place`."""
    commands, checkout = place / "commands", place / "a checkout"
    for folder in (commands, place / "records", place / "machines"):
        folder.mkdir()
    for name, body in STAND_INS.items():
        (commands / name).write_text(RECORD + body + "\n")
    for trainer in (commands / "python", place / "machines/worker-0/rove/venv/bin/rove-train"):
        trainer.parent.mkdir(parents=True, exist_ok=True)
        trainer.write_text(TRAINER)
        trainer.chmod(0o755)
    for path in commands.iterdir():
        path.chmod(0o755)
    shutil.copytree(place / "machines/worker-0", place / "machines/worker-1")
    (checkout / "train").mkdir(parents=True)
    for path in ROOT.glob("train/*.sh"):
        shutil.copy(path, checkout / "train")
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    for words in (("init", "-q"), ("add", "."), (*identity, "commit", "-q", "-m", "x")):
        subprocess.run(["git", *words], cwd=checkout, check=True)
    known = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
    return Cluster(
        place,
        known
        | {
            "PATH": f"{commands}:{os.environ['PATH']}",
            "RECORDS": str(place / "records"),
            "MACHINES": str(place / "machines"),
            "HOME": str(place),
            "ENDPOINTS": "10.0.0.1,10.0.0.2",
        },
    )


def wait_for(condition) -> None:
    """Return when `condition` holds; fail after 30 seconds."""
    for _ in range(300):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("waited in vain")
