"""A layer of attention as one matrix on all positions and channels: [T D_out, T D_in], for small T.

RoPE: M = A (x) W_V, a Kronecker product. RoVE: block (i, j) is A_ij psi_(j-i) with the kernel psi_delta = R_delta W_V,
block-Toeplitz but for the weights (RoVE, arXiv 2606.11275, section 3). Matrices act on columns: y = W x.
"""

import numpy as np
from jaxtyping import Bool, Float

from rove_jax.analysis.capture import score_rotation, value_frequencies, value_pairing
from rove_jax.analysis.product import channel_pairs
from rove_jax.config import Model
from rove_jax.errors import require
from rove_jax.rotary import frequencies, logit_scale

LARGEST = 2**26
"""Entries of a mixer: half a gigabyte."""


def rotation(angles: Float[np.ndarray, " h"], head_dim: int, pairing: str) -> Float[np.ndarray, "H H"]:
    """The matrix that turns pair n by angles[n]; channels beyond the pairs stay."""
    turned = channel_pairs(np.eye(head_dim), pairing, 2 * len(angles)) * np.exp(1j * np.asarray(angles))
    matrix = np.eye(head_dim)
    first, second = pair_channels(len(angles), pairing)
    matrix[first], matrix[second] = np.real(turned).T, np.imag(turned).T
    return matrix


def pair_channels(pairs: int, pairing: str) -> tuple[slice, slice]:
    """Which channels are the first and the second of each pair."""
    if pairing == "half":
        return slice(0, pairs), slice(pairs, 2 * pairs)
    return slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)


def kernel(
    w_v: Float[np.ndarray, "H D"],
    offsets: np.ndarray,
    value_frequencies: Float[np.ndarray, " h"] | None,
    pairing: str = "half",
) -> Float[np.ndarray, "n H D"]:
    """psi_delta = R_delta W_V for each offset delta = j - i; W_V itself at every one where values do not turn."""
    if value_frequencies is None:
        return np.broadcast_to(w_v, (len(offsets), *w_v.shape)).copy()
    return np.stack([rotation(d * value_frequencies, len(w_v), pairing) @ w_v for d in offsets])


def kernel_similarity(
    w_v: Float[np.ndarray, "H D"],
    offsets: np.ndarray,
    value_frequencies: Float[np.ndarray, " h"] | None,
    pairing: str = "half",
) -> Float[np.ndarray, " n"]:
    """<psi_delta, psi_0> / ||W_V||^2 at each offset, 1 to -1: how much of the value map at offset 0 is left there."""
    if value_frequencies is None:
        return np.ones(len(offsets))
    total = (w_v**2).sum()
    share = (np.abs(channel_pairs(w_v.T, pairing, 2 * len(value_frequencies))) ** 2).sum(0) / total
    return 1 - share.sum() + np.cos(np.outer(offsets, value_frequencies)) @ share


def mixer(
    weights: Float[np.ndarray, "T S"],
    w_v: Float[np.ndarray, "H D"],
    value_frequencies: Float[np.ndarray, " h"] | None,
    pairing: str = "half",
    w_o: Float[np.ndarray, "O H"] | None = None,
) -> Float[np.ndarray, "TO SD"]:
    """One head as a matrix [T O, S D]: block (i, j) is A_ij W_O R_(j-i) W_V (w_o None: without W_O, O = H)."""
    count, keys = weights.shape
    offsets = np.arange(1 - count, keys)
    psi = kernel(w_v, offsets, value_frequencies, pairing)
    psi = psi if w_o is None else w_o @ psi
    require(weights.size * psi[0].size <= LARGEST, "T", count, f"a mixer of more than {LARGEST} entries; shorten it")
    blocks = weights[:, :, None, None] * psi[np.arange(keys) - np.arange(count)[:, None] + count - 1]
    return blocks.transpose(0, 2, 1, 3).reshape(count * psi.shape[1], keys * psi.shape[2])


