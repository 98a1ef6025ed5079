"""`rotary_attention` against the float64 definition, its invariances, its masks and its refusals, on every backend."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rove_jax.attention import rotary_attention
from rove_jax.config import Rotary, Scaling
from rove_jax.errors import UsageError
from rove_jax.rotary import frequencies, logit_scale
from tests.reference import attention as reference

NONE = np.zeros(0)
ROVE = Rotary()
YARN = Rotary(scaling=Scaling(rule="yarn", factor=32.0, original_length=128))
BACKENDS = ("xla", "chunked")


@pytest.fixture(autouse=True, scope="module")
def small_chunks():
    """Blocks of 4 by 4, so that short sequences cross several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rove_jax.attention.chunked.CHUNK", 4)
        jax.clear_caches()
        yield
    jax.clear_caches()


@functools.partial(
    jax.jit,
    static_argnames=(
        "rotary",
        "value_rotary",
        "is_causal",
        "window",
        "backend",
        "contiguous",
        "ablation_absolute_values",
    ),
)
def compiled(*args, **kwargs):
    """`rotary_attention` in one piece: what a model runs, and quicker here than operation by operation."""
    return rotary_attention(*args, **kwargs)


def inputs(seed=0, b=2, t=11, s=None, n=4, k=2, h=16, q_std=1.0, dtype=jnp.float32):
    keys = jax.random.split(jax.random.key(seed), 3)
    shapes = ((b, t, n, h), (b, s or t, k, h), (b, s or t, k, h))
    q, k, v = (jax.random.normal(key, shape, dtype) for key, shape in zip(keys, shapes, strict=True))
    return q * q_std, k, v


def oracle(q, k, v, rotary, value_rotary, seen, qp=None, kp=None):
    b, t, _, h = q.shape
    qp = np.broadcast_to(np.arange(t) if qp is None else np.asarray(qp), (b, t))
    kp = np.broadcast_to(np.arange(k.shape[1]) if kp is None else np.asarray(kp), (b, k.shape[1]))
    return reference.attention(
        q,
        k,
        v,
        qk_frequencies=NONE if rotary is None else frequencies(rotary, h),
        v_frequencies=NONE if value_rotary is None else frequencies(value_rotary, h),
        seen=np.broadcast_to(seen, (b, t, k.shape[1])),
        query_positions=qp,
        key_positions=kp,
        logit_scale=logit_scale(rotary),
        pairing=(rotary or value_rotary or ROVE).pairing,
    )


def causal(t):
    return np.tril(np.ones((t, t), bool))


PAIRS = {
    "nope": (None, None),
    "rope": (ROVE, None),
    "rove": (ROVE, ROVE),
    "values only": (None, ROVE),
    "interleaved": (Rotary(pairing="interleaved"), Rotary(pairing="interleaved")),
    "partial, independent": (Rotary(dims=8), Rotary(dims=4, base=500.0)),
    "half-way alpha": (ROVE, Rotary(alpha=0.5)),
    "yarn": (YARN, YARN),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS.keys())
def test_equals_the_definition_pair_by_pair(pair, backend):
    rotary, value_rotary = pair
    q, k, v = inputs()
    out = compiled(q, k, v, rotary=rotary, value_rotary=value_rotary, is_causal=True, backend=backend)
    np.testing.assert_allclose(out, oracle(q, k, v, rotary, value_rotary, causal(11)), atol=2e-6)


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


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_equal_finite_differences_of_the_definition(backend):
    q, k, v = inputs(b=1, t=6, n=2, k=1, h=4)
    probe = np.random.default_rng(3).normal(size=q.shape)

    def loss(q, k, v):
        out = compiled(q, k, v, rotary=ROVE, value_rotary=ROVE, is_causal=True, backend=backend)
        return (out * probe.astype(np.float32)).sum()

    grads = jax.grad(loss, argnums=(0, 1, 2))(q, k, v)
    arrays = [np.asarray(x, np.float64) for x in (q, k, v)]
    rng = np.random.default_rng(4)
    for which, grad in enumerate(grads):
        for _ in range(12):
            at = tuple(rng.integers(n) for n in arrays[which].shape)
            value = []
            for step in (1e-5, -1e-5):
                moved = [a.copy() for a in arrays]
                moved[which][at] += step
                value.append((oracle(*moved, ROVE, ROVE, causal(6)) * probe).sum())
            assert grad[at] == pytest.approx((value[0] - value[1]) / 2e-5, abs=2e-5)


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


