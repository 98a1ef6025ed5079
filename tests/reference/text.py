"""Oracles for the data path: plain loops over Python lists, written from the definitions and not from the code.

And text to try them on."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np


def stream(documents: Sequence[Sequence[int]], eot: int) -> list[int]:
    """All documents one after another, each followed by `eot`."""
    return [token for document in documents for token in [*document, eot]]


def windows(tokens: Sequence[int], length: int) -> list[list[int]]:
    """Every window of `length` + 1 tokens that starts at a multiple of `length` and fits."""
    found = []
    start = 0
    while start + length + 1 <= len(tokens):
        found.append(list(tokens[start : start + length + 1]))
        start += length
    return found


def segments(tokens: Sequence[int], eot: int) -> tuple[list[int], list[int]]:
    """Document number (from 1) and place in it, for every token of one window."""
    ids, positions = [], []
    document, position = 1, 0
    for token in tokens:
        ids.append(document)
        positions.append(position)
        position += 1
        if token == eot:
            document, position = document + 1, 0
    return ids, positions


def byte_pairs(word: bytes, merges: Sequence[tuple[bytes, bytes]]) -> list[bytes]:
    """Byte-pair encoding of one word: while some neighbours form a merge, join the pair whose merge comes first."""
    parts = [bytes([byte]) for byte in word]
    while True:
        pairs = {pair for pair in zip(parts, parts[1:]) if pair in merges}
        if not pairs:
            return parts
        best = min(pairs, key=merges.index)
        joined, index = [], 0
        while index < len(parts):
            if tuple(parts[index : index + 2]) == best:
                joined.append(b"".join(best))
                index += 2
            else:
                joined.append(parts[index])
                index += 1
        parts = joined


def write_books(folder: Path, count: int = 30, seed: int = 0) -> dict[str, str]:
    """Text files of very different sizes, some in a folder below, one empty; returns their text by id."""
    rng = np.random.default_rng(seed)
    texts = {}
    for n in range(count):
        id = f"part/{n:02d}.md" if n % 7 == 3 else f"{n:02d}.txt"
        texts[id] = "".join(rng.choice(list("abc \n\u00e9"), rng.integers(1, 200)))
    texts["empty.txt"] = ""
    for id, text in texts.items():
        (folder / id).parent.mkdir(parents=True, exist_ok=True)
        (folder / id).write_bytes(text.encode())
    (folder / "picture.png").write_bytes(b"\xff\xfe")
    (folder / ".hidden.txt").write_bytes(b"\xff\xfe")
    return texts
