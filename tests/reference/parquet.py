"""Parquet files to try things on, and what they are to be prepared into, by plain loops over the rows."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
from reference import text as oracle

Row = tuple[str, Any]
Groups = dict[str, list[list[Row]]]
"""Per file the rows (id, text) of each of its row groups."""


def write(folder: Path, files: int = 3, groups: int = 3, rows: int = 12, seed: int = 0) -> Groups:
    """Files `0.parquet`, `1.parquet`, ... of texts of very different sizes, one of them empty."""
    rng = np.random.default_rng(seed)
    found: Groups = {}
    for file in range(files):
        found[f"{file}.parquet"] = [
            [(f"<{seed}-{file}-{group}-{row}>", text(rng)) for row in range(rows)] for group in range(groups)
        ]
    found["0.parquet"][0][3] = (found["0.parquet"][0][3][0], "")
    for name, content in found.items():
        write_file(folder / name, content)
    return found


def text(rng: np.random.Generator) -> str:
    return "".join(rng.choice(list("abcdefgh \n\u00e9"), int(rng.integers(1, 120))))


def write_file(path: Path, groups: list[list[Row]], kind: Any = None) -> None:
    """One file with the columns id, text and a number. kind: the type of the texts."""
    kind = kind or pyarrow.string()
    schema = pyarrow.schema([("id", pyarrow.string()), ("text", kind), ("score", pyarrow.float64())])
    path.parent.mkdir(parents=True, exist_ok=True)
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        for rows in groups:
            columns = [[id for id, _ in rows], [text for _, text in rows], [0.5] * len(rows)]
            writer.write_table(pyarrow.table(columns, schema=schema), row_group_size=max(len(rows), 1))


def side(id: str, share: float) -> str:
    """Which side a document is on: the first 16 hex digits of the hash of its id as a fraction of the largest."""
    return "validation" if int(hashlib.sha256(id.encode()).hexdigest()[:16], 16) < share * 16**16 else "train"


def expected(
    groups: Groups, split: str, length: int, share: float, whole: Callable[[int], bool]
) -> tuple[list[list[int]], list[tuple[str, str]]]:
    """Windows and whole documents (id, text) of a split: row groups in order, each packed on its own, as bytes."""
    windows, documents = [], []
    for file in sorted(groups):
        for rows in groups[file]:
            mine = [(id, text) for id, text in rows if isinstance(text, str) and text and side(id, share) == split]
            tokens = oracle.stream([list(text.encode()) for _, text in mine], 256)
            windows += oracle.windows(tokens, length)
            documents += [(id, text) for id, text in mine if split == "validation" or whole(len(text.encode()))]
    return windows, documents
