"""Circuits of attention heads: what a head looks for, what it moves, and how heads of two layers compose.

After Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits", with rotations in their places: the score
of x_i for x_j is x_i' W_Q' R_d W_K x_j and what is moved W_O R_d W_V x_j, d = j - i. Without biases, on normed inputs,
the norm's gains folded into the matrices. Matrices act on columns; all float64.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Complex, Float, Integer

from rove_jax.analysis.capture import score_rotation, value_frequencies, value_pairing
from rove_jax.analysis.mixer import output_weights, projection, rotation
from rove_jax.analysis.moments import mean_turn
from rove_jax.analysis.product import Rates, channel_pairs
from rove_jax.config import Model
from rove_jax.rotary import frequencies


class Composition(NamedTuple):
    """How much the second layer's heads read from the first's: [N, N] each, first head by second head.

    ||A B|| / (||A|| ||B||) in Frobenius norms; about 1 / sqrt(D) for matrices that have nothing to do with each other.
    """

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray


def gain(params: dict, layer: int) -> Float[np.ndarray, " D"]:
    """The scale of the norm before a layer's attention."""
    return np.asarray(params["blocks"]["attention_norm"]["scale"][layer], np.float64)


def read_weights(cfg: Model, params: dict, layer: int, head: int, name: str) -> Float[np.ndarray, "H D"]:
    """W_Q, W_K or W_V of a query head ("query", "key" or "value"), the norm's gain folded in."""
    place = head if name == "query" else head // (cfg.query_heads // cfg.kv_heads)
    return projection(params, layer, name)[:, place].T * gain(params, layer)


def qk_circuit(cfg: Model, params: dict, layer: int, head: int, offset: int) -> Float[np.ndarray, "D D"]:
    """W_Q' R_d W_K: the score, before 1/sqrt(H), of a query for a key at offset d = j - i (0 and below)."""
    rotary = score_rotation(cfg)
    turn = rotation(frequencies(rotary, cfg.head_dim) * offset, cfg.head_dim, rotary.pairing)
    query, key = (read_weights(cfg, params, layer, head, name) for name in ("query", "key"))
    return query.T @ turn @ key


def ov_circuit(cfg: Model, params: dict, layer: int, head: int, offset: int) -> Float[np.ndarray, "D D"]:
    """W_O R_d W_V: what a head adds to the stream of a query that looks at offset d. The same for every d in RoPE."""
    turning = value_frequencies(cfg)
    value = read_weights(cfg, params, layer, head, "value")
    if turning is not None:
        value = rotation(turning * offset, cfg.head_dim, value_pairing(cfg)) @ value
    return output_weights(params, layer, head) @ value


def composition(cfg: Model, params: dict, first: int, second: int, offsets: tuple[int, int] = (-1, -1)) -> Composition:
    """Q-, K- and V-composition of every head of layer `second` with every one of layer `first`.

    offsets: at which the first layer's head looks, and the second's. In RoVE displacements add up along a path: moving
    by d1 and then by d2 is W_O2 R_d2 W_V2 W_O1 R_d1 W_V1. (The second norm is left out but for its gain.)
    """
    heads = range(cfg.query_heads)
    moved = [ov_circuit(cfg, params, first, head, offsets[0]) for head in heads]
    scored = [qk_circuit(cfg, params, second, head, offsets[1]) for head in heads]
    passed = [ov_circuit(cfg, params, second, head, offsets[1]) for head in heads]

    def relative(left: np.ndarray, right: np.ndarray) -> float:
        size = np.linalg.norm
        return float(size(left @ right) / (size(left) * size(right)))

    return Composition(
        np.array([[relative(s.T, m) for s in scored] for m in moved]),
        np.array([[relative(s, m) for s in scored] for m in moved]),
        np.array([[relative(p, m) for p in passed] for m in moved]),
    )


def characteristic(
    weights: Float[np.ndarray, "*batch T S"], frequencies: Float[np.ndarray, " h"]
) -> Complex[np.ndarray, "*batch h"]:
    """The characteristic function of where a head looks: the mean over queries of sum_j A_ij exp(i w (j - i)).

    A RoVE head whose values have a part that is the same for all tokens writes just this to its output, and so can
    report where it looked. The T queries are the last of the S positions.
    """
    queries, keys = weights.shape[-2:]
    turn = np.exp(1j * np.arange(keys)[:, None] * frequencies)
    per_query = (weights @ np.real(turn) + 1j * (weights @ np.imag(turn))) * np.conj(turn[keys - queries :])
    return per_query.mean(-2)


def matched_filter(
    found: Complex[np.ndarray, "*batch h"], frequencies: Float[np.ndarray, " h"], offsets: np.ndarray
) -> Float[np.ndarray, "*batch n"]:
    """How well each of `offsets` explains a `characteristic` function: Re of the mean over pairs of phi exp(-i w d).

    1 where the head looks at this offset alone. A linear read-out: what comes after a RoVE head can compute it.
    """
    return np.real(found @ np.exp(-1j * np.outer(frequencies, offsets))) / len(frequencies)


def output_energy(
    weights: Float[np.ndarray, "*batch T S"],
    values: Float[np.ndarray, "*batch S H"],
    value_frequencies: Float[np.ndarray, " h"] | None,
    pairing: str = "half",
) -> Float[np.ndarray, "*batch h"]:
    """Mean square of each pair of channels of the output over that of the values: float64 [..., h].

    value_frequencies None: values do not turn (RoPE), and pairs are taken all the same, of all channels.
    """
    keys, dims = values.shape[-2], None if value_frequencies is None else 2 * len(value_frequencies)
    pairs = channel_pairs(values, pairing, dims)
    turned = pairs if value_frequencies is None else pairs * np.exp(1j * np.arange(keys)[:, None] * value_frequencies)
    # Turning the output back changes no magnitude.
    out = weights @ np.real(turned) + 1j * (weights @ np.imag(turned))
    return (np.abs(out) ** 2).mean(-2) / (np.abs(pairs) ** 2).mean(-2)


def uniform_gain(frequencies: Float[np.ndarray, " h"], count: int) -> Float[np.ndarray, " h"]:
    """|sin(n w / 2) / (n sin(w / 2))|: what uniform attention over n offsets leaves of a constant value in each pair.

    RoVE turns attention that is diluted over a long context into attenuation of the fast pairs.
    """
    return np.abs(mean_turn(frequencies, 0, count))


def induction_score(weights: Float[np.ndarray, "*batch T T"], period: int) -> Rates:
    """On text that repeats every `period` tokens: the mean weight on the token after the last occurrence.

    That is key i - period + 1 for query i, over all queries that have one.
    """
    return np.diagonal(weights, 1 - period, axis1=-2, axis2=-1)[..., 1:].mean(-1)


def previous_token_score(weights: Float[np.ndarray, "*batch T T"]) -> Rates:
    """The mean weight on the token just before."""
    return np.diagonal(weights, -1, axis1=-2, axis2=-1).mean(-1)


def pair_order(pairs: int, count: int) -> Integer[np.ndarray, " n"]:
    """`count` pairs spread from the fastest to the slowest."""
    return np.unique(np.linspace(0, pairs - 1, count).round().astype(int))
