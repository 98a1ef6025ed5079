"""The folder of a run: whose it is, who is writing to it, and what it says of itself.

In a bucket, where nothing can be appended to, rows of metrics are gathered in a folder of this machine and sent before
each checkpoint and at the end: what a killed run has not sent, it does again from its last checkpoint.

config.json   the resolved config        metrics.jsonl, tensorboard/   numbers by step
run.json      what it came to: versions, mesh, attention backend, data   checkpoints/   see checkpoints/
"""

import contextlib
import dataclasses
import fcntl
import importlib.metadata
import json
import platform
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from rove_jax import config, storage
from rove_jax.errors import RunError, UsageError, nearest
from rove_jax.storage.lease import Lease
from rove_jax.training.checkpoints import FOLDER
from rove_jax.training.checkpoints.shelf import Shelf
from rove_jax.training.checkpoints.stored import Damaged, Stored
from rove_jax.training.metrics import EVENTS, FILE, read_rows
from rove_jax.training.record import RECORD, Change, read_json

CONFIG, LOCK = "config.json", ".lock"

FREE = {
    "data.cache": "where prepared data lies; its fingerprint is compared instead",
    "data.mixture": "the same",
    "data.path": "the same",
    "data.prepared": "the same",
    "data.tokenizer_path": "the tokenizer's identity is compared instead",
    "evaluation": "comes after training",
    "mesh": "the same sums in another order",
    "model.attention": "the same",
    "model.remat": "computes again what was computed",
    "model.scan_layers": "the same layers",
    "training.checkpoint_every": "what is written, not what is learnt",
    "training.compilation_cache": "the same",
    "training.keep_every": "the same",
    "training.data_timeout_seconds": "how long to wait",
    "training.heartbeat_seconds": "the same",
    "training.join_seconds": "the same",
    "training.keep_last": "the same",
    "training.log_every": "the same",
    "training.on_nonfinite": "what to do where nothing is learnt",
    "training.stop_after": "where to pause",
    "training.validation_every": "looks, does not touch",
}
"""Fields, or whole parts, that may change when a run goes on, and why. All others make it another run."""