def blocks_of(matrix: np.ndarray, positions: int) -> Float[np.ndarray, "T T O D"]:
    """The blocks of a mixer of `positions` queries and keys."""
    rows, columns = (size // positions for size in matrix.shape)
    return matrix.reshape(positions, rows, positions, columns).transpose(0, 2, 1, 3)


def kronecker_error(matrix: np.ndarray, positions: int, terms: int = 1) -> float:
    """How far a mixer is from A (x) W for any A and W: the norm of the rest over that of the matrix, 0 to 1.

    Blocks written as rows, a Kronecker product has rank one (Van Loan and Pitsianis 1993); a layer of N heads of RoPE
    is a sum of N `terms`.
    """
    values = np.linalg.svd(blocks_of(matrix, positions).reshape(positions**2, -1), compute_uv=False)
    return float(np.sqrt((values[terms:] ** 2).sum() / (values**2).sum()))


def toeplitz_error(matrix: np.ndarray, positions: int) -> float:
    """How far a mixer is from A_ij psi_(j-i) for any A and psi: as above, the blocks of each offset taken apart."""
    blocks = blocks_of(matrix, positions)
    rest = total = 0.0
    for offset in range(1 - positions, positions):
        rows = np.diagonal(blocks, offset).transpose(2, 0, 1).reshape(positions - abs(offset), -1)
        values = np.linalg.svd(rows, compute_uv=False)
        rest, total = rest + float((values[1:] ** 2).sum()), total + float((values**2).sum())
    return float(np.sqrt(rest / total)) if total else 0.0


def visible(queries: int, keys: int, window: int | None = None) -> Bool[np.ndarray, "T S"]:
    """Which of `keys` the last `queries` positions see: their own and earlier ones, the latest `window` of them."""
    gap = np.arange(keys - queries, keys)[:, None] - np.arange(keys)
    return (gap >= 0) & (gap < (window or keys))


def attention_weights(
    cfg: Model, query: Float[np.ndarray, "*batch T H"], key: Float[np.ndarray, "*batch S H"]
) -> Float[np.ndarray, "*batch T S"]:
    """Softmax weights of the last T of S positions, causal as in the model; query and key before rotation. float64."""
    rotary, (queries, keys) = score_rotation(cfg), (query.shape[-2], key.shape[-2])
    omega = frequencies(rotary, cfg.head_dim)
    turn = np.exp(1j * np.arange(keys)[:, None] * omega)
    dims = 2 * len(omega)
    q = channel_pairs(query, rotary.pairing, dims) * turn[keys - queries :]
    k = channel_pairs(key, rotary.pairing, dims) * turn
    # Re(q conj(k)), as one product of real matrices, with the channels that do not turn beside them.
    q, k = (
        np.concatenate([np.real(x), np.imag(x), np.asarray(whole[..., dims:], np.float64)], -1)
        for x, whole in ((q, query), (k, key))
    )
    scores = q @ np.swapaxes(k, -1, -2) * logit_scale(rotary) / cfg.head_dim**0.5
    scores = np.where(visible(queries, keys, cfg.window), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def layer_mixer(
    cfg: Model, params: dict, layer: int, weights: Float[np.ndarray, "N T T"]
) -> Float[np.ndarray, "TD TD"]:
    """All heads of a layer as one matrix [T D, T D] on normed inputs, biases apart; `weights` of its query heads."""
    turning, pairing = value_frequencies(cfg), value_pairing(cfg)
    group = cfg.query_heads // cfg.kv_heads
    total = 0.0
    for head in range(cfg.query_heads):
        w_v, w_o = value_weights(params, layer, head // group), output_weights(params, layer, head)
        total = total + mixer(weights[head], w_v, turning, pairing, w_o)
    return np.asarray(total)


def projection(params: dict, layer: int, name: str) -> Float[np.ndarray, "..."]:
    """A kernel of a layer's attention in float64: query, key and value [D, heads, H], out [heads, H, D]."""
    return np.asarray(params["blocks"]["attention"][name]["kernel"][layer], np.float64)


def value_weights(params: dict, layer: int, kv_head: int) -> Float[np.ndarray, "H D"]:
    """W_V of a key/value head."""
    return projection(params, layer, "value")[:, kv_head].T


def output_weights(params: dict, layer: int, head: int) -> Float[np.ndarray, "D H"]:
    """W_O of a query head."""
    return projection(params, layer, "out")[head].T
