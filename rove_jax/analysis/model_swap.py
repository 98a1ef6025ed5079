"""Two tokens of a text change places: whether the output of a whole model, at a later position, can tell.

Heads of the first layer see each token alone, so their scores are functions of token and distance, and places where
both tokens keep their scores can be found in any text. One layer of RoPE then gives the same output but for rounding.
In more layers the tokens between the two places have seen the swap, and later layers read what those make of it.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Integer

from rove_jax.analysis.capture import Captured, score_rotation
from rove_jax.analysis.mixer import attention_weights
from rove_jax.analysis.product import qk_coefficients, rope_product
from rove_jax.analysis.quantization import quantize
from rove_jax.config import Model
from rove_jax.errors import require
from rove_jax.evaluation.intervals import wilson
from rove_jax.evaluation.scorer import compute_config
from rove_jax.models import functional
from rove_jax.rotary import frequencies, logit_scale

KINDS = {"nearest": "where scores change least", "random": "anywhere"}
QUERIES = 64
"""Queries looked at, over all texts."""
EACH = 2
"""Swaps of a query, of either kind, at most."""
LEAST_WEIGHT = 0.01
"""What both tokens get of the query's attention, in one head of the first layer, to be looked at."""
SAME = 0.01
"""Total variation up to which two outputs are taken for the same: a sampled token differs once in a hundred times."""


SUMMARY = ("swaps", "gap", "matter", "blind", "argmax_kept", "change", "unseen")
"""Of the swaps of a kind: how many; the median gap; how many matter, their stake above `SAME`; of those, how many the
output is blind to, its total variation up to `SAME`, and how many keep the likeliest token; the median of what changes
over the stake; and of all, how many leave every logit the same number in the dtype."""
SHARES = {"matter": "swaps", "blind": "mattering", "argmax_kept": "mattering", "unseen": "swaps"}
"""Those that are shares, and of what."""
SWAPPED, COPIED = (1, 0), ((0, 0), (1, 1))


class Places(NamedTuple):
    """Where two tokens of text `row` change places, first < second < query."""

    kind: str
    row: int
    query: int
    first: int
    second: int
    gap: float
    """The largest change of a logit of attention, of either token in any head of the first layer."""
    aliased: int
    """Heads of the first layer in which both tokens score the same at both places."""


def score_changes(
    cfg: Model,
    query: Float[np.ndarray, "N H"],
    keys: Float[np.ndarray, "C N H"],
    distances: Integer[np.ndarray, " C"],
    dtype: str,
) -> tuple[Float[np.ndarray, "C C"], Integer[np.ndarray, "C C"]]:
    """`gap` and `aliased` of `Places`, [p, q], for swaps of keys that stand `distances` before a query.

    Vectors are before rotation. Both arrays are symmetric.
    """
    rotary = score_rotation(cfg)
    omega = frequencies(rotary, cfg.head_dim)
    gap, aliased = np.zeros((len(keys),) * 2), np.zeros((len(keys),) * 2, int)
    for head in range(len(query)):
        pair = qk_coefficients(query[head][None], keys[:, head], rotary.pairing, 2 * len(omega))
        waves = rope_product(pair.z, omega, distances, constant=pair.constant)  # key p where q stands
        change = np.abs(waves - np.diagonal(waves)[:, None])
        gap = np.maximum(gap, np.maximum(change, change.T))
        rounded = quantize(waves, dtype)
        equal = rounded == np.diagonal(rounded)[:, None]
        aliased += equal & equal.T
    return gap * logit_scale(rotary) / cfg.head_dim**0.5, aliased


