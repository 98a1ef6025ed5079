"""The decoder: counts, causality, decoding against the full pass, padding, precision, one layout for both loops."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rove_jax.attention import RotaryAttention
from rove_jax.config import Model, Rotary, Scaling
from rove_jax.errors import UsageError
from rove_jax.losses import next_token_loss
from rove_jax.models import functional
from rove_jax.models.accounting import flops_per_token, parameter_count
from rove_jax.models.gpt import GPT
from rove_jax.models.presets import PRESETS, preset

SMALL = Model(layers=2, width=32, query_heads=4, kv_heads=2, head_dim=16, mlp_width=48, vocab=97, vocab_multiple=64)
VARIANTS = {
    "nope": dataclasses.replace(SMALL, variant="nope"),
    "rope": dataclasses.replace(SMALL, variant="rope"),
    "rove": SMALL,
    "custom": dataclasses.replace(
        SMALL, variant="custom", rotary=Rotary(dims=8, pairing="interleaved"), value_rotary=Rotary(alpha=0.5), window=5
    ),
}


apply = jax.jit(functional.apply, static_argnums=0, static_argnames=("contiguous", "capture"))


@functools.cache
def shared_parameters():
    params = jax.jit(functional.init, static_argnums=0)(SMALL, jax.random.key(0))
    return jax.tree.map(lambda x: 5.0 * x if x.ndim > 2 else x, params)


def parameters(cfg):
    """Parameters large enough that attention is far from uniform; the same for every variant, as their shapes are."""
    assert functional.abstract(cfg) == functional.abstract(SMALL)
    return shared_parameters()


def tokens(batch=2, length=20, cfg=SMALL):
    return jax.random.randint(jax.random.key(7), (batch, length), 0, cfg.vocab)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("bias", [True, False])
def test_closed_form_counts_equal_the_arrays(name, bias):
    cfg = preset(name, bias=bias)
    arrays = functional.abstract(cfg)
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(arrays))
    assert sum(x.size for x in jax.tree.leaves(arrays)) == parameter_count(cfg, padded=True)
    assert parameter_count(cfg, padded=True) - parameter_count(cfg) == (cfg.padded_vocab - cfg.vocab) * cfg.width


def test_the_papers_sizes():
    """124M and 354M (arXiv 2606.11275): tied embedding, no learned positions, GPT-2's 50,257 tokens."""
    assert parameter_count(preset("gpt2-small", bias=False)) == 123_551_232
    assert parameter_count(preset("gpt2-small")) == 123_653_376
    assert parameter_count(preset("gpt2-medium", bias=False)) == 353_503_232
    assert parameter_count(preset("gpt2-medium")) == 353_774_592


def test_flops_counted_by_hand():
    cfg = Model(layers=2, width=4, query_heads=2, kv_heads=1, head_dim=2, mlp_width=8, vocab=10)
    # A layer's products with weights: q 4x4, k 4x2, v 4x2, out 4x4, up 4x8, down 8x4; the unembedding 4x10.
    weights = 2 * (16 + 8 + 8 + 16 + 32 + 32) + 40
    # Contexts of 3: queries see 1, 2, 3 keys, 2 on average, each costing a score and a value of 2 channels in 2 heads.
    assert flops_per_token(cfg, 3) == 3 * (2 * weights + 2 * 2 * (2 * 2 * 2) * 2)
    windowed = dataclasses.replace(cfg, window=2)
    assert flops_per_token(windowed, 3) == 3 * (2 * weights + 2 * 2 * (2 * 2 * 2) * 5 / 3)
    assert flops_per_token(dataclasses.replace(cfg, window=9), 3) == flops_per_token(cfg, 3)


@pytest.mark.parametrize("cfg", VARIANTS.values(), ids=VARIANTS.keys())
def test_no_token_sees_a_later_one(cfg):
    """By gradient: hidden state t moves with the embeddings of tokens up to t, and with no later one."""
    params, t = parameters(cfg), tokens(batch=1, length=9)

    def hidden(table):
        # Every position gets a row of its own, so that the gradient of a row is the gradient of a position.
        return apply(cfg, {**params, "embedding": table}, jnp.arange(9)[None]).hidden[0, :, 0]

    table = params["embedding"].at[:9].set(params["embedding"][t[0]])
    reached = np.abs(jax.jacrev(hidden)(table)[:, :9]).max(-1) > 0
    layers_back = 9 if cfg.window is None else cfg.layers * (cfg.window - 1)
    expected = [[0 <= i - j <= layers_back for j in range(9)] for i in range(9)]
    assert (reached == expected).all()


