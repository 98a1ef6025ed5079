"""Text sampled from a model with a key/value cache: one compiled pass over the prompts, one compiled step per token."""

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.multihost_utils import process_allgather
from jax.sharding import PartitionSpec

from rove_jax import distributed, sharding
from rove_jax.attention import Store
from rove_jax.config import Model
from rove_jax.errors import UsageError, require
from rove_jax.evaluation.engine import Engine
from rove_jax.evaluation.scorer import compute_config
from rove_jax.models import functional
from rove_jax.sharding import BATCH

SHORTEST_BUCKET = 32
"""Prompts and caches are padded to a power of two from here on, so that few shapes are ever compiled."""


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn from the logits."""

    temperature: float = 0.8
    """Logits are divided by it; 0 takes the most likely token."""
    top_k: int | None = None
    """Draw from this many most likely tokens only. None: all of them."""
    top_p: float | None = None
    """Draw from the fewest most likely tokens whose probabilities add up to this. None: all of them."""

    def __post_init__(self) -> None:
        require(self.temperature >= 0, "temperature", self.temperature, "must be at least 0 (0: the most likely token)")
        require(self.top_k is None or self.top_k >= 1, "top_k", self.top_k, "must be at least 1")
        require(self.top_p is None or 0 < self.top_p <= 1, "top_p", self.top_p, "must lie in (0, 1]")


def generate(
    cfg: Model,
    params: dict,
    prompts: Sequence[Sequence[int] | np.ndarray],
    *,
    max_new_tokens: int,
    eot: int,
    sampling: Sampling = Sampling(),
    seeds: Sequence[int] | None = None,
    emit: Callable[[np.ndarray], object] = lambda tokens_b: None,
    mesh: jax.sharding.Mesh | None = None,
) -> list[np.ndarray]:
    """Continue each prompt until `eot` or `max_new_tokens`.

    A prompt's continuation depends on the prompt, its seed and the settings, not on the prompts beside it (but for
    rounding, which can decide between two tokens that are equally likely to within 1e-5).

    Args:
        cfg: the model, its frequency scaling chosen; `attention` may still be "auto".
        params: the parameters of `cfg`.
        prompts: token ids of each. An empty prompt begins a document: it continues `eot`.
        max_new_tokens: at most this many tokens are added to each.
        seeds: one per prompt; None is 0, 1, 2, ...
        emit: called after every step with the tokens [B] it drew (`eot` for rows that have ended). If it returns True,
            nothing more is drawn.
        mesh: devices of this process that share the prompts out, each with all of `params`. None: where `params` are.

    Returns:
        The new token ids of each prompt, int32, without `eot`.

    Raises:
        UsageError: no prompt, an id the vocabulary does not have, or a seed count other than the prompts'.
    """
    rows = [np.asarray(prompt, np.int64) if len(prompt) else np.array([eot]) for prompt in prompts]
    seeds = list(range(len(rows))) if seeds is None else list(seeds)
    require(bool(rows), "prompts", prompts, "give at least one")
    require(len(seeds) == len(rows), "seeds", seeds, f"there are {len(rows)} prompts; give one seed for each")
    require(max_new_tokens >= 1, "max_new_tokens", max_new_tokens, "must be at least 1")
    for row in rows:
        for token in row[(row < 0) | (row >= cfg.vocab)][:1]:
            raise UsageError(f"prompt: token {token} is unknown, the model's vocabulary is 0 to {cfg.vocab - 1}")

    count, ways = len(rows), 1 if mesh is None else sharding.batch_ways(mesh)
    rows += [np.array([eot])] * (-count % ways)
    seeds += [0] * (-count % ways)
    width = bucket(max(map(len, rows)))
    tokens_bt, lengths_b = np.full((len(rows), width), eot, np.int32), np.array([len(row) for row in rows], np.int32)
    for padded, row in zip(tokens_bt, rows):
        padded[-len(row) :] = row
    slots = bucket(width + max_new_tokens)
    keys_b = jax.vmap(jax.random.key)(np.array([seed % 2**32 for seed in seeds], np.uint32))

    def put(array: Any) -> Any:
        return array if mesh is None else jax.device_put(array, sharding.batch(mesh))

    with contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh):
        model = compute_config(cfg, params, batch=len(rows) // ways, length=slots, cached=True)
        lengths_b, keys_b = put(lengths_b), put(keys_b)
        drawn, cache = prefill(model, sampling, slots, params, put(tokens_bt), lengths_b, keys_b)
        new, ended = [], np.arange(len(rows)) >= count
        for step in range(max_new_tokens):
            tokens_b = np.where(ended, eot, np.asarray(drawn))
            ended = ended | (tokens_b == eot)
            new.append(tokens_b[:count])
            if emit(tokens_b[:count]) is True or ended.all() or step + 1 == max_new_tokens:
                break
            drawn, cache = decode(model, sampling, params, cache, put(tokens_b), lengths_b + np.int32(step), keys_b)
    found = np.stack(new, axis=1)
    return [row[: (row == eot).argmax() if (row == eot).any() else len(row)].astype(np.int32) for row in found]


def generate_everywhere(
    engine: Engine,
    prompts: Sequence[Sequence[int] | np.ndarray],
    *,
    max_new_tokens: int,
    eot: int,
    sampling: Sampling = Sampling(),
    seeds: Sequence[int] | None = None,
) -> list[np.ndarray]:
    """`generate` with the engine's model on all its devices, in processes that each take a part of the prompts.

    Each of them calls this with the same prompts, and each gets all that was generated.
    """
    seeds = list(range(len(prompts))) if seeds is None else list(seeds)
    asked = {"max_new_tokens": max_new_tokens, "eot": eot, "sampling": sampling}
    own = engine.own()
    if not engine.joint:
        return generate(own.cfg, own.params, prompts, seeds=seeds, mesh=own.mesh, **asked)
    size = -(-len(prompts) // jax.process_count())  # the same in all, so that the last one compiles no other program
    part = slice(jax.process_index() * size, (jax.process_index() + 1) * size)
    mine = [*prompts[part], *[[eot]] * size][:size]
    new = generate(own.cfg, own.params, mine, seeds=[*seeds[part], *[0] * size][:size], mesh=own.mesh, **asked)
    table = np.full((size, max_new_tokens), -1, np.int32)
    for row, tokens in zip(table, new):
        row[: len(tokens)] = tokens
    distributed.meet("generated")  # as in `engine`
    every = process_allgather(table).reshape(-1, max_new_tokens)
    return [row[row >= 0] for row in every[: len(prompts)]]


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def prefill(cfg: Model, sampling: Sampling, slots: int, params, tokens_bt, lengths_b, keys_b):
    """Read left-padded prompts [B, T] into a new cache of `slots` slots, or with a window of as many as a ring needs.

    Returns the first drawn tokens [B] and the cache.
    """
    batch, width = tokens_bt.shape
    positions_bt = jnp.arange(width, dtype=jnp.int32)[None, :] - (width - lengths_b[:, None])
    segments_bt = (positions_bt >= 0).astype(jnp.int32)  # 0 is padding: it sees nothing and is seen by nobody
    cache = functional.init_cache(cfg, batch, slots, chunk=width)
    output = functional.apply(
        cfg,
        params,
        tokens_bt,
        positions=jnp.maximum(positions_bt, 0),
        segments=segments_bt,
        cache=cache,
    )
    assert output.cache is not None
    return draw(cfg, sampling, params, output.hidden[:, -1], lengths_b, keys_b), laid_out(output.cache)


def laid_out(store: Store) -> Store:
    """A new store, all of it in parts where the rows are, so that the program that it is given to, and which gives it
    back like that, is not compiled twice: what is a constant as yet would be whole on every device."""
    if jax.sharding.get_abstract_mesh().empty:
        return store
    return replace(store, lost=jax.lax.with_sharding_constraint(store.lost, PartitionSpec(BATCH)))


@functools.partial(jax.jit, static_argnums=(0, 1), donate_argnums=3)
def decode(cfg: Model, sampling: Sampling, params, cache, tokens_b, positions_b, keys_b):
    """Append tokens [B] at positions [B] to the cache (donated) and draw the ones that follow."""
    output = functional.apply(
        cfg,
        params,
        tokens_b[:, None],
        positions=positions_b[:, None],
        segments=jnp.ones_like(positions_b)[:, None],
        cache=cache,
    )
    return draw(cfg, sampling, params, output.hidden[:, -1], positions_b + 1, keys_b), output.cache


def draw(cfg: Model, sampling: Sampling, params, hidden_bd, positions_b, keys_b):
    """Tokens [B] int32 for `positions_b`, each row with its own key folded with the position."""
    logits_bv = functional.unembed(cfg, params, hidden_bd)[:, : cfg.vocab]  # rows that only pad the table cannot win
    if sampling.temperature == 0:
        return jnp.argmax(logits_bv, axis=-1).astype(jnp.int32)
    logits_bv = restrict(logits_bv, sampling)
    step_keys_b = jax.vmap(jax.random.fold_in)(keys_b, positions_b)
    return jax.vmap(jax.random.categorical)(step_keys_b, logits_bv).astype(jnp.int32)


def restrict(logits_bv: jax.Array, sampling: Sampling) -> jax.Array:
    """Logits at the temperature, and -inf for tokens that top_k or top_p leave out (top_k first)."""
    # The largest logit becomes 0 before the division, so that no temperature overflows, and a temperature that float32
    # would round to 0 stays above it, because 0 / 0 is no logit.
    logits_bv = (logits_bv - logits_bv.max(axis=-1, keepdims=True)) / max(sampling.temperature, 1e-30)
    if sampling.top_k is not None:
        least_b1 = jax.lax.top_k(logits_bv, min(sampling.top_k, logits_bv.shape[-1]))[0][:, -1:]
        logits_bv = jnp.where(logits_bv < least_b1, -jnp.inf, logits_bv)
    if sampling.top_p is not None:
        sorted_bv = jnp.flip(jnp.sort(logits_bv, axis=-1), axis=-1)
        p_bv = jax.nn.softmax(sorted_bv, axis=-1)
        kept_bv = jnp.cumsum(p_bv, axis=-1) - p_bv < sampling.top_p  # those before it do not yet add up to top_p
        least_b1 = jnp.where(kept_bv, sorted_bv, jnp.inf).min(axis=-1, keepdims=True)
        logits_bv = jnp.where(logits_bv < least_b1, -jnp.inf, logits_bv)
    return logits_bv


def bucket(count: int) -> int:
    """The power of two from `SHORTEST_BUCKET` on that holds `count`."""
    return max(SHORTEST_BUCKET, 1 << (count - 1).bit_length())
