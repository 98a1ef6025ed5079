"""The compiled parts of scoring: reading rows of tokens, and likelihoods."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rove_jax import attention
from rove_jax.config import Model
from rove_jax.models import functional

LOGITS_LIMIT = 2**25
"""Bytes of logits at once on a device: less than in training, where a smaller part would cost a gradient of the table
as well."""
PART = 32
"""Positions of a row whose logits are formed at once, at most: the last part is filled up."""


@functools.partial(jax.jit, static_argnums=(0, 1))
def read(
    cfg: Model,
    packed: bool,
    params: dict,
    tokens_bt: Int[Array, "B T"],
    positions_bt: Int[Array, "B T"],
    segments_bt: Int[Array, "B T"],
    prefixes_bt: Int[Array, "B T"],
) -> Float[Array, "B T D"]:
    """Hidden states of rows.

    Not `packed`: a row is one text from its first token on, and only its tokens are looked at, so that kernels without
    masks serve. Padding stands right of it, where causality hides it.
    """
    if not packed:
        return functional.apply(cfg, params, tokens_bt).hidden
    prefixes = prefixes_bt if cfg.window is None else None  # with a window nothing is shared
    return functional.apply(
        cfg, params, tokens_bt, positions=positions_bt, segments=segments_bt, prefixes=prefixes, contiguous=True
    ).hidden


@functools.partial(jax.jit, static_argnums=0)
def likelihoods(
    cfg: Model,
    params: dict,
    hidden_btd: Float[Array, "B T D"],
    index_bn: Int[Array, "B N"],
    target_bn: Int[Array, "B N"],
    count: Int[Array, ""],
) -> tuple[Float[Array, "B N"], Bool[Array, "B N"]]:
    """(-ln p of targets after the hidden states at the indices, float32 nats; whether no token, nor an equal one of
    smaller id, is more likely), of the first `count` of each row. Logits are formed for those, a part at a time."""
    rows, room = index_bn.shape
    mesh = jax.sharding.get_abstract_mesh()
    local = rows // (1 if mesh.empty else max(1, mesh.shape["data"] * mesh.shape["fsdp"]))
    size = max(1, min(room, PART, LOGITS_LIMIT // (4 * cfg.padded_vocab * local)))
    spare = ((0, 0), (0, -room % size))
    index_bn, target_bn = jnp.pad(index_bn, spare), jnp.pad(target_bn, spare)

    def part(number: Array, found: tuple[Array, Array]) -> tuple[Array, Array]:
        index_bp, target_bp = (
            jax.lax.dynamic_slice_in_dim(x, number * size, size, axis=1) for x in (index_bn, target_bn)
        )
        hidden_bpd = jnp.take_along_axis(hidden_btd, index_bp[:, :, None], axis=1)
        logits_bpv = functional.unembed(cfg, params, hidden_bpd)
        wanted_bp1 = jnp.take_along_axis(logits_bpv, target_bp[:, :, None], axis=-1)
        top_bp1 = logits_bpv.max(axis=-1, keepdims=True)
        nll_bp1 = top_bp1 + jnp.log(jnp.exp(logits_bpv - top_bp1).sum(-1, keepdims=True)) - wanted_bp1
        # The first of the largest, without the search for its place, which is slow on a CPU.
        before = jnp.arange(cfg.padded_vocab)[None, None, :] < target_bp[:, :, None]
        greedy_bp = (wanted_bp1 == top_bp1)[..., 0] & ~((logits_bpv == top_bp1) & before).any(axis=-1)
        nll_bn, greedy_bn = (
            jax.lax.dynamic_update_slice_in_dim(into, new, number * size, axis=1)
            for into, new in zip(found, (nll_bp1[..., 0], greedy_bp))
        )
        return nll_bn, greedy_bn

    nothing = (jnp.zeros(index_bn.shape, jnp.float32), jnp.zeros(index_bn.shape, bool))
    nll_bn, greedy_bn = jax.lax.fori_loop(0, -(-count // size), part, nothing)
    return nll_bn[:, :room], greedy_bn[:, :room]


def compute_config(
    cfg: Model, params: dict, *, batch: int, length: int, cached: bool = False, packed: bool = False
) -> Model:
    """`cfg` with what the forward pass leaves open settled, for the device that `params` are on.

    The attention backend is chosen anew, whatever the run was trained with: they all compute the same, and an
    evaluation may run on another device and reads other lengths. `batch`: rows on one device. `packed`: with segments.
    `cached`: over a cache of `length` slots.
    """
    device = next(iter(jnp.asarray(jax.tree.leaves(params)[0]).devices()))
    sizes = (batch, length, length, cfg.query_heads, cfg.kv_heads, cfg.head_dim)
    call = attention.Call(*sizes, cfg.dtype, window=cfg.window, aligned=not cached, segments=cached or packed)
    choice = attention.resolve("auto", call, attention.Target.device(device))
    # One compiled layer: an evaluation compiles once per length and scaling, and runs each program a few times.
    # Not with a cache on a TPU, where XLA copies it into the loop and back (jax 0.12, compiled for v5e).
    scan = not (cached and device.platform == "tpu")
    return replace(cfg, attention=choice.backend, dropout=0.0, remat="none", scan_layers=scan)
