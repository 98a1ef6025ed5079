"""The prepared data that a recipe asks for: opened where they lie, or a small source prepared into the cache."""

from rove_jax import storage
from rove_jax.config import Data
from rove_jax.data import build, documents, mixture, prepared, sources, tokenizers
from rove_jax.data.documents import Source
from rove_jax.data.fetch import cache_folder
from rove_jax.data.prepared import MANIFEST, Prepared
from rove_jax.errors import UsageError

SMALL = 2**28
"""Bytes of text up to which a source is prepared without being asked: seconds, not hours."""


def ensure(data: Data, *, progress: bool = False) -> Prepared:
    """The prepared data that `data` asks for: the folder `data.prepared`, those of `data.mixture`, or one in the cache,
    made now if need be.

    The cache is keyed by the content of the source, the tokenizer's identity, the context length and the format, so a
    changed text is prepared anew. Any number of processes may call this at once: one prepares, the others wait.
    progress: show a bar on stderr. Raises `UsageError` (missing, damaged or too large) or `RunError` (disk full).
    """
    found = named(data)
    if found is not None:
        return found
    source, tokenizer = small_source(data), tokenizers.load(data)
    key = build.identify(source, tokenizer, data.context_length)
    folder = cache_folder(data) / f"{source.name}-{data.tokenizer}-{data.context_length}-{key}"
    if not (folder / MANIFEST).is_file():
        build.dataset(source, data, folder, key=key, progress=progress)
    return prepared.load(folder, data)


def named(data: Data) -> Prepared | None:
    """The prepared data whose folder or folders `data` names, opened; None if it names none."""
    if data.mixture:
        return mixture.load(data)
    return prepared.load(storage.place(data.prepared), data) if data.prepared is not None else None


def check(data: Data) -> None:
    """Raise the `UsageError` that `ensure` would raise for data that are not there. Makes nothing and reads little."""
    if named(data) is None:
        small_source(data)


def small_source(data: Data) -> Source:
    """The source that `data` names. Raises `UsageError` if it is not there, or too large to prepare unasked."""
    source = sources.load(data)
    size = documents.size(source)
    if size > SMALL:
        raise UsageError(
            f"data.source = {data.source!r}: {size / 1e6:,.0f} MB is too much to prepare on the way; "
            f"run {prepared.command(data, 'DIR')}, then set data.prepared to DIR"
        )
    return source
