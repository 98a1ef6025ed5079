"""Heads of models: what is captured, the failure rates of each, and layers as matrices; against float64 NumPy."""

from pathlib import Path

import jax
import numpy as np
import pytest
from reference import attention as attention_oracle
from reference import limits as oracle

from rove_jax.analysis import aliasing, capture, circuit_figures, failures, limits, mixer, pairs, profile
from rove_jax.analysis.product import qk_coefficients
from rove_jax.config import Config, Model, Rotary
from rove_jax.data import tokenizers
from rove_jax.errors import UsageError
from rove_jax.evaluation import runs
from rove_jax.models import functional
from rove_jax.training.run_folder import Origin

SMALL = Model(
    variant="rove", layers=2, width=16, query_heads=4, kv_heads=2, head_dim=6, mlp_width=8, vocab=32, vocab_multiple=32,
    rotary=Rotary(base=100.0, dims=4, pairing="interleaved"), scan_layers=True,
)  # fmt: skip
TOKENS = np.random.default_rng(0).integers(0, 32, (2, 12)).astype(np.int32)
OMEGA = np.array([1.0, 0.1])


@pytest.fixture(scope="module")
def params():
    """Drawn here rather than by `init`, which would have to be compiled, and with biases that are not 0."""
    chance = np.random.default_rng(1)

    def drawn(path: tuple, leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        return (0.3 * chance.normal(size=leaf.shape) + (path[-1].key == "scale")).astype(np.float32)

    return jax.tree_util.tree_map_with_path(drawn, functional.abstract(SMALL))


def of_layer(params: dict, layer: int) -> dict:
    return jax.tree.map(lambda leaf: np.asarray(leaf[layer], np.float64), params["blocks"])


def normed(x: np.ndarray, norm: dict) -> np.ndarray:
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + SMALL.norm_epsilon)
    return x * norm["scale"] + norm["bias"]


def test_what_is_captured_is_what_the_layer_projects(params):
    found = capture.capture_qkv(SMALL, params, TOKENS)
    assert found.query.shape == found.key.shape == found.value.shape == (2, 2, 12, 4, 6)
    block = of_layer(params, 0)
    x = normed(np.asarray(params["embedding"], np.float64)[TOKENS], block["attention_norm"])
    for name in ("query", "key", "value"):
        own = block["attention"][name]
        expected = np.einsum("btd,dnh->btnh", x, own["kernel"]) + own["bias"]
        expected = expected if name == "query" else expected[:, :, [0, 0, 1, 1]]  # heads 0 and 1 read key head 0
        np.testing.assert_allclose(getattr(found, name)[0], expected, atol=2e-4)
    part = capture.capture_qkv(SMALL, params, TOKENS, layers=[1], heads=[3, 0])
    for whole, chosen in zip(found[:3], part[:3]):
        np.testing.assert_array_equal(chosen, whole[[1]][:, :, :, [3, 0]])
    assert (part.layers, part.heads) == ((1,), (3, 0))
    with pytest.raises(UsageError, match="heads = 4: the model has 0 to 3"):
        capture.capture_qkv(SMALL, params, TOKENS, heads=[4])
    with pytest.raises(UsageError, match="layers = .*: must differ from each other"):
        capture.capture_qkv(SMALL, params, TOKENS, layers=[1, 1])


def test_weights_and_the_layer_as_a_matrix(params):
    found = capture.capture_qkv(SMALL, params, TOKENS, layers=[0])
    weights = mixer.attention_weights(SMALL, *(x[0, 0].swapaxes(0, 1) for x in (found.query, found.key)))
    block = of_layer(params, 0)
    x = normed(np.asarray(params["embedding"], np.float64)[TOKENS], block["attention_norm"])[:1]
    at = np.arange(12)[None]
    # Values without biases, so that the layer is linear in them.
    value = np.einsum("btd,dkh->btkh", x, block["attention"]["value"]["kernel"])
    out = attention_oracle.attention(
        found.query[0, :1], found.key[0, :1, :, ::2], value, qk_frequencies=OMEGA, v_frequencies=OMEGA,
        seen=np.tril(np.ones((1, 12, 12), bool)), query_positions=at, key_positions=at, pairing="interleaved",
    )  # fmt: skip
    expected = np.einsum("btnh,nhd->btd", out, block["attention"]["out"]["kernel"])
    matrix = mixer.layer_mixer(SMALL, params, 0, weights)
    assert matrix.shape == (192, 192)
    np.testing.assert_allclose(matrix @ x.ravel(), expected.ravel(), atol=1e-4)
    assert np.abs(expected).max() > 1
    # RoPE: without the turn the same weights give something else, and the head is a Kronecker product.
    w_v = mixer.value_weights(params, 0, 0)
    rope, rove = (mixer.mixer(weights[0], w_v, turning, "interleaved") for turning in (None, OMEGA))
    np.testing.assert_allclose(rope, np.kron(weights[0], w_v), atol=1e-12)
    assert mixer.kronecker_error(rope, 12) < 1e-7 and mixer.kronecker_error(rove, 12) > 0.1
    assert mixer.toeplitz_error(rove, 12) < 1e-7
    # A layer of four heads of RoPE is a sum of four of them, and no fewer; that of RoVE is not.
    plain = mixer.layer_mixer(Model(**{**vars(SMALL), "variant": "rope"}), params, 0, weights)
    assert mixer.kronecker_error(plain, 12, 4) < 1e-7 < 1e-2 < mixer.kronecker_error(plain, 12, 3)
    assert mixer.kronecker_error(matrix, 12, 4) > 0.05


