"""Two tokens of a text change places under a whole model: places by brute force, outputs by their definition."""

import dataclasses

import jax
import numpy as np
import pytest
from reference import limits as oracle
from reference.weights import random_params

from rove_jax.analysis import capture, model_swap
from rove_jax.config import Model, Rotary
from rove_jax.errors import UsageError
from rove_jax.models import functional

ROPE = Model(
    variant="rope", layers=1, width=16, query_heads=2, kv_heads=1, head_dim=6, mlp_width=8, vocab=32, vocab_multiple=32,
    rotary=Rotary(base=100.0, dims=4, pairing="interleaved"), scan_layers=True,
)  # fmt: skip
TOKENS = np.random.default_rng(0).integers(0, 32, (2, 12)).astype(np.int32)
OMEGA = np.array([1.0, 0.1])


def test_what_a_swap_changes_in_scores_is_what_brute_force_says():
    chance = np.random.default_rng(1)
    query, keys, distances = chance.normal(size=(2, 6)), chance.normal(size=(5, 2, 6)), np.array([9, 5, 4, 2, 1])
    keys[3, :, :4] = 0  # its scores know no distance
    keys[4, 0, :4] = 0  # in one head
    gap, aliased = model_swap.score_changes(ROPE, query, keys, distances, "bfloat16")
    for p in range(5):
        for q in range(5):
            changes, equal = [], 0
            for head in range(2):
                scores = [
                    [
                        oracle.score(query[head], keys[t, head], OMEGA, 0, int(distances[at]), "interleaved")
                        for at in (p, q)
                    ]
                    for t in (p, q)
                ]
                changes += [abs(one[0] - one[1]) / 6**0.5 for one in scores]
                equal += all(np.equal(*oracle.bfloat16(np.array(one))) for one in scores)
            assert gap[p, q] == pytest.approx(max(changes), abs=1e-12)
            assert aliased[p, q] == equal
    assert aliased[3, 4] == 1 and gap[3, 4] > 0.1


@pytest.fixture(scope="module")
def flat():
    """Parameters of two layers whose first one has queries of 0: all its scores are equal, wherever a token stands."""
    params = random_params(dataclasses.replace(ROPE, layers=2), 2)
    params["norm"]["scale"] *= 8  # an output that is sure of something
    for leaf in params["blocks"]["attention"]["query"].values():
        leaf[0] = 0
    return params


def swapped(cfg: Model, params: dict) -> tuple[list[dict], list[model_swap.Places]]:
    captured = capture.capture_qkv(cfg, params, TOKENS, (0,))
    places = model_swap.find_places(cfg, captured, 6, queries=8)
    return model_swap.model_swaps(cfg, params, TOKENS, places), places


def test_one_layer_of_rope_cannot_tell_and_rove_and_a_second_layer_can(flat):
    first = {**flat, "blocks": jax.tree.map(lambda leaf: leaf[:1], flat["blocks"])}
    one, places = swapped(ROPE, first)
    assert len(one) == 12 and [record["kind"] for record in one[:2]] == ["nearest", "random"]
    for place in places:
        assert place.first < place.second < place.query and place.gap == 0 and place.aliased == 2
        assert TOKENS[place.row, place.first] != TOKENS[place.row, place.second]
    assert max(record["total_variation"] for record in one) < 1e-5
    assert all(record["argmax_kept"] for record in one) and np.median([record["stake"] for record in one]) > 0.01
    assert {s["kind"]: s["blind"] for s in model_swap.by_kind(one)} == {"nearest": 1.0, "random": 1.0}
    for cfg, params in (
        (dataclasses.replace(ROPE, variant="rove"), first),
        (dataclasses.replace(ROPE, layers=2), flat),
    ):
        seen, _ = swapped(cfg, params)
        assert np.median([record["total_variation"] for record in seen]) > 2e-3
        assert not any(record["unseen"] for record in seen)


def test_outputs_are_those_of_the_texts(flat):
    cfg = dataclasses.replace(ROPE, layers=2)
    records, _ = swapped(cfg, flat)
    run = jax.jit(lambda tokens: functional.unembed(cfg, flat, functional.apply(cfg, flat, tokens).hidden))
    for record in records[:3]:
        row, query, p, q = (record[name] for name in ("row", "query", "first", "second"))
        texts = np.repeat(TOKENS[row : row + 1], 4, 0)
        texts[1, [p, q]] = TOKENS[row, [q, p]]
        texts[2, p], texts[3, q] = TOKENS[row, q], TOKENS[row, p]
        logits = np.asarray(run(texts), np.float64)[:, query]
        shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        change = np.abs(shares - shares[0]).sum(-1) / 2
        assert record["total_variation"] == pytest.approx(change[1], abs=1e-5)
        assert record["stake"] == pytest.approx(max(change[2:]), abs=1e-5)
        assert record["kl"] == pytest.approx((shares[0] * np.log(shares[0] / shares[1])).sum(), abs=1e-5)
        assert record["argmax_kept"] == (shares[0].argmax() == shares[1].argmax())


def test_places_are_of_tokens_that_are_looked_at_and_within_the_window():
    params = random_params(ROPE, 3)
    captured = capture.capture_qkv(ROPE, params, TOKENS, (0,))
    chosen = model_swap.find_places(ROPE, captured, 100, queries=30)
    gaps = {kind: [place.gap for place in chosen if place.kind == kind] for kind in model_swap.KINDS}
    assert len(gaps["nearest"]) == len(gaps["random"]) and gaps["nearest"] == sorted(gaps["nearest"])
    assert np.mean(gaps["nearest"]) < 0.8 * np.mean(gaps["random"])
    near = model_swap.find_places(dataclasses.replace(ROPE, window=4), captured, 100, queries=30)
    assert max(place.query - place.first for place in near) == 3 < max(p.query - p.first for p in chosen)
    part = capture.capture_qkv(ROPE, params, TOKENS, (0,), (1,))
    with pytest.raises(UsageError, match="must be all of layer 0"):
        model_swap.find_places(ROPE, part, 4)
    alike = captured._replace(tokens=np.zeros_like(TOKENS))
    assert model_swap.find_places(ROPE, alike, 4) == []


def test_a_summary_counts_what_matters():
    fields = ("kind", "gap", "total_variation", "stake", "argmax_kept", "unseen")
    rows = [("nearest", 0.5, 0.001, 0.1, True, True), ("nearest", 0.1, 0.2, 0.4, False, False),
            ("nearest", 0.3, 0.0, 0.001, True, True)]  # fmt: skip
    nearest, random = model_swap.by_kind([dict(zip(fields, row)) for row in rows])
    intervals = nearest.pop("intervals")
    assert nearest == {"kind": "nearest", "swaps": 3, "gap": 0.3, "matter": pytest.approx(2 / 3), "blind": 0.5,
                       "argmax_kept": 0.5, "change": pytest.approx(0.255), "unseen": pytest.approx(2 / 3),
                       "mattering": 2}  # fmt: skip
    assert tuple(nearest)[1:-1] == model_swap.SUMMARY and random["swaps"] == 0 and random["blind"] is None
    assert set(intervals) == set(model_swap.SHARES) and random["intervals"] == {}
    assert intervals["blind"] == pytest.approx([0.0945, 0.9055], abs=1e-4)  # 1 of 2, by Wilson's formula
    assert intervals["matter"] == pytest.approx([0.2077, 0.9385], abs=1e-4)  # 2 of 3