def test_absolute_values_exist_only_by_their_name_and_leak_position():
    q, k, v = inputs()

    def shifted(shift, **ablation):
        return compiled(
            q, k, v, rotary=ROVE, value_rotary=ROVE, is_causal=True, query_positions=jnp.arange(11) + shift, **ablation
        )

    assert jnp.abs(shifted(0) - shifted(50)).max() < 1e-5
    assert jnp.abs(shifted(0, ablation_absolute_values=True) - shifted(50, ablation_absolute_values=True)).max() > 0.1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("window", [None, 1, 4, 100])
def test_a_query_moves_with_the_keys_its_window_holds_and_no_other(window, is_causal, backend):
    q, k, v = inputs(t=13)

    def attend(v):
        return compiled(q, k, v, rotary=ROVE, value_rotary=ROVE, is_causal=is_causal, window=window, backend=backend)

    base = attend(v)
    for j in (0, 5, 12):
        moved = np.flatnonzero(jnp.abs(attend(v.at[:, j].add(1.0)) - base).max((0, 2, 3)) > 0)
        reach = window or 13
        expected = [i for i in range(13) if abs(i - j) < reach and (i >= j or not is_causal)]
        assert moved.tolist() == expected


@pytest.mark.parametrize("backend", BACKENDS)
def test_queries_fewer_than_keys_follow_positions_not_indices(backend):
    q, k, v = inputs(t=3, s=9)
    qp, kp = jnp.array([4, 7, 8]), jnp.arange(9)
    out = compiled(
        q, k, v, rotary=ROVE, value_rotary=ROVE, is_causal=True, query_positions=qp, key_positions=kp, backend=backend
    )
    seen = np.asarray(qp)[:, None] >= np.asarray(kp)[None, :]
    np.testing.assert_allclose(out, oracle(q, k, v, ROVE, ROVE, seen, qp, kp), atol=2e-6)


SEGMENTS = np.array([[1, 1, 1, 2, 2, 2, 2, 3, 3, 0, 0], [0, 0, 1, 1, 1, 1, 5, 5, 5, 5, 5]])
RESTARTING = np.array([[0, 1, 2, 0, 1, 2, 3, 0, 1, 0, 1], [0, 1, 0, 1, 2, 3, 0, 1, 2, 3, 4]])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("contiguous", [True, False])
def test_segments_and_restarting_positions(contiguous, backend):
    q, k, v = inputs()

    def attend(q, k, v):
        return compiled(
            q,
            k,
            v,
            rotary=ROVE,
            value_rotary=ROVE,
            is_causal=True,
            query_positions=jnp.asarray(RESTARTING),
            segments=jnp.asarray(SEGMENTS),
            contiguous=contiguous,
            backend=backend,
        )

    same = (SEGMENTS[:, :, None] == SEGMENTS[:, None, :]) & (SEGMENTS != 0)[:, None, :]
    out = attend(q, k, v)
    np.testing.assert_allclose(out, oracle(q, k, v, ROVE, ROVE, same & causal(11), RESTARTING, RESTARTING), atol=2e-6)
    assert (out[0, 9:] == 0).all() and (out[1, :2] == 0).all()
    # No value and no gradient crosses from one document to another, nor out of padding.
    grads = jax.grad(lambda *x: attend(*x)[0, 3:7].sum(), argnums=(0, 1, 2))(q, k, v)
    for grad in grads:
        assert (grad[1] == 0).all() and (grad[0, :3] == 0).all() and (grad[0, 7:] == 0).all()
        assert jnp.isfinite(grad).all() and jnp.abs(grad[0, 3:7]).max() > 0
    nothing = jax.grad(lambda *x: attend(*x)[0, 9:].sum(), argnums=(0, 1, 2))(q, k, v)
    assert all((grad == 0).all() for grad in nothing)


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
