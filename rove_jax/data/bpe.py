"""GPT-2's byte-pair encoding, computed by tiktoken: from its own cache or download, or from a folder of files."""

import json
from pathlib import Path

import tiktoken
from tiktoken_ext.openai_public import r50k_pat_str

from rove_jax.errors import UsageError

END_OF_TEXT = "<|endoftext|>"


def from_cache() -> tiktoken.Encoding:
    """GPT-2's own encoding, from tiktoken's cache or, the first time, from the network."""
    try:
        return tiktoken.get_encoding("gpt2")
    except (OSError, ValueError) as error:  # every error of the download is an OSError; a damaged one is a ValueError
        raise UsageError(
            f"data.tokenizer = 'gpt2': tiktoken can neither find it in its cache nor download it "
            f"({type(error).__name__}); set data.tokenizer_path to a folder with encoder.json and vocab.bpe, or "
            f"TIKTOKEN_CACHE_DIR to a filled cache"
        ) from error


def from_folder(folder: Path) -> tiktoken.Encoding:
    """The encoding of a folder with `encoder.json` (token to id) and `vocab.bpe` (merges, best first).

    tiktoken has a reader of its own, but it caches what it reads by path, so a file that changed would not be seen.
    """
    try:
        encoder = json.loads((folder / "encoder.json").read_text("utf-8"))
        lines = (folder / "vocab.bpe").read_text("utf-8").splitlines()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(
            f"data.tokenizer_path = {str(folder)!r}: needs GPT-2's encoder.json and vocab.bpe ({reason})"
        ) from error
    merges = [line.split(" ") for line in lines if line and not line.startswith("#version")]
    byte_of = printable_bytes()
    ranks = {bytes([byte]): rank for rank, byte in enumerate(byte_of.values())}
    try:
        for first, second in merges:
            ranks[bytes(byte_of[c] for c in first + second)] = len(ranks)
        eot = encoder[END_OF_TEXT]
        listed = {bytes(byte_of[c] for c in token): id for token, id in encoder.items() if token != END_OF_TEXT}
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"data.tokenizer_path = {str(folder)!r}: no vocabulary in GPT-2's form ({error})") from error
    if ranks != listed or eot != len(ranks):
        raise UsageError(
            f"data.tokenizer_path = {str(folder)!r}: encoder.json and vocab.bpe do not belong together; ids must be "
            f"the 256 bytes, then the {len(merges)} merges in order, then {END_OF_TEXT}"
        )
    return tiktoken.Encoding(
        "gpt2", pat_str=r50k_pat_str, mergeable_ranks=ranks, special_tokens={END_OF_TEXT: eot}, explicit_n_vocab=eot + 1
    )


def printable_bytes() -> dict[str, int]:
    """The character that GPT-2's files write for each byte, in the order of their ids.

    A byte that is a visible Latin-1 character stands for itself; the other 68, in order, are U+0100 onwards.
    """
    visible = [byte for byte in range(256) if chr(byte).isprintable() and chr(byte) != " "]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + n): byte for n, byte in enumerate(hidden)}
