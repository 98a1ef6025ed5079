"""Who sees whom: windows, positions, segments and padding, on every backend."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.attention_cases import BACKENDS, ROVE, causal, compiled, inputs, oracle, small_chunks  # noqa: F401


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