def test_kernels_turn_by_offset():
    w_v = np.random.default_rng(2).normal(size=(6, 5))
    for pairing in ("half", "interleaved"):
        psi = mixer.kernel(w_v, np.array([-3, 0, 2]), OMEGA, pairing)
        for kernel, offset in zip(psi, (-3, 0, 2)):
            np.testing.assert_allclose(kernel, attention_oracle.rotation(OMEGA * offset, 6, pairing) @ w_v, atol=1e-12)
        alike = [(kernel * w_v).sum() / (w_v**2).sum() for kernel in psi]
        found = mixer.kernel_similarity(w_v, np.array([-3, 0, 2]), OMEGA, pairing)
        np.testing.assert_allclose(found, alike, atol=1e-12)
    assert np.all(mixer.kernel_similarity(w_v, np.arange(3), None) == 1) and min(alike) < 0.9
    blocks = mixer.blocks_of(mixer.mixer(np.ones((4, 4)), w_v, OMEGA), 4)
    np.testing.assert_allclose(blocks[0, 1], blocks[2, 3])
    assert np.abs(blocks[0, 1] - blocks[1, 0]).max() > 0.1
    noise = np.random.default_rng(3).normal(size=(24, 20))
    assert mixer.toeplitz_error(noise, 4) > 0.3 and mixer.kronecker_error(noise, 4) > 0.3
    with pytest.raises(UsageError, match="T = 4000"):
        mixer.mixer(np.ones((4000, 4000)), w_v, OMEGA)


