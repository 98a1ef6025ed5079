"""Parquet files with a column of text, such as FineWeb-Edu's (Penedo et al. 2024, arXiv 2406.17557).

A unit is a row group, and is read whole: every row of it or none, whoever reads it. A wrong byte that still decodes as
text is seen only where whoever wrote the file gave its pages checksums.
"""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow
import pyarrow.parquet
from pyarrow import fs

from rove_jax.config import Data
from rove_jax.data import folders, hub, prepared
from rove_jax.data.documents import LONG, Damage, Text, Unit
from rove_jax.data.held_out import share_of
from rove_jax.errors import RunError, UsageError, nearest

HELD_OUT_SHARE = 1 / 200
"""Of the documents, unless `data.held_out` says otherwise: of ten billion tokens fifty million."""
SUFFIX, HIDDEN = (".parquet",), "._"
"""What the names of files end in, and names that are left out begin with: other programs put aside what is theirs."""
ID = "id"
"""The column of ids. Without one, or where a row has none, a document is known by its file and row."""
UNREADABLE = (pyarrow.ArrowException, OSError, UnicodeError)
"""What pyarrow raises for a file that is cut short or has wrong bytes; or that cannot be reached, see `damage_of`."""
RETRY = 30
"""Seconds after which a bucket that does not answer is given up; pyarrow's own limit is 15 minutes."""


class File(NamedTuple):
    """One parquet file."""

    name: str
    """Path below the folder."""
    bytes: int
    footer: str
    """SHA-256 of its footer, which has the place, size, checksum and extremes of every column of every row group."""
    damage: str
    """What is wrong with the whole of it, or nothing."""
    texts: tuple[int, ...]
    """Bytes of text in each row group."""


def load(data: Data, *, download: bool = False) -> "Parquet":
    """The files at or below `data.path`, in the order of their names; those from `.` or `_` on are left out.

    Only footers are read. download: without a path, take the files from the hub. Raises `UsageError` if there is no
    such file, or none has the text column, or for what `folders.below` refuses.
    """
    path = hub.download() if download and data.path is None else data.path
    if path is None:
        raise UsageError(
            f"data.source = {data.source!r}: set data.prepared to the DIR of {prepared.command(data, 'DIR')}, which "
            f"downloads it unless --path is a folder with its parquet files"
        )
    try:
        if "://" in path:
            limit = f"{'&' if '?' in path else '?'}retry_limit_seconds={RETRY}" if path.startswith("gs://") else ""
            system, root = fs.FileSystem.from_uri(f"{path}{limit}")
        else:
            system, root = fs.LocalFileSystem(), str(Path(path).expanduser().resolve())
        kind = system.get_file_info(root).type
        if kind is fs.FileType.NotFound:
            raise UsageError(f"data.path = {path!r}: no such file or folder")
        folder, _, name = root.rpartition("/")
        names = [name]
        if kind is fs.FileType.Directory:
            folder = root
            disk = isinstance(system, fs.LocalFileSystem)
            names = folders.below(Path(root), SUFFIX, hidden=HIDDEN) if disk else listed(system, root)
    except UNREADABLE as error:
        raise UsageError(f"data.path = {path!r}: {first_line(error)}") from error
    if not names:
        raise UsageError(f"data.path = {path!r}: no .parquet file in this folder")
    name = data.source if data.source != "parquet" else root.rpartition("/")[2].removesuffix(".parquet")
    return Parquet(folders.title(name), system, folder, names, data)


def listed(system: fs.FileSystem, root: str) -> list[str]:
    """As `folders.below`, of a bucket, which has no links."""
    found = system.get_file_info(fs.FileSelector(root, recursive=True))
    names = sorted(info.path.removeprefix(f"{root}/") for info in found if info.type is fs.FileType.File)
    names = [name for name in names if name.lower().endswith(SUFFIX)]
    return [name for name in names if not any(part.startswith(tuple(HIDDEN)) for part in name.split("/"))]


