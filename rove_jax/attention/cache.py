"""The key/value cache, of one layer or of all layers of a model, and attention over it."""

import functools
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Float, Int, Integer, Shaped

from rove_jax.attention.rotary_attention import attend, check_shapes, check_turns, turned
from rove_jax.attention.visibility import check_segments, describe
from rove_jax.config import Rotary
from rove_jax.errors import UsageError
from rove_jax.rotary import MAX_POSITION, checked_positions


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("key", "value", "positions", "segments", "length", "lost", "layer"),
    meta_fields=("rotary", "value_rotary", "turns"),
)
@dataclass(frozen=True)
class Store:
    """Keys and values, turned by their own positions when written, so that decoding never turns them again.

    A pytree: scan, vmap, donation and a permutation of rows work as for any other. To forget tokens, set their
    `segments` to 0, or see `keep`.
    """

    # Arrays; as leaves of a pytree they may be anything in passing, so their types are not checked.
    key: Any
    """[B, S, K, H], or [L, B, S, K, H] for all layers of a model; any float dtype, which attention casts to its own."""
    value: Any
    positions: Any
    """int32 [B, S], of the tokens in the slots; the same in all layers."""
    segments: Any
    """int32 [B, S]; a token sees its own segment only, and 0 marks an empty slot."""
    length: Any
    """int32 scalar: how many tokens, padding included, were written so far. The next goes to slot length mod S."""
    lost: Any
    """bool [B]: a traced write had no room in this row. All that comes out of the row from then on is NaN."""
    rotary: Rotary | None
    """What keys were turned by, as `rotary`, `value_rotary` and `turns` of `rotary_attention` say it."""
    value_rotary: Rotary | None
    turns: str = "qkvo"
    layer: Any = None
    """int32 scalar, set by a model in the course of a forward pass: the layer that this is, in a store of all of them
    in which the new tokens' positions are noted already."""

    @staticmethod
    def empty(
        shape: tuple[int, ...],
        dtype: Any,
        *,
        rotary: Rotary | None,
        value_rotary: Rotary | None,
        turns: str = "qkvo",
    ) -> "Store":
        """A store of keys and values of `shape`, [B, S, K, H] or [L, B, S, K, H], with nothing in it."""
        check_turns(turns, rotary, value_rotary)
        if len(shape) not in (4, 5) or not all(isinstance(size, int) and size >= 0 for size in shape):
            raise UsageError(f"shape = {shape}: must be whole numbers [B, S, K, H], or [L, B, S, K, H]")
        try:
            floats = jnp.issubdtype(jnp.dtype(dtype), jnp.floating)
        except TypeError as error:
            raise UsageError(f"dtype = {dtype!r}: no such type") from error
        if not floats:
            raise UsageError(f"dtype = {dtype}: a cache holds floats")
        batch, slots = shape[-4:-2]

        def zeros(shape: tuple[int, ...], dtype: Any) -> Array:
            # A buffer each, or a caller could not donate the store.
            return jnp.zeros(shape, dtype)

        return Store(
            key=zeros(shape, dtype),
            value=zeros(shape, dtype),
            positions=zeros((batch, slots), "int32"),
            segments=zeros((batch, slots), "int32"),
            length=zeros((), "int32"),
            lost=zeros((batch,), "bool"),
            rotary=rotary,
            value_rotary=value_rotary,
            turns=turns,
        )

    @property
    def rotations(self) -> tuple[Rotary | None, Rotary | None]:
        """(what the stored keys are turned by, what the stored values are), None where they are not."""
        return self.rotary if "k" in self.turns else None, self.value_rotary if "v" in self.turns else None


def cached_attention(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B T K H"],
    value: Float[Array, "B T K H"],
    store: Store,
    *,
    rotary: Rotary | None,
    value_rotary: Rotary | None,
    positions: Integer[Array, "..."] | None,
    segments: Shaped[Array, "..."] | None,
    window: int | None = None,
    backend: str = "auto",
    turns: str = "qkvo",
) -> tuple[Float[Array, "B T N H"], Store]:
    """Causal `rotary_attention` of T new tokens over a store that they are first written to.

    Costs what attention over all S slots costs, written or not, and the rotation of the new tokens. A donated store is
    written in place (16-bit ones on a CPU with jax 0.10.2: in place, but passing over the whole array).

    With a `window` W the store is a ring: writes wrap around, and W - 1 + T slots hold any number of tokens, T being
    the most that are written at once (each of them must find the W - 1 before it). Padding between the tokens of a row
    overwrites nothing but takes as many slots more.

    Args:
      query, key, value: of the new tokens, before rotation.
      positions: int32 [T] or [B, T], of the new tokens; any, in any order. In a ring, those of a segment rise.
      segments: 0 is padding, which sees nothing and is seen by none.
      window, backend, turns: as in `rotary_attention`.

    Raises:
      UsageError: no position for each key, another rotation than the store's (`retable` changes it), or no room: a
        write past the last slot or, in a ring, over a token that is still to be seen. A traced call cannot know of the
        latter; the row then gives NaN, from that call on.
    """
    check_shapes(query, key, value)
    if segments is None:
        raise UsageError("segments = None: a cache needs them, int32 [B, T]; 1 for each token, 0 for padding")
    check_segments(segments, key.shape[:2])
    slots = store.positions.shape[1]
    if store.key.shape[0 if store.layer is None else 1 :] != (key.shape[0], slots, *key.shape[2:]):
        raise UsageError(f"store of keys {store.key.shape}: new keys are {key.shape}")
    asked = {"rotary": rotary, "value_rotary": value_rotary, "turns": turns}
    for name, ours in asked.items():
        if ours != getattr(store, name):
            what, given, written_with = difference(name, ours, getattr(store, name))
            raise UsageError(f"{what} = {given!r}: the cache was written with {written_with!r}; see retable")
    if store.layer is None:
        store = noted(store, positions, segments, window)
    positions = required(positions, segments.shape)
    by_key, by_value = store.rotations
    store = replace(
        store,
        key=written(store, store.key, turned(key, positions, by_key), segments, window),
        value=written(store, store.value, turned(value, positions, by_value), segments, window),
    )
    visibility = describe(
        (query.shape[0], query.shape[1], slots),
        is_causal=True,
        window=window,
        contiguous=False,
        query_positions=positions,
        key_positions=store.positions,
        segments=(segments, store.segments),
    )
    keys, values = (
        (x if store.layer is None else jax.lax.dynamic_index_in_dim(x, store.layer, keepdims=False)).astype(query.dtype)
        for x in (store.key, store.value)
    )
    out = attend(query, keys, values, positions, None, visibility, rotary, value_rotary, backend, turns)
    return jnp.where(store.lost[:, None, None, None], jnp.asarray(jnp.nan, out.dtype), out), store


