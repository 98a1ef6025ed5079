"""The two errors a person can cause, the exit code each one becomes, and the checks that raise them."""

import difflib
import typing
from collections.abc import Iterable
from typing import Any


class UsageError(ValueError):
    """A wrong argument, config field or input: one line saying what, which value, and what to do. Exit code 2."""


class RunError(RuntimeError):
    """Work that began and could not be finished: one line saying what happened and what is left. Exit code 1."""


def require(condition: bool, name: str, value: Any, rule: str) -> None:
    """Raise `UsageError` naming the field, its value and the rule it breaks, unless `condition` holds."""
    if not condition:
        raise UsageError(f"{name} = {value!r}: {rule}")


def require_choice(name: str, value: Any, literal: Any) -> None:
    """Raise `UsageError` unless `value` is one of the values of a `Literal` type."""
    choices = typing.get_args(literal)
    require(
        value in choices, name, value, f"must be one of {', '.join(map(str, choices))}{nearest(str(value), choices)}"
    )


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean X?` for the closest of the `known` names, or an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""
