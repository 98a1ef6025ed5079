"""The boundary between NNX modules and everything else: a model is a static `Model` and a plain dict of arrays.

Trainer, checkpoints and evaluations see only these dicts: calling a plain dict's function under `jax.jit` costs the
host 0.1 ms at 12 layers, an NNX module's under `nnx.jit` 9.6 ms, and any tool can read the tree.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.core import Tracer
from jaxtyping import Array, Float, Int

from rove_jax.attention import Store
from rove_jax.config import Model
from rove_jax.errors import UsageError, require
from rove_jax.models.gpt import GPT, Output

Params = dict[str, Any]

NEVER = -1e30
"""Logit of a padded vocabulary row: probability 0, and finite, so that 0 x log-probability stays 0."""


@functools.cache
def structure(cfg: Model) -> tuple[Any, Any]:
    """(graph definition, state of shapes with their metadata) of the model."""
    return nnx.split(nnx.eval_shape(lambda key: GPT(cfg, nnx.Rngs(params=key)), jax.random.key(0)))


def abstract(cfg: Model) -> Params:
    """The parameter tree as `jax.ShapeDtypeStruct`s: float32, those under "blocks" with a leading L axis."""
    return nnx.to_pure_dict(structure(cfg)[1])


def axes(cfg: Model) -> Params:
    """The parameter tree with each array's logical axis names, such as ("layers", "model", "heads", "head_dim")."""

    def names(path: tuple, variable: Any) -> tuple[str, ...]:
        own = tuple(variable.get_metadata()["axes"])
        return ("layers", *own) if path[0].key == "blocks" else own

    is_variable = lambda x: isinstance(x, nnx.Variable)  # noqa: E731
    return nnx.to_pure_dict(jax.tree_util.tree_map_with_path(names, structure(cfg)[1], is_leaf=is_variable))


def init(cfg: Model, key: Array) -> Params:
    """Fresh float32 parameters: N(0, 0.02), residual projections N(0, 0.02 / sqrt(2 L)), scales 1, biases 0."""
    return nnx.to_pure_dict(nnx.split(GPT(cfg, nnx.Rngs(params=key)))[1])


def apply(
    cfg: Model,
    params: Params,
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
    """Hidden states [B, T, D] of tokens, before the unembedding, so that no [T, V] array need exist.

    Args:
      cfg: static; against the one trained, it may differ in frequency scaling, dtype, remat, scan and attention only.
      tokens_bt: int32, each in [0, cfg.vocab). Refused where they are not, and known; traced, one beyond the padded
        vocabulary gives NaN.
      positions: int32 [T] or [B, T]; None: 0..T-1.
      segments: int32 [B, T], ids from 1; tokens see their own segment only; 0 is padding. None: all one.
      prefixes: int32 [B, T]: a segment further left that each token's own continues, and sees as well; 0: none. Not
        with a window or a cache.
      contiguous: positions rise by one from index to index within each segment (keeps fused causal kernels usable).
      cache: what `init_cache` made; T more tokens are written to it, and attention runs over all of it. Needs positions
        and segments. Writing past its last slot raises `UsageError` or, where the cache is traced, gives NaN; with
        `cfg.window` writes wrap around. A donated cache is written in place.
      capture: any of "query", "key", "value": each layer's, before rotation.
      dropout_key: a key turns dropout on.
    """
    check_tokens(cfg, tokens_bt)
    # On TPU and GPU, float32 products run in bfloat16 or TF32 unless asked otherwise; a model said to be float32 is.
    precision = "highest" if cfg.dtype == "float32" else None
    with jax.default_matmul_precision(precision):
        return nnx.merge(structure(cfg)[0], params)(
            tokens_bt,
            positions=positions,
            segments=segments,
            prefixes=prefixes,
            contiguous=contiguous,
            cache=cache,
            capture=capture,
            dropout_key=dropout_key,
        )


def check_tokens(cfg: Model, tokens_bt: Array) -> None:
    """Raise `UsageError` unless they are integers and, where that is known, tokens of the vocabulary."""
    if not jnp.issubdtype(tokens_bt.dtype, jnp.integer):
        raise UsageError(f"tokens of dtype {tokens_bt.dtype}: must be integers")
    if not isinstance(tokens_bt, Tracer) and tokens_bt.size:
        known = np.asarray(tokens_bt)  # in numpy: inside a jit, jax would trace even what is known
        for token in (known.min(), known.max()):
            require(0 <= token < cfg.vocab, "token", int(token), f"the vocabulary has 0 to {cfg.vocab - 1}")


def unembed(cfg: Model, params: Params, hidden: Float[Array, "... D"]) -> Float[Array, "... V"]:
    """Logits, float32 [..., padded_vocab], by the tied embedding; padded rows are NEVER."""
    table = params["embedding"].astype(cfg.dtype)
    precision = "highest" if cfg.dtype == "float32" else None
    logits = jnp.einsum("...d,vd->...v", hidden, table, preferred_element_type=jnp.float32, precision=precision)
    # Added, not selected: a select over all logits costs a CPU a pass, and another for its gradient.
    never = jnp.where(jnp.arange(cfg.padded_vocab) < cfg.vocab, 0.0, NEVER)
    return logits + never.reshape((1,) * (logits.ndim - 1) + never.shape)


def init_cache(cfg: Model, batch: int, length: int, dtype: str | None = None, *, chunk: int | None = None) -> Store:
    """An empty cache for `length` tokens of `batch` rows: key and value [L, B, S, K, H] in `dtype` (cfg.dtype).

    S is `length`. `chunk` is the most tokens that one call will write: where `cfg.window` W is set, W - 1 + chunk
    slots are then enough for any length, as a ring in which each token of a chunk still finds the W - 1 before it.
    """
    require(length >= 1, "length", length, "a cache needs at least one slot")
    require(chunk is None or chunk >= 1, "chunk", chunk, "must be at least 1")
    if chunk is not None and cfg.window is not None:
        length = min(length, cfg.window - 1 + chunk)
    rotary, value_rotary = cfg.rotations
    shape = (cfg.layers, batch, length, cfg.kv_heads, cfg.head_dim)
    return Store.empty(shape, dtype or cfg.dtype, rotary=rotary, value_rotary=value_rotary, turns=cfg.turns)
