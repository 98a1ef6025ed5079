"""Exact attention in memory linear in the context: softmax accumulated over blocks, forward and backward.

The recurrence is that of FlashAttention (arXiv 2205.14135, algorithm 1; 2307.08691, algorithm 2) in plain JAX, as loops
that the compiler cannot reorder; blocks that causality or the window hides from all of their queries are never visited.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from rove_jax.attention.call import first_order
from rove_jax.attention.dense import Key, Query
from rove_jax.attention.visibility import Visibility

CHUNK = 128
"""Queries, and keys, per block: the scores of one block take B N CHUNK^2 floats, which should stay in a cache."""


@functools.partial(jax.jit, static_argnames="scale")  # or each eager call would compile its loops anew
def chunked(query: Query, key: Key, value: Key, visibility: Visibility, scale: float) -> Query:
    """Softmax in float32, a block of scores at a time. Any mask; rows that see nothing return 0.

    Reverse-mode gradients only: the backward pass is written out, and forms each block of scores again.
    """
    if 0 in (query.size, key.size):
        return jnp.zeros_like(query)
    return differentiable(query, key, value, visibility, scale)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def differentiable(query: Query, key: Key, value: Key, visibility: Visibility, scale: float) -> Query:
    """The output of `forward`, with `backward` as its gradient."""
    return forward(query, key, value, visibility, scale)[0]


class Blocks(NamedTuple):
    """Queries [i, B, K, G, c, H] and keys and values [j, B, K, c, H], cut and filled up to whole blocks.

    Heads come before positions, so that every product is a batch of plain matrix products.
    """

    query: Array
    key: Array
    value: Array
    visibility: Visibility
    queries: int
    keys: int

    @staticmethod
    def cut(query: Array, key: Array, value: Array, visibility: Visibility) -> "Blocks":
        queries, (keys, kv_heads) = query.shape[1], key.shape[1:3]
        spelled = visibility.spelled_out(queries, keys)
        return Blocks(grouped(query, kv_heads), blocks(key), blocks(value), spelled, queries, keys)

    def reach(self, i: Array) -> tuple[Array | int, Array | int]:
        """The blocks of keys, first and one past the last, that some query of block i may see."""
        size, end = self.key.shape[-2], self.key.shape[0]
        if not self.visibility.aligned:
            return 0, end
        rows, window = self.query.shape[-2], self.visibility.window
        first, last = i * rows, (i + 1) * rows
        start = 0 if window is None else jnp.maximum(first - (window - 1), 0) // size
        if not self.visibility.causal:
            last = end * size if window is None else last + window - 1
        return start, jnp.minimum(-(-last // size), end)

    def scores(self, i: Array, j: Array, scale: float) -> Array:
        """Scaled logits of one block, float32 [B, K, G, c, c]; minus infinity where the key is not seen."""
        q, k = self.query[i], self.key[j]
        rows, columns = q.shape[-2], k.shape[-2]
        logits = product("bkgch,bkdh->bkgcd", q, k) * scale
        mask = self.visibility.cut(i * rows, rows, j * columns, columns).mask()
        mask &= (j * columns + jnp.arange(columns) < self.keys)[None, None, None]
        heads = (1, 1) if mask.shape[1] == 1 else logits.shape[1:3]
        return jnp.where(mask.reshape(mask.shape[0], *heads, *mask.shape[2:]), logits, -jnp.inf)

    def joined(self, x: Array, length: int) -> Array:
        """[i, B, ..., c, H] back to [B, length, heads, H]."""
        x = jnp.moveaxis(x, (0, -2), (1, 2))
        return x.reshape(x.shape[0], -1, math.prod(x.shape[3:-1]), x.shape[-1])[:, :length]


def forward(query: Query, key: Key, value: Key, visibility: Visibility, scale: float) -> tuple[Array, tuple]:
    """(output, what the backward pass needs)."""
    parts = Blocks.cut(query, key, value, visibility)

    def queries(i: Array) -> tuple[Array, Array]:
        def keys(j: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            top, total, mixed = state
            scores = parts.scores(i, j, scale)
            new_top = jnp.maximum(top, scores.max(-1))
            # A row that has seen nothing yet has top = -inf; -inf - -inf would be NaN.
            safe = jnp.where(jnp.isneginf(new_top), 0.0, new_top)
            weights, shrink = jnp.exp(scores - safe[..., None]), jnp.exp(top - safe)
            added = product("bkgcd,bkdh->bkgch", weights.astype(value.dtype), parts.value[j])
            return new_top, total * shrink + weights.sum(-1), mixed * shrink[..., None] + added

        mixed = jnp.zeros_like(parts.query[i], jnp.float32)
        empty = (jnp.full_like(mixed[..., 0], -jnp.inf), jnp.zeros_like(mixed[..., 0]), mixed)
        top, total, mixed = jax.lax.fori_loop(*parts.reach(i), keys, empty)
        # Of a row that sees nothing: output 0, and weights exp(score - inf) = 0 in the backward pass.
        log_total = jnp.where(total > 0, jnp.where(total > 0, top, 0.0) + jnp.log(total), jnp.inf)
        out = mixed / jnp.where(total > 0, total, 1.0)[..., None]
        return out.astype(query.dtype), log_total

    out, log_total = jax.lax.map(queries, jnp.arange(parts.query.shape[0]))
    out = parts.joined(out, parts.queries)
    return out, (query, key, value, visibility, out, log_total)


def backward(scale: float, saved: tuple, grad: Query) -> tuple[Array, Array, Array, None]:
    """Gradients of query, key and value; none of the mask."""
    query, key, value, visibility, out, log_total = saved
    parts = Blocks.cut(query, key, value, visibility)
    grads = grouped(grad, key.shape[2])
    # The softmax's own gradient needs sum_j A_ij dA_ij, which is the output times its gradient.
    inner = (grouped(out, key.shape[2]).astype(jnp.float32) * grads.astype(jnp.float32)).sum(-1)

    def queries(carry: tuple[Array, Array], i: Array) -> tuple[tuple[Array, Array], Array]:
        def keys(j: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            dquery, dkey, dvalue = state
            weights = jnp.exp(parts.scores(i, j, scale) - log_total[i][..., None])
            dweights = product("bkgch,bkdh->bkgcd", grads[i], parts.value[j])
            dscores = (weights * (dweights - inner[i][..., None]) * scale).astype(query.dtype)
            dquery += product("bkgcd,bkdh->bkgch", dscores, parts.key[j])
            dkey = dkey.at[j].add(product("bkgcd,bkgch->bkdh", dscores, parts.query[i]))
            dvalue = dvalue.at[j].add(product("bkgcd,bkgch->bkdh", weights.astype(value.dtype), grads[i]))
            return dquery, dkey, dvalue

        start = jnp.zeros_like(parts.query[i], jnp.float32)
        dquery, dkey, dvalue = jax.lax.fori_loop(*parts.reach(i), keys, (start, *carry))
        return (dkey, dvalue), dquery

    zeros = jnp.zeros_like(parts.key, jnp.float32)
    (dkey, dvalue), dquery = jax.lax.scan(queries, (zeros, zeros), jnp.arange(parts.query.shape[0]))
    dquery = parts.joined(dquery, parts.queries)
    dkey, dvalue = parts.joined(dkey, parts.keys), parts.joined(dvalue, parts.keys)
    return dquery.astype(query.dtype), dkey.astype(key.dtype), dvalue.astype(value.dtype), None


differentiable.defvjp(forward, first_order(backward, 0))


def blocks(x: Array) -> Array:
    """[B, length, K, H] to [blocks, B, K, c, H], c = min(CHUNK, length), filled up with zeros."""
    size = min(CHUNK, x.shape[1])
    x = jnp.pad(x, ((0, 0), (0, -x.shape[1] % size), (0, 0), (0, 0)))
    return x.reshape(x.shape[0], -1, size, *x.shape[2:]).transpose(1, 0, 3, 2, 4)


def grouped(x: Array, kv_heads: int) -> Array:
    """[B, length, N, H] to [blocks, B, K, G, c, H]."""
    x = blocks(x)
    return x.reshape(*x.shape[:2], kv_heads, -1, *x.shape[3:])


def product(subscripts: str, a: Array, b: Array) -> Array:
    """An einsum summed in float32, and with float32 products where the inputs are float32, whatever the platform."""
    precision = "highest" if a.dtype == jnp.float32 else None
    return jnp.einsum(subscripts, a, b, preferred_element_type=jnp.float32, precision=precision)
