"""Next-token loss as a sum and a weight, divided once by whoever adds them up."""

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from rove_jax import sharding
from rove_jax.config import Model
from rove_jax.models import functional

LOGITS_LIMIT = 2**28
"""Bytes of float32 logits that one device forms at once."""


def token_nll(
    cfg: Model,
    params: functional.Params,
    hidden_btd: Float[Array, "B T D"],
    targets_bt: Int[Array, "B T"],
    limit: int | None = None,
) -> Float[Array, "B T"]:
    """Negative log-likelihood of each target, float32 nats, in parts whose logits stay below `limit` bytes a device.

    None: LOGITS_LIMIT. Each part reads the table, and where there is a gradient adds to the table's; smaller ones cost.

    Under a mesh (`jax.set_mesh`) that spreads rows, each device takes its own ones. The table is then gathered once,
    and its gradient added up once; left to XLA, both would happen in every part.
    """

    def nll(table: Array, hidden_btd: Array, targets_bt: Array) -> Array:
        return local_nll(cfg, {"embedding": table}, hidden_btd, targets_bt, limit)

    ways = [name for name in sharding.BATCH if sharding.unclaimed().get(name, 1) > 1]
    if ways:
        # Only over these axes by hand: a vocabulary spread over "tensor" stays XLA's business.
        rows = PartitionSpec(tuple(ways))
        specs = {"in_specs": (PartitionSpec(), rows, rows), "out_specs": rows}
        nll = jax.shard_map(nll, axis_names=set(ways), check_vma=False, **specs)
    return nll(params["embedding"], hidden_btd, targets_bt)


def local_nll(
    cfg: Model,
    params: functional.Params,
    hidden_btd: Float[Array, "B T D"],
    targets_bt: Int[Array, "B T"],
    limit: int | None = None,
) -> Float[Array, "B T"]:
    """`token_nll` of rows that lie on one device."""

    def nll(hidden: Array, targets: Array) -> Array:
        return optax.softmax_cross_entropy_with_integer_labels(functional.unembed(cfg, params, hidden), targets)

    # Rows as one axis: a product of two matrices, whose gradients a CPU forms without transposing the logits.
    hidden, targets = hidden_btd.reshape(-1, hidden_btd.shape[-1]), targets_bt.reshape(-1)
    count = targets.shape[0]
    parts = -(-4 * count * cfg.padded_vocab // (limit or LOGITS_LIMIT))
    if parts <= 1:
        return nll(hidden, targets).reshape(targets_bt.shape)
    size = -(-count // parts)
    size += -size % 8  # whole tiles of an accelerator
    parts = -(-count // size)
    spare = parts * size - count
    hidden = jnp.pad(hidden, ((0, spare), (0, 0))).reshape(parts, size, -1)
    targets = jnp.pad(targets, (0, spare)).reshape(parts, size)
    nlls = jax.lax.map(lambda part: jax.checkpoint(nll)(*part), (hidden, targets))
    return nlls.reshape(-1)[:count].reshape(targets_bt.shape)


def segment_ids(tokens_bt: Int[Array, "B T"], eot: int) -> tuple[Int[Array, "B T"], Int[Array, "B T"]]:
    """(segments from 1, positions from 0 within each), where `eot` is the last token of the document it ends."""
    ends = (tokens_bt == eot).astype(jnp.int32)
    segments = 1 + jnp.cumsum(ends, axis=1) - ends
    index = jnp.broadcast_to(jnp.arange(tokens_bt.shape[1], dtype=jnp.int32), tokens_bt.shape)
    starts = jnp.concatenate([jnp.zeros_like(ends[:, :1]), ends[:, :-1]], axis=1) * index
    return segments, index - jax.lax.cummax(starts, axis=1)


def next_token_loss(
    cfg: Model,
    params: functional.Params,
    tokens: Int[Array, "B L"],
    *,
    eot: int,
    segments: bool,
    dropout_key: Array | None = None,
    rows: Float[Array, " B"] | None = None,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """(sum of nats, number of targets) of predicting tokens[:, 1:] from tokens[:, :-1]; both float32 scalars.

    `rows` weighs each row: 0 for those that only fill up a batch. None: all 1.

    With `segments`, documents do not see each other, positions restart at each, and the first token of a document
    after another's end is no target.
    """
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    ids = positions = None
    weights = jnp.ones(targets.shape, jnp.float32)
    if segments:
        ids, positions = segment_ids(inputs, eot)
        weights = (inputs != eot).astype(jnp.float32)
    if rows is not None:
        weights = weights * rows[:, None]
    out = functional.apply(
        cfg, params, inputs, positions=positions, segments=ids, contiguous=True, dropout_key=dropout_key
    )
    nll = token_nll(cfg, params, out.hidden, targets)
    return (nll * weights).sum(), weights.sum()
