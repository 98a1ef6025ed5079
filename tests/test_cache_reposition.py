"""Caches moved to other positions and to other frequencies, against caches written there and against float64."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rove_jax.attention import joined, keep, reposition, retable
from rove_jax.config import Model, Rotary, Scaling
from rove_jax.errors import UsageError
from rove_jax.models import functional
from rove_jax.rotary import frequencies
from tests.cache_cases import ROVE, SPECS, YARN, definition, empty, fed, inputs
from tests.reference import attention as reference
from tests.reference.weights import random_params

close = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-5)
apply = jax.jit(functional.apply, static_argnums=0)

FROM = np.stack([np.arange(6), np.arange(6) + 2**20 - 6])
TO = np.array([[0, 1, 9, 8, 1000, 2**20], [5, 3, -7, -(2**20), 0, 77]])


def turned(x, positions, rotary):
    """float64 [B, S, K, H] turned from the definition."""
    x = np.asarray(x, np.float64)
    if rotary is None:
        return x
    turns = [[reference.rotation(p * frequencies(rotary, x.shape[-1]), x.shape[-1], rotary.pairing) for p in row]
             for row in np.broadcast_to(np.asarray(positions, np.float64), x.shape[:2])]  # fmt: skip
    return np.einsum("bsij,bskj->bski", np.array(turns), x)


TURNED = [name for name in SPECS if name not in ("nope", "absolute_q", "absolute_o", "absolute_qkv")]


@pytest.mark.parametrize("spec", [SPECS[name] for name in TURNED], ids=TURNED)
def test_moved_tokens_are_as_if_written_there(spec):
    """By any number, in either direction, each row its own way: float32 to 1e-5, and keys and values both."""
    q, k, v = inputs(t=6)
    _, store = fed(empty(spec, 8), (q, k, v), spec, (6,), positions=FROM)
    spare = np.zeros((2, 2), int)
    moved = jax.jit(reposition)(store, np.hstack([FROM, spare]), np.hstack([TO, spare + 5]))
    by_key, by_value = store.rotations
    close(moved.key[:, :6], turned(k, TO, by_key))
    close(moved.value[:, :6], turned(v, TO, by_value))
    assert (moved.positions == np.hstack([TO, spare])).all(), "empty slots stay where they are"
    assert (moved.segments == store.segments).all() and moved.length == 6
    if "v" in spec[2] and spec[1] is not None:
        assert np.abs(store.value[:, :6] - turned(v, TO, by_value)).max() > 0.1, "control: values have to be turned"


def test_attention_goes_on_from_the_new_positions():
    """A new token after the move sees what the definition says it sees at the new positions."""
    spec, qkv = SPECS["own values"], inputs(t=8)
    at = np.array([0, 1, 2, 3, 90, 91, 92, 93])
    _, store = fed(empty(spec, 8), [x[:, :6] for x in qkv], spec, (6,))
    new = jnp.asarray([*at[:6], 0, 0])
    for moved in (reposition(store, jnp.arange(8), new), reposition(store, store.positions, new)):
        last, _ = fed(moved, [x[:, 6:] for x in qkv], spec, (2,), positions=at[6:])
        close(last, definition(qkv, spec, positions=at)[:, 6:])
    assert np.abs(definition(qkv, spec)[:, 6:] - last).max() > 0.01


@pytest.mark.parametrize("name", ["rove", "interleaved", "yarn"])
def test_bfloat16_is_rounded_once_per_call(name):
    spec, (q, k, v) = SPECS[name], inputs(t=6)
    _, store = fed(empty(spec, 6, dtype=jnp.bfloat16), (q, k, v), spec, (6,), positions=FROM)
    moved = reposition(store, FROM, TO)
    rotary, value_rotary = spec[:2]
    assert rotary is not None
    bands = dataclasses.replace(rotary, scaling=Scaling("linear", factor=8.0))
    other = retable(store, bands, bands)
    for field, spec_of in (("key", rotary), ("value", value_rotary)):
        stored = np.asarray(getattr(store, field), np.float64)
        plain = turned(stored, -FROM, spec_of)
        for found, exact in (
            (getattr(moved, field), turned(plain, TO, spec_of)),
            (getattr(other, field), turned(plain, FROM, bands)),
        ):
            assert found.dtype == jnp.bfloat16
            # Half a unit in the last of 8 bits, and the float32 arithmetic before it.
            assert (np.abs(np.asarray(found, np.float64) - exact) <= 2.0**-8 * np.abs(exact) * 1.001 + 2e-6).all()
            assert np.abs(np.asarray(found, np.float64) - exact).max() > 1e-3


def test_vmap_and_traced_positions():
    spec, qkv = SPECS["rove"], inputs(t=6)
    _, store = fed(empty(spec, 6), qkv, spec, (6,))
    shifts = jnp.array([7, -300_000])
    many = jax.jit(jax.vmap(reposition, in_axes=(None, None, 0)))(store, 0, shifts)
    one = [reposition(store, 0, int(shift)) for shift in shifts]
    close(many.value, jnp.stack([x.value for x in one]))
    assert (many.positions == jnp.stack([x.positions for x in one])).all()
    pairs = jax.vmap(lambda x: retable(x, YARN, YARN))(jax.tree.map(lambda x: jnp.stack([x, x]), store))
    close(pairs.key[1], retable(store, YARN, YARN).key)


def test_what_cannot_be_moved_is_refused():
    spec, qkv = SPECS["rove"], inputs(t=6)
    _, store = fed(empty(spec, 6), qkv, spec, (6,))
    with pytest.raises(UsageError, match=r"new of shape \(5,\)"):
        reposition(store, 0, jnp.arange(5))
    with pytest.raises(UsageError, match="dtype float32: must be integers"):
        reposition(store, 0, jnp.ones(6))
    with pytest.raises(UsageError, match="position 1048577: beyond"):
        reposition(store, 0, 2**20 - 4)
    assert jnp.isnan(jax.jit(reposition)(store, 0, 2**21).key[:, 3:]).all(), "traced: loud"
    with pytest.raises(UsageError, match=r"slots of shape \(7,\)"):
        keep(store, jnp.arange(7))


RULES = [
    Scaling("linear", factor=4.0),
    Scaling("ntk", factor=4.0),
    Scaling("dynamic_ntk", original_length=64, length=256),
    Scaling("yarn", factor=32.0, original_length=128),
    Scaling("llama3", factor=4.0, original_length=64),
]


@pytest.mark.parametrize(("scaling", "values"), [*((rule, True) for rule in RULES), (RULES[3], False)])
def test_a_retabled_cache_is_as_if_written_by_the_scaled_model(scaling, values):
    qkv = inputs(t=8)
    plain = (Rotary(dims=12), Rotary(dims=8, base=500.0), "qkvo")
    scaled = tuple(dataclasses.replace(x, scaling=scaling) for x in plain[:2])
    new = (scaled[0], scaled[1] if values else plain[1], "qkvo")
    at = np.array([0, 1, 50, 51, 52, 1000, 1001, 2**20])
    _, store = fed(empty(plain, 8), [x[:, :7] for x in qkv], plain, (7,), positions=at[:7])
    changed = jax.jit(retable, static_argnums=(1, 2))(store, *new[:2])
    assert (changed.rotary, changed.value_rotary) == new[:2] and (changed.positions == store.positions).all()
    close(changed.key[:, :7], turned(qkv[1][:, :7], at[:7], new[0]))
    close(changed.value[:, :7], turned(qkv[2][:, :7], at[:7], new[1]))
    back = retable(changed, *plain[:2])
    close(back.key, store.key)
    last, _ = fed(changed, [x[:, 7:] for x in qkv], new, (1,), positions=at[7:])
    close(last, definition(qkv, new, positions=at)[:, 7:])


def test_far_rows_are_retabled_as_exactly_as_near_ones():
    spec, (q, k, v) = SPECS["rove"], inputs(t=6, h=64)
    at = 2**20 - np.arange(6)
    _, store = fed(empty(spec, 6, h=64), (q, k, v), spec, (6,), positions=at)
    changed = retable(store, YARN, YARN)
    close(changed.key, turned(k, at, YARN), atol=4e-6)
    close(changed.value, turned(v, at, YARN), atol=4e-6)


def test_more_than_scaling_cannot_be_retabled():
    store = empty(SPECS["rove"], 4)
    for wrong in (Rotary(base=500.0), Rotary(dims=8), Rotary(pairing="interleaved"), Rotary(alpha=0.5), None):
        with pytest.raises(UsageError, match="^rotary[a-z_.]* = .*only scaling may change"):
            retable(store, wrong, ROVE)
        with pytest.raises(UsageError, match="^value_rotary[a-z_.]* = .*only scaling may change"):
            retable(store, ROVE, wrong)
    with pytest.raises(UsageError, match="value_rotary"):
        retable(empty(SPECS["rope"], 4), YARN, YARN)


@pytest.mark.parametrize("spec", [SPECS["rove"], SPECS["own values"]], ids=["rove", "own values"])
def test_chunks_read_apart_and_joined_are_as_if_read_in_a_row(spec):
    qkv = inputs(t=9)
    parts = [(0, 4), (4, 7)]
    stores = []
    for slots, (start, stop) in zip((4, 5), parts):
        _, store = fed(empty(spec, slots), [x[:, start:stop] for x in qkv], spec, (stop - start,))
        stores.append(reposition(store, 0, start))
    last, store = fed(joined(*stores), [x[:, 7:] for x in qkv], spec, (2,), positions=np.array([7, 8]))
    close(last, definition(qkv, spec)[:, 7:])
    assert store.length == 9 and (np.asarray(store.positions) == np.arange(9)).all()
    with pytest.raises(UsageError, match="value_rotary.* = .*the first cache has"):
        joined(stores[0], empty((ROVE, YARN, "qkvo"), 4))


def test_forgotten_tokens_are_as_if_never_read():
    """By their segment, in place; by `keep`, which also frees their slots, each row its own."""
    spec, qkv = SPECS["rove"], inputs(t=9)
    kept = np.array([[0, 1, 4, 5, 7], [0, 2, 3, 4, 6]])
    _, store = fed(empty(spec, 8), [x[:, :8] for x in qkv], spec, (8,))
    among = (kept[:, :, None] == np.arange(8)).any(1)
    forgotten = dataclasses.replace(store, segments=jnp.where(among, store.segments, 0))
    front = keep(store, jnp.asarray(kept))
    assert front.length == 5 and (front.positions[:, :5] == kept).all() and (front.segments[:, 5:] == 0).all()
    last = [x[:, 8:] for x in qkv]
    grown = joined(forgotten, empty(spec, 1))  # an empty store's slot is for the new token
    found, _ = fed(front, last, spec, (1,), positions=np.array([8]))
    visible = jnp.concatenate([jnp.where(among, 1, 0), jnp.ones((2, 1), int)], 1)
    exact = definition(qkv, spec, segments=np.asarray(visible))[:, 8:]
    close(found, exact)
    close(fed(grown, last, spec, (1,), positions=np.array([8]))[0], exact)
    assert np.abs(definition(qkv, spec)[:, 8:] - exact).max() > 0.01


def model(**fields):
    return Model(layers=1, width=32, query_heads=4, kv_heads=2, head_dim=16, mlp_width=32, vocab=40, **fields)


@functools.cache
def parameters(layers=1):
    return random_params(dataclasses.replace(model(), layers=layers), seed=0)


TOKENS = jax.random.randint(jax.random.key(7), (2, 13), 0, 40)


def read(cfg, tokens, positions, cache):
    ones = jnp.ones(tokens.shape, jnp.int32)
    return apply(cfg, parameters(cfg.layers), tokens, positions=jnp.asarray(positions), segments=ones, cache=cache)


@pytest.mark.parametrize("variant", [pytest.param("rope", marks=pytest.mark.slow), "rove"])
def test_sinks_and_the_latest_renumbered_equal_a_fresh_pass_over_them(variant):
    """StreamingLLM's eviction on a model of one layer, twice in a row."""
    cfg = model(variant=variant)
    cache, ids = functional.init_cache(cfg, 2, 8), list(range(8))
    cache = read(cfg, TOKENS[:, :8], np.arange(8), cache).cache
    for token in (8, 9, 10):
        if len(ids) == 8:
            cache = keep(cache, jnp.array([0, 1, 4, 5, 6, 7]))
            cache = reposition(cache, cache.positions, jnp.arange(8))
            ids = [ids[i] for i in (0, 1, 4, 5, 6, 7)]
        out = read(cfg, TOKENS[:, token : token + 1], np.array([len(ids)]), cache)
        cache, ids = out.cache, [*ids, token]
        fresh = apply(cfg, parameters(), TOKENS[:, jnp.asarray(ids)])
        close(out.hidden[:, -1], fresh.hidden[:, -1])
    assert ids == [0, 1, 6, 7, 8, 9, 10]