class Parquet:
    """Row groups as units. Ids are those of the column `id`, and decide who validates."""

    whole_from = LONG  # keeping all whole would double what is stored

    def __init__(self, name: str, system: fs.FileSystem, folder: str, names: list[str], data: Data) -> None:
        self.name, self.system, self.folder, self.feature = name, system, folder, data.text_feature
        self.share = HELD_OUT_SHARE if data.held_out is None else data.held_out
        self.files = [self.look(name) for name in names]
        if all(file.damage for file in self.files):
            raise UsageError(f"data.path = {data.path!r}: {self.files[0].name}: {self.files[0].damage}")
        self.places: list[tuple[File, int]] = []
        units: list[Unit] = []
        for file in self.files:
            for group, texts in enumerate(file.texts):
                self.places.append((file, group))
                units.append(Unit(f"{file.name} row group {group}", texts))
            if file.damage:
                self.places.append((file, 0))
                units.append(Unit(file.name, 0))
        self.units: Sequence[Unit] = units

    def look(self, name: str) -> File:
        """What the footer of a file says."""
        size, footer, damage, texts = 0, b"", "", ()
        try:
            with self.system.open_input_file(f"{self.folder}/{name}") as file:
                size = file.size()
                end = file.read_at(min(size, 8), max(0, size - 8))  # the length of what precedes it, and a magic number
                length = min(int.from_bytes(end[:4], "little") + 8, size)
                footer = file.read_at(length, size - length)
                parquet = pyarrow.parquet.ParquetFile(file)
                damage = unsuited(parquet.schema_arrow, self.feature)
                if not damage:
                    columns = [parquet.schema.column(index).path for index in range(len(parquet.schema))]
                    groups = [parquet.metadata.row_group(group) for group in range(parquet.num_row_groups)]
                    texts = tuple(group.column(columns.index(self.feature)).total_uncompressed_size for group in groups)
        except UNREADABLE as error:
            damage = damage_of(error, name)
        return File(name, size, hashlib.sha256(footer).hexdigest(), damage, texts)

    def documents(self, unit: int = 0) -> Iterator[Text | Damage]:
        file, group = self.places[unit]
        where = self.units[unit].name
        if file.damage:
            yield Damage(where, file.damage)
            return
        try:
            with self.system.open_input_file(f"{self.folder}/{file.name}") as stream:
                if stream.size() != file.bytes:
                    raise RunError(f"{where}: the file has changed since the work began; give the same command again")
                parquet = pyarrow.parquet.ParquetFile(stream, page_checksum_verification=True)
                ids = ID if ID in parquet.schema_arrow.names else None
                columns = [self.feature] + ([ids] if ids else [])
                table = parquet.read_row_group(group, columns=columns, use_threads=False)
                before = sum(parquet.metadata.row_group(earlier).num_rows for earlier in range(group))
        except MemoryError as error:
            raise RunError(f"{where}: does not fit into memory; use fewer --workers") from error
        except UNREADABLE as error:
            yield Damage(where, damage_of(error, where))
            return
        for row in range(table.num_rows):
            try:
                text = table[self.feature][row].as_py()
                id = table[ids][row].as_py() if ids else None
            except UnicodeDecodeError:
                yield Damage(f"{file.name} row {before + row}", "is not UTF-8 text")
                continue
            id = f"{file.name}:{before + row}" if id is None else str(id)
            if isinstance(text, str):
                yield Text("validation" if share_of(id) < self.share else "train", id, text)
            else:
                yield Damage(f"{file.name} row {before + row}", f"{self.feature} is {text!r}, not a text")

    def fingerprint(self) -> str:
        """Of names, sizes and footers: reading gigabytes at each call to find them unchanged would take minutes."""
        result = hashlib.sha256(f"{self.feature} {self.share}".encode())
        for file in self.files:
            result.update(f"{file.name}\0{file.bytes}\0{file.footer}\0".encode("utf-8", "surrogateescape"))
        return result.hexdigest()


def unsuited(schema: pyarrow.Schema, feature: str) -> str:
    """Why files of this schema have no text in the column `feature`; nothing if they have."""
    for name in (feature, ID):
        if schema.names.count(name) > 1:
            return f"column {name} is there {schema.names.count(name)} times"
    texts = [field.name for field in schema if is_text(field.type)]
    if feature in texts:
        return ""
    if feature in schema.names:
        return f"column {feature} is {schema.field(feature).type}, not text"
    return f"no column {feature!r}, its texts are {', '.join(texts) or 'none'}{nearest(feature, texts)}"


def is_text(kind: pyarrow.DataType) -> bool:
    """Whether a column of this type holds strings."""
    if pyarrow.types.is_dictionary(kind):
        kind = kind.value_type
    return pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind) or pyarrow.types.is_string_view(kind)


def damage_of(error: Exception, where: str) -> str:
    """What is wrong with the bytes at `where`, in words. Raises `RunError` if none were had, which is no damage.

    pyarrow says both by an `OSError`; one of the system has a number, one of a bucket the name of the library.
    """
    if isinstance(error, OSError) and (error.errno is not None or "google::cloud" in str(error)):
        raise RunError(f"{where}: {first_line(error)}; the same command goes on from what is finished") from error
    return f"cannot be read ({first_line(error)})"


def first_line(error: BaseException) -> str:
    """What pyarrow says went wrong, in one line."""
    return str(error).strip().partition("\n")[0]
