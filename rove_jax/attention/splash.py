"""The TPU backend: attention of aligned queries and keys in kernels of our own, which do the turning as well.

See `splash_kernels`. Turned inside, queries, keys, values and outputs cost no traffic with HBM: RoVE moves the bytes
that RoPE moves. The kernels turn by index; wherever positions are aligned and both ends of a rotation turn by the same
frequencies, that is the rotation by position.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec
from jaxtyping import Array

from rove_jax.attention.call import Call, Target, first_order, interpreted
from rove_jax.attention.dense import Key, Query
from rove_jax.attention.splash_kernels import RESIDENT, VMEM_LIMIT, Spec, splash_backward, splash_forward, tables
from rove_jax.attention.splash_schedule import Schedule, schedule
from rove_jax.attention.visibility import Visibility
from rove_jax.config import Rotary
from rove_jax.sharding import BATCH, MESH_AXES, unclaimed

BLOCK = 512
"""Queries, and keys, per block, at most."""
LANES = 128
"""Block lengths are multiples of a tile's lanes."""
WIDEST = 4096
"""Channels of all query heads that one program serves, at most: the heads that read one key head."""


def splash(
    query: Query,
    key: Key,
    value: Key,
    visibility: Visibility,
    scale: float,
    rotary: Rotary | None = None,
    value_rotary: Rotary | None = None,
) -> Query:
    """Attention [B, T, N, H], T = S, on every device of the mesh by itself: rows and heads may lie across it.

    Args:
      query, key, value: not turned yet, bfloat16 or float32. Sums and softmax are float32, and so are the products of
        float32 arrays.
      visibility: aligned. Rows that see nothing return 0, and neither have nor are given a gradient.
      rotary: turns queries and keys; None: they are as they should be.
      value_rotary: turns values, and outputs back. None for neither.
    """
    if query.size == 0:
        return query
    told = [x for x in (visibility.query_segments, visibility.query_prefixes) if x is not None]
    ids = jnp.stack(told, 1) if told else None

    def on_device(query: Array, key: Array, value: Array, ids: Array | None) -> Array:
        return whole(query, key, value, ids, visibility, scale, rotary, value_rotary)

    free = unclaimed()
    if math.prod(free.values()) == 1:
        return on_device(query, key, value, ids)
    rows = PartitionSpec(tuple(name for name in BATCH if name in free))
    heads = PartitionSpec(*rows, None, "tensor" if "tensor" in free else None)
    # The interpreter of kernels does not pass the check where there are segments (jax 0.10 and 0.12).
    spread = jax.shard_map(
        on_device,
        in_specs=(heads, heads, heads, rows if ids is not None else None),
        out_specs=heads,
        axis_names=set(free),
        check_vma=False,
    )
    return spread(query, key, value, ids)


def splash_refusal(call: Call, target: Target) -> str:
    """Why the kernels cannot serve a call on a TPU, or an empty string."""
    group = call.query_heads // call.kv_heads
    if call.dtype not in ("bfloat16", "float32"):
        return f"takes bfloat16 or float32, not {call.dtype}"
    if not call.aligned:
        return "takes positions in order only, as many queries as keys"
    if call.mask:
        return "takes no mask of the caller's own"
    if group * padded(call.head_dim) > WIDEST:
        return f"takes at most {WIDEST} channels of query heads on one key head, not {group} x {padded(call.head_dim)}"
    free = unclaimed()
    for name, size in free.items():
        if name not in MESH_AXES and size > 1:
            return f"the mesh has an axis {name!r} = {size}, and is not one of {', '.join(MESH_AXES)} alone"
    ways, tensor = math.prod(free.get(name, 1) for name in BATCH), free.get("tensor", 1)
    if call.batch % ways or call.kv_heads % tensor:
        sizes = f"{call.batch} rows and {call.kv_heads} key heads"
        return f"{sizes} do not divide over a mesh of {' x '.join(BATCH)} = {ways}, tensor = {tensor}"
    return ""


