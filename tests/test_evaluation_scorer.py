"""Per-token likelihoods: against the oracle, under any batching, and with padding that must not matter."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from reference import perplexity as oracle
from reference.weights import random_params

from rove_jax.config import Model, Scaling
from rove_jax.evaluation import scorer
from rove_jax.models import functional

CFG = Model(layers=2, width=32, query_heads=2, kv_heads=2, head_dim=16, mlp_width=64, vocab=50, vocab_multiple=64)


@pytest.fixture(scope="module")
def params():
    return random_params(CFG, seed=1)


def texts(count: int, longest: int, seed: int = 0) -> list[np.ndarray]:
    draw = np.random.RandomState(seed)
    return [draw.randint(0, CFG.vocab, size=draw.randint(2, longest + 2)) for _ in range(count)]


def test_likelihoods_equal_the_oracle(params):
    rows = [np.random.RandomState(seed).randint(0, CFG.vocab, size=25) for seed in range(3)]

    @jax.jit
    def all_logits(tokens_bt):
        return functional.unembed(CFG, params, functional.apply(CFG, params, tokens_bt).hidden)

    logits_btv = np.asarray(all_logits(np.array(rows, np.int32)[:, :-1]))[..., : CFG.vocab]
    found = scorer.token_nlls(CFG, params, rows, length=24)
    for row, logits_tv, nlls in zip(rows, logits_btv, found):
        expected = [oracle.negative_log_likelihood(*pair) for pair in zip(logits_tv, row[1:])]
        assert np.ptp(expected) > 2, "the weights predict something"
        np.testing.assert_allclose(nlls, expected, atol=2e-5)


def test_batch_size_and_padding_do_not_matter(params):
    rows = texts(23, 24)
    [alone] = scorer.token_nlls(CFG, params, rows[:1], length=len(rows[0]) - 1)
    sizes = {size: scorer.token_nlls(CFG, params, rows, length=24, batch_size=size) for size in (1, 4, 7)}
    padded = scorer.token_nlls(CFG, params, rows, length=40)
    for place, row in enumerate(rows):
        for found in (*sizes.values(), padded):
            assert found[place].shape == (len(row) - 1,) and found[place].dtype == np.float32
            np.testing.assert_allclose(found[place], sizes[1][place], atol=1e-4)
    np.testing.assert_allclose(padded[0], alone, atol=1e-4)
    # Control: a scorer that sums what stands in the padding is off by far more than the tolerance.
    careless = np.asarray(scorer.batch_nll(CFG, params, np.pad(rows[0], (0, 40)).astype(np.int32)[None])).sum()
    assert abs(careless - sizes[1][0].sum()) > 1


def test_uniform_logits_have_the_vocabulary_as_perplexity(params):
    """The table is padded to 64 rows; a padded row in the sum would give 64."""
    nothing = jax.tree.map(np.zeros_like, params)
    [nlls] = scorer.token_nlls(CFG, nothing, [np.arange(20)], length=32)
    np.testing.assert_array_equal(nlls, np.full(19, np.log(np.float32(CFG.vocab))))


def test_a_factor_of_one_changes_no_bit(params):
    rows = texts(3, 24)
    plain = scorer.token_nlls(CFG, params, rows, length=24)

    def under(factor: float) -> list[np.ndarray]:
        model = CFG.with_scaling(Scaling("yarn", factor=factor, original_length=24))
        return scorer.token_nlls(model, params, rows, length=24)

    for found, expected in zip(under(1.0), plain):
        np.testing.assert_array_equal(found, expected)
    assert any((found != expected).any() for found, expected in zip(under(2.0), plain)), "control: 2 changes some"


def test_one_compilation_per_length_and_scaling(params, monkeypatch):
    apply, traces = functional.apply, []
    monkeypatch.setattr(functional, "apply", lambda *given, **named: traces.append(given[0]) or apply(*given, **named))
    yarn = CFG.with_scaling(Scaling("yarn", factor=2.0, original_length=14))
    for model in (CFG, yarn, CFG):
        for length in (28, 30):
            scorer.token_nlls(model, params, texts(9, length), length=length, batch_size=2)
    assert len(traces) == 4


def test_long_contexts_never_hold_all_logits():
    cfg = replace(CFG, vocab=50_257, layers=1, window=256, attention="chunked")  # a window: scores take next to nothing
    tokens = jax.ShapeDtypeStruct((1, 8_193), np.int32)
    compiled = scorer.batch_nll.lower(cfg, functional.abstract(cfg), tokens).compile()
    whole = 4 * 8_192 * cfg.padded_vocab
    memory = compiled.memory_analysis()
    assert memory is not None and memory.temp_size_in_bytes < whole / 10