def find_places(
    cfg: Model, captured: Captured, swaps: int, *, queries: int = QUERIES, dtype: str = "bfloat16", seed: int = 0
) -> list[Places]:
    """`swaps` pairs of places of each kind, or fewer, for queries drawn from the second halves of texts.

    All are of different tokens that get at least `LEAST_WEIGHT` of the query's attention in one head: most tokens of a
    text get nothing, and no swap of those would be seen. nearest: up to `EACH` of least `gap` for each query, and of
    all these the least. random, the control: as many of the same query, drawn from all. `captured` is of all heads of
    layer 0. None are found where attention is spread too thin, as that of random weights over a long text is.
    """
    every = tuple(range(cfg.query_heads))
    require(captured.layers == (0,) and captured.heads == every, "captured", captured.layers, "must be all of layer 0")
    require(swaps >= 1, "swaps", swaps, "must be at least 1")
    rows, length = captured.tokens.shape
    require(length >= 4, "tokens.shape", captured.tokens.shape, "too few tokens to draw a query and two earlier from")
    chance, found = np.random.default_rng(seed), []
    for turn in range(queries):
        row, at = turn % rows, int(chance.integers(length // 2, length))
        query, keys = captured.query[0, row, at], captured.key[0, row, : at + 1]
        heavy = attention_weights(cfg, query[:, None], np.swapaxes(keys, 0, 1))[:, 0, :at] >= LEAST_WEIGHT
        looked_at = np.flatnonzero(heavy.any(0))
        together = heavy[:, looked_at].astype(int)
        tokens = captured.tokens[row, looked_at]
        legal = np.triu(tokens[:, None] != tokens[None], 1) & (together.T @ together > 0)
        pairs = np.argwhere(legal)
        if not len(pairs):
            continue
        gap, aliased = score_changes(cfg, query, keys[looked_at], at - looked_at, dtype)
        nearest = pairs[np.argsort(gap[legal], kind="stable")[:EACH]]
        drawn = pairs[chance.choice(len(pairs), len(nearest), replace=False)]
        for chosen in zip(nearest, drawn):
            found.append(
                [
                    Places(kind, row, at, int(looked_at[p]), int(looked_at[q]), float(gap[p, q]), int(aliased[p, q]))
                    for kind, (p, q) in zip(KINDS, chosen)
                ]
            )
    found.sort(key=lambda both: both[0].gap)
    return [place for both in found[:swaps] for place in both]


def model_swaps(
    cfg: Model,
    params: dict,
    tokens_bt: Integer[np.ndarray, "B T"],
    places: list[Places],
    *,
    dtype: str = "bfloat16",
    advance: Callable[[int], object] = lambda done: None,
) -> list[dict]:
    """Each of `places` as a dict, with what the next-token distribution at the query makes of the swap.

    total_variation: half of sum |p - p'|; kl: sum p ln(p / p') in nats, p before; argmax_kept: the likeliest token
    stays; unseen: every logit is the same number in `dtype`; stake: the total variation when one of the two places gets
    the token of the other, which keeps its own: the larger of both ways, so how much the tokens matter. The model runs
    as it is, in its own dtype.
    """
    model = compute_config(cfg, params, batch=1, length=tokens_bt.shape[1])

    known: dict[tuple[int, bytes], np.ndarray] = {}  # of a query, several swaps start from one text

    def logits(place: Places, order: tuple[int, int] = (0, 1)) -> np.ndarray:
        # One text at a time through one program: what is not changed is the same to the last bit.
        text = np.array(tokens_bt[place.row : place.row + 1], np.int32)
        at = np.array([place.first, place.second])
        text[0, at] = text[0, at[list(order)]]
        asked = place.query, text.tobytes()
        if asked not in known:
            known[asked] = np.asarray(_logits(model, params, text, place.query))
        return known[asked]

    records = []
    for place in places:
        before = logits(place)
        stake = max(output_change(before, logits(place, copied), dtype)["total_variation"] for copied in COPIED)
        records.append({**place._asdict(), **output_change(before, logits(place, SWAPPED), dtype), "stake": stake})
        advance(1)
    return records


@functools.partial(jax.jit, static_argnums=0)
def _logits(cfg: Model, params: dict, tokens_bt: Array, query: Array) -> Array:
    hidden = functional.apply(cfg, params, tokens_bt).hidden[0, query]
    return functional.unembed(cfg, params, hidden)[: cfg.vocab]


def output_change(before: Float[np.ndarray, " V"], after: Float[np.ndarray, " V"], dtype: str) -> dict:
    """The fields of `model_swaps` for two rows of logits, in float64."""
    old, new = (log_softmax(x.astype(np.float64)) for x in (before, after))
    return {
        "total_variation": float(np.abs(np.exp(old) - np.exp(new)).sum() / 2),
        "kl": float(max((np.exp(old) * (old - new)).sum(), 0.0)),
        "argmax_kept": bool(before.argmax() == after.argmax()),
        "unseen": bool(np.all(quantize(before, dtype) == quantize(after, dtype))),
    }


def log_softmax(x: Float[np.ndarray, " V"]) -> Float[np.ndarray, " V"]:
    """ln of the softmax."""
    x = x - x.max()
    return x - np.log(np.exp(x).sum())


def by_kind(records: list[dict]) -> list[dict]:
    """A summary of each kind: the fields of `SUMMARY`, None where nothing matters; `mattering`, how many swaps do; and
    `intervals`, Wilson's 95% of every one of `SHARES` that has a number, as if swaps were independent."""
    summary = []
    for kind in KINDS:
        own = [record for record in records if record["kind"] == kind]
        matter = [record for record in own if record["stake"] > SAME]

        def median(values: list) -> float | None:
            return float(np.median(values)) if values else None

        counts = {
            "matter": len(matter),
            "blind": sum(record["total_variation"] <= SAME for record in matter),
            "argmax_kept": sum(record["argmax_kept"] for record in matter),
            "unseen": sum(record["unseen"] for record in own),
        }
        among = {"swaps": len(own), "mattering": len(matter)}
        present = {name: (count, among[SHARES[name]]) for name, count in counts.items() if among[SHARES[name]]}
        fields = {
            "swaps": len(own),
            "gap": median([record["gap"] for record in own]),
            "change": median([record["total_variation"] / record["stake"] for record in matter]),
            **dict.fromkeys(SHARES),
            **{name: count / of for name, (count, of) in present.items()},
        }
        summary.append(
            {
                "kind": kind,
                **{name: fields[name] for name in SUMMARY},
                "mattering": len(matter),
                "intervals": {name: list(wilson(*counted)) for name, counted in present.items()},
            }
        )
    return summary