def rates_by_hand(found: capture.Captured, drawn: failures.Draws, at: tuple[int, int], length: int) -> dict[str, float]:
    """What `failure_rates` says of one head, from all pairs."""
    place, column = at
    sums: dict[str, list] = {name: [] for name in ("inversion", "partner", "pairs", "token", "same", "joint")}
    for row, query, *keys in drawn.trials():
        q = found.query[place, row, query, column].astype(float)
        waves = [
            np.array([oracle.score(q, found.key[place, row, k, column].astype(float), OMEGA, 0, m, "interleaved")
                      for m in range(length)]) for k in keys
        ]  # fmt: skip
        each = [oracle.pairs_within(oracle.bfloat16(wave), 0) for wave in waves]
        sums["inversion"] += [oracle.inverted(wave[: length // 2], wave[length // 2 :]) for wave in waves]
        sums["partner"] += [len(set(pairs.ravel())) / length for pairs in each]
        sums["pairs"] += [len(pairs) / (length * (length - 1) / 2) for pairs in each]
        higher, lower = waves if waves[0][0] >= waves[1][0] else waves[::-1]
        sums["token"].append(np.mean(higher < lower))
        sums["same"].append(np.mean(oracle.bfloat16(waves[0]) == oracle.bfloat16(waves[1])))
        joint = {tuple(p) for p in each[0]} & {tuple(p) for p in each[1]}
        sums["joint"].append(len(joint) / (length * (length - 1) / 2))
    return {name: float(np.mean(values)) for name, values in sums.items()}


def test_failure_rates_are_those_of_all_pairs(params):
    found = capture.capture_qkv(SMALL, params, TOKENS, heads=[0, 2])
    steps = []
    records = failures.failure_rates(
        lambda length: SMALL, found, lengths=[40, 300], draws=3, seed=5, advance=steps.append
    )
    assert len(records) == len(steps) == 8 and [r["length"] for r in records[::4]] == [40, 300]
    drawn = failures.draw(TOKENS, 3, 5)
    for row, query, first, second in drawn.trials():
        assert max(first, second) < query < 12 and TOKENS[row, first] != TOKENS[row, second]
    with pytest.raises(UsageError, match="repeat one token"):
        failures.draw(np.zeros((1, 9), np.int32), 1, 0)
    with pytest.raises(UsageError, match="seed = -1"):
        failures.draw(TOKENS, 1, -1)
    for record in records[4:]:
        at = record["layer"], (0, 2).index(record["head"])
        expected = rates_by_hand(found, drawn, at, 300)
        names = (
            "position_inversion",
            "position_partner",
            "position_pairs",
            "token_inversion",
            "token_aliasing",
            "swap_pairs",
        )
        np.testing.assert_allclose([record[name] for name in names], list(expected.values()), atol=2e-3)
        assert 1 <= record["effective_pairs"] <= 2
        assert record["token_aliasing_resolution"] >= record["token_aliasing"]
        query = found.query[at[0], drawn.row, drawn.query, at[1]]
        keys = [found.key[at[0], drawn.row, column, at[1]] for column in (drawn.first, drawn.second)]
        pair = qk_coefficients(query, np.stack(keys), "interleaved", 4)
        measured = profile.profiler(pair.z, OMEGA, 300)
        assert record["positional_score"] == pytest.approx(measured.positional.mean(), abs=1e-5)
        assert record["high_share"] == pytest.approx(measured.high_share.mean())
        assert record["order_error"] == pytest.approx(measured.order_error.mean(), abs=1e-3)
        assert record["semantic_score"] == pytest.approx(1 - expected["token"], abs=2e-3)
    assert any(record["swap_pairs"] > 0 for record in records)


def test_the_output_of_rope_never_shows_a_swap_and_that_of_rove_does(params):
    found = capture.capture_qkv(SMALL, params, TOKENS)
    unseen = {}
    for variant in ("rope", "rove"):
        model = Model(**{**vars(SMALL), "variant": variant})
        records = failures.failure_rates(lambda length, model=model: model, found, lengths=[512], draws=4)
        some = [record for record in records if record["swap_unseen"] is not None]
        assert len(some) >= 4
        unseen[variant] = [
            np.mean([r[f"swap_{what}"] for r in some]) for what in ("unseen", "unseen_context", "change")
        ]
    assert unseen["rope"] == [1.0, 1.0, 0.0]
    assert unseen["rove"][0] < 0.2 and unseen["rove"][1] < 0.5 and unseen["rove"][2] > 0.01


def test_a_head_with_constant_scores_has_more_pairs_than_can_be_listed(params, monkeypatch):
    monkeypatch.setattr(pairs, "MOST_PAIRS", 1000)
    found = capture.capture_qkv(SMALL, params, TOKENS, layers=[0], heads=[0])
    still = found._replace(query=found.query * np.array([1e-9, 1e-9, 1e-9, 1e-9, 1, 1], np.float32))
    [record] = failures.failure_rates(lambda length: SMALL, still, lengths=[64], draws=2)
    assert record["swap_pairs"] == 1.0 and record["swap_unseen"] < 0.2
    assert (record["swap_draws"], record["swap_trials"]) == (2, 2 * failures.SWAPS)
    other = {**record, "head": 1, "swap_unseen": 1.0, "swap_draws": 1, "swap_trials": 5}
    none = {**record, "head": 2, "swap_unseen": None, "swap_draws": 0, "swap_trials": 0}
    [found] = limits.swaps_by_length({"results": [record, other, none]})
    assert [found[name] for name in ("length", "heads", "of", "draws", "pairs")] == [64, 2, 3, 3, 69]
    assert found["swap_unseen"] == (1 + record["swap_unseen"]) / 2
    low, high = found["intervals"]["swap_unseen"]
    assert low < 0.2 and 0.8 < high < 1, "three draws say little"
    [empty] = limits.swaps_by_length({"results": [none]})
    assert empty["swap_unseen"] is None and empty["heads"] == 0 and empty["intervals"] == {}
    with pytest.raises(UsageError, match="has no counts of swaps; evaluate the run again"):
        old = {name: value for name, value in record.items() if name != "swap_draws"}
        limits.swaps_by_length({"results": [old], "provenance": {"run": "old"}})
    with pytest.raises(UsageError, match="pairs = 2016: more than 1000"):  # control
        aliasing.attention_invariance(np.zeros(64), np.zeros(64), "bfloat16")


def test_lengths_given_twice_and_layers_that_are_not_there_are_refused():
    with pytest.raises(UsageError, match="--lengths = .*: must differ from each other"):
        limits.Asked(lengths=(64, 64))
    run = runs.Run(
        Path("run"),
        Config(model=Model(**{**vars(SMALL), "vocab": 257})),
        {},
        1,
        tokenizers.ByteTokenizer(),
        Origin("data", "bytes"),
    )
    for layer in (-1, SMALL.layers - 1):
        with pytest.raises(UsageError, match=f"--layer = {layer}: must lie between 0 and {SMALL.layers - 2}"):
            circuit_figures.compositions([run], ["run"], layer)
    for alpha, turning in ((0.0, None), (0.5, 0.5 * OMEGA), (1.0, OMEGA)):  # the dial from RoPE to RoVE
        found = capture.value_frequencies(runs.dialled(run, alpha).config.model)
        assert found is turning is None or found == pytest.approx(turning)
    with pytest.raises(UsageError, match="the dial is for rope and rove"):
        runs.dialled(runs.dialled(run, 0.5), 1.0)


@pytest.mark.parametrize("variant", ["nope", "vo", "absolute_q"])
def test_a_model_whose_scores_know_no_distance_is_refused(variant, params):
    rotary = Rotary() if variant == "nope" else SMALL.rotary
    model = Model(**{**vars(SMALL), "variant": variant, "rotary": rotary})
    with pytest.raises(UsageError, match=f"model.variant = '{variant}': does not turn both queries and keys"):
        capture.score_rotation(model)


def test_effective_pairs():
    assert capture.effective_pairs(np.full(8, 3j)) == pytest.approx(8)
    assert capture.effective_pairs(np.array([1.0, 1e-9])) == pytest.approx(1)
    assert capture.effective_pairs(np.array([2.0, 1.0])) == pytest.approx(25 / 17)