PACKAGES = ("rove-jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "grain")


class RunFolder:
    """A run folder that this process has to itself."""

    def __init__(self, path: Path, settings: config.Config, allowed: Sequence[str] = ()) -> None:
        """Make or enter the folder of the run that `settings` describe, but for fields that are `allowed` to differ.

        Raises `UsageError`, before anything is written, if the folder holds something else, another run, or the same
        run in another process's hands; `RunError` if it cannot be written to.
        """
        self.path = self.work = path = storage.place(path)
        """Where it is, and where what grows is written: the same but for a bucket."""
        self.sent: dict[Path, tuple[int, int]] = {}
        """Files of `work` that are in the bucket, as they were when they were sent: time of change, size."""
        changed = check_owner(path, settings, allowed)
        try:
            path.mkdir(parents=True, exist_ok=True)
            self.lock: IO[str] | Lease
            if not storage.remote(path):
                self.lock = take(path / LOCK)
            else:
                self.lock = Lease(path / LOCK, seconds=settings.training.heartbeat_seconds)
                self.work = Path(tempfile.mkdtemp(prefix="rove-run-"))
                if (path / FILE).exists():
                    storage.replace(self.work / FILE, (path / FILE).read_bytes())
            if not changed and written_config(path) != config.to_dict(settings):  # else once the step is known
                self.write(CONFIG, config.to_dict(settings))
        except FileExistsError as error:
            raise UsageError(f"{path}: is not a folder; give --workdir a folder that is new or a run's") from error
        except OSError as error:
            raise RunError(f"{path}: {error.strerror}; nothing was started") from error

    def write(self, name: str, values: dict[str, Any]) -> None:
        try:
            storage.replace(self.path / name, json.dumps(values, indent=2) + "\n")
        except OSError as error:
            raise RunError(f"{self.path / name}: {error.strerror}") from error

    def send(self) -> None:
        """See to it that what has been written to `work` is in `path`. Raises `OSError` if that does not succeed,
        `RunError` if another process has taken the folder over."""
        if not isinstance(self.lock, Lease):
            return
        self.lock.check()
        for file in sorted(file for file in self.work.rglob("[!.]*") if file.is_file()):
            now = (file.stat().st_mtime_ns, file.stat().st_size)
            if self.sent.get(file) != now:
                (self.path / file.relative_to(self.work).as_posix()).write_bytes(file.read_bytes())
                self.sent[file] = now

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            self.send()
            if self.work != self.path:
                shutil.rmtree(self.work, ignore_errors=True)
        except OSError as error:
            if kind is None:  # else what ends the run already is the better explanation
                raise RunError(f"{self.path}: {error.strerror}; the last rows of metrics are in {self.work}") from error
        except RunError:
            if kind is None:
                raise
        finally:
            self.lock.close()


def check_owner(path: Path, settings: config.Config, allowed: Sequence[str] = ()) -> list[Change]:
    """Raise `UsageError` unless `path` is new, empty, the folder of the run that `settings` describe, or of a run that
    has neither a checkpoint nor a row of metrics to lose. Returns what differs and is `allowed` to: fields or parts."""
    storage.check(path, writes=True)
    if "[" in str(path if storage.remote(path) else path.resolve()):
        raise UsageError(f"{path}: has a [ in its name, where Orbax 0.12 finds no checkpoint; give it another")
    for name in (CONFIG, RECORD, FILE, EVENTS, FOLDER):
        there, right, wrong = path / name, *(("folder", "file") if name in (EVENTS, FOLDER) else ("file", "folder"))
        if there.exists() and there.is_dir() != (right == "folder"):
            raise UsageError(f"{there}: is a {wrong} where a run has a {right}; move it away")
    stored = stored_config(path)
    if stored is None:
        if path.is_dir() and any(not entry.name.startswith(".") for entry in path.iterdir()):
            raise UsageError(f"{path}: holds files but no {CONFIG}, so it is no run; give --workdir a new folder")
        return []
    # Through `Config`, so that a field that is younger than the run has its default there.
    try:
        stored = config.to_dict(config.from_dict(config.Config, stored))
    except UsageError as error:
        raise UsageError(f"{path / CONFIG}: {error}; the file is damaged or another version's") from error
    found = list(changes(stored, config.to_dict(settings))) if used(path) else []
    for field, before, now in found:
        if not permitted(field, allowed):
            advice = f"give that value, a new --workdir, or --allow-change {field}"
            raise UsageError(f"{field} = {now!r}: the run in {path} has {before!r}; {advice}")
    return found


def check_allowed(names: Sequence[str]) -> None:
    """Raise `UsageError` if one of `names` is neither a field of a config nor a part of it."""
    known = [name for name, _ in fields(config.to_dict(config.Config()))]
    for name in names:
        if name not in known:
            raise UsageError(f"--allow-change {name}: no such field{nearest(name, known)}")


def permitted(field: str, allowed: Sequence[str]) -> bool:
    """Whether `field`, or a part of the config that holds it, is among `allowed`."""
    return any(f"{field}.".startswith(f"{name}.") for name in allowed)


def used(path: Path) -> bool:
    """Whether a run folder holds anything that training has brought forth."""
    return any((path / FOLDER).glob("[0-9]*")) or bool(read_rows(path / FILE))


def written_config(path: Path) -> dict[str, Any] | None:
    """What CONFIG holds in a run folder, None if there is none."""
    file = path / CONFIG
    return read_json(file) if file.is_file() else None


def stored_config(path: Path) -> dict[str, Any] | None:
    """The config of the run in a folder as JSON values, None if it has none: where CONFIG is lost, that of its newest
    checkpoint, each of which holds it."""
    found = written_config(path)
    shelf = Shelf(path)
    for step in sorted(shelf.steps(), reverse=True) if found is None else ():
        with contextlib.suppress(Damaged):
            return Stored(shelf[step]).metadata()["config"]
    return found


def fields(values: dict[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of every part and field of a config given as JSON values, parts before what they hold."""
    for key, value in values.items():
        yield f"{at}{key}", value
        if isinstance(value, dict):
            yield from fields(value, f"{at}{key}.")


def changes(before: dict[str, Any], now: dict[str, Any], at: str = "") -> Iterator[Change]:
    """The fields that make two configs different runs."""
    for key in dict.fromkeys([*before, *now]):
        name, old, new = f"{at}{key}", before.get(key), now.get(key)
        if name in FREE or old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            yield from changes(old, new, f"{name}.")
        else:
            yield Change(name, old, new)


def take(path: Path) -> IO[str]:
    """Lock `path` for as long as the returned file is open; a killed process lets go of it."""
    file = path.open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UsageError(f"{path.parent}: another process is training in it; wait for it or stop it") from error
    return file


def versions() -> dict[str, str]:
    """Of Python and of the packages that what is learnt depends on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


ORIGINS = {
    "tokenizer_identity": ("data.tokenizer",),
    "data_fingerprint": ("data.source", "data.mixture", "data.prepared", "data.path"),
}
"""What is compared of the data when a run goes on, and the fields that may have changed it."""


@dataclasses.dataclass(frozen=True)
class Origin:
    """What the batches come from, as stored in checkpoints and compared when a run goes on."""

    data_fingerprint: str
    tokenizer_identity: str

    def check(self, metadata: dict[str, Any], where: Path, allowed: Sequence[str] = ()) -> list[Change]:
        """Raise `UsageError` if a checkpoint's `metadata` name other data or another tokenizer, unless that is
        `allowed`; returns what differs."""
        found = []
        for name, (field, *others) in ORIGINS.items():
            before, now = metadata.get(name), getattr(self, name)
            if before != now:
                if not any(permitted(one, allowed) for one in (field, *others)):
                    trained = f"the run in {where} was trained with {before}"
                    ways = f" (or {', '.join(others)})" if others else ""
                    raise UsageError(
                        f"{field}{ways}: {name} is {now}, {trained}; --allow-change {field} goes on anyway"
                    )
                found.append(Change(f"{field}: {name}", before, now))
        return found
