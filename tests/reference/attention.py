"""RoPE and RoVE attention from the definition, in float64 NumPy: a matrix per offset, a loop over pairs. Shares no code
with the project (its frequencies are given as numbers)."""

import numpy as np


def rotation(angles: np.ndarray, head_dim: int, pairing: str = "half") -> np.ndarray:
    """The [H, H] matrix that turns pair m by angles[m]; channels beyond the pairs stay."""
    pairs = len(angles)
    matrix = np.eye(head_dim)
    for m, angle in enumerate(angles):
        i, j = (m, m + pairs) if pairing == "half" else (2 * m, 2 * m + 1)
        matrix[i, i] = matrix[j, j] = np.cos(angle)
        matrix[i, j], matrix[j, i] = -np.sin(angle), np.sin(angle)
    return matrix


def attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    *,
    qk_frequencies: np.ndarray,
    v_frequencies: np.ndarray,
    seen: np.ndarray,
    query_positions: np.ndarray,
    key_positions: np.ndarray,
    logit_scale: float = 1.0,
    pairing: str = "half",
) -> np.ndarray:
    """y_i = sum_j A_ij R_(j-i) v_j with A = softmax over seen j of logit_scale q_i^T R_(j-i) k_j / sqrt(H).

    query [B, T, N, H], key and value [B, S, K, H], seen bool [B, T, S], positions [B, T] and [B, S]. Rows that see
    nothing are 0.
    """
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    batch, queries, heads, head_dim = query.shape
    group = heads // key.shape[2]
    out = np.zeros(query.shape)
    turns: dict[tuple[str, int], np.ndarray] = {}

    def turn(kind: str, frequencies: np.ndarray, offset: int) -> np.ndarray:
        if (kind, offset) not in turns:
            turns[kind, offset] = rotation(np.asarray(frequencies) * offset, head_dim, pairing)
        return turns[kind, offset]

    for b in range(batch):
        for i in range(queries):
            js = np.flatnonzero(seen[b, i])
            if not len(js):
                continue
            offsets = [int(key_positions[b, j]) - int(query_positions[b, i]) for j in js]
            for n in range(heads):
                k, v = key[b, :, n // group], value[b, :, n // group]
                logits = np.array(
                    [query[b, i, n] @ turn("qk", qk_frequencies, d) @ k[j] for j, d in zip(js, offsets, strict=True)]
                )
                logits *= logit_scale / np.sqrt(head_dim)
                weights = np.exp(logits - logits.max())
                weights /= weights.sum()
                out[b, i, n] = sum(
                    w * (turn("v", v_frequencies, d) @ v[j]) for w, j, d in zip(weights, js, offsets, strict=True)
                )
    return out


def turned_attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    *,
    qk_frequencies: np.ndarray,
    v_frequencies: np.ndarray,
    seen: np.ndarray,
    query_positions: np.ndarray,
    key_positions: np.ndarray,
    logit_scale: float = 1.0,
    pairing: str = "half",
    turns: str = "qkvo",
) -> np.ndarray:
    """Attention in which those of q, k, v and the output o that are in `turns` are turned by their own position.

    As `attention`, whose result this is for all four; `seen` and the positions may lack the batch axis.
    """
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    batch, queries, heads, head_dim = query.shape
    keys = key.shape[1]

    def turn(x: np.ndarray, letter: str, frequencies: np.ndarray, positions: np.ndarray, sign: int = 1) -> np.ndarray:
        if letter not in turns:
            return x
        positions = np.broadcast_to(positions, x.shape[:2])
        angles = {int(p): sign * np.asarray(frequencies) * int(p) for p in positions.flat}
        matrices = {p: rotation(angle, head_dim, pairing) for p, angle in angles.items()}
        return np.stack([[row[t] @ matrices[int(at[t])].T for t in range(len(at))] for row, at in zip(x, positions)])

    query = turn(query, "q", qk_frequencies, query_positions)
    key = np.repeat(turn(key, "k", qk_frequencies, key_positions), heads // key.shape[2], axis=2)
    value = np.repeat(turn(value, "v", v_frequencies, key_positions), heads // value.shape[2], axis=2)
    seen = np.broadcast_to(seen, (batch, queries, keys))[:, None]
    logits = np.where(seen, np.einsum("btnh,bsnh->bnts", query, key) * logit_scale / np.sqrt(head_dim), -1e300)
    weights = np.where(seen, np.exp(logits - logits.max(-1, keepdims=True)), 0.0)
    weights /= np.maximum(weights.sum(-1, keepdims=True), 1e-300)
    return turn(np.einsum("bnts,bsnh->btnh", weights, value), "o", v_frequencies, query_positions, -1)


def fast_attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    *,
    qk_frequencies: np.ndarray,
    v_frequencies: np.ndarray,
    logit_scale: float = 1.0,
) -> np.ndarray:
    """Causal `attention` of full heads at positions 0..T-1, half pairing, N = K, as complex products: for long T."""
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    length, head_dim = query.shape[1], query.shape[3]
    index = np.arange(length)

    def as_complex(x: np.ndarray, frequencies: np.ndarray) -> np.ndarray:
        first, second = np.split(x, 2, axis=-1)
        return (first + 1j * second) * np.exp(1j * index[:, None] * frequencies)[None, :, None]

    q, k = as_complex(query, qk_frequencies), as_complex(key, qk_frequencies)
    logits = np.einsum("btnm,bsnm->bnts", q.conj(), k).real * logit_scale / np.sqrt(head_dim)
    logits = np.where(index[:, None] >= index[None, :], logits, -np.inf)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    mixed = np.einsum("bnts,bsnm->btnm", weights, as_complex(value, v_frequencies))
    turned_back = mixed * np.exp(-1j * index[:, None] * v_frequencies)[None, :, None]
    return np.concatenate([turned_back.real, turned_back.imag], axis=-1)
