"""Which keys a query may see: one description for every backend, and the mask it spells out."""

from dataclasses import dataclass, replace

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from rove_jax.errors import UsageError


@dataclass(frozen=True)
class Visibility:
    """Query t sees key s if they share a segment other than 0, s is not later (causal), and s is within the window.

    Without positions the index is the position. `aligned` says, statically, that T = S and that index order is
    position order with steps of one inside every segment, so that a kernel's own causal mask is the right one.
    """

    causal: bool
    window: int | None
    """Causal: the latest `window` positions, the query's own included. Otherwise as many on either side."""
    aligned: bool
    query_positions: Int[Array, "*B T"] | None = None
    key_positions: Int[Array, "*B S"] | None = None
    query_segments: Int[Array, "B T"] | None = None
    key_segments: Int[Array, "B S"] | None = None
    given: Bool[Array, "#B #N T S"] | None = None
    """A mask of the caller's own, on top of all else."""

    @property
    def fused(self) -> bool:
        """Whether causality and window, by index, are all there is, so that a kernel can mask by itself."""
        return self.aligned and self.query_segments is None and self.given is None

    def cut(self, queries: slice, keys: slice) -> "Visibility":
        """The part for a range of queries and a range of keys, no longer aligned: positions are spelled out."""
        assert self.query_positions is not None and self.key_positions is not None
        return replace(
            self,
            aligned=False,
            query_positions=self.query_positions[..., queries],
            key_positions=self.key_positions[..., keys],
            query_segments=None if self.query_segments is None else self.query_segments[:, queries],
            key_segments=None if self.key_segments is None else self.key_segments[:, keys],
            given=None if self.given is None else self.given[:, :, queries, keys],
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
            same = self.query_segments[:, None, :, None] == self.key_segments[:, None, None, :]
            seen = seen & same & (self.key_segments != 0)[:, None, None, :]
        return seen if self.given is None else seen & self.given


def describe(
    shape_bts: tuple[int, int, int],
    *,
    is_causal: bool,
    window: int | None,
    contiguous: bool,
    query_positions: Int[Array, "..."] | None,
    key_positions: Int[Array, "..."] | None,
    segments: Int[Array, "B T"] | tuple[Int[Array, "B T"], Int[Array, "B S"]] | None,
) -> Visibility:
    """The `Visibility` of a call with B rows, T queries and S keys; raises `UsageError` if its parts disagree."""
    batch, queries, keys = shape_bts
    if window is not None and window < 1:
        raise UsageError(f"window = {window}: must be at least 1")
    if query_positions is None and key_positions is None:
        if queries != keys:
            raise UsageError(f"{queries} queries and {keys} keys: give query_positions and key_positions")
        contiguous = True
    elif query_positions is None or (key_positions is None and queries != keys):
        raise UsageError("give query_positions and key_positions together")
    elif key_positions is None:
        key_positions = query_positions
    if contiguous and queries != keys:
        raise UsageError(f"contiguous positions need as many queries as keys, not {queries} and {keys}")
    for name, array, length in (("query_positions", query_positions, queries), ("key_positions", key_positions, keys)):
        if array is not None and array.shape not in ((length,), (batch, length)):
            raise UsageError(f"{name} of shape {array.shape}: must be {(length,)} or {(batch, length)}")
    if segments is not None and not isinstance(segments, tuple):
        if queries != keys:
            raise UsageError(f"{queries} queries and {keys} keys: give segments as (query segments, key segments)")
        segments = (segments, segments)
    for array, length in zip(segments or (), (queries, keys), strict=False):
        if array.shape != (batch, length):
            raise UsageError(f"segments of shape {array.shape}: must be {(batch, length)}")
    return Visibility(is_causal, window, contiguous, query_positions, key_positions, *(segments or (None, None)))