@pytest.mark.parametrize("variant", [*(pytest.param(x, marks=pytest.mark.slow) for x in ("rope", "vo")), "rove"])
def test_all_moved_alike_changes_nothing_in_any_layer(variant):
    cfg = dataclasses.replace(model(variant=variant), layers=2, scan_layers=True)
    cache = read(cfg, TOKENS[:, :8], np.arange(8), functional.init_cache(cfg, 2, 13)).cache
    shifted = jax.jit(reposition)(cache, 0, 70_000)
    whole = apply(cfg, parameters(2), TOKENS).hidden[:, 8:]
    close(read(cfg, TOKENS[:, 8:], np.arange(8, 13) + 70_000, shifted).hidden, whole)
    assert jnp.abs(read(cfg, TOKENS[:, 8:], np.arange(8, 13) + 70_000, cache).hidden - whole).max() > 0.01


def test_a_retabled_model_cache_goes_on_under_the_new_rule():
    cfg = model()
    for values in (True, False):
        scaled = cfg.with_scaling(Scaling("yarn", factor=4.0, original_length=8), values=values)
        cache = read(cfg, TOKENS[:, :8], np.arange(8), functional.init_cache(cfg, 2, 13)).cache
        with pytest.raises(UsageError, match="rotary.* = .*the cache was written with.*retable"):
            read(scaled, TOKENS[:, 8:], np.arange(8, 13), cache)
        found = read(scaled, TOKENS[:, 8:], np.arange(8, 13), retable(cache, *scaled.rotations)).hidden
        close(found, apply(scaled, parameters(), TOKENS).hidden[:, 8:])
        assert jnp.abs(found - apply(cfg, parameters(), TOKENS).hidden[:, 8:]).max() > 1e-3
