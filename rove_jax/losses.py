"""Next-token loss as a sum and a weight, divided once by whoever adds them up."""

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from rove_jax.config import Model
from rove_jax.models import functional

LOGITS_LIMIT = 2**28
"""Bytes of float32 logits up to which they are formed at once."""

CHUNK = 128
"""Positions per chunk above that limit."""


def token_nll(
    cfg: Model, params: functional.Params, hidden_btd: Float[Array, "B T D"], targets_bt: Int[Array, "B T"]
) -> Float[Array, "B T"]:
    """Negative log-likelihood of each target, float32 nats. Above LOGITS_LIMIT, CHUNK positions at a time."""

    def nll(hidden: Array, targets: Array) -> Array:
        # Rows as one axis: a product of two matrices, whose gradients a CPU forms without transposing the logits.
        logits = functional.unembed(cfg, params, hidden.reshape(-1, hidden.shape[-1]))
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets.reshape(-1)).reshape(targets.shape)

    batch, length = targets_bt.shape
    if 4 * batch * length * cfg.padded_vocab <= LOGITS_LIMIT:
        return nll(hidden_btd, targets_bt)
    spare = -length % CHUNK
    hidden = jnp.pad(hidden_btd, ((0, 0), (0, spare), (0, 0))).reshape(batch, -1, CHUNK, hidden_btd.shape[-1])
    targets = jnp.pad(targets_bt, ((0, 0), (0, spare))).reshape(batch, -1, CHUNK)
    # Chunks along T, so that a batch sharded over devices stays where it is.
    nlls = jax.lax.map(lambda pair: jax.checkpoint(nll)(*pair), (hidden.swapaxes(0, 1), targets.swapaxes(0, 1)))
    return nlls.swapaxes(0, 1).reshape(batch, -1)[:, :length]


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
