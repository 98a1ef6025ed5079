"""The loss as a sum and a weight: chunked or whole, with documents kept apart or not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rove_jax import losses
from rove_jax.config import Model
from rove_jax.losses import segment_ids, token_nll
from rove_jax.models import functional

CFG = Model(layers=1, width=16, query_heads=2, kv_heads=2, head_dim=8, mlp_width=16, vocab=40, vocab_multiple=32)
EOT = 39

next_token_loss = jax.jit(losses.next_token_loss, static_argnums=0, static_argnames=("eot", "segments"))


@pytest.fixture(scope="module")
def params():
    return jax.tree.map(lambda x: 8.0 * x if x.ndim > 1 else x, functional.init(CFG, jax.random.key(0)))


def test_nll_is_minus_log_softmax_in_float64(params):
    hidden = 30.0 * jax.random.normal(jax.random.key(1), (2, 7, 16))
    targets = jax.random.randint(jax.random.key(2), (2, 7), 0, 40)
    logits = np.asarray(hidden, np.float64) @ np.asarray(params["embedding"], np.float64)[:40].T
    top = logits.max(-1, keepdims=True)
    log_z = np.log(np.exp(logits - top).sum(-1)) + top[..., 0]
    exact = log_z - np.take_along_axis(logits, np.asarray(targets)[..., None], -1)[..., 0]
    np.testing.assert_allclose(token_nll(CFG, params, hidden, targets), exact, rtol=2e-6, atol=2e-5)


@pytest.mark.parametrize("length", [128, 300, 1])
def test_chunks_change_neither_nll_nor_gradient(params, length, monkeypatch):
    hidden = jax.random.normal(jax.random.key(1), (2, length, 16))
    targets = jax.random.randint(jax.random.key(2), (2, length), 0, 40)

    def total(params, hidden):
        nll = token_nll(CFG, params, hidden, targets)
        return (nll * jnp.arange(length)[None]).sum(), nll

    whole = jax.value_and_grad(total, argnums=(0, 1), has_aux=True)(params, hidden)
    monkeypatch.setattr(losses, "LOGITS_LIMIT", 0)
    parts = jax.value_and_grad(total, argnums=(0, 1), has_aux=True)(params, hidden)
    # Sums in another order: 1e-6 of the largest entry, which for a gradient of the table has hundreds of terms.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6 * np.abs(b).max()), parts, whole)


def test_chunks_hold_a_fraction_of_the_logits(monkeypatch):
    cfg = Model(layers=1, width=16, query_heads=1, kv_heads=1, head_dim=8, mlp_width=16, vocab=8192)
    shapes = (functional.abstract(cfg), jax.ShapeDtypeStruct((1, 2048, 16), jnp.float32))

    def temporaries():
        def loss(params, hidden):
            return token_nll(cfg, params, hidden, jnp.zeros((1, 2048), jnp.int32)).sum()

        return jax.jit(jax.grad(loss, argnums=(0, 1))).lower(*shapes).compile().memory_analysis().temp_size_in_bytes

    whole = temporaries()
    monkeypatch.setattr(losses, "LOGITS_LIMIT", 0)
    assert whole >= 4 * 2048 * 8192
    assert temporaries() < 0.25 * whole


def test_segments_and_positions_from_the_end_of_text_token():
    tokens = jnp.array([[5, EOT, 6, 7, EOT, EOT, 8], [EOT, 1, 2, 3, 4, 5, EOT], [1, 2, 3, 4, 5, 6, 7]])
    segments, positions = segment_ids(tokens, EOT)
    assert segments.tolist() == [[1, 1, 2, 2, 2, 3, 4], [1, 2, 2, 2, 2, 2, 2], [1] * 7]
    assert positions.tolist() == [[0, 1, 0, 1, 2, 0, 0], [0, 0, 1, 2, 3, 4, 5], list(range(7))]


def test_packed_documents_score_as_each_alone(params):
    documents = [[3, 1, 4, 1, 5, EOT], [9, 2, 6, EOT], [5, 3, 5, 8, 9, 7, 9, EOT]]
    packed = jnp.array([sum(documents, [])])
    total, weight = next_token_loss(CFG, params, packed, eot=EOT, segments=True)
    alone = [next_token_loss(CFG, params, jnp.array([d]), eot=EOT, segments=False) for d in documents]
    assert weight == sum(w for _, w in alone) == sum(len(d) - 1 for d in documents)
    assert total == pytest.approx(float(sum(s for s, _ in alone)), rel=1e-5)
    # Without segments the documents see each other, and the first token of each is a target too.
    mixed, all_targets = next_token_loss(CFG, params, packed, eot=EOT, segments=False)
    assert all_targets == packed.shape[1] - 1
    assert abs(mixed - total) > 0.1
