"""Text to token ids and back: raw bytes, which need no files, and GPT-2's byte-pair encoding."""

import hashlib
import itertools
import re
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rove_jax.config import Data
from rove_jax.errors import UsageError

PROBE = "It's 1790:\tthe  State's\r\n\n   of the Union -- 12,345 words; caf\u00e9 \u65e5\u672c \U0001f54a  \n"
"""Text in which every rule of GPT-2's pre-tokenizer applies; two tokenizers that split it alike split alike."""

LONG_SPACE = 100_000
"""Spaces in a row over which text is cut: of several hundred thousand before a word tiktoken 0.14 panics."""
SPACE = r"[^\S\x1c-\x1f]"
"""What is space in tiktoken's patterns: not quite what it is to Python."""


class Tokenizer(Protocol):
    """What the rest of the project knows of a tokenizer."""

    name: str
    vocab: int
    """How many ids there are, `eot` included."""
    eot: int
    """The id that ends every document. No text encodes to it, and it decodes to nothing."""
    identity: str
    """SHA-256 of everything that decides which ids a text becomes; equal identities encode equally."""

    def encode(self, text: str) -> np.ndarray:
        """The ids of `text`, int32 [T]; any text has some, and what looks like a special token is plain text."""
        ...

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes behind `ids`. Raises `UsageError` for an id that does not exist."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """The text behind `ids`; bytes that are no UTF-8 (a character cut in two) become U+FFFD."""
        ...


class ByteTokenizer:
    """The UTF-8 bytes of a text are its ids, 0 to 255; 256 ends a document."""

    name = "bytes"
    vocab = 257
    eot = 256
    identity = hashlib.sha256(b"utf-8 bytes 0..255, end of text 256").hexdigest()

    def encode(self, text: str) -> np.ndarray:
        # Lone surrogates are the only text that UTF-8 cannot hold; they become question marks.
        return np.frombuffer(text.encode("utf-8", "replace"), np.uint8).astype(np.int32)

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        ids = checked(ids, self.vocab)
        return ids[ids != self.eot].astype(np.uint8).tobytes()

    def decode(self, ids: Iterable[int]) -> str:
        return self.decode_bytes(ids).decode("utf-8", "replace")


class BytePairTokenizer:
    """A byte-pair encoding in GPT-2's form, computed by tiktoken (Radford et al. 2019, "Language Models are
    Unsupervised Multitask Learners", section 2.2). `encoding`: a `tiktoken.Encoding` from `bpe`."""

    name = "gpt2"

    def __init__(self, encoding: Any) -> None:
        self.encoding = encoding
        self.vocab = encoding.n_vocab
        self.eot = encoding.eot_token
        digest = hashlib.sha256()
        for id in range(self.vocab):
            token = encoding.decode_single_token_bytes(id)
            digest.update(struct.pack("<I", len(token)) + token)
        digest.update(self.encode(PROBE).astype("<i4").tobytes())
        self.identity = digest.hexdigest()

    def encode(self, text: str) -> np.ndarray:
        parts = cut(text, LONG_SPACE) if len(text) > LONG_SPACE else [text]
        return np.concatenate([np.asarray(self.encoding.encode_ordinary(part), np.int32) for part in parts])

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        ids = checked(ids, self.vocab)
        return self.encoding.decode_bytes(ids[ids != self.eot].tolist())

    def decode(self, ids: Iterable[int]) -> str:
        return self.decode_bytes(ids).decode("utf-8", "replace")


def load(data: Data) -> Tokenizer:
    """The tokenizer that `data` names. Raises `UsageError`, one line, if its files cannot be had."""
    if data.tokenizer == "bytes":
        return ByteTokenizer()
    try:
        from rove_jax.data import bpe  # tiktoken is an optional dependency
    except ModuleNotFoundError as error:
        raise UsageError(
            "data.tokenizer = 'gpt2': needs the package tiktoken; pip install tiktoken, or use the tokenizer 'bytes'"
        ) from error
    if data.tokenizer_path is None:
        return BytePairTokenizer(bpe.from_cache())
    return BytePairTokenizer(bpe.from_folder(Path(data.tokenizer_path).expanduser()))


def cut(text: str, least: int) -> list[str]:
    """`text` in parts, cut before the last of more than `least` spaces in a row that something else follows.

    GPT-2's pattern splits text there as well, since that last one goes with the word, so tokens stay the same.
    """
    spaces = re.finditer(rf"(?<!{SPACE}){SPACE}{{{least},}}(?={SPACE}(?!{SPACE}).)", text, re.DOTALL)
    places = [0, *(match.end() for match in spaces), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(places)]


def checked(ids: Iterable[int], vocab: int) -> np.ndarray:
    """`ids` as an int64 array. Raises `UsageError` naming the first that is outside [0, vocab)."""
    array = np.asarray(ids if isinstance(ids, np.ndarray) else list(ids), np.int64).reshape(-1)
    wrong = array[(array < 0) | (array >= vocab)]
    if wrong.size:
        raise UsageError(f"token {wrong[0]}: no such id; the tokenizer has 0 to {vocab - 1}")
    return array