@pytest.mark.parametrize("cfg", VARIANTS.values(), ids=VARIANTS.keys())
def test_decoding_in_pieces_equals_the_full_pass(cfg):
    params, t = parameters(cfg), tokens(length=16)
    full = apply(cfg, params, t).hidden
    traces = 0

    @functools.partial(jax.jit, donate_argnums=0)
    def step(cache, piece, positions):
        nonlocal traces
        traces += 1
        ones = jnp.ones_like(positions)
        out = apply(cfg, params, piece, positions=positions, segments=ones, cache=cache)
        return out.hidden, out.cache

    cache, hidden, start = functional.init_cache(cfg, 2, 18), [], 0
    for length in (7, 3, 1, 1, 1, 1, 1, 1):
        positions = jnp.broadcast_to(jnp.arange(start, start + length), (2, length))
        piece, cache = step(cache, t[:, start : start + length], positions)
        hidden.append(piece)
        start += length
    np.testing.assert_allclose(jnp.concatenate(hidden, axis=1), full, atol=1e-5)
    assert traces == 3, "one trace per piece length, whatever the position"
    assert cache.length == 16


def test_left_and_right_padding_change_nothing():
    params, t = parameters(SMALL), tokens(batch=1, length=9)
    alone = apply(SMALL, params, t).hidden
    for left in (0, 3, 5):
        padded = jnp.pad(t, ((0, 0), (left, 5 - left)))
        index = jnp.arange(14)[None]
        segments = ((index >= left) & (index < left + 9)).astype(jnp.int32)
        hidden = apply(
            SMALL, params, padded, positions=jnp.maximum(index - left, 0), segments=segments, contiguous=True
        ).hidden
        np.testing.assert_allclose(hidden[:, left : left + 9], alone, atol=1e-5)
        assert jnp.isfinite(hidden).all()


@pytest.mark.parametrize("variant", ["rope", "rove"])
def test_positions_reach_every_path(variant):
    """A dropped `positions` argument would leave the output alone. A common shift must."""
    cfg = VARIANTS[variant]
    params, t = parameters(cfg), tokens()
    plain = apply(cfg, params, t).hidden
    shifted = apply(cfg, params, t, positions=jnp.arange(20) + 1_000_000, contiguous=True).hidden
    np.testing.assert_allclose(shifted, plain, atol=3e-5)
    stretched = apply(cfg, params, t, positions=3 * jnp.arange(20)).hidden
    assert jnp.abs(stretched - plain).max() > 0.05


def test_rove_differs_from_rope_and_the_variant_is_all_that_does():
    params, t = parameters(SMALL), tokens()
    outs = {name: apply(VARIANTS[name], params, t).hidden for name in ("nope", "rope", "rove")}
    for a, b in (("nope", "rope"), ("rope", "rove")):
        assert jnp.abs(outs[a] - outs[b]).max() > 0.05
    dial = dataclasses.replace(SMALL, variant="custom", value_rotary=Rotary(alpha=0.0))
    assert (apply(dial, params, t).hidden == outs["rope"]).all()


def test_scaling_reaches_queries_keys_and_values():
    scaling = Scaling(rule="yarn", factor=4.0, original_length=16)
    for cfg in (VARIANTS["rope"], VARIANTS["rove"], VARIANTS["custom"]):
        scaled = cfg.with_scaling(scaling)
        assert all(r is None or r.scaling == scaling for r in scaled.rotations)
        changed = apply(scaled, parameters(cfg), tokens()).hidden
        assert jnp.abs(changed - apply(cfg, parameters(cfg), tokens()).hidden).max() > 0.01
    assert VARIANTS["nope"].with_scaling(scaling) == VARIANTS["nope"]
    # Values can be left as trained.
    for name in ("rove", "custom"):
        rotary, value_rotary = VARIANTS[name].with_scaling(scaling, values=False).rotations
        assert rotary.scaling == scaling and value_rotary == VARIANTS[name].rotations[1]
    assert VARIANTS["rope"].with_scaling(scaling, values=False) == VARIANTS["rope"].with_scaling(scaling)


@pytest.mark.slow
@pytest.mark.parametrize("remat", ["none", "dots", "full", "offload"])
@pytest.mark.parametrize("scan_layers", [True, False])
def test_loop_and_remat_change_neither_loss_nor_gradient(scan_layers, remat):
    params, t = parameters(SMALL), tokens(length=13)

    def loss(cfg):
        value = jax.value_and_grad(lambda p: next_token_loss(cfg, p, t, eot=96, segments=False)[0])
        return jax.jit(value)(params)

    expected = loss(SMALL)
    actual = loss(dataclasses.replace(SMALL, scan_layers=scan_layers, remat=remat))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), actual, expected)


