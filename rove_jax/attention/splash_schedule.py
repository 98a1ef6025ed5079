"""The order in which splash attention walks the blocks that causality and the window leave, as numbers for its grid."""

import functools
from typing import NamedTuple

import numpy as np

FIRST, LAST, FRESH, DONE, PARTIAL = 1, 2, 4, 8, 16
"""Bits of `flags`: first and last step of a query block; the key block is to be loaded; its gradient is complete; some
of its keys are hidden from some of the queries."""


class Schedule(NamedTuple):
    """int32 [steps] each; `query` never falls but from chunk to chunk, `key` rises within a query block."""

    query: np.ndarray
    key: np.ndarray
    slot: np.ndarray
    """Where the key block lies in VMEM."""
    fetch: np.ndarray
    """The key block loaded last: an index that stays is not loaded again."""
    done: np.ndarray
    """The key block whose gradient is complete next, at this step or later."""
    chunk: np.ndarray
    flags: np.ndarray


@functools.cache
def schedule(length: int, block: int, causal: bool, window: int | None, slots: int, chunked: bool) -> Schedule:
    """The visible blocks of `length` queries and keys.

    Up to `slots` key blocks stay in VMEM. Where there are more of them, they are worked through in chunks of so many,
    all queries for each (`chunked`), or else loaded again for every query block.
    """
    count = -(-length // block)
    i, j = np.meshgrid(np.arange(count), np.arange(count), indexing="ij")
    oldest, newest = (i - j) * block + (block - 1), (i - j) * block - (block - 1)
    visible, whole = np.ones_like(i, bool), (j + 1) * block <= length
    if causal:  # which hides the padding as well
        visible, whole = oldest >= 0, newest >= 0
    if window is not None:
        visible &= newest < window
        whole &= oldest < window
        if not causal:
            visible &= oldest > -window
            whole &= newest > -window
    query, key = np.nonzero(visible)
    chunk = key // slots if chunked else np.zeros_like(key)
    order = np.lexsort((key, query, chunk))
    query, key, chunk = query[order], key[order], chunk[order]

    run = chunk * count + query
    first, last = np.diff(run, prepend=-1) != 0, np.diff(run, append=-1) != 0
    step = np.arange(len(key))
    fresh, done = np.zeros(len(key), bool), np.zeros(len(key), bool)
    fresh[np.unique(key, return_index=True)[1]] = True
    done[len(key) - 1 - np.unique(key[::-1], return_index=True)[1]] = True
    if not chunked and slots < count:
        fresh[:] = True
    fetch = key[np.maximum.accumulate(np.where(fresh, step, 0))]
    ends = step[done]
    flags = FIRST * first + LAST * last + FRESH * fresh + DONE * done + PARTIAL * ~whole[query, key]
    columns = (query, key, key % slots, fetch, key[ends[np.searchsorted(ends, step)]], chunk, flags)
    return Schedule(*(x.astype(np.int32) for x in columns))
