"""The resolver: what it picks, what it refuses and why; and the Flax adapter."""

import dataclasses
from typing import get_args

import flax.linen as linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rove_jax.attention import BACKENDS, Call, Target, attention_fn, resolve, rotary_attention
from rove_jax.attention.backends import SCORES_LIMIT, SCORES_LIMIT_CPU, choose
from rove_jax.attention.visibility import Visibility
from rove_jax.config import Backend, Rotary
from rove_jax.errors import UsageError

CALL = Call(batch=8, queries=1024, keys=1024, query_heads=12, kv_heads=12, head_dim=64, dtype="bfloat16")
LONG = dataclasses.replace(CALL, queries=16_384, keys=16_384)


@pytest.mark.parametrize(
    ("call", "platform", "capability", "expected"),
    [
        (CALL, "gpu", 8.0, "cudnn"),
        (LONG, "gpu", 9.0, "cudnn"),
        (CALL, "gpu", 7.5, "chunked"),  # a Colab T4 has no flash kernel
        (dataclasses.replace(CALL, dtype="float32"), "gpu", 9.0, "chunked"),
        (dataclasses.replace(CALL, head_dim=36), "gpu", 9.0, "chunked"),
        (dataclasses.replace(CALL, head_dim=136), "gpu", 8.0, "chunked"),
        (dataclasses.replace(CALL, head_dim=136), "gpu", 9.0, "cudnn"),
        (dataclasses.replace(CALL, head_dim=264), "gpu", 9.0, "chunked"),
        (dataclasses.replace(CALL, segments=True), "gpu", 9.0, "chunked"),
        (dataclasses.replace(CALL, window=64), "gpu", 9.0, "cudnn"),
        (dataclasses.replace(CALL, window=64, causal=False), "gpu", 9.0, "chunked"),
        (dataclasses.replace(CALL, aligned=False), "gpu", 9.0, "chunked"),
        (dataclasses.replace(CALL, mask=True), "gpu", 9.0, "chunked"),
        (dataclasses.replace(CALL, queries=1023, keys=1023), "gpu", 8.0, "cudnn"),
        (dataclasses.replace(CALL, batch=1, queries=1, aligned=False, dtype="float32"), "cpu", None, "xla"),
        (dataclasses.replace(CALL, batch=1, dtype="float32"), "cpu", None, "chunked"),
        (CALL, "tpu", None, "splash"),
        (dataclasses.replace(CALL, batch=2, aligned=False), "tpu", None, "xla"),
        (dataclasses.replace(CALL, batch=2), "unknown", None, "xla"),
        (dataclasses.replace(CALL, dtype="float16"), "tpu", None, "chunked"),
        (LONG, "cpu", None, "chunked"),
    ],
)
def test_auto_picks_and_says_why_not_the_others(call, platform, capability, expected):
    choice = resolve("auto", call, Target(platform, capability))
    assert choice.backend == expected
    assert choice.reason and set(choice.refused) == set(BACKENDS) - {expected} and all(choice.refused.values())


