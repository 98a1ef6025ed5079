"""The loss as a sum and a weight: chunked or whole, with documents kept apart or not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from rove_jax import config, losses, sharding
from rove_jax.config import Model
from rove_jax.losses import segment_ids, token_nll
from rove_jax.models import functional
from rove_jax.planning.hlo import COLLECTIVES, Module

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


LITTLE = 4 * 64 * 100
"""Bytes of float32 logits over CFG's vocabulary of 100 targets."""


def weighted(nll=token_nll):
    """Of table, hidden and targets: a sum of losses that all count differently, the losses, and two gradients."""

    def total(table, hidden, targets):
        found = nll(CFG, {"embedding": table}, hidden, targets)
        return (found * jnp.arange(found.shape[1])[None]).sum(), found

    return jax.jit(jax.value_and_grad(total, argnums=(0, 1), has_aux=True))


def drawn(rows: int, length: int):
    return (
        jax.random.normal(jax.random.key(1), (rows, length, 16)),
        jax.random.randint(jax.random.key(2), (rows, length), 0, 40),
    )


def assert_same(found, expected):
    """Sums in another order: 1e-6 of the largest entry, which for a gradient of the table has hundreds of terms."""
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6 * np.abs(b).max())  # noqa: E731
    jax.tree.map(close, jax.device_get(found), jax.device_get(expected))


@pytest.mark.parametrize("length", [128, 300, 1])
def test_parts_change_neither_nll_nor_gradient(params, length, monkeypatch):
    hidden, targets = drawn(2, length)
    whole = weighted()(params["embedding"], hidden, targets)
    monkeypatch.setattr(losses, "LOGITS_LIMIT", LITTLE)
    assert_same(weighted()(params["embedding"], hidden, targets), whole)


@pytest.mark.parametrize("sizes", [(8, 1, 1), (2, 4, 1), (1, 4, 2)])
def test_on_a_mesh_the_table_is_gathered_once_and_its_gradient_added_up_once(params, sizes, monkeypatch):
    """In parts of a device's own rows. Control: parts of all rows move more, each or before the first."""
    hidden, targets = drawn(8, 200)
    whole = weighted()(params["embedding"], hidden, targets)
    mesh = sharding.make_mesh(config.Mesh(*sizes))
    table, rows = (NamedSharding(mesh, PartitionSpec(*spec)) for spec in (("tensor", "fsdp"), (sharding.BATCH,)))
    inputs = jax.device_put((params["embedding"], hidden, targets), (table, rows, rows))
    monkeypatch.setattr(losses, "LOGITS_LIMIT", LITTLE)

    def spread(nll):
        """The program, how many collectives it has in loops, and the largest arrays of those outside."""
        with jax.set_mesh(mesh):
            compiled = weighted(nll).lower(*inputs).compile()
        module = Module(compiled.as_text())
        moved = [i for i in module.instructions if i.opcode in COLLECTIVES]
        outside = [max(i.results, key=lambda a: a.bytes).dims for i in moved if i.computation not in module.repeated]
        assert module.repeated, "not in parts"
        return compiled, len(moved) - len(outside), outside

    compiled, inside, outside = spread(token_nll)
    part = (64 // sizes[2], 16)
    assert outside == [part] * (1 if sizes[1] == 1 else 2), "a gather, unless the table is whole, and a sum"
    assert (inside == 0) == (sizes[2] == 1), "of the vocabulary's parts"
    assert_same(compiled(*inputs), whole)
    assert spread(losses.local_nll)[1:] != (inside, outside)


def test_the_memory_of_the_loss_is_a_fraction_of_that_of_all_logits(monkeypatch):
    """At GPT-2's vocabulary and 8 x 1024 tokens, loss and gradient."""
    cfg = Model(layers=1, width=128, query_heads=1, kv_heads=1, head_dim=8, mlp_width=16, vocab=50_257)
    table = jax.ShapeDtypeStruct((cfg.padded_vocab, 128), jnp.float32)
    hidden = jax.ShapeDtypeStruct((8, 1024, 128), jnp.float32)

    def temporaries():
        def loss(table, hidden):
            return token_nll(cfg, {"embedding": table}, hidden, jnp.zeros((8, 1024), jnp.int32)).sum()

        step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1))).lower(table, hidden).compile()
        return step.memory_analysis().temp_size_in_bytes

    in_parts = temporaries()
    monkeypatch.setattr(losses, "LOGITS_LIMIT", 2**40)
    whole = temporaries()
    assert whole >= 4 * 8 * 1024 * 50_304
    assert in_parts < 0.25 * whole


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
