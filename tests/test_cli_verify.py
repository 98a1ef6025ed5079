"""`python -m train verify`: whole or damaged, from the folder alone."""

import shutil
import subprocess
import sys

import pytest
from checkpoint_damage import DAMAGES, data_file, flip, place, saved
from tiny_runs import SETTINGS, settings

from rove_jax.cli import train as command
from rove_jax.config import to_dict
from rove_jax.training import setup, state
from rove_jax.training.run_folder import take


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    cfg = settings(SETTINGS.data)
    made = setup.make(cfg)
    folder = tmp_path_factory.mktemp("made") / "run"
    fresh = state.create(cfg, made.optimizer, made.target)
    saved(folder, fresh, {"config": to_dict(cfg)}, dict.fromkeys((1, 2, 3)), keep_last=3)
    return folder


@pytest.fixture
def workdir(made, tmp_path):
    """A run of three checkpoints, without any data."""
    return shutil.copytree(made, tmp_path / "run")


def verify(capsys, *words) -> tuple[int, list[str]]:
    code = command.main(["verify", *map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out.splitlines() + captured.err.splitlines()


def test_a_run_is_verified_without_its_data_or_its_lock_and_left_as_it_is(workdir, capsys):
    with take(workdir / ".lock"):  # as if it were training
        before = {path: path.read_bytes() for path in workdir.rglob("*") if path.is_file()}
        code, lines = verify(capsys, "--workdir", workdir)
    assert code == 0 and [line.partition(",")[0] for line in lines] == [
        f"step {n}: whole: 59 arrays" for n in (1, 2, 3)
    ]
    assert {path: path.read_bytes() for path in workdir.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found(workdir, capsys, damage):
    DAMAGES[damage](workdir, 2)
    code, lines = verify(capsys, "--workdir", workdir)
    assert code == 1 and [" ".join(line.split()[:3]) for line in lines[:3]] == [
        "step 1: whole:",
        "step 2: DAMAGED:",
        "step 3: whole:",
    ]
    assert lines[3:] == ["error: 1 of 3 damaged (2); a run that goes on steps back to the newest whole one"]
    assert verify(capsys, "--workdir", workdir, "--step", 3)[0] == 0
    assert verify(capsys, "--workdir", workdir, "--step", 2)[0] == 1


def test_a_run_without_a_whole_checkpoint_cannot_go_on(workdir, capsys):
    for step in (1, 2, 3):
        (place(workdir, step) / "metadata" / "metadata").write_text("")
    assert verify(capsys, "--workdir", workdir)[1][-1] == (
        "error: 3 of 3 damaged (1, 2, 3); none is left that the run could go on from"
    )
    assert verify(capsys, "--workdir", workdir, "--step", 3)[1][-1].endswith("back to the newest whole one")


def test_the_damaged_array_is_named(workdir, capsys):
    flip(data_file(workdir, 3))
    line = verify(capsys, "--workdir", workdir, "--step", 3)[1][0]
    assert line.endswith(" is not what was saved") and line.split()[3].split(".")[0] in ("params", "optimizer"), line
    (place(workdir, 3) / "params" / "manifest.ocdbt").write_bytes(b"")
    line = verify(capsys, "--workdir", workdir, "--step", 3)[1][0]
    assert "params.blocks.attention.key.bias cannot be read" in line and line.count(";") == 3 and "more" in line


@pytest.mark.parametrize(
    "words, line",
    [
        (["--workdir", "nowhere"], "--workdir nowhere: no such folder"),
        (["--workdir", "."], ".: holds no checkpoints/"),
        (["--workdir", "s3://bucket/run"], "s3://bucket/run: no such kind of storage is known here"),
        (["--workdir", "run", "--step", "9"], "--step 9: no such checkpoint in run; there are 1, 2, 3"),
        (["--workdir", "run", "--stp", "9"], "--stp: no such option; did you mean --step?"),
        ([], "--workdir"),
    ],
)
def test_what_cannot_be_verified_is_a_wrong_argument(workdir, capsys, monkeypatch, words, line):
    monkeypatch.chdir(workdir.parent)
    code, lines = verify(capsys, *words)
    assert code == 2 and len(lines) == 1 and line in lines[0]


@pytest.mark.slow
def test_as_a_person_types_it(workdir, checkout):
    flip(data_file(workdir, 2))
    words = [sys.executable, "-m", "train", "verify", "--workdir", str(workdir)]
    done = subprocess.run(words, cwd=checkout, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert "step 2: DAMAGED: " in done.stdout
