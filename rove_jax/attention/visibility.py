"""Which keys a query may see: one description for every backend, and the mask it spells out."""

import functools
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Int, Integer

from rove_jax.errors import UsageError
from rove_jax.rotary import MAX_POSITION, checked_positions

Index = Array | int


@functools.partial(
    jax.tree_util.register_dataclass,
    meta_fields=("causal", "window", "aligned"),
    data_fields=("query_positions", "key_positions", "query_segments", "key_segments", "query_prefixes", "given"),
)
@dataclass(frozen=True)
class Visibility:
    """Query t sees key s if they share a segment other than 0, or s is of the segment that t's continues (its prefix);
    s is not later (causal), and within the window.

    Without positions the index is the position. `aligned` says, statically, that T = S and that index order is
    position order with steps of one inside every segment, so that a kernel's own causal mask is the right one.
    """

    causal: bool
    window: int | None
    """Causal: the latest `window` positions, the query's own included. Otherwise as many on either side."""
    aligned: bool
    # Arrays or None. As leaves of a pytree they may be anything in passing, so their types are not checked.
    query_positions: Any = None
    """int32 [T] or [B, T]."""
    key_positions: Any = None
    """int32 [S] or [B, S]."""
    query_segments: Any = None
    """int32 [B, T]."""
    key_segments: Any = None
    """int32 [B, S]."""
    query_prefixes: Any = None
    """int32 [B, T]: a segment that each query sees besides its own; 0: none."""
    given: Any = None
    """A mask of the caller's own on top of all else: bool [1 or B, 1 or N, T, S]."""

    @property
    def fused(self) -> bool:
        """Whether causality and window, by index, are all there is, so that a kernel can mask by itself."""
        return self.aligned and self.query_segments is None and self.given is None

    def cut(self, query: Index, queries: int, key: Index, keys: int) -> "Visibility":
        """The part for `queries` queries from `query` on and `keys` keys from `key` on; past the end, anything.

        Positions must be spelled out.
        """

        def part(x: Array | None, start: Index, size: int, axis: int = -1) -> Array | None:
            if x is None:
                return None
            spare = [(0, 0)] * x.ndim
            spare[axis] = (0, -x.shape[axis] % size)
            return jax.lax.dynamic_slice_in_dim(jnp.pad(x, spare), start, size, axis)

        return replace(
            self,
            aligned=False,
            query_positions=part(self.query_positions, query, queries),
            key_positions=part(self.key_positions, key, keys),
            query_segments=part(self.query_segments, query, queries),
            key_segments=part(self.key_segments, key, keys),
            query_prefixes=part(self.query_prefixes, query, queries),
            given=part(part(self.given, query, queries, -2), key, keys),
        )

    def spelled_out(self, queries: int, keys: int) -> "Visibility":
        """The same with positions given: the indices, where alignment makes them as good."""
        if not self.aligned:
            return self
        # Aligned positions restart only where segments change, so indices order the keys of a segment just as well.
        return replace(self, query_positions=jnp.arange(queries), key_positions=jnp.arange(keys))

    def mask(self) -> Bool[Array, "#B #N T S"]:
        """True where the key is seen. Positions must be spelled out."""
        assert self.query_positions is not None and self.key_positions is not None
        ages = self.query_positions[..., :, None] - self.key_positions[..., None, :]
        ages = (ages if ages.ndim == 3 else ages[None])[:, None]
        seen = ages >= 0 if self.causal else jnp.ones(ages.shape, bool)
        if self.window is not None:
            seen &= ages < self.window if self.causal else jnp.abs(ages) < self.window
        if self.query_segments is not None and self.key_segments is not None:
            of_keys = self.key_segments[:, None, None, :]
            same = self.query_segments[:, None, :, None] == of_keys
            if self.query_prefixes is not None:
                same |= self.query_prefixes[:, None, :, None] == of_keys
            seen = seen & same & (of_keys != 0)
        return seen if self.given is None else seen & self.given


def check_window(window: int | None) -> None:
    """Raise `UsageError` unless it is a number of positions, or None."""
    if window is not None and (isinstance(window, bool) or not isinstance(window, int | np.integer) or window < 1):
        raise UsageError(f"window = {window!r}: must be a whole number, at least 1")


def check_segments(segments: Array, shape: tuple[int, ...], name: str = "segments") -> None:
    """Raise `UsageError` unless they are an array of integers of `shape` [B, T]."""
    if not hasattr(segments, "dtype"):
        raise UsageError(f"{name} of type {type(segments).__name__}: must be an array, int32 {shape}")
    if not jnp.issubdtype(segments.dtype, jnp.integer):
        raise UsageError(f"{name} of dtype {segments.dtype}: must be integers")
    if segments.shape != shape:
        raise UsageError(f"{name} of shape {segments.shape}: must be {shape}")


