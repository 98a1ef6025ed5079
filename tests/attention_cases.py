"""What the tests of attention share: inputs, the call under test, and the definition it is held against."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rove_jax.attention import rotary_attention
from rove_jax.config import Rotary
from rove_jax.rotary import frequencies, logit_scale
from tests.reference import attention as reference

NONE = np.zeros(0)
ROVE = Rotary()
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
        "turns",
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


def definition(q, k, v, seen, *, rotary=ROVE, value_rotary=ROVE, turns="qkvo", **options):
    """float64, from the absolute rotations of whatever turns."""
    at_query = options.get("query_positions", np.arange(q.shape[1]))
    at_key = options.get("key_positions", at_query)
    return reference.turned_attention(
        q,
        k,
        v,
        qk_frequencies=frequencies(rotary, q.shape[3]),
        v_frequencies=frequencies(value_rotary, q.shape[3]),
        pairing=rotary.pairing,
        seen=seen,
        query_positions=at_query,
        key_positions=at_key,
        logit_scale=logit_scale(rotary),
        turns=turns,
    )
