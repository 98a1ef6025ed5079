"""Requests in, scores out: how likely a model finds given continuations of given contexts.

What is under every evaluation by likelihood. See `packing` for how requests share rows and beginnings.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental.multihost_utils import process_allgather

from rove_jax import config, distributed, sharding
from rove_jax.config import Model
from rove_jax.errors import require
from rove_jax.evaluation import packing
from rove_jax.evaluation.packing import Request, Row, Strip
from rove_jax.evaluation.scorer import branch, compute_config, likelihoods, read

__all__ = ["Engine", "Request", "Score"]

TOKENS_PER_BATCH = 16_384
"""Tokens that one device reads at once."""
SHARED_TOKENS_PER_BATCH = {"cpu": 2048}
"""The same where rows are shared, on platforms where keeping keys and values for branches of more gains nothing."""
FEWEST_SCORED = 32
"""Positions of a row for which logits are formed: this, or 4, 16, ... times as many."""


class Score(NamedTuple):
    """How likely the model finds each token of a continuation after what stands before it."""

    nlls: np.ndarray
    """float32 [len(continuation)], nats. Sums over them belong in float64."""
    greedy: np.ndarray
    """bool, same length: is the token the most likely one (the first of them)."""


class Engine:
    """Scores requests with one model, whatever their number, order and lengths, on all devices of a mesh.

    On a mesh of several processes each of them calls `score` with the same requests, and each gets all scores.
    """

    def __init__(
        self,
        cfg: Model,
        params: dict,
        *,
        batch_size: int | None = None,
        mesh: jax.sharding.Mesh | None = None,
    ) -> None:
        """Place the parameters.

        Args:
            cfg: the model, its frequency scaling chosen; `attention` may still be "auto".
            params: the parameters of `cfg`, the same in all processes; each device gets a copy.
            batch_size: rows that all devices read at once; None: `TOKENS_PER_BATCH` tokens a device.
            mesh: None: all devices of this process, along `data`. At the end of a run of many, one scores alone.
        """
        require(batch_size is None or batch_size >= 1, "batch_size", batch_size, "must be at least 1")
        self.mesh = sharding.make_mesh(config.Mesh(data=-1), jax.local_devices()) if mesh is None else mesh
        self.joint = len({device.process_index for device in self.mesh.devices.flat}) > 1
        self.cfg, self.batch_size = cfg, batch_size
        whole = sharding.replicated(self.mesh)
        self.params = jax.tree.map(lambda leaf: self.put(leaf, whole), params)

    def put(self, array: Any, where: jax.sharding.NamedSharding) -> jax.Array:
        """An array that all processes have alike, laid out over the mesh."""
        if not self.joint:
            return jax.device_put(array, where)
        if isinstance(array, jax.Array) and array.sharding == where:
            return array
        host = np.asarray(array)
        return jax.make_array_from_callback(host.shape, where, lambda index: host[index])

    def reading(self, cfg: Model) -> "Engine":
        """The same parameters read as another model, so with other rotations."""
        return Engine(cfg, self.params, batch_size=self.batch_size, mesh=self.mesh)

    def own(self) -> "Engine":
        """The same on the devices of this process alone, in a run of one process this itself. Nothing is copied."""
        if not self.joint:
            return self
        mesh = sharding.make_mesh(config.Mesh(data=-1), list(self.mesh.local_devices))
        whole = sharding.replicated(mesh)

        def here(leaf: jax.Array) -> jax.Array:
            parts = [shard.data for shard in leaf.addressable_shards]
            return jax.make_array_from_single_device_arrays(leaf.shape, whole, parts)

        return Engine(self.cfg, jax.tree.map(here, self.params), batch_size=self.batch_size, mesh=mesh)

    def score(
        self,
        requests: Sequence[Request],
        advance: Callable[[int], object] = lambda done: None,
        *,
        length: int | None = None,
    ) -> list[Score]:
        """A score for each request, in their order. Nothing is cut off: see `overlong` for those that are too long.

        Args:
            advance: told how many requests each batch finished (a progress bar's `update`).
            length: give each request a row of its own of so many tokens, which suits requests of one length. They have
                at most one more, since the last one is only predicted. None: rows are shared.
        """
        named = names(requests)
        distinct = dict(zip(named, requests))
        found = dict(zip(distinct, self.distinct(list(distinct.values()), advance, length)))
        advance(len(requests) - len(distinct))
        # Equal requests have one score, to the bit, or rounding would decide between equal choices.
        return [found[name] for name in named]

    def distinct(
        self, requests: Sequence[Request], advance: Callable[[int], object], length: int | None
    ) -> list[Score]:
        """`score` of requests no two of which are equal."""
        scores = [
            Score(np.empty(len(r.continuation), np.float32), np.empty(len(r.continuation), bool)) for r in requests
        ]
        forest = packing.trees(requests, shares=length is None and self.cfg.window is None)
        rows = packing.rows(forest) if length is None else packing.alone(forest, length)
        counts = Counter(row.length for row in rows)
        rows_of = {size: self.batch_rows(size, count, length is None) for size, count in counts.items()}
        waiting = None  # one batch is read while the next is laid out
        for part, tokens in packing.batches(rows, rows_of):
            results = list(self.run(part, tokens, rows_of[part[0].length], requests, packed=length is None))
            if waiting is not None:
                advance(self.collect(waiting, scores))
            waiting = results
        if waiting is not None:
            advance(self.collect(waiting, scores))
        return scores

    def batch_rows(self, length: int, count: int, packed: bool) -> int:
        """Rows of a batch, of which there are `count` in all: a multiple of the devices, and as few as do."""
        ways = sharding.batch_ways(self.mesh)
        platform = self.mesh.devices.flat[0].platform
        tokens = SHARED_TOKENS_PER_BATCH.get(platform, TOKENS_PER_BATCH) if packed else TOKENS_PER_BATCH
        most = max(1, tokens // length) if self.batch_size is None else -(-self.batch_size // ways)
        return ways * min(most, packing.power(-(-count // ways)))

    def run(
        self, rows: list[Row], tokens: int, count: int, requests: Sequence[Request], *, packed: bool
    ) -> Iterator[tuple[list[Strip], Any]]:
        """(strips, their likelihoods) of every pass over a batch of `count` rows, with rounds of `tokens` tokens."""
        length, places = rows[0].length, sharding.batch(self.mesh)
        local = count // sharding.batch_ways(self.mesh)
        with jax.set_mesh(self.mesh):
            cfg = compute_config(self.cfg, self.params, batch=local, length=length, packed=packed)
            strips = [row.prefixes for row in rows]
            arrays = [self.put(array, places) for array in laid_out(strips, count, length)]
            hidden_btd, store = read(cfg, packed, tokens, self.params, *arrays)
            yield strips, self.likely(hidden_btd, strips, requests)
            for number in range(max(len(row.rounds) for row in rows)):
                strips = [row.rounds[number] if number < len(row.rounds) else Strip() for row in rows]
                arrays = [self.put(array, places) for array in laid_out(strips, count, tokens)]
                cfg = compute_config(self.cfg, self.params, batch=local, length=length + tokens, masked=True)
                hidden_btd, store = branch(cfg, self.params, store, *arrays)
                yield strips, self.likely(hidden_btd, strips, requests)

    def likely(self, hidden_btd: jax.Array, strips: list[Strip], requests: Sequence[Request]) -> Any:
        """(nats, whether greedy), [B, N], of what the spans of each strip ask for, one after another."""
        most = max(sum(span.count for span in strip.spans) for strip in strips)
        if most == 0:
            return None
        width = min(packing.power(most, FEWEST_SCORED, 4), max(hidden_btd.shape[1], most))
        index_bn = np.zeros((hidden_btd.shape[0], width), np.int32)
        target_bn = np.zeros_like(index_bn)
        for row, strip in enumerate(strips):
            at = 0
            for request, offset, first, count in strip.spans:
                index_bn[row, at : at + count] = np.arange(first, first + count)
                target_bn[row, at : at + count] = requests[request].continuation[offset : offset + count]
                at += count
        places = sharding.batch(self.mesh)
        asked = self.put(index_bn, places), self.put(target_bn, places)
        return likelihoods(self.cfg, self.params, hidden_btd, *asked)

    def collect(self, passes: list[tuple[list[Strip], Any]], scores: list[Score]) -> int:
        """Put the likelihoods of a batch where they belong; how many requests end in it."""
        done: set[int] = set()
        every = [found for _, found in passes]
        if self.joint:
            distributed.meet("scores")  # on a CPU, collectives give up on others after 30 s, be they still compiling
            every = process_allgather(every, tiled=True)
        for (strips, _), found in zip(passes, every):
            if found is None:
                continue
            nll_bn, greedy_bn = map(np.asarray, found)
            for row, strip in enumerate(strips):
                at = 0
                for request, offset, _, count in strip.spans:
                    scores[request].nlls[offset : offset + count] = nll_bn[row, at : at + count]
                    scores[request].greedy[offset : offset + count] = greedy_bn[row, at : at + count]
                    at += count
                    done.add(request)
        return len(done)


def names(requests: Sequence[Request]) -> list[tuple[bytes, bytes]]:
    """What is the same for equal requests alone. An array that is the context of many is read once."""
    digests: dict[int, bytes] = {}
    for context, _ in requests:
        if id(context) not in digests:
            digests[id(context)] = hashlib.sha256(np.asarray(context, np.int32).tobytes()).digest()
    return [(digests[id(context)], np.asarray(continuation, np.int32).tobytes()) for context, continuation in requests]


def laid_out(strips: Sequence[Strip], rows: int, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(tokens, positions, segments) of a pass, int32 [rows, width]; segment 0 where nothing stands."""
    tokens_bt, positions_bt, segments_bt = arrays = np.zeros((3, rows, width), np.int32)
    for row, strip in enumerate(strips):
        for array, parts in zip(arrays, (strip.tokens, strip.positions, strip.segments)):
            if parts:
                array[row, : strip.size] = np.concatenate(parts)
    return tokens_bt, positions_bt, segments_bt
