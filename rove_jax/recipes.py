"""Recipes: Python files that define `config() -> Config`, loaded by path, with typed overrides from the command line.

A recipe is code that a person wrote to be run, so its mistakes are reported as mistakes in that file, by line.
"""

import contextlib
import dataclasses
import io
import re
import runpy
import traceback
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from rove_jax import config as settings
from rove_jax.config import Config, from_dict, to_dict
from rove_jax.config.serial import decode
from rove_jax.errors import UsageError, nearest


def load(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """The `Config` of the recipe at `path`, with fields replaced as `overrides` say.

    Overrides are command-line words: `["--training.steps", "50", "--evaluation.no-at-end", "--model.window", "None"]`.
    Hyphens and underscores are the same in names; the last of two equal names counts; `--help` prints every field
    and exits. Raises `UsageError`, one line, for a file that cannot be read or run, an unknown name (with the nearest
    right one), a value of another type, and whatever `Config` itself refuses.
    """
    return override(read(Path(path)), overrides)


def read(path: Path) -> Config:
    """Run the recipe at `path` and return what its `config()` returns."""
    if not path.is_file():
        raise UsageError(f"{path}: no such recipe; give --config the path of a Python file that defines config()")
    try:
        recipe = runpy.run_path(str(path), run_name=path.stem)
        if not callable(recipe.get("config")):
            raise UsageError(f"{path}: defines no function config(); a recipe is a file with `def config() -> Config`")
        result = recipe["config"]()
        if isinstance(result, Config):
            # Python lets `steps=1e4` be a float; the way through JSON does not.
            return from_dict(Config, to_dict(result))
    except UsageError:
        raise
    except SyntaxError as error:
        raise UsageError(f"{error.filename or path}:{error.lineno or 1}: {error.msg}") from error
    except Exception as error:  # the file's own code: whatever it raises is the fault of that file
        what = unknown(error) or wrong_type(error) or f"{type(error).__name__}: {error}"
        raise UsageError(f"{place(error, path)}: {what}") from error
    raise UsageError(f"{path}: config() returned {type(result).__name__}; it must return a rove_jax.config.Config")


def place(error: Exception, path: Path) -> str:
    """`path:line`, with the last line of that file that was running when `error` was raised; `path` if none was."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"{path}:{lines[-1]}" if lines else str(path)


def unknown(error: Exception) -> str | None:
    """In words, which field of ours a recipe has misspelt, with the nearest right one; None if it is another error."""
    found = re.match(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", str(error))
    cls = getattr(settings, found[1], None) if found else None
    if not found or not dataclasses.is_dataclass(cls):
        return None
    return f"{found[1]} has no field {found[2]}{nearest(found[2], [field.name for field in dataclasses.fields(cls)])}"


def wrong_type(error: Exception) -> str | None:
    """In words, which field of ours has a value of another type, over which its checks stumbled; None if none has."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        made = frame.f_locals.get("self")
        if frame.f_code.co_name != "__post_init__" or not dataclasses.is_dataclass(made):
            continue
        for name, hint in typing.get_type_hints(type(made)).items():
            try:
                if not dataclasses.is_dataclass(hint):
                    decode(hint, getattr(made, name), f"{type(made).__name__}.{name}")
            except UsageError as found:
                return str(found)
    return None


def override(config: Config, words: Sequence[str]) -> Config:
    """`config` with fields replaced as the command-line `words` say. See `load`."""
    if not words:
        return config
    if {"-h", "--help"} & set(words):
        import tyro

        tyro.cli(Config, default=config, args=["--help"], prog="fields of a recipe")
    known = flags(Config)
    groups = split(words)
    for flag, _ in groups:
        if flag not in known:
            raise UsageError(f"{flag}: no such field{nearest(flag, alike(flag, known))}")
    result = parse(config, words)
    if result is not None:
        return from_dict(Config, to_dict(result))
    for flag, group in groups:
        if not readable(config, group):
            raise UsageError(f"{' '.join(group)}: {flag} takes {expected(flag, known[flag], group[1:])}")
    raise UsageError(f"{' '.join(words)}: not understood; the fields of a recipe are listed by --fields")


def parse(config: Config, words: Sequence[str]) -> Config | None:
    """What tyro makes of the `words`, or None if it refuses one. What the config refuses raises its `UsageError`."""
    import tyro  # 50 ms, which a command without overrides need not pay

    # tyro explains itself in boxes of several lines; where the config refused, its own line is behind tyro's exit.
    with contextlib.redirect_stderr(io.StringIO()):
        try:
            return tyro.cli(Config, default=config, args=list(words))
        except SystemExit as stop:
            cause = stop.__context__
    while cause is not None and not isinstance(cause, UsageError):
        cause = cause.__context__
    if cause is not None:
        raise UsageError(str(cause))
    return None


def readable(config: Config, group: list[str]) -> bool:
    """Whether tyro reads the values of one flag, whatever the config thinks of them alone."""
    try:
        return parse(config, group) is not None
    except UsageError:
        return True


def split(words: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Command-line words grouped by flag, each group with the flag's name (hyphens, no `=value`) in front."""
    groups: list[tuple[str, list[str]]] = []
    for word in words:
        if word.startswith("--"):
            groups.append((word.partition("=")[0].replace("_", "-"), [word]))
        elif groups:
            groups[-1][1].append(word)
        else:
            raise UsageError(f"{word}: unexpected argument; overrides look like --training.steps 50")
    return groups


def flags(cls: type, prefix: str = "") -> dict[str, Any]:
    """Every flag that a dataclass has, with the type of its field. A switch has two: `--a.b` and `--a.no-b`."""
    found: dict[str, Any] = {}
    for name, hint in typing.get_type_hints(cls).items():
        name = name.replace("_", "-")
        if dataclasses.is_dataclass(hint):
            found |= flags(typing.cast(type, hint), f"{prefix}{name}.")
        else:
            found[f"--{prefix}{name}"] = hint
            if hint is bool:
                found[f"--{prefix}no-{name}"] = hint
    return found


def alike(flag: str, known: dict[str, Any]) -> list[str]:
    """Which of the `known` flags to look for the nearest one in: those with the same last name, if there are any."""
    last = flag.lstrip("-").split(".")[-1]
    return [name for name in known if name.lstrip("-").split(".")[-1] == last] or list(known)


def expected(flag: str, hint: Any, values: list[str]) -> str:
    """In words, what a field of type `hint` takes, and for a choice the one nearest to what was given."""
    if hint is bool:
        return f"no value; write {flag} alone, or with `no-` before its last name for the opposite"
    if typing.get_origin(hint) is tuple:
        return f"any number of values, each {expected(flag, typing.get_args(hint)[0], values)}"
    if isinstance(hint, types.UnionType):
        return " or ".join(expected(flag, part, values) for part in typing.get_args(hint))
    if typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        wrong = [value for value in values if value not in choices]
        return f"one of {', '.join(choices)}{nearest(wrong[0], choices) if wrong else ''}"
    return {int: "an integer", float: "a number", str: "a text", types.NoneType: "None"}[hint]
