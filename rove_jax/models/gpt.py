"""The decoder: tied embedding, L blocks, final norm."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Int

from rove_jax.attention import Store
from rove_jax.attention.cache import noted
from rove_jax.config import Model
from rove_jax.errors import UsageError
from rove_jax.models.blocks import INIT_STD, Block, dropout, layer_norm

CAPTURES = ("query", "key", "value")

REMAT: dict[str, Callable[..., bool] | None] = {
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": jax.checkpoint_policies.nothing_saveable,
    "offload": jax.checkpoint_policies.offload_dot_with_no_batch_dims("device", "pinned_host"),
}


class Output(NamedTuple):
    """What a forward pass gives: hidden [B, T, D] after the final norm; the cache, if one was given, with T more
    tokens; {name: [L, B, T, heads, H]} for each name in `capture`."""

    hidden: Array
    cache: Store | None
    captured: dict[str, Array]


class GPT(nnx.Module):
    """A GPT-2-style decoder without learned positions. Its blocks are one `Block`, each array with a leading L axis."""

    def __init__(self, cfg: Model, rngs: nnx.Rngs):
        table = INIT_STD * jax.random.normal(rngs.params(), (cfg.padded_vocab, cfg.width), jnp.float32)
        self.embedding = nnx.Param(table, axes=("vocab", "model"))
        layer_keys = jax.random.split(rngs.params(), cfg.layers)
        self.blocks = nnx.vmap(lambda key: Block(cfg, nnx.Rngs(params=key)))(layer_keys)
        self.norm = layer_norm(cfg, rngs)
        self.cfg = cfg

    def __call__(
        self,
        tokens_bt: Int[Array, "B T"],
        *,
        positions: Int[Array, "..."] | None = None,
        segments: Int[Array, "B T"] | None = None,
        prefixes: Int[Array, "B T"] | None = None,
        contiguous: bool = False,
        cache: Store | None = None,
        capture: tuple[str, ...] = (),
        dropout_key: Array | None = None,
    ) -> Output:
        """Hidden states of `tokens_bt`. Arguments as in `models.functional.apply`."""
        cfg = self.cfg
        if isinstance(capture, str) or set(capture) - set(CAPTURES):
            raise UsageError(f"capture = {capture!r}: must be a tuple of names out of {', '.join(CAPTURES)}")
        if cache is not None:
            if positions is None or segments is None:
                raise UsageError("a cache needs positions and segments")
            if prefixes is not None:
                raise UsageError("prefixes: not with a cache")
            if cache.key.shape[0] != cfg.layers:
                raise UsageError(f"a cache of {cache.key.shape[0]} layers: the model has {cfg.layers}; see init_cache")
            cache = noted(cache, positions, segments, cfg.window)
        keys = jax.random.split(dropout_key, cfg.layers + 1) if dropout_key is not None and cfg.dropout else None
        x_btd = jnp.take(self.embedding[...].astype(cfg.dtype), tokens_bt, axis=0)
        x_btd = dropout(x_btd, cfg.dropout, None if keys is None else keys[0])
        graph, stacked = nnx.split(self.blocks)

        def layer(carry: tuple[Array, Store | None], inputs: tuple) -> tuple[tuple, dict[str, Array]]:
            # The cache is carried whole, so that each layer writes its new tokens in place.
            (x_btd, store), (parameters, key, number) = carry, inputs
            x_btd, store, seen = nnx.merge(graph, parameters)(
                x_btd,
                positions=positions,
                segments=segments,
                prefixes=prefixes,
                contiguous=contiguous,
                store=None if store is None else dataclasses.replace(store, layer=number),
                dropout_key=key,
            )
            store = None if store is None else dataclasses.replace(store, layer=None)
            return (x_btd, store), {name: seen[name] for name in capture}

        if cfg.remat != "none":
            layer = jax.checkpoint(layer, policy=REMAT[cfg.remat])
        per_layer = (
            stacked,
            None if keys is None else keys[1:],
            None if cache is None else jnp.arange(cfg.layers, dtype=jnp.int32),
        )
        (x_btd, cache), captured = loop(layer, (x_btd, cache), per_layer, cfg)
        return Output(self.norm(x_btd).astype(cfg.dtype), cache, captured)


def loop(layer: Callable, carry: Any, per_layer: tuple, cfg: Model) -> tuple[Any, Any]:
    """`jax.lax.scan` of `layer` over the leading axis of `per_layer`, or the same unrolled."""
    if cfg.scan_layers:
        return jax.lax.scan(layer, carry, per_layer)
    # One split, whose transpose is one concatenation; indexing would add up L zero-padded gradients.
    leaves, tree = jax.tree.flatten(per_layer)
    parts = [[jnp.squeeze(p, 0) for p in jnp.split(leaf, cfg.layers)] for leaf in leaves]
    outs = []
    for i in range(cfg.layers):
        carry, out = layer(carry, jax.tree.unflatten(tree, [part[i] for part in parts]))
        outs.append(out)
    return carry, jax.tree.map(lambda *xs: jnp.stack(xs), *outs)