def noted(
    store: Store, positions: Integer[Array, "..."] | None, segments: Int[Array, "B T"], window: int | None
) -> Store:
    """The store with positions and segments of T new tokens; their keys and values are `written` layer by layer.

    Raises `UsageError`, or in a traced call sets `lost`, where there is no room.
    """
    positions = required(positions, segments.shape)
    new, slots = segments.shape[1], store.positions.shape[1]
    if new > slots:
        raise UsageError(f"{new} new tokens: the cache has {slots} slots")
    store = replace(store, length=store.length + new)
    if window is None:
        lost = store.lost | (store.length > slots)
        room = f"the cache has {slots} slots"
    else:
        latest = (store.length - new + jnp.arange(new)) % slots
        there, what = (jnp.take(x, latest, axis=1) for x in (store.positions, store.segments))
        # A token about to be overwritten, against each new one: would that have seen it? (In int32.)
        oldest = positions[:, None] - min(window, 2 * MAX_POSITION)
        seen = (what[:, :, None] == segments[:, None]) & (there[:, :, None] > oldest)
        lost = store.lost | (seen & (segments != 0)[:, None]).any((1, 2))
        room = f"with a window of {window} they need {window} - 1 + {new} slots, the cache has {slots}"
    if not isinstance(lost, Tracer) and lost.any():
        raise UsageError(f"{new} new tokens: {room}, {int(store.length) - new} of them written")
    old = (store.positions, store.segments)
    there, what = (written(store, x, y, segments, window) for x, y in zip(old, (positions, segments), strict=True))
    return replace(store, positions=there, segments=what, lost=lost)


def written(store: Store, into: Array, new: Array, segments: Int[Array, "B T"], window: int | None) -> Array:
    """`into` [B, S, ...], or with a leading L that `store.layer` indexes, with `new` [B, T, ...] in the latest slots.

    Only as many slots are touched, so that a compiler can write in place.
    """
    stacked = into.ndim > new.ndim
    layer = store.layer if stacked else 0
    whole, new = into if stacked else into[None], new.astype(into.dtype)[None]
    count, slots = segments.shape[1], store.positions.shape[1]
    first = store.length - count
    if window is None:
        starts = [first]
    else:
        first %= slots
        # Up to the last slot, and where that is not all, from slot 0 on.
        starts = [jnp.minimum(first, slots - count), 0] if count > 1 else [first]
    for start in starts:
        place = [jnp.int32(at) for at in (layer, 0, start, *(0,) * (new.ndim - 3))]  # one type, under x64 too
        update = new
        if window is not None:
            which = (start + jnp.arange(count) - first) % slots  # the new token that belongs in each slot
            here = which < count
            which = jnp.where(here, which, 0)
            here = here[None] & (segments[:, which] != 0)
            before = jax.lax.dynamic_slice(whole, place, new.shape)
            here = here.reshape(1, *here.shape, *(1,) * (new.ndim - 3))
            update = jnp.where(here, new[:, :, which], before)
        whole = jax.lax.dynamic_update_slice(whole, update, place)
    return whole if stacked else whole[0]


def difference(name: str, ours: Any, theirs: Any) -> tuple[str, Any, Any]:
    """(name, value, value) of the first field in which two unequal settings differ; the whole if no records."""
    if is_dataclass(ours) and type(ours) is type(theirs):
        pairs = ((f.name, getattr(ours, f.name), getattr(theirs, f.name)) for f in fields(ours))
        field, our, their = next(pair for pair in pairs if pair[1] != pair[2])
        return difference(f"{name}.{field}", our, their)
    return name, ours, theirs


def required(positions: Integer[Array, "..."] | None, shape: tuple[int, ...]) -> Int[Array, "B T"]:
    """`positions`, [T] or [B, T], as int32 of `shape`; raises `UsageError` if there are none, or others."""
    if positions is None:
        raise UsageError(
            "positions = None: every key needs one; a value without, turned back by its query's position, would show "
            "the absolute position. Give prefix or null tokens positions, such as those before the text's first"
        )
    positions = checked_positions(positions)
    if positions.shape not in (shape[1:], shape):
        raise UsageError(f"positions of shape {positions.shape}: must be {shape[1:]} or {shape}")
    return jnp.broadcast_to(positions, shape)
