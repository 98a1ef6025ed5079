"""One checkpoint on disk: read, checked against what was said of it when it was written, or found to be damaged.

A checkpoint is a folder with the items `params` (the tree of weights), `optimizer` (its arrays by path) and `metadata`
(JSON: step, config, data fingerprint, tokenizer identity, versions, validation loss; type, shape and digest of every
array; and a digest of all this).
"""

import concurrent.futures
import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tensorstore
from etils import epath
from jax.experimental import multihost_utils

from rove_jax import storage
from rove_jax.errors import RunError, UsageError
from rove_jax.storage import bucket
from rove_jax.training.checkpoints.digest import by_path, digests, kind

FORMAT = 2
"""Raised when older code could misread what newer code writes, or the other way round."""

SEAL = "sha256"

SETTINGS = {"params": "model", "optimizer": "model and optimizer.name"}
"""The part of a config that the shapes of an item come from."""

DAMAGED = ": damaged: "

READ_FAULTS = (OSError, ValueError)
"""What tensorstore raises for what is missing or damaged."""

READERS = 16
"""Arrays that are read at a time."""


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
        return Damaged(f"{self.where}{DAMAGED}{what}")

    def unread(self, what: str, error: Exception) -> RunError:
        """An error that is no `Damaged`, so that nothing steps back over a checkpoint that may be whole."""
        forbidden = isinstance(error, PermissionError) or "PERMISSION_DENIED" in str(error)
        why = "may not be read by this user" if forbidden else f"cannot be reached ({first_line(error)})"
        return RunError(f"{self.where}: {what} {why}; nothing is known of any damage")

    def metadata(self) -> dict[str, Any]:
        """What the checkpoint says of itself. Raises `Damaged`, or `UsageError` if it is of another format."""
        file = self.where / "metadata" / "metadata"
        try:
            values = json.loads(file.read_text())
        except FileNotFoundError:
            raise self.damaged("it has no metadata, so it was never finished or is half deleted") from None
        except (OSError, ValueError, RecursionError) as error:
            if isinstance(error, PermissionError) or (storage.remote(self.where) and isinstance(error, OSError)):
                raise self.unread("its metadata", error) from error
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

        Where `targets` lie on devices of several processes, all of these call this together and come to the same
        result. Raises `UsageError` if what is stored is of other shapes or dtypes than `targets`, `Damaged` naming the
        first array that cannot be read or has changed.
        """
        said, found, fault = {}, {}, None
        try:
            said = self.metadata()["arrays"]
            for item, target in targets.items():
                difference = first_difference({path: entry[0] for path, entry in said[item].items()}, target)
                if difference:
                    advice = f"give the {SETTINGS[item]} that it was saved with"
                    raise UsageError(f"{self.where}: {item} {difference}; {advice}")
            leaves = [(item, path, leaf) for item, target in targets.items() for path, leaf in by_path(target).items()]
            with concurrent.futures.ThreadPoolExecutor(READERS) as pool:
                arrays = pool.map(lambda wanted: self.read_one(*wanted), leaves)
                found = {f"{item}.{path}": array for (item, path, _), array in zip(leaves, arrays, strict=True)}
        except Damaged as error:
            fault = error
        joint = not all(leaf.sharding.is_fully_addressable for leaf in jax.tree.leaves(targets))
        if happened_anywhere(fault is not None) if joint else fault is not None:
            raise fault or self.damaged("another process cannot read it")
        for name, digest in digests(found).items():
            item, _, path = name.partition(".")
            if digest != said[item][path][1]:
                raise self.damaged(f"{name} is not what was saved")
        trees = {}
        for item, target in targets.items():
            arrays = [found[f"{item}.{path}"] for path in by_path(target)]
            trees[item] = jax.tree.unflatten(jax.tree.structure(target), arrays)
        return trees

    def read_one(self, item: str, path: str, target: Any) -> jax.Array:
        """One array, of the type and where `target` says, its bits unchecked. Raises `Damaged`.

        By tensorstore, which Orbax writes with, since a damaged array that Orbax reads leaves tracebacks on stderr.
        """
        place = {"driver": "ocdbt", "base": storage.store(self.where / item), "path": f"{path}/"}
        try:
            array = tensorstore.open({"driver": "zarr", "kvstore": place}, open=True, read=True).result()
            if f"{array.dtype.name}{list(array.shape)}" != kind(target):
                raise self.damaged(f"{item}.{path} is {array.dtype.name}{list(array.shape)}, not {kind(target)}")
            return jax.make_array_from_callback(
                array.shape, target.sharding, lambda index: np.asarray(array[index].read().result())
            )
        except READ_FAULTS as error:
            if bucket.unanswered(error):
                raise self.unread(f"{item}.{path}", error) from error
            raise self.damaged(f"{item}.{path} cannot be read ({first_line(error)})") from error

    def examine(self) -> Iterator[Examined]:
        """Every array in turn, read on its own and on one device. Raises what `metadata` raises."""
        place = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        for item, arrays in self.metadata()["arrays"].items():
            for path, (described, digest) in arrays.items():
                name = f"{item}.{path}"
                dtype, _, shape = described.partition("[")
                target = jax.ShapeDtypeStruct(json.loads(f"[{shape}"), jnp.dtype(dtype), sharding=place)
                try:
                    array = self.read_one(item, path, target)
                except Damaged as error:
                    yield Examined(name, 0, str(error).partition(DAMAGED)[2])
                else:
                    same = digests({name: array})[name] == digest
                    yield Examined(name, array.nbytes, None if same else f"{name} is not what was saved")


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
    return bool(multihost_utils.process_allgather(np.array(here)).any())


def first_line(error: BaseException) -> str:
    """An error in one line without paths, however much tensorstore says."""
    text = str(error).strip().partition("\n")[0].partition(" [tensorstore_spec=")[0]
    text = re.sub(r'(local file )?"(/|file:|gs:)[^"]*"', "a file", text)
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