def check_contiguous(positions: Array, segments: tuple[Array, Array] | None) -> None:
    """Raise `UsageError` if positions that are known, not traced, do not rise by one inside each segment."""
    ids = None if segments is None else segments[0]
    if isinstance(positions, Tracer) or isinstance(ids, Tracer):
        return
    offsets = np.atleast_2d(positions) - np.arange(positions.shape[-1])
    ids = np.ones_like(offsets) if ids is None else np.asarray(ids)
    for row, offset in zip(ids, np.broadcast_to(offsets, ids.shape)):
        # Sorted by segment, neighbours of one segment must lie equally far from their indices.
        order = np.argsort(row, kind="stable")
        row, offset = row[order], offset[order]
        if ((np.diff(row) == 0) & (np.diff(offset) != 0) & (row[1:] != 0)).any():
            raise UsageError("contiguous: positions do not rise by one from index to index inside each segment")


def check_prefixes(prefixes: Array, segments: Any, shape: tuple[int, int, int], window: int | None) -> None:
    """Raise `UsageError` unless self-attention in segments, without a window, can see prefixes as well.

    Where both are known: a prefix stands left of what continues it.
    """
    batch, queries, keys = shape
    if segments is None or isinstance(segments, tuple) or queries != keys or window is not None:
        raise UsageError("prefixes: need one array of segments, for queries and keys alike, and no window")
    check_segments(prefixes, (batch, queries), "prefixes")
    if isinstance(prefixes, Tracer) or isinstance(segments, Tracer):
        return
    own, seen, index = np.asarray(segments), np.asarray(prefixes), np.arange(queries)
    late = (own[:, None, :] == seen[:, :, None]) & (own != seen)[:, :, None] & (index[None, :] > index[:, None])
    if (late & (seen != 0)[:, :, None]).any():
        raise UsageError("prefixes: a segment must stand left of those that continue it")


def describe(
    shape_bts: tuple[int, int, int],
    *,
    is_causal: bool,
    window: int | None,
    contiguous: bool,
    query_positions: Integer[Array, "..."] | None,
    key_positions: Integer[Array, "..."] | None,
    segments: Int[Array, "B T"] | tuple[Int[Array, "B T"], Int[Array, "B S"]] | None,
    prefixes: Int[Array, "B T"] | None = None,
) -> Visibility:
    """The `Visibility` of a call with B rows, T queries and S keys; raises `UsageError` if its parts disagree."""
    batch, queries, keys = shape_bts
    check_window(window)
    if window is not None and window > 2 * MAX_POSITION:
        window = None  # no two positions are that far apart, and kernels count in int32
    if query_positions is None and key_positions is None:
        if queries != keys:
            raise UsageError(f"{queries} queries and {keys} keys: give query_positions and key_positions")
        contiguous = True
    elif query_positions is None or (key_positions is None and queries != keys):
        raise UsageError("give query_positions and key_positions together")
    elif key_positions is None:
        key_positions = query_positions
    elif contiguous and query_positions is not key_positions:
        raise UsageError("contiguous: queries and keys have the same positions then; leave key_positions out")
    # int32 from here on: differences of unsigned or of narrow positions would wrap around, and later keys be seen.
    query_positions, key_positions = (
        None if p is None else checked_positions(p) for p in (query_positions, key_positions)
    )
    for name, array, length in (("query_positions", query_positions, queries), ("key_positions", key_positions, keys)):
        if array is not None and array.shape not in ((length,), (batch, length)):
            raise UsageError(f"{name} of shape {array.shape}: must be {(length,)} or {(batch, length)}")
    if prefixes is not None:
        check_prefixes(prefixes, segments, shape_bts, window)
    if segments is not None and not isinstance(segments, tuple):
        if queries != keys:
            raise UsageError(f"{queries} queries and {keys} keys: give segments as (query segments, key segments)")
        segments = (segments, segments)
    if segments is not None and len(segments) != 2:
        raise UsageError(f"{len(segments)} arrays of segments: give one, or (query segments, key segments)")
    for array, length in zip(segments or (), (queries, keys)):
        check_segments(array, (batch, length))
    if contiguous and query_positions is not None:
        check_contiguous(query_positions, segments)
    ids = segments or (None, None)
    return Visibility(is_causal, window, contiguous, query_positions, key_positions, *ids, prefixes)
