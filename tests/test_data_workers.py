"""Preparation by many processes: the same files whatever is killed on the way, and no error that is not one line."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from rove_jax.config import Data
from rove_jax.data import build, prepared, shards
from rove_jax.data.documents import Damage, Text, Unit
from rove_jax.errors import RunError, UsageError

ROOT = Path(__file__).resolve().parent.parent
DATA = Data(context_length=8)


class Scripted:
    """Six units, a piece each; before unit `bad` is read, `happens` is called with the folder for marks."""

    name = "scripted"
    whole_from = 0

    def __init__(self, marks: Path, bad: int = -1, happens: Callable[[Path], None] | None = None) -> None:
        self.marks, self.bad, self.happens = marks, bad, happens
        self.units: Sequence[Unit] = [Unit(f"unit {n}", shards.PIECE_BYTES) for n in range(6)]

    def documents(self, unit: int = 0) -> Iterator[Text | Damage]:
        with (self.marks / "log").open("a") as file:
            print(unit, os.getpid(), "jax" in sys.modules, file=file)
        if unit == self.bad and self.happens is not None:
            self.happens(self.marks)
        for n in range(20):
            yield Text("train", f"{unit}-{n}", f"unit {unit} text {n} ")
        yield Text("validation", f"{unit}-v", f"unit {unit} is held out")

    def fingerprint(self) -> str:
        return "scripted"

    def log(self) -> list[tuple[int, int, bool]]:
        """Who has read what: (unit, process, whether jax was loaded there)."""
        lines = [line.split() for line in (self.marks / "log").read_text().splitlines()]
        return [(int(unit), int(process), jax == "True") for unit, process, jax in lines]


def die(marks: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def bug(marks: Path) -> None:
    raise KeyError("a bug")


def unlucky(marks: Path) -> None:
    raise OSError(28, "No space left on device")


def wrong(marks: Path) -> None:
    raise UsageError("unit 3: wrong")


def hang_once(marks: Path) -> None:
    if not (marks / "hung").exists():
        (marks / "hung").touch()
        time.sleep(1000)


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    """The dataset as one process makes it."""
    root = tmp_path_factory.mktemp("alone")
    build.dataset(Scripted(root), DATA, root / "out", key="k")
    return root / "out"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def make(source: Scripted, folder: Path, count: int = 2) -> None:
    build.dataset(source, DATA, folder, key="k", execute=build.spread(count))


def test_two_processes_without_jax_write_the_files_of_one(alone, tmp_path):
    source = Scripted(tmp_path)
    make(source, tmp_path / "out")
    assert contents(tmp_path / "out") == contents(alone)
    assert len(prepared.load(alone, DATA).manifest["shards"]["train_windows"]) == 6
    units, processes, jax = zip(*source.log())
    assert sorted(units) == list(range(6))
    assert len(set(processes)) == 2 and os.getpid() not in processes
    assert not any(jax)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(
    "happens, error, says",
    [
        (
            die,
            RunError,
            r"worker [12] \(process \d+\) was killed by SIGKILL while it prepared unit 3; the same command",
        ),
        (bug, RunError, r"worker [12] \(process \d+\) ended with exit code 1 while it prepared unit 3"),
        (unlucky, RunError, r"No space left on device"),
        (wrong, UsageError, r"unit 3: wrong"),
    ],
)
def test_what_happens_to_a_worker_ends_the_work_and_what_was_done_is_kept(alone, tmp_path, happens, error, says):
    source = Scripted(tmp_path, 3, happens)
    with pytest.raises(error, match=says) as caught:
        make(source, tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not multiprocessing.active_children()
    assert not (tmp_path / "out").exists()
    before = {int(path.stem) for path in (tmp_path / ".out.partial" / "parts").glob("*.json")}
    assert before and 3 not in before
    (tmp_path / "log").unlink()
    source.bad = -1
    make(source, tmp_path / "out", count=1)
    assert contents(tmp_path / "out") == contents(alone)
    assert {unit for unit, *_ in source.log()} == set(range(6)) - before, "finished pieces are not made again"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "out"]


KILLED = """
import sys
from pathlib import Path
import test_data_workers as here
here.make(here.Scripted(Path(sys.argv[1]), 4, here.hang_once), Path(sys.argv[1]) / "out")
"""


def test_a_killed_command_takes_its_workers_along_and_the_next_one_goes_on(alone, tmp_path):
    """One worker hangs in unit 4, so it cannot notice anything by itself; the other has done all the rest."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
    command = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], env=environment)
    parts = tmp_path / ".out.partial" / "parts"
    wait(lambda: len(list(parts.glob("*.json"))) == 5)
    workers = {process for _, process, _ in Scripted(tmp_path).log()}
    assert len(workers) == 2 and all(map(running, workers))
    command.kill()
    command.wait()
    wait(lambda: not any(map(running, workers)))
    assert not (tmp_path / "out").exists()
    (tmp_path / "log").unlink()
    source = Scripted(tmp_path, 4, hang_once)
    make(source, tmp_path / "out")
    assert [unit for unit, *_ in source.log()] == [4]
    assert contents(tmp_path / "out") == contents(alone)


