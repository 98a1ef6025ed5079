"""One layer of the decoder: pre-norm attention and pre-norm MLP on a residual stream."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from rove_jax.attention import RotaryAttention, Store
from rove_jax.attention.projection import product
from rove_jax.config import Model

INIT_STD = 0.02


def layer_norm(cfg: Model, rngs: nnx.Rngs) -> nnx.LayerNorm:
    """LayerNorm over D with float32 statistics and float32 output."""
    return nnx.LayerNorm(
        cfg.width,
        epsilon=cfg.norm_epsilon,
        use_bias=cfg.bias,
        use_fast_variance=False,  # E[x^2] - E[x]^2 loses half of float32's digits for a large mean
        dtype=jnp.float32,
        scale_metadata={"axes": ("model",)},
        bias_metadata={"axes": ("model",)},
        rngs=rngs,
    )


def dropout(x: Array, rate: float, key: Array | None) -> Array:
    """Inverted dropout; none without a key."""
    if key is None or rate == 0.0:
        return x
    keep = jax.random.bernoulli(key, 1.0 - rate, x.shape)
    return jnp.where(keep, x / (1.0 - rate), 0).astype(x.dtype)


class MLP(nnx.Module):
    """D -> F -> D with GELU (tanh form, as GPT-2)."""

    def __init__(self, cfg: Model, out_std: float, rngs: nnx.Rngs):
        def linear(inputs: int, outputs: int, axes: tuple[str, str], std: float) -> nnx.Linear:
            return nnx.Linear(
                inputs,
                outputs,
                use_bias=cfg.bias,
                dtype=jnp.dtype(cfg.dtype),
                dot_general=product,
                kernel_init=nnx.initializers.normal(std),
                kernel_metadata={"axes": axes},
                bias_metadata={"axes": axes[1:]},
                rngs=rngs,
            )

        self.up = linear(cfg.width, cfg.mlp_width, ("model", "mlp"), INIT_STD)
        self.down = linear(cfg.mlp_width, cfg.width, ("mlp", "model"), out_std)

    def __call__(self, x_btd: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        return self.down(nnx.gelu(self.up(x_btd), approximate=True))


class Block(nnx.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)). Projections back to the stream start (2 L)^-1/2 smaller."""

    def __init__(self, cfg: Model, rngs: nnx.Rngs):
        rotary, value_rotary = cfg.rotations
        out_std = INIT_STD * (2 * cfg.layers) ** -0.5
        self.attention_norm = layer_norm(cfg, rngs)
        self.attention = RotaryAttention(
            cfg.width,
            query_heads=cfg.query_heads,
            kv_heads=cfg.kv_heads,
            head_dim=cfg.head_dim,
            rotary=rotary,
            value_rotary=value_rotary,
            turns=cfg.turns,
            window=cfg.window,
            backend=cfg.attention,
            bias=cfg.bias,
            dtype=cfg.dtype,
            kernel_init=nnx.initializers.normal(INIT_STD),
            out_init=nnx.initializers.normal(out_std),
            rngs=rngs,
        )
        self.mlp_norm = layer_norm(cfg, rngs)
        self.mlp = MLP(cfg, out_std, rngs)
        self.dropout, self.dtype = cfg.dropout, cfg.dtype

    def __call__(
        self,
        x_btd: Float[Array, "B T D"],
        *,
        positions: Int[Array, "..."] | None,
        segments: Int[Array, "B T"] | None,
        prefixes: Int[Array, "B T"] | None,
        contiguous: bool,
        store: Store | None,
        dropout_key: Array | None,
    ) -> tuple[Float[Array, "B T D"], Store | None, dict[str, Array]]:
        """(stream, store, q/k/v before rotation); arguments as in `RotaryAttention.attend`."""
        keys = (None, None) if dropout_key is None else jax.random.split(dropout_key)
        attended, store, inputs = self.attention.attend(
            self.attention_norm(x_btd).astype(self.dtype),
            positions=positions,
            segments=segments,
            prefixes=prefixes,
            contiguous=contiguous,
            store=store,
        )
        x_btd = x_btd + dropout(attended, self.dropout, keys[0])
        x_btd = x_btd + dropout(self.mlp(self.mlp_norm(x_btd).astype(self.dtype)), self.dropout, keys[1])
        return x_btd, store, inputs
