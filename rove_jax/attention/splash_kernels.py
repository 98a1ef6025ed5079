"""Block-sparse attention as Pallas TPU kernels that turn what they load and turn back what they store.

The recurrences are those of FlashAttention-2 (arXiv 2307.08691, algorithms 1 and 2), with the backward pass in one
kernel; walking a list of visible blocks that is fetched ahead is the idea of JAX's public splash attention.

Arrays are [B, heads x H, T] in HBM, and blocks [heads, H, block] in the kernels: heads and channels lie along sublanes,
where taking one head, or swapping halves for a rotation, moves nothing, and a head of 64 fills its tiles as well as one
of 128; positions lie along lanes, so that statistics of rows are plain rows. XLA makes and takes this order in its
products at no cost. A program serves a few key heads and all query heads that read them. Keys and values are loaded and
turned once, and stay in VMEM for all later queries.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array

from rove_jax.attention.splash_schedule import DONE, FIRST, FRESH, LAST, PARTIAL
from rove_jax.config import Rotary
from rove_jax.rotary import angles

NEVER = -1e30
"""Logit of a key that is not seen."""
LOWEST = -1e29
"""Where the running maximum starts: above NEVER, so that a row that sees nothing sums to 0."""
LOG2_E = 1.4426950408889634
VMEM_LIMIT = 64 * 2**20
"""Bytes a kernel may take. The compiler's default is a part of what a core has."""
RESIDENT = 24 * 2**20
"""Bytes of keys, values and their gradients that stay in VMEM: 16,384 bfloat16 positions of 128 channels."""