INTERRUPTED = """
import os, sys, time
if __name__ != "__main__":
    print(os.getpid(), file=open(sys.argv[1] + "/started", "a"))
    time.sleep(1)  # as an import does, before any of our own code
else:
    import test_data_workers as here
    from pathlib import Path
    here.make(here.Scripted(Path(sys.argv[1])), Path(sys.argv[1]) / "out")
"""


def test_ctrl_c_is_left_to_the_command_even_while_workers_start(alone, tmp_path):
    """The terminal sends it to all processes; those that start here would die of it with a traceback."""
    (tmp_path / "main.py").write_text(INTERRUPTED)
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
    command = subprocess.Popen([sys.executable, str(tmp_path / "main.py"), str(tmp_path)], env=environment)
    wait(lambda: (tmp_path / "started").is_file() and len((tmp_path / "started").read_text().split()) == 2)
    for process in (tmp_path / "started").read_text().split():
        os.kill(int(process), signal.SIGINT)
    assert command.wait(30) == 0
    assert contents(tmp_path / "out") == contents(alone)


def wait(until: Callable[[], bool]) -> None:
    for _ in range(600):
        if until():
            return
        time.sleep(0.05)
    raise AssertionError("it did not come to that in 30 seconds")


def running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split(")")[-1].split()[0] != "Z"
    except OSError:
        return False


# What a kill may leave


def test_a_finished_piece_whose_file_is_cut_is_made_again(alone, tmp_path):
    source = Scripted(tmp_path, 5, wrong)
    with pytest.raises(UsageError):
        make(source, tmp_path / "out", count=1)
    partial = tmp_path / ".out.partial"
    assert len(list((partial / "parts").glob("*.json"))) == 5
    (cut,) = partial.glob("*train_windows*00002-of-00006")
    cut.write_bytes(cut.read_bytes()[:-1])
    (partial / "parts" / "rove_text-train_windows.array_record-00005-of-00006.abcd").write_bytes(b"a draft")
    (tmp_path / "log").unlink()
    source.bad = -1
    make(source, tmp_path / "out", count=1)
    assert [unit for unit, *_ in source.log()] == [2, 5]
    assert contents(tmp_path / "out") == contents(alone)


def test_a_kill_before_the_last_renaming_costs_nothing(alone, tmp_path, monkeypatch):
    source = Scripted(tmp_path)
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(build.shutil, "rmtree", lambda *a, **k: 1 / 0 if str(a[0]).endswith("parts") else None)
        make(source, tmp_path / "out", count=1)
    assert (tmp_path / ".out.partial" / "manifest.json").is_file() and not (tmp_path / "out").exists()
    (tmp_path / "log").unlink()
    make(source, tmp_path / "out", count=1)
    assert not (tmp_path / "log").exists()
    assert contents(tmp_path / "out") == contents(alone)


REPLACE = Path.replace


def no_room(draft: Path, target: Path) -> None:
    """What is written stays a draft, if it is to be the manifest, as after a kill."""
    if target.name == prepared.MANIFEST:
        raise OSError(28, "No space left on device")
    REPLACE(draft, target)


def test_a_manifest_that_finds_no_room_leaves_nothing_in_the_dataset(alone, tmp_path, monkeypatch):
    source = Scripted(tmp_path)
    with monkeypatch.context() as patch, pytest.raises(RunError, match="No space left"):
        patch.setattr(Path, "replace", no_room)
        make(source, tmp_path / "out", count=1)
    make(source, tmp_path / "out", count=1)
    assert contents(tmp_path / "out") == contents(alone)


def test_unfinished_work_on_something_else_is_not_thrown_away(tmp_path):
    with pytest.raises(UsageError):
        make(Scripted(tmp_path, 5, wrong), tmp_path / "out", count=1)
    with pytest.raises(UsageError, match=r"\.out\.partial: is the unfinished work on another dataset; delete it"):
        build.dataset(Scripted(tmp_path), DATA, tmp_path / "out", key="another")
    assert len(list((tmp_path / ".out.partial" / "parts").glob("*.json"))) == 5


# The command

COMMAND = """
import sys
if __name__ == "__main__":
    from rove_jax.cli import prepare
    from rove_jax.data import shards
    shards.PIECE_BYTES = 1500
    sys.exit(prepare.main(sys.argv[1:]))
"""


def test_the_command_with_two_workers_ends_with_one_line_when_one_meets_damage(tmp_path):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra: parquet)")
    from reference import parquet as made

    made.write(tmp_path / "files")
    whole = (tmp_path / "files" / "2.parquet").read_bytes()
    (tmp_path / "files" / "2.parquet").write_bytes(whole[:-1])
    words = ["parquet", "--path", str(tmp_path / "files"), "--window", "17", "--held-out", "0.3", "--workers", "2"]
    words = [sys.executable, "-c", COMMAND, *words, "--out", str(tmp_path / "out")]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: 2.parquet: cannot be read")
    done = subprocess.run([*words, "--on-damage", "skip"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "1 damaged places" in done.stdout and " tokens/s" in done.stdout
