"""The walk of splash attention over blocks, against the mask it stands for."""

import jax.numpy as jnp
import numpy as np
import pytest

from rove_jax.attention.splash_schedule import DONE, FIRST, FRESH, LAST, PARTIAL, schedule
from rove_jax.attention.visibility import Visibility


@pytest.mark.parametrize("window", [None, 1, 7, 40])
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize(("length", "slots", "chunked"), [(40, 9, False), (37, 2, False), (37, 2, True), (3, 1, True)])
def test_the_schedule_visits_what_is_seen_once(length, slots, chunked, is_causal, window):
    steps = schedule(length, 8, is_causal, window, slots, chunked)
    at = jnp.arange(length)
    visibility = Visibility(is_causal, window, False, query_positions=at, key_positions=at)
    seen = np.zeros((40, 40), bool)
    seen[:length, :length] = visibility.mask()[0, 0]
    count = -(-length // 8)
    blocks = seen.reshape(5, 8, 5, 8).swapaxes(1, 2)[:count, :count]
    pairs = list(zip(steps.query.tolist(), steps.key.tolist()))
    assert len(set(pairs)) == len(pairs)
    assert set(pairs) >= set(zip(*(x.tolist() for x in blocks.any((2, 3)).nonzero())))
    # A block goes unmasked only if each of its real queries sees all of its keys.
    for (i, j), flags in zip(pairs, steps.flags):
        if not flags & PARTIAL:
            assert blocks[i, j][: length - i * 8].all()

    held, open_query, finished = {}, None, []
    for s, (i, j) in enumerate(pairs):
        flags = steps.flags[s]
        if flags & FIRST:
            assert open_query is None
            open_query = i
        if flags & FRESH:
            assert steps.fetch[s] == j
            held[steps.slot[s]] = j
        assert open_query == i and held[steps.slot[s]] == j
        if flags & LAST:
            open_query = None
        if flags & DONE:
            assert steps.done[s] == j and j not in [key for _, key in pairs[s + 1 :]]
            finished.append(j)
    assert open_query is None and sorted(finished) == list(range(count)) == sorted({i for i, _ in pairs})
    # What is written back must come in one run of steps.
    runs = [j for s, j in enumerate(steps.done) if s == 0 or steps.done[s - 1] != j]
    assert runs == finished
