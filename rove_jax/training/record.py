"""run.json: what a run came to, what was changed on its way, and its id, which all of its checkpoints bear too."""

import json
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from etils import epath

from rove_jax.errors import UsageError

RECORD = "run.json"

ID = "run"
"""Its name, here and in the metadata of checkpoints. Runs begun before there were ids have none."""


class Change(NamedTuple):
    """A field that a run had another value of before."""

    field: str
    before: Any
    now: Any


class Identity:
    """The id of the run in a folder, as all that is found there has it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.id: str | None = read(folder).get(ID)
        self.told_by = RECORD

    def check(self, what: epath.Path, metadata: dict[str, Any]) -> None:
        """Raise `UsageError` if the checkpoint `what` is another run's: nothing else of it need differ."""
        theirs = metadata.get(ID)
        if theirs is None:
            return
        if self.id is None:
            self.id, self.told_by = theirs, f"checkpoint {what.name}"
        if theirs != self.id:
            ours = f"{self.folder} is run {self.id} by its {self.told_by}"
            advice = "move away what does not belong there, or give it to training.init_from of a new run"
            raise UsageError(f"{what}: is of run {theirs}, and {ours}; {advice}")

    def known(self) -> str:
        """The id, a new one if there is none yet."""
        return self.id or secrets.token_hex(6)


def read(folder: Path) -> dict[str, Any]:
    """The record in a run folder, empty if it has none. Raises `UsageError` if it is damaged."""
    file = folder / RECORD
    values = read_json(file) if file.is_file() else {}
    changes = values.get("changes", [])
    keys = {"step", *Change._fields}
    if not isinstance(changes, list) or not all(isinstance(one, dict) and set(one) == keys for one in changes):
        raise UsageError(f"{file}: is damaged (its `changes` are none); mend it, or move it away")
    if not isinstance(values.get(ID, ""), str):
        raise UsageError(f"{file}: is damaged ({ID!r} is {values[ID]!r}); mend it, or move it away")
    return values


def changes(folder: Path, step: int, found: Sequence[Change]) -> list[dict[str, Any]]:
    """What a run's fields were changed to by permission: the changes on record in its folder, and those at `step`."""
    before = read(folder).get("changes", [])
    now = [{"step": step, **change._asdict()} for change in found]
    return [*before, *(change for change in now if change not in before)]


def read_json(file: Path) -> dict[str, Any]:
    """What one of the JSON files of a run folder holds. Raises `UsageError` if it is damaged."""
    try:
        values = json.loads(file.read_text())
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file}: is not JSON ({error}); the folder is damaged or no run's") from error
    if not isinstance(values, dict):
        raise UsageError(f"{file}: is not of a run; the folder is damaged or no run's")
    return values
