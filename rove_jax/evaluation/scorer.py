"""The compiled parts of scoring: reading rows of tokens, reading on from kept keys and values, likelihoods."""

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from rove_jax import attention
from rove_jax.attention.rotary_attention import turned
from rove_jax.config import Model
from rove_jax.models import functional
from rove_jax.sharding import BATCH

LOGITS_LIMIT = 2**25
"""Bytes of logits at once on a device: less than in training, where a smaller part would cost a gradient of the table
as well."""


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def read(
    cfg: Model,
    packed: bool,
    room: int,
    params: dict,
    tokens_bt: Int[Array, "B T"],
    positions_bt: Int[Array, "B T"],
    segments_bt: Int[Array, "B T"],
) -> tuple[Float[Array, "B T D"], attention.Store | None]:
    """(hidden states of rows, their keys and values with `room` more slots if that is not 0).

    Not `packed`: a row is one text from its first token on, and positions and segments are not looked at, so that
    kernels without masks serve. Padding stands right of it, where causality hides it.
    """
    masks: dict[str, Any] = {"positions": positions_bt, "segments": segments_bt, "contiguous": True} if packed else {}
    out = functional.apply(cfg, params, tokens_bt, capture=("key", "value") if room else (), **masks)
    if not room:
        return out.hidden, None
    # Filled here rather than by a pass over an empty cache, whose attention would also visit the keys to come.
    rows, length = tokens_bt.shape
    store = functional.init_cache(cfg, rows, length + room)

    def kept(into: Array, captured: Array, rotary: Any) -> Array:
        new = jax.vmap(lambda x_btkh: turned(x_btkh, positions_bt, rotary))(captured).astype(into.dtype)
        return jax.lax.dynamic_update_slice_in_dim(into, new, 0, axis=2)

    by_key, by_value = store.rotations
    beyond = ((0, 0), (0, room))
    store = replace(
        store,
        key=kept(store.key, out.captured["key"], by_key),
        value=kept(store.value, out.captured["value"], by_value),
        positions=jnp.pad(positions_bt, beyond),
        segments=jnp.pad(segments_bt, beyond),
        length=jnp.int32(length),
    )
    return out.hidden, laid_out(store)


def laid_out(store: attention.Store) -> attention.Store:
    """A new store, all of it in parts where the rows are, so that the program that it is given to, and which gives it
    back like that, is not compiled twice: what is a constant as yet would be whole on every device."""
    if jax.sharding.get_abstract_mesh().empty:
        return store
    return replace(store, lost=jax.lax.with_sharding_constraint(store.lost, PartitionSpec(BATCH)))


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def branch(
    cfg: Model,
    params: dict,
    store: attention.Store,
    tokens_bt: Int[Array, "B T"],
    positions_bt: Int[Array, "B T"],
    segments_bt: Int[Array, "B T"],
) -> tuple[Float[Array, "B T D"], attention.Store]:
    """(hidden states of tokens that follow their segments in the store, the store for other tokens in their place).

    The store is donated; all of its room, T slots, is written.
    """
    out = functional.apply(cfg, params, tokens_bt, positions=positions_bt, segments=segments_bt, cache=store)
    assert out.cache is not None
    return out.hidden, replace(out.cache, length=store.length)


@functools.partial(jax.jit, static_argnums=0)
def likelihoods(
    cfg: Model,
    params: dict,
    hidden_btd: Float[Array, "B T D"],
    index_bn: Int[Array, "B N"],
    target_bn: Int[Array, "B N"],
) -> tuple[Float[Array, "B N"], Bool[Array, "B N"]]:
    """(-ln p of targets after the hidden states at the indices, float32 nats; whether no token, nor an equal one of
    smaller id, is more likely). Logits are formed for those alone, and for a part of them at a time."""
    rows, count = index_bn.shape
    mesh = jax.sharding.get_abstract_mesh()
    local = rows // (1 if mesh.empty else max(1, mesh.shape["data"] * mesh.shape["fsdp"]))
    size = max(1, min(count, LOGITS_LIMIT // (4 * cfg.padded_vocab * local)))
    parts = -(-count // size)

    def cut(x: Array) -> Array:
        x = jnp.pad(x, ((0, 0), (0, parts * size - count)))
        return x.reshape(rows, parts, size).swapaxes(0, 1)

    def part(given: tuple[Array, Array]) -> tuple[Array, Array]:
        index_bn, target_bn = given
        hidden_bnd = jnp.take_along_axis(hidden_btd, index_bn[:, :, None], axis=1)
        logits_bnv = functional.unembed(cfg, params, hidden_bnd)
        wanted_bn1 = jnp.take_along_axis(logits_bnv, target_bn[:, :, None], axis=-1)
        top_bn1 = logits_bnv.max(axis=-1, keepdims=True)
        nll_bn1 = top_bn1 + jnp.log(jnp.exp(logits_bnv - top_bn1).sum(-1, keepdims=True)) - wanted_bn1
        # The first of the largest, without the search for its place, which is slow on a CPU.
        before = jnp.arange(cfg.padded_vocab)[None, None, :] < target_bn[:, :, None]
        greedy_bn = (wanted_bn1 == top_bn1)[..., 0] & ~((logits_bnv == top_bn1) & before).any(axis=-1)
        return nll_bn1[..., 0], greedy_bn

    found = jax.lax.map(part, (cut(index_bn), cut(target_bn)))
    nll_bn, greedy_bn = (x.swapaxes(0, 1).reshape(rows, -1)[:, :count] for x in found)
    return nll_bn, greedy_bn


def compute_config(
    cfg: Model, params: dict, *, batch: int, length: int, masked: bool = False, packed: bool = False
) -> Model:
    """`cfg` with what the forward pass leaves open settled, for the device that `params` are on.

    The attention backend is chosen anew, whatever the run was trained with: they all compute the same, and an
    evaluation may run on another device and reads other lengths. `batch`: rows on one device. `packed`: with segments.
    `masked`: with segments, and positions of any kind, as over a cache of `length` slots.
    """
    device = next(iter(jnp.asarray(jax.tree.leaves(params)[0]).devices()))
    sizes = (batch, length, length, cfg.query_heads, cfg.kv_heads, cfg.head_dim)
    call = attention.Call(*sizes, cfg.dtype, window=cfg.window, aligned=not masked, segments=masked or packed)
    choice = attention.resolve("auto", call, attention.Target.device(device))
    # One compiled layer: an evaluation compiles once per length and scaling, and runs each program a few times.
    # Not with a cache on a TPU, where XLA copies it into the loop and back (jax 0.12, compiled for v5e).
    scan = not (masked and device.platform == "tpu")
    return replace(cfg, attention=choice.backend, dropout=0.0, remat="none", scan_layers=scan)