def padded(head_dim: int) -> int:
    """Channels per head in the kernels: whole tiles of 16 bfloat16 sublanes."""
    return -(-head_dim // 16) * 16


def whole(
    query: Array,
    key: Array,
    value: Array,
    ids: Array | None,
    visibility: Visibility,
    scale: float,
    rotary: Rotary | None,
    value_rotary: Rotary | None,
) -> Array:
    """`splash` on one device: [B, T, heads, H] as [B, heads x H, T], filled up to whole blocks, and back."""
    batch, length, heads, turned_dim = query.shape
    kv_heads, head_dim = key.shape[2], padded(turned_dim)

    def turning(rotary: Rotary | None) -> Rotary | None:
        return rotary if rotary is not None and rotary.alpha and rotary.turned(turned_dim) else None

    spec = Spec(
        kv_heads=kv_heads,
        group=heads // kv_heads,
        head_dim=head_dim,
        turned_dim=turned_dim,
        length=length,
        block=0,
        causal=visibility.causal,
        window=visibility.window,
        scale=scale,
        rotary=turning(rotary),
        value_rotary=turning(value_rotary),
        interpret=interpreted(),
    )
    block = block_length(length, spec.held * spec.group * head_dim)
    spec = spec._replace(block=block)

    def flat(x: Array) -> Array:
        x = jnp.pad(x, ((0, 0), (0, -length % block), (0, 0), (0, head_dim - turned_dim)))
        return x.transpose(0, 2, 3, 1).reshape(batch, -1, x.shape[1])

    ids = None if ids is None else jnp.pad(ids, ((0, 0), (0, 0), (0, -length % block)))
    out: Array = attention(flat(query), flat(key), flat(value), ids, spec)
    return out.reshape(batch, heads, head_dim, -1).transpose(0, 3, 1, 2)[:, :length, :, :turned_dim]


def block_length(length: int, channels: int) -> int:
    """Positions per block: at most BLOCK, fewer where a block has many `channels`, and as even as the lanes allow."""
    most = max(LANES, BLOCK * 1024 // max(channels, 1024) // LANES * LANES)
    even = -(-length // -(-length // most))
    return -(-even // LANES) * LANES


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def attention(query: Array, key: Array, value: Array, ids: Array | None, spec: Spec) -> Array:
    """The output of `forward`, with `backward` as its gradient. `ids`: segments and prefixes, [B, 1 or 2, T]."""
    return forward(query, key, value, ids, spec)[0]


class Layout:
    """Blocks of the arrays of a call, as the grid (row, program, step) walks them."""

    def __init__(self, spec: Spec, query: Array, per_channel: int, chunked: bool):
        """`per_channel`: bytes that stay in VMEM for each channel of a key head."""
        self.spec, self.batch, self.length = spec, query.shape[0], query.shape[2]
        self.count = self.length // spec.block
        self.kv_width = spec.held * spec.head_dim
        self.slots = min(self.count, max(1, RESIDENT // (self.kv_width * spec.block * per_channel)))
        self.steps = schedule(spec.length, spec.block, spec.causal, spec.window, self.slots, chunked)

    def rows(self, which: str, heads: int) -> pl.BlockSpec:
        """Of [B, heads x H, T]: the block that the field `which` of the schedule names."""
        at = Schedule._fields.index(which)
        shape = (1, heads * self.spec.head_dim, self.spec.block)
        return pl.BlockSpec(shape, lambda b, p, s, *steps: (b, p, steps[at][s]))

    @property
    def query(self) -> pl.BlockSpec:
        return self.rows("query", self.spec.held * self.spec.group)

    @property
    def key(self) -> pl.BlockSpec:
        return self.rows("fetch", self.spec.held)

    @property
    def statistic(self) -> pl.BlockSpec:
        """Of [B, N, 1, T], a number per query and head, without the 128 lanes that a column would take."""
        return pl.BlockSpec(
            (1, self.spec.held * self.spec.group, 1, self.spec.block),
            lambda b, p, s, *steps: (b, p, 0, steps[0][s]),
        )

    def shared(self, x: Any) -> Any:
        """The tables, whole, and the segments of the queries and of the keys at hand."""
        return jax.tree.map(lambda leaf: pl.BlockSpec(leaf.shape, lambda *_: (0,) * leaf.ndim), x)

    def segments(self, ids: Array | None) -> tuple[pl.BlockSpec, pl.BlockSpec] | None:
        if ids is None:
            return None
        shape = (1, ids.shape[1], self.spec.block)
        return tuple(pl.BlockSpec(shape, lambda b, p, s, *steps, at=at: (b, 0, steps[at][s])) for at in (0, 1))  # type: ignore

    def scratch(self, *kinds: tuple[str, Any]) -> list[Any]:
        """VMEM for query blocks, rows of statistics, or the slots of key blocks."""
        spec, heads = self.spec, self.spec.held * self.spec.group
        shapes = {
            "query": (heads, spec.head_dim, spec.block),
            "row": (heads, 1, spec.block),
            "key": (self.slots, spec.held, spec.head_dim, spec.block),
        }
        return [pltpu.VMEM(shapes[kind], dtype) for kind, dtype in kinds]

    def call(
        self, kernel: Any, inputs: tuple, in_specs: tuple, out_shape: Any, out_specs: Any, scratch: list, products
    ):
        """Run `kernel`, which makes `products` matrix products per step and head."""
        spec, heads = self.spec, self.spec.held * self.spec.group
        scores = self.batch * spec.kv_heads // spec.held * heads * len(self.steps.key) * spec.block**2
        moved = sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves((inputs, out_shape)))
        fields = len(self.steps)
        # Inside a caller's shard_map, results vary over the axes that the inputs vary over.
        axes = jax.typeof(inputs[2]).manual_axis_type
        out_shape = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, manual_axis_type=axes), out_shape)
        return pl.pallas_call(
            lambda *refs: kernel(Schedule(*refs[:fields]), *refs[fields:], spec=spec),
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=fields,
                grid=(self.batch, spec.kv_heads // spec.held, len(self.steps.key)),
                in_specs=in_specs,
                out_specs=out_specs,
                scratch_shapes=scratch,
            ),
            out_shape=out_shape,
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=("parallel", "parallel", "arbitrary"), vmem_limit_bytes=VMEM_LIMIT
            ),
            cost_estimate=pl.CostEstimate(
                flops=2 * products * scores * spec.head_dim, transcendentals=scores, bytes_accessed=moved
            ),
            interpret=spec.interpret,
            name=kernel.__name__,
        )(*self.steps, *inputs)


def forward(query: Array, key: Array, value: Array, ids: Array | None, spec: Spec) -> tuple[Array, tuple]:
    """(output, what the backward pass needs)."""
    kept, dtype = jnp.float32, query.dtype
    at = Layout(spec, query, 2 * dtype.itemsize, chunked=False)
    turns = tables(spec, at.count)
    statistic = jax.ShapeDtypeStruct((at.batch, spec.kv_heads * spec.group, 1, at.length), kept)
    out, log_total = at.call(
        splash_forward,
        (turns, None if ids is None else (ids, ids), query, key, value),
        (at.shared(turns), at.segments(ids), at.query, at.key, at.key),
        (jax.ShapeDtypeStruct(query.shape, dtype), statistic),
        (at.query, at.statistic),
        at.scratch(("query", dtype), ("key", dtype), ("key", dtype), ("query", kept), ("row", kept), ("row", kept)),
        products=2,
    )
    return out, (query, key, value, ids, out, log_total)


def backward(spec: Spec, saved: tuple, grad: Array) -> tuple[Array, Array, Array, None]:
    """Gradients of query, key and value; none of the segments."""
    query, key, value, ids, out, log_total = saved
    kept, dtype = jnp.float32, query.dtype
    at = Layout(spec, query, 2 * (dtype.itemsize + 4), chunked=True)
    turns = tables(spec, at.count)
    chunks = -(-at.count // at.slots)
    # Each chunk of keys has its part in the gradient of every query.
    part = jax.ShapeDtypeStruct((chunks, *query.shape), dtype if chunks == 1 else kept)
    chunk = pl.BlockSpec((1, *(at.query.block_shape or ())), lambda b, p, s, *steps: (steps[5][s], b, p, steps[0][s]))
    done = at.rows("done", spec.held)
    dquery, dkey, dvalue = at.call(
        splash_backward,
        (turns, None if ids is None else (ids, ids), query, key, value, out, grad, log_total),
        (at.shared(turns), at.segments(ids), at.query, at.key, at.key, at.query, at.query, at.statistic),
        (part, jax.ShapeDtypeStruct(key.shape, dtype), jax.ShapeDtypeStruct(key.shape, dtype)),
        (chunk, done, done),
        at.scratch(("query", dtype), ("query", dtype), ("key", dtype), ("key", dtype), ("row", kept))
        + at.scratch(("query", kept), ("key", kept), ("key", kept)),
        products=5,
    )
    if chunks == 1:
        return dquery[0], dkey, dvalue, None
    # Queries that see no key of a chunk have no part from it: what lies there was never written.
    written = np.zeros((chunks, at.count), bool)
    written[at.steps.chunk, at.steps.query] = True
    parts = jnp.where(written.repeat(spec.block, 1)[:, None, None], dquery, 0.0)
    return parts.sum(0).astype(dtype), dkey, dvalue, None


attention.defvjp(first_order(forward, 4), first_order(backward, 0))