@pytest.mark.parametrize(("platform", "limit"), [("cpu", SCORES_LIMIT_CPU), ("unknown", SCORES_LIMIT)])
def test_the_scores_limit_divides_xla_from_chunked_exactly(platform, limit):
    fits = Call(1, limit // 4, 1, 1, 1, 64, "float32", aligned=False)
    assert resolve("auto", fits, Target(platform)).backend == "xla"
    above = dataclasses.replace(fits, queries=fits.queries + 1)
    assert resolve("auto", above, Target(platform)).backend == "chunked"


def test_a_name_serves_or_raises_with_the_reason():
    assert resolve("chunked", CALL, Target("gpu", 9.0)).backend == "chunked"
    with pytest.raises(UsageError, match="needs an NVIDIA GPU, the mesh is on cpu"):
        resolve("cudnn", CALL, Target("cpu"))
    with pytest.raises(UsageError, match="compute capability 8.0, the device has 7.5"):
        resolve("cudnn", CALL, Target("gpu", 7.5))
    with pytest.raises(UsageError, match="no such backend; did you mean cudnn"):
        resolve("cuddn", CALL, Target("gpu"))


def test_every_name_of_the_config_is_a_backend():
    assert sorted(BACKENDS) == sorted(set(get_args(Backend)) - {"auto"})


def test_what_is_not_known_is_not_held_against_a_name():
    """A trainer resolves for its devices; the trace, which sees their platform only, must agree."""
    large = dataclasses.replace(CALL, head_dim=256)
    assert resolve("cudnn", large, Target("gpu", 9.0)).backend == "cudnn"
    assert choose("cudnn", large, Target("gpu")) is choose("cudnn", large, Target("unknown")) is BACKENDS["cudnn"]
    with pytest.raises(UsageError, match="up to 128"):
        choose("cudnn", large, Target("gpu", 8.0))
    assert choose("auto", CALL, Target("unknown")) in (BACKENDS["xla"], BACKENDS["chunked"])


def test_chunked_never_forms_the_whole_scores_forward_or_backward():
    """The compiler's own figure for temporaries: linear in the context, where xla's is quadratic."""

    def temporaries(backend, length):
        x = jax.ShapeDtypeStruct((1, length, 2, 32), jnp.float32)

        def loss(q, k, v):
            return BACKENDS[backend].attend(q, k, v, Visibility(True, None, True), 0.1).sum()

        compiled = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(x, x, x).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    scores = 4 * 2 * 4096 * 4096
    assert temporaries("xla", 4096) > scores
    assert temporaries("chunked", 4096) < scores / 8
    assert temporaries("chunked", 8192) < 2 * temporaries("chunked", 4096)


class TestFlaxAdapter:
    """The same projections inside Flax's modules and around `rotary_attention`."""

    ROVE = Rotary()

    def manual(self, heads, x, **options):
        q, k, v = (jnp.einsum("btd,dnh->btnh", x, kernel) + bias[None, None] for kernel, bias in heads[:3])
        out = rotary_attention(q, k, v, rotary=self.ROVE, value_rotary=self.ROVE, **options)
        kernel, bias = heads[3]
        return jnp.einsum("btnh,nhd->btd", out, kernel) + bias[None, None]

    def test_inside_nnx(self):
        fn = attention_fn(self.ROVE, self.ROVE)
        module = nnx.MultiHeadAttention(2, 32, attention_fn=fn, decode=False, dropout_rate=0.1, rngs=nnx.Rngs(0))
        heads = [(m.kernel[...], m.bias[...]) for m in (module.query, module.key, module.value, module.out)]
        x = jax.random.normal(jax.random.key(1), (3, 7, 32))
        causal = nnx.make_causal_mask(jnp.ones((3, 7)))
        np.testing.assert_allclose(
            module(x, mask=causal, deterministic=True), self.manual(heads, x, is_causal=True), atol=1e-5
        )
        np.testing.assert_allclose(module(x, deterministic=True), self.manual(heads, x, is_causal=False), atol=1e-5)
        np.testing.assert_allclose(
            module(x, is_causal=True, deterministic=True), self.manual(heads, x, is_causal=True), atol=1e-5
        )
        with pytest.raises(UsageError, match="dropout_rate"):
            module(x, deterministic=False)
        with pytest.raises(UsageError, match="weights to sow"):
            module(x, deterministic=True, sow_weights=True)

    def test_inside_linen(self):
        fn = attention_fn(self.ROVE, self.ROVE)
        module = linen.MultiHeadDotProductAttention(num_heads=2, attention_fn=fn)
        x = jax.random.normal(jax.random.key(1), (3, 7, 32))
        params = module.init(jax.random.key(0), x)
        heads = [(params["params"][n]["kernel"], params["params"][n]["bias"]) for n in ("query", "key", "value", "out")]
        np.testing.assert_allclose(module.apply(params, x), self.manual(heads, x, is_causal=False), atol=1e-5)

    def test_a_mask_of_ones_own_is_kept_and_a_hidden_row_is_zero(self):
        q, k, v = (jax.random.normal(key, (2, 5, 2, 8)) for key in jax.random.split(jax.random.key(0), 3))
        mask = np.ones((2, 1, 5, 5), bool)
        mask[0, 0, :, 2:] = False
        mask[1, 0, 3] = False
        out = attention_fn(self.ROVE, self.ROVE)(q, k, v, mask=jnp.asarray(mask))
        assert (out[1, 3] == 0).all()
        short = rotary_attention(
            q[:1], k[:1, :2], v[:1, :2], rotary=self.ROVE, value_rotary=self.ROVE, is_causal=False,
            query_positions=jnp.arange(5), key_positions=jnp.arange(2),
        )  # fmt: skip
        np.testing.assert_allclose(out[:1], short, atol=1e-6)

    def test_more_and_fewer_leading_axes(self):
        q, k, v = (jax.random.normal(key, (2, 3, 5, 2, 8)) for key in jax.random.split(jax.random.key(0), 3))
        fn = attention_fn(self.ROVE, self.ROVE)
        out = fn(q, k, v, is_causal=True)
        one = fn(q[1, 2], k[1, 2], v[1, 2], is_causal=True)
        np.testing.assert_allclose(out[1, 2], one, atol=1e-6)

    def test_decoding_without_positions_is_refused_and_with_them_equals_the_full_pass(self):
        q, k, v = (jax.random.normal(key, (2, 5, 2, 8)) for key in jax.random.split(jax.random.key(0), 3))
        fn = attention_fn(self.ROVE, self.ROVE)
        with pytest.raises(UsageError, match="1 queries and 5 keys"):
            fn(q[:, 4:], k, v)
        last = fn(q[:, 4:], k, v, is_causal=True, input_positions=jnp.array([4]), key_positions=jnp.arange(5))
        np.testing.assert_allclose(last, fn(q, k, v, is_causal=True)[:, 4:], atol=1e-6)

    def test_a_bias_is_refused(self):
        x = jnp.ones((1, 2, 1, 4))
        with pytest.raises(UsageError, match="bias"):
            attention_fn(self.ROVE, None)(x, x, x, bias=jnp.zeros((1, 1, 2, 2)))
