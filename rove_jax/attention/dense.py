"""Attention through `jax.nn.dot_product_attention`: XLA's products, or cuDNN's fused kernel."""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rove_jax.attention.call import Call, Target
from rove_jax.attention.visibility import Visibility

Query = Float[Array, "B T N H"]
Key = Float[Array, "B S K H"]


def xla(query: Query, key: Key, value: Key, visibility: Visibility, scale: float) -> Query:
    """Softmax in float32 over a [B, N, T, S] array of scores. Any mask; rows that see nothing return 0."""
    if visibility.fused:
        return fused(query, key, value, visibility, scale, "xla")
    mask = visibility.spelled_out(query.shape[1], key.shape[1]).mask()
    out = jax.nn.dot_product_attention(query, key, value, mask=mask, scale=scale, implementation="xla")
    # A row that sees nothing would average every value. `where` also keeps its gradient from reaching any of them.
    return jnp.where(mask.any(-1).swapaxes(1, 2)[..., None], out, 0)


def cudnn(query: Query, key: Key, value: Key, visibility: Visibility, scale: float) -> Query:
    """cuDNN flash attention, for what it can mask by itself (`cudnn_refusal` has the rest)."""
    return fused(query, key, value, visibility, scale, "cudnn")


def cudnn_refusal(call: Call, target: Target) -> str:
    """Why cuDNN cannot serve a call on a GPU, or an empty string."""
    largest = 256 if (target.capability or 0.0) >= 9.0 else 128
    if target.capability is not None and target.capability < 8.0:
        return f"needs compute capability 8.0, the device has {target.capability}"
    if call.dtype not in ("bfloat16", "float16"):
        return f"takes bfloat16 or float16, not {call.dtype}"
    if call.head_dim % 8 or call.head_dim > largest:
        return f"head_dim must be a multiple of 8 up to {largest}, not {call.head_dim}"
    if call.window is not None and not call.causal:
        return "takes a window only together with causality"
    if not call.aligned:
        return "takes positions in order only, as many queries as keys"
    if call.segments:
        return "takes no segments"
    return "takes no mask of the caller's own" if call.mask else ""


def fused(
    query: Query, key: Key, value: Key, visibility: Visibility, scale: float, implementation: Literal["xla", "cudnn"]
) -> Query:
    """The call that leaves masking to the implementation."""
    reach = None if visibility.window is None else visibility.window - 1
    # Causal goes with the window always: cuDNN's left-only window sees the future without it (jax 0.12 still).
    window = None if reach is None else (reach, 0 if visibility.causal else reach)
    return jax.nn.dot_product_attention(
        query,
        key,
        value,
        scale=scale,
        is_causal=visibility.causal,
        local_window_size=window,
        implementation=implementation,
    )
