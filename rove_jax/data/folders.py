"""The files of a folder that a source is made of: none twice, and none left out in silence."""

import os
from pathlib import Path
from typing import NoReturn

from rove_jax.errors import UsageError


def below(root: Path, suffixes: tuple[str, ...], *, hidden: str = ".") -> list[str]:
    """The files below `root` with one of `suffixes` (lower case; the file's may be upper), as paths from there, sorted.

    Links are followed. Files and folders whose names begin with one of the characters `hidden` are left out, and
    nothing else is: raises `UsageError` for a folder that cannot be listed, or is met again by a link, and for what has
    a suffix and is no file, such as a link to nothing.
    """

    def refuse(error: OSError) -> NoReturn:
        raise UsageError(f"{error.filename}: {error.strerror}") from error

    found, met = [], {}
    for here, folders, names in os.walk(root, onerror=refuse, followlinks=True):
        other = met.setdefault(os.path.realpath(here), here)
        if other != here:
            raise UsageError(f"{here}: a link to {other}, which would be read twice; remove one")
        folders[:] = [name for name in folders if name[0] not in hidden]
        for path in (Path(here, name) for name in names if name[0] not in hidden):
            if path.suffix.lower() in suffixes:
                if not path.is_file():
                    raise UsageError(f"{path}: is not a file, or a link to nothing; remove it")
                found.append(path.relative_to(root).as_posix())
    return sorted(found)


def title(name: str) -> str:
    """The name of a file or folder as that of a source, which goes into names and descriptions: UTF-8, not too long."""
    return name.encode("utf-8", "replace")[:100].decode("utf-8", "ignore")
