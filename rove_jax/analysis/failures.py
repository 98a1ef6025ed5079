"""The four failures, and whether the output shows them, in every head of a model.

Scores come from JAX, in float32 and in chunks (`rope_scores`; the float64 reference is `rope_product`). A measure is
a function of scores, of `inversion`, `aliasing` and `profile`, whichever of the two they come from: it sorts and counts
on the host, for how many pairs and groups there are depends on the numbers, and XLA sorts more slowly than NumPy there.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Integer

from rove_jax.analysis import aliasing, inversion, profile, swap
from rove_jax.analysis.capture import Captured, effective_pairs, score_rotation, value_frequencies, value_pairing
from rove_jax.analysis.product import Coefficients, qk_coefficients, rope_scores
from rove_jax.analysis.quantization import FRACTION_BITS, dtype_name
from rove_jax.config import Model
from rove_jax.errors import UsageError, require
from rove_jax.rotary import frequencies, logit_scale

SWAPS = 32
"""Pairs of positions at which tokens change places, for each draw."""


class Draws(NamedTuple):
    """Which vectors are taken: of text `row`, the query at `query` and the keys at `first` and `second` before it."""

    row: np.ndarray
    query: np.ndarray
    first: np.ndarray
    second: np.ndarray

    def trials(self) -> list[tuple[int, int, int, int]]:
        """One draw after the other."""
        return list(zip(*(column.tolist() for column in self)))


def draw(tokens_bt: Integer[np.ndarray, "B T"], count: int, seed: int) -> Draws:
    """`count` draws from texts: a query in the second half, and two earlier keys of different tokens.

    (Of the same token they would be the same key in the first layer, and a swap would change nothing.) Raises
    `UsageError` where texts hold no two different tokens before a query.
    """
    rows, length = tokens_bt.shape
    require(length >= 4, "tokens.shape", tokens_bt.shape, "too few tokens to draw a query and two earlier keys from")
    require(seed >= 0, "seed", seed, "must be at least 0")
    chance, found = np.random.default_rng(seed), []
    for _ in range(100 * count):
        row, query = chance.integers(rows), chance.integers(max(length // 2, 2), length)
        first = chance.integers(query)
        others = np.flatnonzero(tokens_bt[row, :query] != tokens_bt[row, first])
        if len(others):
            found.append((row, query, first, chance.choice(others)))
        if len(found) == count:
            return Draws(*np.array(found).T)
    raise UsageError("tokens: the texts repeat one token; take other texts")


def failure_rates(
    at_length: Callable[[int], Model],
    captured: Captured,
    *,
    lengths: Sequence[int],
    draws: int = 8,
    dtype: str = "bfloat16",
    seed: int = 0,
    advance: Callable[[int], object] = lambda done: None,
) -> list[dict]:
    """A record for each layer, head and length: rates, each the mean over draws.

    Of a draw, query and keys are held fixed while the distance sweeps 0..length - 1; their amplitudes and phases are
    the model's own. `at_length`: the model as it reads a length, its frequencies scaled or not.

    Fields: position_inversion (far half over near half) and position_inversion_sd over draws, position_inversion_normal
    (the same with exact moments); position_partner (share of positions with a partner of the same score in `dtype`),
    position_pairs (share of pairs); token_inversion (share of distances at which the order of the two keys is not that
    at distance 0); token_aliasing (share at which they score the same) and token_aliasing_resolution (within
    2^-f sum |z|, the dtype's resolution at the largest score); effective_pairs; and those of `profile_rates` and
    `swap_rates`.
    """
    require(bool(lengths) and min(lengths) >= 4, "lengths", tuple(lengths), "must name lengths of at least 4")
    require(draws >= 1, "draws", draws, "must be at least 1")
    drawn = draw(captured.tokens, draws, seed)
    records = []
    for length in lengths:
        model = at_length(length)
        rotary = score_rotation(model)
        omega = frequencies(rotary, model.head_dim)
        for place, layer in enumerate(captured.layers):
            for column, head in enumerate(captured.heads):
                query, key = (x[place, :, :, column].astype(np.float64) for x in (captured.query, captured.key))
                asked = query[drawn.row, drawn.query]
                keys = np.stack([key[drawn.row, drawn.first], key[drawn.row, drawn.second]])
                pair = qk_coefficients(asked[None], keys, rotary.pairing, 2 * len(omega))
                reach = inversion.windows(length, "near_far")[1][1]
                waves = np.asarray(rope_scores(pair.z, omega, reach, constant=pair.constant))
                inside = waves[..., :length]
                rates: dict[str, Any] = {**score_rates(pair, inside, omega, dtype)}
                rates |= profile_rates(pair, waves, omega, length)
                rates["semantic_score"] = 1 - rates["token_inversion"]
                rates |= swap_rates(model, captured, (place, column), drawn, inside, dtype, seed)
                records.append({"layer": layer, "head": head, "length": length, **rates})
                advance(1)
    return records


def score_rates(pair: Coefficients, waves: np.ndarray, omega: np.ndarray, dtype: str) -> dict[str, float]:
    """The rates that scores alone decide. `pair`: of two keys [2, P, h]; `waves`: their scores [2, P, M]."""
    length = waves.shape[-1]
    inversions = inversion.inverted_halves(waves)
    normal = inversion.position_inversion(pair.z, omega, length, method="normal")
    aliased = [aliasing.position_aliasing(wave, dtype) for wave in waves.reshape(-1, length)]
    resolution = 2.0 ** -FRACTION_BITS[dtype_name(dtype)] * np.abs(pair.z).sum(-1).max(0)
    return {
        "position_inversion": float(inversions.mean()),
        "position_inversion_sd": float(inversions.std()),
        "position_inversion_normal": float(normal.mean()),
        "position_partner": float(np.mean([found.share for found in aliased])),
        "position_pairs": float(np.mean([found.pairs for found in aliased]) / (length * (length - 1) / 2)),
        "token_inversion": float(inversion.inverted_order(waves[0], waves[1]).mean()),
        "token_aliasing": float(aliasing.same_scores(waves[0], waves[1], dtype).mean()),
        "token_aliasing_resolution": float(aliasing.same_scores(waves[0], waves[1], tolerance=resolution).mean()),
        "effective_pairs": float(effective_pairs(pair.z).mean()),
    }


def profile_rates(pair: Coefficients, waves: np.ndarray, omega: np.ndarray, length: int) -> dict[str, float | None]:
    """The follow-up's measures (see `profile.Profile`). `waves`: scores [2, P, 3 M + 1].

    positional_score: how far one step moves a score, over ||z||; high_share: of the norm of z, in fast pairs;
    order_error: P(S(far) > S(near)) beyond M. The semantic score, the share of distances that keep the order of two
    keys, is 1 - token_inversion. None where a query or a key is 0: there is no norm to measure by.
    """
    moves = bool(np.all(np.abs(pair.z).max(-1) > 0))
    near, far = (waves[..., slice(*window)] for window in inversion.windows(length, "near_far"))
    return {
        "positional_score": float(profile.step_sizes(waves[..., :length], pair.z).mean()) if moves else None,
        "high_share": float(profile.high_share(pair.z, omega, length).mean()) if moves else None,
        "order_error": float(inversion.inverted_share(near, far).mean()),
    }


def swap_rates(
    cfg: Model, captured: Captured, at: tuple[int, int], drawn: Draws, waves: np.ndarray, dtype: str, seed: int
) -> dict[str, float | None]:
    """What the output of one head makes of tokens that change places where both keys alias.

    swap_pairs: the share of pairs of positions at which both do. Of up to SWAPS of those for each draw: swap_unseen,
    the share after which every channel of the output is the same number in `dtype`, and swap_change, the mean relative
    change; the query attends to the two tokens and one of score and value 0. With _context it attends to the text
    that they were drawn from instead. None where no pair aliases. swap_draws: of how many draws any pair does;
    swap_trials: how many pairs were taken of these.
    """
    place, column = at
    rotary, turning, pairing = score_rotation(cfg), value_frequencies(cfg), value_pairing(cfg)
    omega, scale = frequencies(rotary, cfg.head_dim), logit_scale(rotary) / cfg.head_dim**0.5
    chance, length = np.random.default_rng(seed), waves.shape[-1]
    joint, outcomes = 0, {"": [], "_context": []}
    for index, (row, query, first, second) in enumerate(drawn.trials()):
        pairs = aliasing.joint_pairs(waves[0, index], waves[1, index], dtype)
        joint += pairs.count
        if not pairs.count:
            continue
        # Drawn by number: a head with nearly constant scores has too many to write down.
        chosen = pairs.at(chance.choice(pairs.count, min(SWAPS, pairs.count), replace=False))
        q, k, v = (x[place, row, :, column].astype(np.float64) for x in (captured.query, captured.key, captured.value))
        others = np.setdiff1d(np.arange(query + 1), [first, second])
        found = qk_coefficients(q[query], k[others], rotary.pairing, 2 * len(omega))
        distances = query - others
        seen = np.einsum("rh,rh->r", found.z, np.exp(1j * distances[:, None] * omega)).real + found.constant
        context = swap.Rest(seen, swap.in_query_frame(v[others], distances, turning, pairing))
        for name, rest in (("", None), ("_context", context)):
            outcomes[name].append(
                swap.swap_effect(
                    q[query],
                    k[[first, second]],
                    v[[first, second]],
                    *chosen.T,
                    frequencies=omega,
                    value_frequencies=turning,
                    pairing=rotary.pairing,
                    value_pairing=pairing,
                    dtype=dtype,
                    scale=scale,
                    rest=rest,
                )
            )
    rates: dict[str, float | None] = {"swap_pairs": joint / len(drawn.row) / (length * (length - 1) / 2)}
    rates |= {"swap_draws": len(outcomes[""]), "swap_trials": sum(len(x.before) for x in outcomes[""])}
    for name, swapped in outcomes.items():
        unseen = np.concatenate([x.unseen(dtype) for x in swapped]) if swapped else None
        rates[f"swap_unseen{name}"] = None if unseen is None else float(unseen.mean())
        change = np.concatenate([x.relative for x in swapped]) if swapped else None
        rates[f"swap_change{name}"] = None if change is None else float(change.mean())
    return rates
