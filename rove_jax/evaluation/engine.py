"""Requests in, scores out: how likely a model finds given continuations of given contexts.

What is under every evaluation by likelihood. See `packing` for how requests share rows and beginnings.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental.multihost_utils import process_allgather

from rove_jax import config, distributed, sharding
from rove_jax.config import Model
from rove_jax.errors import require
from rove_jax.evaluation import packing
from rove_jax.evaluation.packing import Request, Row
from rove_jax.evaluation.scorer import compute_config, likelihoods, read

__all__ = ["Engine", "Request", "Score"]

TOKENS_PER_BATCH = {"cpu": 2048, "gpu": 16_384, "tpu": 16_384}
"""Tokens that one device reads at once, by platform."""
FEWEST_SCORED = 256
"""Room for scored tokens of a row: this, or 4, 16, ... times as much. Only those that there are cost time."""


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
        rows_of = {size: self.batch_rows(size, count) for size, count in counts.items()}
        waiting = None  # one batch is read while the next is laid out
        for part in packing.batches(rows, rows_of):
            found = part, self.run(part, rows_of[part[0].length], requests, packed=length is None)
            if waiting is not None:
                advance(self.collect(*waiting, scores))
            waiting = found
        if waiting is not None:
            advance(self.collect(*waiting, scores))
        return scores

    def batch_rows(self, length: int, count: int) -> int:
        """Rows of a batch, of which there are `count` in all: a multiple of the devices, and as few as do."""
        ways = sharding.batch_ways(self.mesh)
        tokens = TOKENS_PER_BATCH[self.mesh.devices.flat[0].platform]
        most = max(1, tokens // length) if self.batch_size is None else -(-self.batch_size // ways)
        return ways * min(most, packing.power(-(-count // ways)))

    def run(self, rows: list[Row], count: int, requests: Sequence[Request], *, packed: bool) -> Any:
        """(nats, whether greedy), [B, N], of what the spans of each row ask for, one after another, in a batch of
        `count` rows."""
        length, places = rows[0].length, sharding.batch(self.mesh)
        scored = max(row.scored for row in rows)
        width = packing.power(scored, FEWEST_SCORED, 4)
        index_bn, target_bn = np.zeros((2, count, width), np.int32)
        for number, row in enumerate(rows):
            at = 0
            for request, offset, first, size in row.spans:
                index_bn[number, at : at + size] = np.arange(first, first + size)
                target_bn[number, at : at + size] = requests[request].continuation[offset : offset + size]
                at += size
        asked = [self.put(array, places) for array in (index_bn, target_bn)]
        with jax.set_mesh(self.mesh):
            local = count // sharding.batch_ways(self.mesh)
            cfg = compute_config(self.cfg, self.params, batch=local, length=length, packed=packed)
            arrays = [self.put(array, places) for array in laid_out(rows, count, length)]
            hidden_btd = read(cfg, packed, self.params, *arrays)
            return likelihoods(self.cfg, self.params, hidden_btd, *asked, np.int32(scored))

    def collect(self, rows: list[Row], found: Any, scores: list[Score]) -> int:
        """Put the likelihoods of a batch where they belong; how many requests end in it."""
        if self.joint:
            distributed.meet("scores")  # on a CPU, collectives give up on others after 30 s, be they still compiling
            found = process_allgather(found, tiled=True)
        nll_bn, greedy_bn = map(np.asarray, found)
        done: set[int] = set()
        for number, row in enumerate(rows):
            at = 0
            for request, offset, _, size in row.spans:
                scores[request].nlls[offset : offset + size] = nll_bn[number, at : at + size]
                scores[request].greedy[offset : offset + size] = greedy_bn[number, at : at + size]
                at += size
                done.add(request)
        return len(done)


def names(requests: Sequence[Request]) -> list[tuple[bytes, bytes]]:
    """What is the same for equal requests alone. An array that is the context of many is read once."""
    digests: dict[int, bytes] = {}
    for context, _ in requests:
        if id(context) not in digests:
            digests[id(context)] = hashlib.sha256(np.asarray(context, np.int32).tobytes()).digest()
    return [(digests[id(context)], np.asarray(continuation, np.int32).tobytes()) for context, continuation in requests]


def laid_out(rows: Sequence[Row], count: int, width: int) -> np.ndarray:
    """(tokens, positions, segments, prefixes) of `count` rows, int32 [4, count, width]; segment 0: nothing there."""
    arrays = np.zeros((4, count, width), np.int32)
    for number, row in enumerate(rows):
        for array, parts in zip(arrays, (row.tokens, row.positions, row.segments, row.prefixes)):
            array[number, : row.size] = np.concatenate(parts)
    return arrays
