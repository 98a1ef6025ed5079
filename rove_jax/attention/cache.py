"""The key/value cache of one layer, and attention over it."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Float, Int, Integer

from rove_jax.attention.rotary_attention import attend, check_shapes, turned
from rove_jax.attention.visibility import describe
from rove_jax.config import Rotary
from rove_jax.errors import UsageError
from rove_jax.rotary import checked_positions


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Store:
    """Keys and values of one layer, turned by their own positions, so that decoding never turns them again.

    key, value: [B, S, K, H]. positions, segments: int32 [B, S]; segment 0 marks a slot as empty. length: int32 scalar,
    slots written so far.
    """

    key: Array
    value: Array
    positions: Array
    segments: Array
    length: Array


def cached_attention(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B T K H"],
    value: Float[Array, "B T K H"],
    store: Store,
    *,
    rotary: Rotary | None,
    value_rotary: Rotary | None,
    positions: Integer[Array, "..."],
    segments: Int[Array, "B T"],
    window: int | None = None,
    backend: str = "auto",
    turns: str = "qkvo",
) -> tuple[Float[Array, "B T N H"], Store]:
    """Causal `rotary_attention` of T new tokens over a store that they are first written to.

    Writing past the last slot raises `UsageError`; in a traced call, which cannot know, it gives NaN.
    """
    check_shapes(query, key, value)
    (batch, new, *heads), slots = key.shape, store.key.shape[1]
    if store.key.shape != (batch, slots, *heads):
        raise UsageError(f"store of keys {store.key.shape}: new keys are {key.shape}")
    written = 0 if isinstance(store.length, Tracer) else int(store.length)
    if written + new > slots:
        raise UsageError(f"{new} new tokens: the cache has {slots} slots, {written} of them written")
    value = jnp.where(store.length + new > slots, jnp.asarray(jnp.nan, value.dtype), value)
    positions = jnp.broadcast_to(checked_positions(positions), segments.shape)
    key = turned(key, positions, rotary if "k" in turns else None)
    value = turned(value, positions, value_rotary if "v" in turns else None)
    store = Store(
        *(
            jax.lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), store.length, axis=1)
            for old, new in (
                (store.key, key),
                (store.value, value),
                (store.positions, positions),
                (store.segments, segments),
            )
        ),
        length=store.length + positions.shape[1],
    )
    visibility = describe(
        (batch, new, slots),
        is_causal=True,
        window=window,
        contiguous=False,
        query_positions=positions,
        key_positions=store.positions,
        segments=(segments, store.segments),
    )
    cached = (store.key.astype(query.dtype), store.value.astype(query.dtype))
    return attend(query, *cached, positions, None, visibility, rotary, value_rotary, backend, turns), store
