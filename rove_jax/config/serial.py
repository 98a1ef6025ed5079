"""Dataclasses to JSON and back, and the fingerprint of a setting."""

import dataclasses
import hashlib
import json
import math
import types
import typing
from typing import Any, Literal

from rove_jax.errors import UsageError, nearest, require


def to_dict(config: Any) -> dict[str, Any]:
    """A dataclass as plain JSON values (tuples as lists)."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def from_dict(cls: type, values: dict[str, Any], at: str = "") -> Any:
    """The dataclass that `to_dict` came from. Raises `UsageError` naming an unknown key and the nearest right one."""
    hints = typing.get_type_hints(cls)
    for key in values:
        if key not in hints:
            raise UsageError(f"{at}{key}: no such field{nearest(key, hints)}")
    return cls(**{key: decode(hints[key], value, f"{at}{key}") for key, value in values.items()})


def decode(hint: Any, value: Any, at: str) -> Any:
    """`value`, read from JSON, as type `hint`: nested dataclasses and tuples; everything else is taken as it is.

    Raises `UsageError` for a value of another type, and for a number that no device can hold.
    """
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            raise UsageError(
                f"{at} = {value!r}: must be an object with the fields of {typing.cast(type, hint).__name__}"
            )
        return from_dict(typing.cast(type, hint), value, f"{at}.")
    if typing.get_origin(hint) is tuple:
        return tuple(value)
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if typing.get_origin(hint) is not Literal:
        fits = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
        require(
            fits or (float in kinds and type(value) is int),
            at,
            value,
            f"must be {' or '.join(k.__name__ for k in kinds)}",
        )
        if type(value) in (int, float):
            require(math.isfinite(value), at, value, "must be finite")
            require(type(value) is float or abs(value) < 2**31, at, value, "must fit into 32 bits")
    return value


def fingerprint(config: Any) -> str:
    """Sixteen hex digits of the SHA-256 of a dataclass, or of plain JSON values, in sorted-key JSON."""
    values = to_dict(config) if dataclasses.is_dataclass(config) else config
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
