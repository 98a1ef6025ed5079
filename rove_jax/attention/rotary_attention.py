"""RoPE and RoVE attention. What turns, and by which position, is decided here and nowhere else."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Integer

from rove_jax.attention.backends import choose, serve
from rove_jax.attention.call import Call, Target
from rove_jax.attention.visibility import Visibility, describe
from rove_jax.config import Rotary
from rove_jax.errors import UsageError
from rove_jax.rotary import logit_scale, rotate

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
    prefixes: Int[Array, "B T"] | None = None,
    window: int | None = None,
    backend: str = "auto",
    contiguous: bool = False,
    turns: str = "qkvo",
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
        is seen by none. A row that sees nothing returns 0. What padding holds must be finite, its positions in range.
      prefixes: int32 [B, T]: a segment further left that each query sees besides its own, which continues it: branches
        of a tree see their trunk, and not each other. 0: none. Needs segments; not with a window.
      window: see the latest `window` positions only, the query's own included (not causal: as many on either side).
      backend: "auto", or a name of `attention.BACKENDS`, which serves or raises `UsageError`.
      contiguous: promises, statically, that queries and keys have the same positions, which rise by one from index to
        index inside each segment, so that fused causal kernels stay usable. Checked where positions are not traced.
      turns: for ablations only: which of q, k, v and the output o turn at all. With one of q and k, or one of v and o,
        absolute positions leak.
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
        prefixes=prefixes,
    )
    at_query = jnp.arange(query.shape[1]) if query_positions is None else visibility.query_positions
    at_key = at_query if visibility.key_positions is None else visibility.key_positions
    return attend(query, key, value, at_query, at_key, visibility, rotary, value_rotary, backend, turns)


def attend(
    query: Array,
    key: Array,
    value: Array,
    at_query: Array,
    at_key: Array | None,
    visibility: Visibility,
    rotary: Rotary | None,
    value_rotary: Rotary | None,
    backend: str,
    turns: str = "qkvo",
) -> Array:
    """`rotary_attention` after its checks. `at_key` None: keys and values are turned already."""
    check_turns(turns, rotary, value_rotary)
    serving = choose(backend, Call.of(query, key, visibility), Target.here(query))
    turning = {x: (rotary if x in "qk" else value_rotary) if x in turns else None for x in "qkvo"}
    if at_key is None:
        turning |= {"k": None, "v": None}
    inside: list[Rotary | None] = [None, None]
    if serving.turns and visibility.query_prefixes is None:  # a branch does not lie next to its trunk
        # Where both ends turn alike, only differences of positions matter, and indices have the same ones.
        inside = [turning[one] if turning[one] == turning[other] else None for one, other in ("qk", "vo")]
        turning |= {x: None for pair, rotation in zip(("qk", "vo"), inside) if rotation is not None for x in pair}
    query = turned(query, at_query, turning["q"])
    if at_key is not None:
        key, value = turned(key, at_key, turning["k"]), turned(value, at_key, turning["v"])
    # The backend's 1/sqrt(H) and YaRN's temperature, which belongs to logits only, in one factor.
    scale = logit_scale(rotary) / query.shape[-1] ** 0.5
    out = serve(serving, query, key, value, visibility, scale, (inside[0], inside[1]))
    return turned(out, at_query, turning["o"], inverse=True)


def turned(x: Array, positions: Array, rotary: Rotary | None, *, inverse: bool = False) -> Array:
    """`rotate`, if there is a rotation."""
    return x if rotary is None else rotate(x, positions, rotary, inverse=inverse)


def check_turns(turns: str, rotary: Any, value_rotary: Any) -> None:
    """Raise `UsageError` unless every letter is one of q, k, v and o, and each rotation is one, or None."""
    if not isinstance(turns, str) or set(turns) - set("qkvo"):
        raise UsageError(f"turns = {turns!r}: must be letters out of 'qkvo'")
    for name, given in (("rotary", rotary), ("value_rotary", value_rotary)):
        if not isinstance(given, Rotary | None):
            raise UsageError(f"{name} = {given!r}: must be a Rotary, or None for no rotation")


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
