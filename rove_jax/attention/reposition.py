"""What is done to a cache besides writing: tokens dropped, joined, moved to other positions or other frequencies.

Keys and values are stored turned by R_p, so moving a token is one more rotation of both. Within a layer the result is
what writing the token there would have given. In a model's deeper layers, keys and values were computed from what the
token saw when it was read, and moving it does not change that.

Arrays that do not change are shared with the cache given: donate one of the two only where the other is done with.
"""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Array, Int

from rove_jax.attention.cache import Store, difference
from rove_jax.attention.rotary_attention import check_turns, turned
from rove_jax.config import Rotary
from rove_jax.errors import UsageError
from rove_jax.rotary import checked_positions


def reposition(cache: Store, old: ArrayLike, new: ArrayLike) -> Store:
    """The cache with each token moved by new - old: keys and values turned by R_(new - old), positions changed.

    Args:
      cache: of one layer, or of all layers of a model.
      old, new: integers, int32 [S], or [B, S]. Only the difference counts: `reposition(cache, 0, 100)` moves every
        token by 100, `reposition(cache, cache.positions, new)` moves each to its place in `new`.

    Float32 is within 1e-6 of having been written at the new positions; bfloat16 is rounded once. For eviction in the
    manner of StreamingLLM (arXiv 2309.17453), `keep` the sinks and the latest tokens and number them anew.

    Raises:
      UsageError: wrong shapes, or, where it is known, a token that ends up beyond +-2^20.
    """
    slots = cache.positions.shape
    moves = []
    for name, given in (("old", old), ("new", new)):
        given = checked_positions(given if isinstance(given, jax.Array) else np.asarray(given))
        if given.shape not in ((), slots[1:], slots):
            raise UsageError(f"{name} of shape {given.shape}: must be one number, {slots[1:]} or {slots}")
        moves.append(jnp.broadcast_to(given, slots))
    # An empty slot stays where it is, so that it never ends up out of range.
    positions = checked_positions(cache.positions + jnp.where(cache.segments == 0, 0, moves[1] - moves[0]))
    return replace(moved(cache, positions, *cache.rotations), positions=positions)


def retable(cache: Store, rotary: Rotary | None, value_rotary: Rotary | None) -> Store:
    """The cache as if written by a model with these rotations, which may differ from its own in `scaling` only.

    Keys and values of a token at position j are turned by j times the difference of the frequencies. For a model,
    `retable(cache, *cfg.rotations)`. YaRN's temperature is no part of a cache: it is in the logits of every call.

    Raises:
      UsageError: a rotation that differs in more than its scaling.
    """
    check_turns(cache.turns, rotary, value_rotary)
    for name, given in (("rotary", rotary), ("value_rotary", value_rotary)):
        own = getattr(cache, name)
        if own != given and (own is None or given is None or replace(given, scaling=own.scaling) != own):
            what, new, old = difference(name, given, own)
            raise UsageError(f"{what} = {new!r}: the cache has {old!r}; only scaling may change")
    new = replace(cache, rotary=rotary, value_rotary=value_rotary)
    stored = moved(cache, cache.positions, *new.rotations)
    return replace(new, key=stored.key, value=stored.value)


def keep(cache: Store, slots: Int[Array, "..."]) -> Store:
    """The cache with the tokens of `slots`, int32 [n] or [B, n], alone, in that order in its first n slots.

    Positions stay as they are; `reposition` changes them. Traced `slots` are the caller's to keep distinct and
    in range.
    """
    batch, count = cache.positions.shape
    slots = slots if isinstance(slots, jax.Array) else jnp.asarray(slots)
    if not jnp.issubdtype(slots.dtype, jnp.integer):
        raise UsageError(f"slots of dtype {slots.dtype}: must be integers")
    if slots.shape[-1] > count or slots.shape[:-1] not in ((), (batch,)):
        raise UsageError(f"slots of shape {slots.shape}: must be [n] or {(batch, 'n')}, n at most {count}")
    if not isinstance(slots, Tracer):
        found = np.sort(slots, -1)
        if found.size and (found.min() < 0 or found.max() >= count or (np.diff(found) == 0).any()):
            raise UsageError(f"slots = {np.asarray(slots).tolist()}: must be distinct, from 0 to {count - 1}")
    kept = jnp.broadcast_to(slots, (batch, slots.shape[-1]))

    def chosen(x: Array) -> Array:
        """[B, S, ...] with the slots kept in front."""
        front = jnp.take_along_axis(x, kept.reshape(*kept.shape, *(1,) * (x.ndim - 2)), axis=1)
        return jnp.zeros_like(x).at[:, : kept.shape[1]].set(front)

    every = jax.vmap(chosen) if cache.key.ndim == 5 else chosen
    return replace(
        cache,
        key=every(cache.key),
        value=every(cache.value),
        positions=chosen(cache.positions),
        segments=chosen(cache.segments),
        length=jnp.full_like(cache.length, kept.shape[1]),
    )


def joined(*caches: Store) -> Store:
    """The tokens of several caches in one, slots after slots: chunks that were read apart, say, each repositioned.

    Free slots of all but the last cache stay empty and are never written, so make those as small as their chunks.
    """
    if not caches:
        raise UsageError("joined: give the caches to join")
    first, last = caches[0], caches[-1]
    for cache in caches[1:]:
        for name in ("rotary", "value_rotary", "turns"):
            own, its = getattr(first, name), getattr(cache, name)
            if own != its:
                what, other, this = difference(name, its, own)
                raise UsageError(f"{what} = {other!r}: the first cache has {this!r}")
        sizes = [(c.key.dtype.name, c.key.shape[:-3], c.key.shape[-2:]) for c in (first, cache)]
        if sizes[0] != sizes[1]:
            shapes = " and ".join(f"{c.key.dtype.name}{list(c.key.shape)}" for c in (first, cache))
            raise UsageError(f"caches of keys {shapes}: may differ in their slots alone")

    def together(name: str, axis: int) -> Array:
        return jnp.concatenate([getattr(cache, name) for cache in caches], axis)

    return replace(
        first,
        key=together("key", -3),
        value=together("value", -3),
        positions=together("positions", -1),
        segments=together("segments", -1),
        length=sum(cache.positions.shape[1] for cache in caches[:-1]) + last.length,
        lost=functools.reduce(jnp.logical_or, (cache.lost for cache in caches)),
    )


@functools.partial(jax.jit, static_argnames=("rotary", "value_rotary"))
def moved(cache: Store, positions: Int[Array, "B S"], rotary: Rotary | None, value_rotary: Rotary | None) -> Store:
    """Keys and values turned from what they are turned by to these rotations at these positions."""

    def again(x: Array, old: Rotary | None, new: Rotary | None) -> Array:
        # Both turns in float32 and one rounding at the end; a single turn by the difference of the angles would need
        # tables of its own for every pair of rotations.
        back = turned(x.astype(jnp.float32), cache.positions, old, inverse=True)
        return turned(back, positions, new).astype(x.dtype)

    def layer(key: Array, value: Array) -> tuple[Array, Array]:
        by_key, by_value = cache.rotations
        return again(key, by_key, rotary), again(value, by_value, value_rotary)

    # Layer by layer, so that no float32 copy of a whole bfloat16 cache exists.
    stacked = cache.key.ndim == 5
    both = (cache.key, cache.value)
    key, value = jax.lax.map(lambda kv: layer(*kv), both) if stacked else layer(*both)
    return replace(cache, key=key, value=value)
