"""`attention_fn`: RoPE or RoVE inside Flax's own attention modules."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from rove_jax.attention.backends import check_name
from rove_jax.attention.rotary_attention import attend, check_shapes, check_turns
from rove_jax.attention.visibility import describe
from rove_jax.config import Rotary
from rove_jax.errors import UsageError
from rove_jax.rotary import checked_positions


def attention_fn(rotary: Rotary | None, value_rotary: Rotary | None, backend: str = "auto") -> Callable[..., jax.Array]:
    """A function for `attention_fn=` of `nnx.MultiHeadAttention` and `linen.MultiHeadDotProductAttention`.

    It takes every keyword these pass. What it cannot do raises `UsageError`: dropout on weights, an additive bias,
    weights to sow, and queries fewer than keys (decoding) without `input_positions` and `key_positions`.
    """

    check_turns("qkvo", rotary, value_rotary)
    check_name(backend)

    def attention(
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        bias: jax.Array | None = None,
        mask: jax.Array | None = None,
        broadcast_dropout: bool = True,
        dropout_rng: Any = None,
        dropout_rate: float = 0.0,
        deterministic: bool = False,
        dtype: Any = None,
        precision: Any = None,
        module: Any = None,
        promote_dtype: Any = None,
        is_causal: bool = False,
        force_fp32_for_softmax: bool = False,
        qk_attn_weights_einsum: Any = None,
        attn_weights_value_einsum: Any = None,
        input_positions: jax.Array | None = None,
        key_positions: jax.Array | None = None,
    ) -> jax.Array:
        """query [..., T, N, H], key and value [..., S, K, H], mask broadcastable to [..., N, T, S] -> [..., T, N, H].

        Softmax is float32 always. `broadcast_dropout`, `dropout_rng` and `promote_dtype` change nothing here.
        """
        del broadcast_dropout, dropout_rng, promote_dtype, force_fp32_for_softmax
        refused = {
            "dropout_rate": dropout_rate and not deterministic,
            "bias": bias is not None,
            "module (weights to sow)": module is not None,
            "einsum": qk_attn_weights_einsum is not None or attn_weights_value_einsum is not None,
        }
        for name, present in refused.items():
            if present:
                raise UsageError(
                    f"{name}: fused rotary attention has no attention weights to apply it to; leave it out"
                )
        if query.shape[-3] != key.shape[-3] and (input_positions is None or key_positions is None):
            raise UsageError(
                f"{query.shape[-3]} queries and {key.shape[-3]} keys: a cache needs input_positions and key_positions, "
                "which Flax's decode=True does not give; decode with rove_jax.attention.cached_attention"
            )
        dtype = dtype or jnp.result_type(query, key, value)
        leading = query.shape[:-3]
        query, key, value = (x.astype(dtype).reshape((-1, *x.shape[-3:])) for x in (query, key, value))
        check_shapes(query, key, value)
        batch, queries, heads, _ = query.shape
        keys = key.shape[1]

        def rows(positions: jax.Array | None, length: int) -> jax.Array | None:
            if positions is None:
                return None
            return checked_positions(jnp.broadcast_to(positions, (*leading, length)).reshape(batch, length))

        visibility = describe(
            (batch, queries, keys),
            is_causal=is_causal,
            window=None,
            contiguous=False,
            query_positions=rows(input_positions, queries),
            key_positions=rows(key_positions, keys),
            segments=None,
        )
        if mask is not None:
            # Flax's own float masks are 1 and 0. An additive one, 0 and -inf, would be read the wrong way round.
            if not isinstance(mask, Tracer) and (jnp.asarray(mask) < 0).any():
                raise UsageError("mask: has negative entries; give True (or 1) where a key is seen, not a bias")
            shape = (*leading, heads, queries, keys)
            if jnp.ndim(mask) > len(shape) or any(m not in (1, s) for m, s in zip(mask.shape[::-1], shape[::-1])):
                raise UsageError(f"mask of shape {mask.shape}: must be {shape}, or 1 instead of any of these")
            full = jnp.broadcast_to(mask, shape).reshape(batch, heads, queries, keys)
            visibility = dataclasses.replace(visibility, given=full > 0)
        index = jnp.arange(queries)
        at_query = index if visibility.query_positions is None else visibility.query_positions
        at_key = index if visibility.key_positions is None else visibility.key_positions
        with jax.default_matmul_precision(precision):
            out = attend(query, key, value, at_query, at_key, visibility, rotary, value_rotary, backend)
        return out.reshape((*leading, *out.shape[1:]))

    return attention
