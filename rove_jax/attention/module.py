"""`RotaryAttention`: the projections around `rotary_attention`, as a Flax NNX module."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Integer

from rove_jax.attention.backends import check_name
from rove_jax.attention.cache import Store, cached_attention
from rove_jax.attention.projection import product
from rove_jax.attention.rotary_attention import check_turns, rotary_attention
from rove_jax.attention.visibility import check_window
from rove_jax.config import Rotary
from rove_jax.errors import UsageError

Init = jax.nn.initializers.Initializer

DEFAULT_INIT = jax.nn.initializers.normal(0.02)


class RotaryAttention(nnx.Module):
    """Causal self-attention [B, T, D] -> [B, T, D] with RoPE (value_rotary None) or RoVE (value_rotary = rotary).

    Written for NNX tree mode: parameters only, no state. Each parameter carries its logical axis names under the
    metadata key `axes`.
    """

    def __init__(
        self,
        width: int,
        *,
        query_heads: int,
        kv_heads: int,
        head_dim: int,
        rotary: Rotary | None,
        value_rotary: Rotary | None,
        window: int | None = None,
        backend: str = "auto",
        turns: str = "qkvo",
        bias: bool = True,
        dtype: str = "float32",
        kernel_init: Init = DEFAULT_INIT,
        out_init: Init | None = None,
        rngs: nnx.Rngs,
    ):
        if kv_heads < 1 or query_heads % kv_heads:
            raise UsageError(f"kv_heads = {kv_heads}: must divide query_heads = {query_heads}")
        check_turns(turns, rotary, value_rotary)
        check_name(backend)
        check_window(window)
        for turning in (rotary, value_rotary):
            if turning is not None:
                turning.turned(head_dim)

        def projection(heads: int, axis: str) -> nnx.LinearGeneral:
            return nnx.LinearGeneral(
                width,
                (heads, head_dim),
                use_bias=bias,
                dtype=jnp.dtype(dtype),
                dot_general=product,
                kernel_init=kernel_init,
                kernel_metadata={"axes": ("model", axis, "head_dim")},
                bias_metadata={"axes": (axis, "head_dim")},
                rngs=rngs,
            )

        self.query = projection(query_heads, "heads")
        self.key = projection(kv_heads, "kv_heads")
        self.value = projection(kv_heads, "kv_heads")
        self.out = nnx.LinearGeneral(
            (query_heads, head_dim),
            width,
            axis=(-2, -1),
            use_bias=bias,
            dtype=jnp.dtype(dtype),
            dot_general=product,
            kernel_init=out_init or kernel_init,
            kernel_metadata={"axes": ("heads", "head_dim", "model")},
            bias_metadata={"axes": ("model",)},
            rngs=rngs,
        )
        self.rotary, self.value_rotary, self.turns = rotary, value_rotary, turns
        self.window, self.backend = window, backend

    def __call__(
        self,
        x_btd: Float[Array, "B T D"],
        *,
        positions: Integer[Array, "..."] | None = None,
        segments: Int[Array, "B T"] | None = None,
        prefixes: Int[Array, "B T"] | None = None,
        contiguous: bool = False,
    ) -> Float[Array, "B T D"]:
        """Arguments as in `rotary_attention`, of which this is the self-attention."""
        return self.attend(x_btd, positions=positions, segments=segments, prefixes=prefixes, contiguous=contiguous)[0]

    def attend(
        self,
        x_btd: Float[Array, "B T D"],
        *,
        positions: Integer[Array, "..."] | None,
        segments: Int[Array, "B T"] | None,
        prefixes: Int[Array, "B T"] | None = None,
        contiguous: bool = False,
        store: Store | None = None,
    ) -> tuple[Float[Array, "B T D"], Store | None, dict[str, Array]]:
        """(output, the store with T more tokens if one is given, {"query", "key", "value"} before rotation).

        With a store, `positions` and `segments` must both be given, and `prefixes` not.
        """
        query, key, value = self.query(x_btd), self.key(x_btd), self.value(x_btd)
        if store is not None:
            out, store = cached_attention(
                query,
                key,
                value,
                store,
                rotary=self.rotary,
                value_rotary=self.value_rotary,
                positions=positions,
                segments=segments,
                window=self.window,
                backend=self.backend,
                turns=self.turns,
            )
        else:
            out = rotary_attention(
                query,
                key,
                value,
                rotary=self.rotary,
                value_rotary=self.value_rotary,
                is_causal=True,
                query_positions=positions,
                segments=segments,
                prefixes=prefixes,
                window=self.window,
                backend=self.backend,
                turns=self.turns,
                contiguous=contiguous,
            )
        return self.out(out), store, {"query": query, "key": key, "value": value}
