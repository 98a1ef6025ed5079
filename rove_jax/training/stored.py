"""One checkpoint on disk: read, checked against what was said of it when it was written, or found to be damaged.

A checkpoint is a folder with the items `params` (the tree of weights), `optimizer` (its arrays by path) and `metadata`
(JSON: step, config, data fingerprint, tokenizer identity, versions, validation loss; type, shape and digest of every
array; and a digest of all this).
"""

import hashlib
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax.experimental import multihost_utils

from rove_jax.errors import RunError, UsageError
from rove_jax.training.digest import by_path, digests, kind

FORMAT = 2
"""Raised when older code could misread what newer code writes, or the other way round."""

SEAL = "sha256"

READ_FAULTS = (OSError, ValueError, KeyError, AttributeError, TypeError)
"""What a damaged checkpoint comes out of Orbax as."""


class Damaged(RunError):
    """A checkpoint that is not whole, or not what was written: an older one may be."""


class Examined(NamedTuple):
    """An array of a checkpoint that has been looked at."""

    name: str
    bytes: int
    fault: str | None
    """What is wrong with it."""


class Stored:
    """The checkpoint in the folder `where`, whose name is its step."""

    def __init__(self, where: epath.Path) -> None:
        self.where = where

    def damaged(self, what: str) -> Damaged:
        return Damaged(f"{self.where}: damaged: {what}")

    def metadata(self) -> dict[str, Any]:
        """What the checkpoint says of itself. Raises `Damaged`, or `UsageError` if it is of another format."""
        file = self.where / "metadata" / "metadata"
        try:
            values = json.loads(file.read_text())
        except FileNotFoundError:
            raise self.damaged("it has no metadata, so it was never finished or is half deleted") from None
        except (OSError, ValueError) as error:
            raise self.damaged(f"its metadata cannot be read ({first_line(error)})") from error
        if not isinstance(values, dict) or "format" not in values:
            raise self.damaged("its metadata are none")
        intact = values.get(SEAL) == seal(values)
        if values["format"] != FORMAT and (intact or SEAL not in values):
            raise UsageError(f"{self.where}: format {values['format']!r}; this version reads {FORMAT}")
        if not intact:
            raise self.damaged("its metadata are not what was written")
        if str(values["step"]) != self.where.name:
            raise self.damaged(f"it says that it is step {values['step']}")
        return values

    def read(self, targets: dict[str, Any]) -> dict[str, Any]:
        """Trees of arrays by item, in the shapes, dtypes and shardings of `targets`, checked bit for bit.

        All processes of a run call this together, and come to the same result. Raises `UsageError` if what is stored is
        of other shapes or dtypes than `targets`, `Damaged` naming the first array that cannot be read or has changed.
        """
        found, fault = {}, None
        try:
            said = self.metadata()["arrays"]
            for item, target in targets.items():
                difference = first_difference({name: entry[0] for name, entry in said[item].items()}, target)
                if difference:
                    raise UsageError(f"{self.where}: {item} {difference}")
            try:
                for item, target in targets.items():
                    args = ocp.args.StandardRestore(target)
                    found[item] = ocp.StandardCheckpointHandler().restore(self.where / item, args=args)
            except READ_FAULTS as error:
                fault = self.damaged(self.first_fault() or f"cannot be read ({first_line(error)})")
        except Damaged as error:
            fault = error
        if happened_anywhere(fault is not None):
            raise fault or self.damaged("another process cannot read it")
        for item, tree in found.items():
            for name, digest in digests(named(item, by_path(tree))).items():
                if digest != said[item][name.removeprefix(f"{item}.")][1]:
                    raise self.damaged(f"{name} is not what was saved")
        return found

    def examine(self) -> Iterator[Examined]:
        """Every array in turn, read on its own and on one device. Raises what `metadata` raises."""
        place = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        for item, arrays in self.metadata()["arrays"].items():
            for path, (described, digest) in arrays.items():
                name = f"{item}.{path}"
                dtype, _, shape = described.partition("[")
                target = jax.ShapeDtypeStruct(json.loads(f"[{shape}"), jnp.dtype(dtype), sharding=place)
                try:
                    array = read_one(self.where / item, path.split(".") if item == "params" else [path], target)
                except READ_FAULTS as error:
                    yield Examined(name, 0, f"{name} cannot be read ({first_line(error)})")
                else:
                    same = kind(array) == described and digests({name: array})[name] == digest
                    yield Examined(name, array.nbytes, None if same else f"{name} is not what was saved")

    def first_fault(self) -> str | None:
        """What is wrong with the first array that is damaged."""
        return next((looked.fault for looked in self.examine() if looked.fault), None)


def describe(items: dict[str, Any]) -> dict[str, dict[str, list[str]]]:
    """For the metadata of a checkpoint of `items`, trees by name: type and digest of each array by item and path."""
    return {
        item: {
            name.removeprefix(f"{item}."): [kind(leaf), digest]
            for (name, leaf), digest in zip(leaves.items(), digests(leaves).values(), strict=True)
        }
        for item, leaves in ((item, named(item, by_path(tree))) for item, tree in items.items())
    }


def named(item: str, leaves: dict[str, Any]) -> dict[str, Any]:
    """`leaves` by the names that their digests are made with: two items may hold arrays of the same path."""
    return {f"{item}.{path}": leaf for path, leaf in leaves.items()}


def sealed(values: dict[str, Any]) -> dict[str, Any]:
    """`values` as JSON has them, with a digest of them all."""
    plain = json.loads(json.dumps(values))
    return {**plain, SEAL: seal(plain)}


def seal(values: dict[str, Any]) -> str:
    """The digest of `values` but for the one that they may hold."""
    rest = {name: value for name, value in values.items() if name != SEAL}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def read_one(folder: epath.Path, keys: list[str], target: jax.ShapeDtypeStruct) -> jax.Array:
    """The array at `keys` of the tree in `folder`, and nothing else of it."""
    item, how = target, ocp.ArrayRestoreArgs(sharding=target.sharding, global_shape=target.shape, dtype=target.dtype)
    for key in reversed(keys):
        item, how = {key: item}, {key: how}
    args = ocp.args.PyTreeRestore(item, restore_args=how, partial_restore=True)
    found = ocp.PyTreeCheckpointHandler().restore(folder, args=args)
    for key in keys:
        found = found[key]
    return found


def first_difference(stored: dict[str, str], target: Any) -> str | None:
    """How the first array (by path) that is not the same type in both differs; None if there is none.

    Orbax itself refuses other shapes in some calls and casts other dtypes without a word in all of them.
    """
    wanted = {name: kind(leaf) for name, leaf in by_path(target).items()}
    for name in sorted(stored | wanted):
        if stored.get(name) != wanted.get(name):
            return f"{name}: stored is {stored.get(name, 'nothing')}, wanted is {wanted.get(name, 'nothing')}"
    return None


def happened_anywhere(here: bool) -> bool:
    """Whether something happened in any process of the run; all of them ask."""
    return here if jax.process_count() == 1 else bool(multihost_utils.process_allgather(np.array(here)).any())


def first_line(error: BaseException) -> str:
    """An error in one line, however much Orbax says."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:200]}" if text else type(error).__name__
