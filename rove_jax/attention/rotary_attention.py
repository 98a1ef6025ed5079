"""RoPE and RoVE attention. Values are turned, and outputs turned back, here and nowhere else."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Float, Int, Integer

from rove_jax.attention.backends import serve
from rove_jax.attention.visibility import Visibility, describe
from rove_jax.config import Rotary
from rove_jax.errors import UsageError
from rove_jax.rotary import checked_positions, logit_scale, rotate

Segments = Int[Array, "B T"] | tuple[Int[Array, "B T"], Int[Array, "B S"]]


def rotary_attention(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S K H"],
    value: Float[Array, "B S K H"],
    *,
    rotary: Rotary | None,
    value_rotary: Rotary | None,
    is_causal: bool,
    query_positions: Integer[Array, "..."] | None = None,
    key_positions: Integer[Array, "..."] | None = None,
    segments: Segments | None = None,
    window: int | None = None,
    backend: str = "auto",
    contiguous: bool = False,
    ablation_absolute_values: bool = False,
) -> Float[Array, "B T N H"]:
    """y_i = R_i^-1 sum_j A_ij R_j v_j, A = softmax(m^2 q_i^T R_(j-i) k_j / sqrt(H)) (arXiv 2606.11275, Def. 3.1).

    Args:
      query, key, value: before rotation, one dtype. N is a multiple of K; query head n reads key head n // (N / K).
      rotary: rotation of queries and keys; None for none (NoPE). Its scaling gives m (`logit_scale`).
      value_rotary: rotation of values. None is RoPE, `rotary` itself is RoVE; alpha = 0 is exactly RoPE.
      is_causal: keys later than the query are hidden, by position where positions are given.
      query_positions, key_positions: int32 [T] or [B, T], and [S] or [B, S]. None: the index; then T must equal S.
        key_positions alone may be left out where T = S, and are then the queries'.
      segments: int32 [B, T], or (of queries [B, T], of keys [B, S]). Only equal ids see each other; 0 sees nothing and
        is seen by none. A row that sees nothing returns 0.
      window: see the latest `window` positions only, the query's own included (not causal: as many on either side).
      backend: "auto", or a name of `attention.BACKENDS`, which serves or raises `UsageError`.
      contiguous: promises, statically, that positions rise by one from index to index inside each segment (T = S), so
        that fused causal kernels stay usable.
      ablation_absolute_values: for ablations only: leaves the output unturned, so that absolute positions leak.
    """
    check_shapes(query, key, value)
    visibility = describe(
        (query.shape[0], query.shape[1], key.shape[1]),
        is_causal=is_causal,
        window=window,
        contiguous=contiguous,
        query_positions=query_positions,
        key_positions=key_positions,
        segments=segments,
    )
    at_query = jnp.arange(query.shape[1]) if query_positions is None else visibility.query_positions
    at_key = at_query if visibility.key_positions is None else visibility.key_positions
    key, value = turned_in(key, value, at_key, rotary, value_rotary)
    return attend(
        query, key, value, at_query, visibility, rotary, value_rotary, backend, turn_back=not ablation_absolute_values
    )


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
    key, value = turned_in(key, value, positions, rotary, value_rotary)
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
    return attend(query, *cached, positions, visibility, rotary, value_rotary, backend), store


def turned_in(
    key: Array, value: Array, positions: Array, rotary: Rotary | None, value_rotary: Rotary | None
) -> tuple[Array, Array]:
    """Keys and values, each turned by its own position."""
    key = key if rotary is None else rotate(key, positions, rotary)
    value = value if value_rotary is None else rotate(value, positions, value_rotary)
    return key, value


def attend(
    query: Array,
    key: Array,
    value: Array,
    positions: Array,
    visibility: Visibility,
    rotary: Rotary | None,
    value_rotary: Rotary | None,
    backend: str,
    turn_back: bool = True,
) -> Array:
    """Attention over keys and values that are already turned; the output is turned back by the query's position."""
    query = query if rotary is None else rotate(query, positions, rotary)
    # The backend's 1/sqrt(H) and YaRN's temperature, which belongs to logits only, in one factor.
    scale = logit_scale(rotary) / query.shape[-1] ** 0.5
    out = serve(backend, query, key, value, visibility, scale)
    return rotate(out, positions, value_rotary, inverse=True) if value_rotary is not None and turn_back else out


def check_shapes(query: Array, key: Array, value: Array) -> None:
    """Raise `UsageError` unless the arrays are [B, T, N, H], [B, S, K, H], [B, S, K, H] of one float dtype, K | N."""
    shapes = f"query {query.shape}, key {key.shape}, value {value.shape}"
    if not (query.ndim == key.ndim == value.ndim == 4):
        raise UsageError(f"{shapes}: each must have the four axes batch, position, head, channel")
    if key.shape != value.shape or query.shape[0] != key.shape[0] or query.shape[3] != key.shape[3]:
        raise UsageError(f"{shapes}: batch and channel sizes must agree, and key and value be alike")
    if key.shape[2] == 0 or query.shape[2] % key.shape[2]:
        raise UsageError(f"{shapes}: {key.shape[2]} key heads do not divide {query.shape[2]} query heads")
    if not (query.dtype == key.dtype == value.dtype and jnp.issubdtype(query.dtype, jnp.floating)):
        raise UsageError(f"dtypes {query.dtype}, {key.dtype}, {value.dtype}: must be one, of floats")
