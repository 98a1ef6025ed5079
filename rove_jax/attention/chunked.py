"""Exact attention in memory linear in the context: a chunk of queries at a time, scores recomputed backward."""

import functools

import jax
import jax.numpy as jnp

from rove_jax.attention.dense import Key, Query, xla
from rove_jax.attention.visibility import Visibility

CHUNK = 512
"""Queries per chunk: scores take B N CHUNK S floats."""


def chunked(query: Query, key: Key, value: Key, visibility: Visibility, scale: float) -> Query:
    """The result of `dense.xla`, one chunk of queries after another. Any mask; rows that see nothing return 0.

    Aligned positions skip the keys that causality or the window hides from a whole chunk.
    """
    queries, keys = query.shape[1], key.shape[1]
    spelled = visibility.spelled_out(queries, keys)
    outs = []
    for start in range(0, queries, CHUNK):
        rows = slice(start, min(start + CHUNK, queries))
        columns = reach(visibility, rows, keys)
        attend = functools.partial(xla, scale=scale)
        # Without a checkpoint the backward pass would keep the scores of every chunk.
        part = jax.checkpoint(
            lambda q, k, v, rows=rows, columns=columns, attend=attend: attend(q, k, v, spelled.cut(rows, columns))
        )
        outs.append(part(query[:, rows], key[:, columns], value[:, columns]))
    return jnp.concatenate(outs, axis=1)


def reach(visibility: Visibility, rows: slice, keys: int) -> slice:
    """The range of keys that some query of `rows` may see."""
    if not visibility.aligned:
        return slice(0, keys)
    behind = rows.start - (visibility.window - 1) if visibility.window else 0
    ahead = rows.stop + (visibility.window - 1) if visibility.window else keys
    return slice(max(behind, 0), rows.stop if visibility.causal else min(ahead, keys))