class Spec(NamedTuple):
    """What is fixed about a call when it is traced."""

    kv_heads: int
    group: int
    """Query heads per key head."""
    head_dim: int
    turned_dim: int
    """The same before padding, which the rotations are of."""
    length: int
    """Positions before padding."""
    block: int
    causal: bool
    window: int | None
    scale: float
    rotary: Rotary | None
    value_rotary: Rotary | None
    interpret: bool

    @property
    def held(self) -> int:
        """Key heads per program: up to 128 channels, to have few programs and enough to do side by side in each."""
        return next(n for n in range(max(1, 128 // self.head_dim), 0, -1) if self.kv_heads % n == 0)

    @property
    def alike(self) -> bool:
        """Whether one rotation serves queries, keys, values and outputs."""
        return self.rotary == self.value_rotary


class Tables(NamedTuple):
    """(cos, signed sin) of positions within a block, [2, H, block], and of each block's start, [2, H, blocks]."""

    within: Any
    start: Any


def tables(spec: Spec, blocks: int) -> tuple[Tables | None, Tables | None]:
    """Those of queries and keys, and those of values and outputs unless they are the same. float32, 1 and 0 on channels
    that do not turn. The kernel adds the angles: tables of all T positions would have to be fetched anew by every
    program, and weigh more than the values."""

    def columns(rotary: Rotary, positions: Array) -> Array:
        cos, sin = (x.T for x in angles(positions, rotary, spec.turned_dim))
        if rotary.pairing == "half":
            cos, sin = jnp.concatenate([cos, cos]), jnp.concatenate([-sin, sin])
        else:
            cos, sin = (jnp.stack(x, 1).reshape(-1, len(positions)) for x in ((cos, cos), (-sin, sin)))
        still = ((0, spec.head_dim - len(cos)), (0, 0))
        return jnp.stack([jnp.pad(cos, still, constant_values=1.0), jnp.pad(sin, still)])

    def both(rotary: Rotary | None) -> Tables | None:
        starts = jnp.arange(blocks) * spec.block
        return rotary and Tables(columns(rotary, jnp.arange(spec.block)), columns(rotary, starts))

    return both(spec.rotary), None if spec.alike else both(spec.value_rotary)


class Rotation(NamedTuple):
    """(cos, sin) [H, block] of one block, and which channels are swapped."""

    cos: Array
    sin: Array
    pairs: int
    half: bool

    def turn(self, x: Array, inverse: bool = False) -> Array:
        """x [heads, H, block] float32, turned or turned back: x cos + swapped(x) sin."""
        m = self.pairs
        if self.half:
            parts = [x[:, m : 2 * m], x[:, :m], x[:, 2 * m :]]
            swapped = jnp.concatenate([part for part in parts if part.shape[1]], axis=1)
        else:
            even = jax.lax.broadcasted_iota(jnp.int32, x.shape, 1) & 1 == 0
            swapped = jnp.where(even, pltpu.roll(x, x.shape[1] - 1, 1), pltpu.roll(x, 1, 1))
        return x * self.cos[None] + swapped * (-self.sin if inverse else self.sin)[None]


def rotations(spec: Spec, at: tuple[Any, Any], block: Array) -> tuple[Rotation | None, Rotation | None]:
    """Of queries and keys, and of values and outputs, in block number `block`."""

    def one(rotary: Rotary | None, table: Tables | None) -> Rotation | None:
        if rotary is None or table is None:
            return None
        start = table.start[...]
        own = jax.lax.broadcasted_iota(jnp.int32, start.shape, 2) == block
        cos_a, sin_a = jnp.sum(jnp.where(own, start, 0.0), axis=2, keepdims=True)
        cos_b, sin_b = table.within[0], table.within[1]
        cos, sin = cos_a * cos_b - sin_a * sin_b, sin_a * cos_b + cos_a * sin_b
        return Rotation(cos, sin, rotary.turned(spec.turned_dim) // 2, rotary.pairing == "half")

    first = one(spec.rotary, at[0])
    return first, first if spec.alike else one(spec.value_rotary, at[1])


def load(ref: Any, spec: Spec, turning: Rotation | None) -> Array:
    """A block [1, heads x H, block] as float32 [heads, H, block], turned."""
    x = ref[0].astype(jnp.float32).reshape(-1, spec.head_dim, spec.block)
    return x if turning is None else turning.turn(x)


def store(ref: Any, x: Array, turning: Rotation | None) -> None:
    """float32 [heads, H, block], turned back, into a block [..., heads x H, block]."""
    x = x if turning is None else turning.turn(x, inverse=True)
    ref[...] = x.astype(ref.dtype).reshape(ref.shape)


def product(a: Array, b: Array, contract: tuple[int, int]) -> Array:
    """A matrix product summed in float32, with float32 products for float32 inputs."""
    precision = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    axes = (((contract[0],), (contract[1],)), ((), ()))
    return jax.lax.dot_general(a, b, axes, precision=precision, preferred_element_type=jnp.float32)


def seen(spec: Spec, i: Array, j: Array, ids: tuple[Any, Any] | None) -> Array:
    """Which of the block's keys each query may see: bool [block of keys, block of queries]."""
    shape = (spec.block, spec.block)
    key = j * spec.block + jax.lax.broadcasted_iota(jnp.int32, shape, 0)
    age = i * spec.block + jax.lax.broadcasted_iota(jnp.int32, shape, 1) - key
    mask = age >= 0 if spec.causal else key < spec.length
    if spec.window is not None:
        mask &= (age if spec.causal else jnp.abs(age)) < spec.window
    if ids is not None:
        of_queries = ids[0][0]  # their segments and, below, their prefixes if there are any
        # Only a whole tile can be transposed.
        of_keys = jnp.broadcast_to(ids[1][0, :1], (128, spec.block)).T[:, :1]
        same = of_keys == of_queries[:1]
        if len(of_queries) > 1:
            same |= of_keys == of_queries[1:]
        mask &= same & (of_keys != 0)
    return mask


def by_heads(spec: Spec, flags: Array, masks: bool, mask: Callable[[], Array], head: Callable[..., None]) -> None:
    """Run `head(query head, key head, mask or None)` over the program's heads, without a mask where none is needed."""
    heads = spec.held * spec.group

    def run(masked: bool) -> None:
        which = mask() if masked else None
        # Side by side, one head's products overlap with another's exponentials; interpreted, that is only more code.
        unroll = heads <= 4 and not spec.interpret
        jax.lax.fori_loop(0, heads, lambda n, _: head(n, jax.lax.div(n, spec.group), which), None, unroll=unroll)

    if masks:
        run(True)
    else:
        pl.when(flags & PARTIAL != 0)(functools.partial(run, True))
        pl.when(flags & PARTIAL == 0)(functools.partial(run, False))


def scores(k: Array, q: Array, spec: Spec, mask: Array | None) -> Array:
    """Logits times log2(e), [block of keys, block of queries]. The scale is applied here, in float32, not to q."""
    logits = product(k, q, (0, 0)) * (spec.scale * LOG2_E)
    return logits if mask is None else jnp.where(mask, logits, NEVER)


def splash_forward(steps, at, ids, q, k, v, o, log_total, qs, ks, vs, mixed, top, total, *, spec: Spec):
    """Outputs, and log2 of each row's sum of exponentials."""
    s = pl.program_id(2)
    flags, i, j = steps.flags[s], steps.query[s], steps.key[s]
    slot = steps.slot[s]

    @pl.when(flags & FRESH != 0)
    def _():
        turning, turning_values = rotations(spec, at, j)
        ks[slot] = load(k, spec, turning).astype(ks.dtype)
        vs[slot] = load(v, spec, turning_values).astype(vs.dtype)

    @pl.when(flags & FIRST != 0)
    def _():
        qs[...] = load(q, spec, rotations(spec, at, i)[0]).astype(qs.dtype)
        mixed[...], total[...] = jnp.zeros_like(mixed), jnp.zeros_like(total)
        top[...] = jnp.full_like(top, LOWEST)

    def head(n: Array, u: Array, mask: Array | None) -> None:
        logits = scores(ks[slot, u], qs[n], spec, mask)
        new_top = jnp.maximum(top[n], jnp.max(logits, axis=0, keepdims=True))
        weights, shrink = jnp.exp2(logits - new_top), jnp.exp2(top[n] - new_top)
        total[n] = total[n] * shrink + jnp.sum(weights, axis=0, keepdims=True)
        mixed[n] = mixed[n] * shrink + product(vs[slot, u], weights.astype(vs.dtype), (1, 0))
        top[n] = new_top

    by_heads(spec, flags, ids is not None, lambda: seen(spec, i, j, ids), head)

    @pl.when(flags & LAST != 0)
    def _():
        some = total[...] > 0
        safe = jnp.where(some, total[...], 1.0)
        store(o, mixed[...] / safe, rotations(spec, at, i)[1])
        # Of a row that sees nothing: weights exp2(logit - 1e30) = 0 in the backward pass.
        log_total[0] = jnp.where(some, top[...] + jnp.log2(safe), -NEVER)


def splash_backward(
    steps, at, ids, q, k, v, o, do, log_total, dq, dk, dv, qs, gs, ks, vs, inner, dqs, dks, dvs, *, spec: Spec
):
    """Gradients of queries, keys and values. Those of keys and values gather in VMEM until their last query."""
    s = pl.program_id(2)
    flags, i, j = steps.flags[s], steps.query[s], steps.key[s]
    slot = steps.slot[s]

    @pl.when(flags & FRESH != 0)
    def _():
        turning, turning_values = rotations(spec, at, j)
        ks[slot] = load(k, spec, turning).astype(ks.dtype)
        vs[slot] = load(v, spec, turning_values).astype(vs.dtype)
        dks[slot], dvs[slot] = jnp.zeros_like(dks[slot]), jnp.zeros_like(dvs[slot])

    @pl.when(flags & FIRST != 0)
    def _():
        turning, turning_outputs = rotations(spec, at, i)
        qs[...] = load(q, spec, turning).astype(qs.dtype)
        grad = load(do, spec, None)
        # sum_j A_ij dA_ij, which is the output times its gradient, turned or not.
        inner[...] = jnp.sum(grad * load(o, spec, None), axis=1, keepdims=True)
        gs[...] = (grad if turning_outputs is None else turning_outputs.turn(grad)).astype(gs.dtype)
        dqs[...] = jnp.zeros_like(dqs)

    def head(n: Array, u: Array, mask: Array | None) -> None:
        key, value, query, grad = ks[slot, u], vs[slot, u], qs[n], gs[n]
        weights = jnp.exp2(scores(key, query, spec, mask) - log_total[0, n])
        dscores = (weights * (product(value, grad, (0, 0)) - inner[n])).astype(query.dtype)
        dvs[slot, u] += product(grad, weights.astype(grad.dtype), (1, 1))
        dks[slot, u] += product(query, dscores, (1, 1))
        dqs[n] += product(key, dscores, (1, 0))

    by_heads(spec, flags, ids is not None, lambda: seen(spec, i, j, ids), head)

    @pl.when(flags & LAST != 0)
    def _():
        store(dq, dqs[...] * spec.scale, rotations(spec, at, i)[0])

    @pl.when(flags & DONE != 0)
    def _():
        turning, turning_values = rotations(spec, at, j)
        store(dk, dks[slot] * spec.scale, turning)
        store(dv, dvs[slot], turning_values)
