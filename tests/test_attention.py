"""`rotary_attention` against the float64 definition, its invariances and its refusals, on every backend."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rove_jax.attention import rotary_attention
from rove_jax.config import Rotary, Scaling
from rove_jax.errors import UsageError
from rove_jax.rotary import frequencies
from tests.attention_cases import BACKENDS, ROVE, causal, compiled, inputs, oracle, small_chunks  # noqa: F401
from tests.reference import attention as reference

YARN = Rotary(scaling=Scaling(rule="yarn", factor=32.0, original_length=128))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("head_dim", [64, 80, 128])
def test_error_and_shift_bounds(head_dim, backend):
    """float32, q of standard deviation 3, T = 512: within 1e-5 of float64, and within 1e-5 under any common shift."""
    q, k, v = inputs(b=1, t=512, n=2, k=2, h=head_dim, q_std=3.0)

    def attend(shift):
        at = jnp.arange(512) + shift
        return compiled(
            q,
            k,
            v,
            rotary=ROVE,
            value_rotary=ROVE,
            is_causal=True,
            query_positions=at,
            contiguous=True,
            backend=backend,
        )

    f = frequencies(ROVE, head_dim)
    exact = reference.fast_attention(q, k, v, qk_frequencies=f, v_frequencies=f)
    base = attend(0)
    assert np.abs(base - exact).max() <= 1e-5
    for shift in (1, 1_000_000, -1_000_000, 2**20 - 512):
        assert jnp.abs(attend(shift) - base).max() <= 1e-5
        assert np.abs(attend(shift) - exact).max() <= 1e-5


def test_the_fast_reference_is_the_definition():
    q, k, v = inputs(n=2, k=2)
    f = frequencies(ROVE, 16)
    np.testing.assert_allclose(
        reference.fast_attention(q, k, v, qk_frequencies=f, v_frequencies=f),
        oracle(q, k, v, ROVE, ROVE, causal(11)),
        atol=1e-12,
    )


@pytest.mark.parametrize("position", [0, 5, 1_000_000])
@pytest.mark.parametrize("rotary", [ROVE, YARN], ids=["plain", "yarn"])
def test_one_token_returns_its_own_value(rotary, position):
    """Values turned twice, or YaRN's temperature on values, change the norm of a single token's output."""
    q, k, v = inputs(t=1, n=2, k=2)
    at = jnp.array([position])
    out = compiled(q, k, v, rotary=rotary, value_rotary=rotary, is_causal=True, query_positions=at)
    np.testing.assert_allclose(out, v, atol=1e-6)


def test_alpha_zero_is_rope_bit_for_bit():
    q, k, v = inputs()
    zero = dataclasses.replace(ROVE, alpha=0.0)
    rope = compiled(q, k, v, rotary=ROVE, value_rotary=None, is_causal=True)
    assert (compiled(q, k, v, rotary=ROVE, value_rotary=zero, is_causal=True) == rope).all()
    assert not (compiled(q, k, v, rotary=ROVE, value_rotary=ROVE, is_causal=True) == rope).all()


def test_tokens_permuted_with_their_positions_permute_outputs():
    q, k, v = inputs()
    order = np.random.default_rng(0).permutation(11)
    plain = compiled(q, k, v, rotary=ROVE, value_rotary=ROVE, is_causal=True)
    permuted = compiled(
        q[:, order],
        k[:, order],
        v[:, order],
        rotary=ROVE,
        value_rotary=ROVE,
        is_causal=True,
        query_positions=jnp.asarray(order),
    )
    np.testing.assert_allclose(permuted, plain[:, order], atol=2e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_bfloat16_logits_of_any_size_are_summed_in_float32(backend):
    q, k, v = inputs(t=16, h=64, q_std=60.0, dtype=jnp.bfloat16)
    kwargs = {"rotary": None, "value_rotary": None, "is_causal": True, "backend": backend}
    low = compiled(q, k, v, **kwargs)
    high = compiled(*(x.astype(jnp.float32) for x in (q, k, v)), **kwargs)
    assert low.dtype == jnp.bfloat16
    np.testing.assert_allclose(low.astype(jnp.float32), high, atol=2.0**-7 * float(jnp.abs(v).max()))


def test_vmap_jit_and_scan_with_traced_offsets():
    q, k, v = inputs(t=5)

    def attend(q, k, v, offset):
        return compiled(q, k, v, rotary=ROVE, value_rotary=ROVE, is_causal=True, query_positions=jnp.arange(5) + offset)

    plain = attend(q, k, v, 0)
    stack = jax.tree.map(lambda x: jnp.stack([x, x]), (q, k, v))
    offsets = jnp.array([3, 70_000])
    for out in (
        jax.vmap(attend)(*stack, offsets),
        jax.lax.map(lambda x: attend(*x), (*stack, offsets)),
        jnp.stack([jax.jit(attend)(q, k, v, offset) for offset in offsets]),
    ):
        np.testing.assert_allclose(out, jnp.stack([plain, plain]), atol=1e-5)


def test_wrong_calls_are_refused_by_name():
    q, k, v = inputs()
    options = {"rotary": ROVE, "value_rotary": ROVE, "is_causal": True}
    with pytest.raises(TypeError, match="rotary"):
        rotary_attention(q, k, v, is_causal=True)  # pyright: ignore[reportCallIssue]
    with pytest.raises(UsageError, match="11 queries and 5 keys"):
        rotary_attention(q, k[:, :5], v[:, :5], **options)
    with pytest.raises(UsageError, match="together"):
        rotary_attention(q, k[:, :5], v[:, :5], **options, query_positions=jnp.arange(11))
    with pytest.raises(UsageError, match="contiguous"):
        rotary_attention(
            q,
            k[:, :5],
            v[:, :5],
            **options,
            query_positions=jnp.arange(11),
            key_positions=jnp.arange(5),
            contiguous=True,
        )
    with pytest.raises(UsageError, match="window = 0"):
        rotary_attention(q, k, v, **options, window=0)
    with pytest.raises(UsageError, match="do not divide"):
        rotary_attention(q[:, :, :3], k, v, **options)
    with pytest.raises(UsageError, match="did you mean chunked"):
        rotary_attention(q, k, v, **options, backend="chunkd")
    with pytest.raises(UsageError, match="cudnn.*GPU"):
        rotary_attention(q, k, v, **options, backend="cudnn")
    with pytest.raises(UsageError, match="dtypes"):
        rotary_attention(q, k.astype(jnp.bfloat16), v, **options)