def test_padded_vocabulary_rows_take_no_part():
    params, t = parameters(SMALL), tokens()
    hidden = apply(SMALL, params, t).hidden
    logits = functional.unembed(SMALL, params, hidden)
    assert logits.shape[-1] == SMALL.padded_vocab == 128 and logits.dtype == jnp.float32
    assert (jax.nn.softmax(logits)[..., SMALL.vocab :] == 0).all()
    # However large their rows are.
    loud = {**params, "embedding": params["embedding"].at[SMALL.vocab :].set(100.0)}
    np.testing.assert_allclose(functional.unembed(SMALL, loud, hidden)[..., :97], logits[..., :97], atol=1e-5)
    gradient = jax.jit(jax.grad(lambda p: next_token_loss(SMALL, p, t, eot=96, segments=False)[0]))(loud)
    assert (gradient["embedding"][SMALL.vocab :] == 0).all()


def test_bfloat16_compute_keeps_float32_parameters_and_stays_close():
    low = dataclasses.replace(SMALL, dtype="bfloat16")
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(functional.init(low, jax.random.key(0))))
    hidden = apply(low, parameters(SMALL), tokens()).hidden
    assert hidden.dtype == jnp.bfloat16
    exact = apply(SMALL, parameters(SMALL), tokens()).hidden
    assert jnp.abs(hidden.astype(jnp.float32) - exact).max() < 0.15


def test_dropout_is_a_function_of_its_key_and_off_without_one():
    cfg = dataclasses.replace(SMALL, dropout=0.3)
    params, t = parameters(SMALL), tokens()

    def hidden(key=None):
        return apply(cfg, params, t, dropout_key=key).hidden

    assert (hidden() == apply(SMALL, params, t).hidden).all()
    one = hidden(jax.random.key(1))
    assert (one == hidden(jax.random.key(1))).all() and not (one == hidden(jax.random.key(2))).all()
    scanned = dataclasses.replace(cfg, scan_layers=True)
    np.testing.assert_allclose(apply(scanned, params, t, dropout_key=jax.random.key(1)).hidden, one, atol=1e-5)


def test_capture_gives_queries_keys_and_values_before_rotation():
    params, t = parameters(SMALL), tokens()
    seen = apply(SMALL, params, t, capture=("query", "value")).captured
    assert seen["query"].shape == (2, 2, 20, 4, 16) and seen["value"].shape == (2, 2, 20, 2, 16)
    unturned = apply(VARIANTS["nope"], params, t, capture=("query", "value")).captured
    # The first layer's do not depend on what is rotated; the second layer's inputs do.
    assert (seen["query"][0] == unturned["query"][0]).all() and (seen["value"][0] == unturned["value"][0]).all()
    assert jnp.abs(seen["query"][1] - unturned["query"][1]).max() > 0
    with pytest.raises(UsageError, match="capture = .*'keys'"):
        apply(SMALL, params, t, capture=("keys",))
    with pytest.raises(UsageError, match="positions and segments"):
        apply(SMALL, params, t, cache=functional.init_cache(SMALL, 2, 32))


def test_every_parameter_names_its_axes():
    shapes, names = functional.abstract(SMALL), functional.axes(SMALL)
    sizes = {"layers": 2, "model": 32, "heads": 4, "kv_heads": 2, "head_dim": 16, "mlp": 48, "vocab": 128}

    def check(array, axes):
        assert array.shape == tuple(sizes[name] for name in axes)

    jax.tree.map(check, shapes, names, is_leaf=lambda x: isinstance(x, tuple))


def test_initial_scales():
    params = functional.init(preset("tiny"), jax.random.key(0))
    layer = params["blocks"]
    for array in (params["embedding"], layer["attention"]["query"]["kernel"], layer["mlp"]["up"]["kernel"]):
        assert array.std() == pytest.approx(0.02, rel=0.02)
    for array in (layer["attention"]["out"]["kernel"], layer["mlp"]["down"]["kernel"]):
        assert array.std() == pytest.approx(0.02 / 8**0.5, rel=0.02)
    assert not (layer["mlp"]["up"]["kernel"][0] == layer["mlp"]["up"]["kernel"][1]).all(), "layers start alike"
    assert (layer["mlp"]["up"]["bias"] == 0).all() and (params["norm"]["scale"] == 1).all()


def test_as_nnx_modules():
    """The classes are usable by themselves, and the functional form is the same model."""
    model = jax.jit(lambda key: GPT(SMALL, nnx.Rngs(params=key)))(jax.random.key(0))
    t = tokens()
    params = nnx.to_pure_dict(nnx.state(model))
    hidden = jax.jit(lambda model, t: model(t).hidden)(model, t)
    assert jnp.abs(hidden).max() > 0
    np.testing.assert_allclose(hidden, apply(SMALL, params, t).hidden, atol=1e-6)
    layer = RotaryAttention(
        32, query_heads=4, kv_heads=2, head_dim=8, rotary=Rotary(), value_rotary=Rotary(), rngs=nnx.Rngs(0)
    )
    x = jax.random.normal(jax.random.key(0), (2, 6, 32))
    out = layer(x)
    assert out.shape == x.shape
    np.testing.assert_allclose(layer(x, positions=jnp.arange(6) + 99), out, atol=1e-6)
