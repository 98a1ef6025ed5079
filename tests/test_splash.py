"""The TPU backend, interpreted: blocks and chunks, packed documents, meshes, transformations and refusals.

What every backend must do is in test_attention_parity.py; whether it compiles for a TPU in test_splash_tpu.py.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas.ops.tpu import splash_attention as published
from jax.sharding import PartitionSpec

from rove_jax import config, sharding
from rove_jax.attention import Call, Target, interpret, resolve, rotary_attention
from rove_jax.attention import splash as backend
from rove_jax.config import Rotary
from rove_jax.errors import UsageError
from rove_jax.models import functional
from rove_jax.models.presets import preset
from rove_jax.rotary import frequencies
from tests.attention_cases import ROVE, definition, inputs
from tests.reference import attention as reference

T = 37
AGES = np.arange(T)[:, None] - np.arange(T)[None]
IDS = np.array([[1] * 10 + [2] * 9 + [3] * 18, [0] * 5 + [1] * 12 + [4] * 17 + [0] * 3])
TRUNKS = np.where(IDS > 1, 1, 0)
CALL = Call(batch=8, queries=1024, keys=1024, query_heads=12, kv_heads=12, head_dim=64, dtype="bfloat16")


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 16, so that a short sequence crosses several."""
    monkeypatch.setattr(backend, "BLOCK", 16)
    monkeypatch.setattr(backend, "LANES", 8)


def together(ids):
    return (ids[:, :, None] == ids[:, None]) & (ids != 0)[:, None]


def tree():
    return together(IDS) | (TRUNKS[:, :, None] == IDS[:, None]) & (IDS != 0)[:, None]


def attend(q, k, v, **options):
    with interpret():
        return rotary_attention(
            q, k, v, **{"rotary": ROVE, "value_rotary": ROVE, "is_causal": True, "backend": "splash", **options}
        )


def plain(q, k, v, **options):
    """The same by xla."""
    return rotary_attention(q, k, v, rotary=ROVE, value_rotary=ROVE, is_causal=True, backend="xla", **options)


# name -> (shape of the inputs, options of the call, who is seen)
CASES = {
    "two heads a tile": ({"n": 2, "k": 2}, {}, AGES >= 0),
    "grouped 4:1, packed": ({"n": 8, "k": 2}, {"segments": IDS}, together(IDS) & (AGES >= 0)),
    "branches of a tree": ({}, {"segments": IDS, "prefixes": TRUNKS}, tree() & (AGES >= 0)),
    "multi-query, window": ({"n": 3, "k": 1}, {"window": 21}, (AGES >= 0) & (AGES < 21)),
    "bidirectional, odd heads": ({"n": 3, "k": 3}, {"is_causal": False}, np.ones((T, T), bool)),
    "bidirectional window": ({"n": 2, "k": 2}, {"is_causal": False, "window": 6}, np.abs(AGES) < 6),
    "head 128, interleaved": (
        {"n": 2, "k": 1, "h": 128},
        {"rotary": Rotary(pairing="interleaved"), "value_rotary": Rotary(pairing="interleaved", dims=48)},
        AGES >= 0,
    ),
    "head 80, alpha and base": ({"h": 80}, {"value_rotary": Rotary(alpha=0.5, base=500.0)}, AGES >= 0),
}


@pytest.mark.parametrize(
    ("case", "resident"), [*((case, None) for case in CASES), ("grouped 4:1, packed", 1), ("bidirectional window", 1)]
)
def test_blocks_add_up_to_the_definition(case, resident, small_blocks, monkeypatch):
    """With one key block in VMEM at a time, keys are turned anew per query block, and gradients come in chunks."""
    if resident:
        monkeypatch.setattr(backend, "RESIDENT", resident)
    shape, options, seen = CASES[case]
    q, k, v = inputs(t=T, b=2, **shape)
    options = {name: jnp.asarray(x) if name in ("segments", "prefixes") else x for name, x in options.items()}
    probe = np.random.default_rng(3).normal(size=q.shape)

    def loss(q, k, v):
        out = attend(q, k, v, **options)
        return (out * probe.astype(np.float32)).sum(), out

    (_, out), grads = jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(q, k, v)
    np.testing.assert_allclose(out, definition(q, k, v, seen, **options), atol=3e-6)

    arrays = [np.asarray(x, np.float64) for x in (q, k, v)]
    rng = np.random.default_rng(4)
    for which, grad in enumerate(grads):
        for _ in range(2):
            way = rng.normal(size=grad.shape)
            ends = []
            for step in (1e-5, -1e-5):
                moved = list(arrays)
                moved[which] = moved[which] + step * way
                ends.append((definition(*moved, seen, **options) * probe).sum())
            slope = (ends[0] - ends[1]) / 2e-5
            assert (np.asarray(grad, np.float64) * way).sum() == pytest.approx(slope, rel=1e-4, abs=2e-4)


@pytest.mark.parametrize("head_dim", [64, 80, 128])
def test_float32_error_bound(head_dim, monkeypatch):
    """q of standard deviation 3, T = 512: within 1e-5 of float64, over several blocks."""
    monkeypatch.setattr(backend, "BLOCK", 128)
    q, k, v = inputs(b=1, t=512, n=2, k=2, h=head_dim, q_std=3.0)
    f = frequencies(ROVE, head_dim)
    exact = reference.fast_attention(q, k, v, qk_frequencies=f, v_frequencies=f)
    assert np.abs(jax.jit(attend)(q, k, v) - exact).max() <= 1e-5


def test_no_value_and_no_gradient_leaks_between_documents(small_blocks):
    q, k, v = inputs(t=T, b=2, n=2, k=2)
    ids = jnp.asarray(IDS)
    run = jax.jit(lambda q, k, v: attend(q, k, v, segments=ids))
    two = (ids == 2)[..., None, None]
    before = run(q, k, v)
    changed = run(*(jnp.where(two, 1e6, x) for x in (q, k, v)))
    outside = np.asarray((ids != 2) & (ids != 0))
    assert (before[outside] == changed[outside]).all()
    assert not (before[np.asarray(ids == 2)] == changed[np.asarray(ids == 2)]).any()  # the negative control
    assert (before[np.asarray(ids == 0)] == 0).all()

    # What comes back to document 2 reaches it alone; what comes back to rows that see nothing reaches nobody.
    back = jax.jit(lambda q, k, v, cotangent: jax.vjp(run, q, k, v)[1](cotangent))
    for grad in back(q, k, v, jnp.where(two, 1.0, jnp.zeros_like(q))):
        assert (grad[np.asarray(ids != 2)] == 0).all() and (grad[np.asarray(ids == 2)] != 0).any()
    for grad in back(q, k, v, jnp.where((ids == 0)[..., None, None], 1e6, jnp.zeros_like(q))):
        assert (grad == 0).all()


def test_the_published_kernel_agrees_where_nothing_turns(small_blocks, monkeypatch):
    """`jax.experimental.pallas.ops.tpu.splash_attention`, interpreted too, forward and gradient."""
    monkeypatch.setattr(backend, "LANES", 128)
    q, k, v = inputs(t=256, b=1, n=2, k=1, h=64)
    mask = published.MultiHeadMask([published.LocalMask((256, 256), (99, 0), 0)] * 2)
    sizes = published.BlockSizes(*[128] * 3, *[128] * 3, *[128] * 2)
    kernel = published.make_splash_mqa_single_device(mask, block_sizes=sizes, interpret=True)

    def theirs(q, k, v):
        out = kernel(q[0].swapaxes(0, 1) / 8.0, k[0, :, 0], v[0, :, 0])
        return (out.swapaxes(0, 1)[None] ** 2).sum()

    def ours(q, k, v):
        return (attend(q, k, v, rotary=None, value_rotary=None, window=100) ** 2).sum()

    results = (jax.jit(jax.value_and_grad(f, (0, 1, 2)))(q, k, v) for f in (ours, theirs))
    for mine, its in zip(*(jax.tree.leaves(r) for r in results), strict=True):
        np.testing.assert_allclose(mine, its, atol=2e-5, rtol=1e-5)


class TestMesh:
    """On 2 x 2 x 2 devices each computes its rows and heads, and nothing is gathered."""

    def setup_method(self):
        self.mesh = sharding.make_mesh(config.Mesh(data=2, fsdp=2, tensor=2))
        self.args = inputs(t=24, b=4, n=4, k=2)
        self.ids = jnp.asarray(np.repeat([[1, 2, 2, 3]], 4, 0).repeat(6, 1))

    def gradient(self, function):
        return jax.value_and_grad(lambda *x: (function(*x, segments=self.ids) ** 2).sum(), (0, 1, 2))

    def test_equals_one_device(self, small_blocks):
        function = self.gradient(attend)
        alone = jax.jit(self.gradient(plain))(*self.args)
        placed = jax.sharding.NamedSharding(self.mesh, PartitionSpec(sharding.BATCH, None, "tensor"))
        with jax.set_mesh(self.mesh):
            compiled = jax.jit(function).lower(*(jax.device_put(x, placed) for x in self.args)).compile()
            spread = compiled(*(jax.device_put(x, placed) for x in self.args))
        assert "all-gather" not in compiled.as_text()
        assert spread[1][0].sharding.shard_shape(spread[1][0].shape) == (1, 24, 2, 16)
        for one, many in zip(jax.tree.leaves(alone), jax.tree.leaves(spread)):
            np.testing.assert_allclose(many, one, rtol=1e-5, atol=2e-5)

    def test_inside_a_shard_map_of_the_callers_own(self, small_blocks):
        rows = PartitionSpec(("data", "fsdp", "tensor"))
        mesh = sharding.make_mesh(config.Mesh(data=2, fsdp=2, tensor=1))
        with jax.set_mesh(mesh):
            spread = jax.shard_map(attend, in_specs=rows, out_specs=rows)
            np.testing.assert_allclose(jax.jit(spread)(*self.args), jax.jit(plain)(*self.args), atol=3e-6)

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"batch": 6}, "6 rows and 12 key heads do not divide over a mesh of data x fsdp = 4, tensor = 2"),
            ({"kv_heads": 3}, "8 rows and 3 key heads do not divide"),
        ],
    )
    def test_sizes_that_do_not_divide_are_refused(self, changes, words):
        call = dataclasses.replace(CALL, **changes)
        assert resolve("auto", call, Target("tpu")).backend == "splash"
        with jax.set_mesh(self.mesh), pytest.raises(UsageError, match=words):
            resolve("splash", call, Target("tpu"))

    def test_a_mesh_of_other_axes_is_refused(self):
        mesh = jax.make_mesh((2,), ("expert",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])
        with jax.set_mesh(mesh), pytest.raises(UsageError, match="axis 'expert' = 2"):
            resolve("splash", CALL, Target("tpu"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dtype": "float16"}, "bfloat16 or float32, not float16"),
        ({"aligned": False}, "positions in order only"),
        ({"mask": True}, "no mask of the caller's own"),
        ({"query_heads": 64, "kv_heads": 1, "head_dim": 80}, "not 64 x 80"),
    ],
)
def test_refusals(changes, words):
    call = dataclasses.replace(CALL, **changes)
    with pytest.raises(UsageError, match=words):
        resolve("splash", call, Target("tpu"))
    assert resolve("auto", call, Target("tpu")).backend == "chunked"
    with pytest.raises(UsageError, match="needs a TPU, the mesh is on cpu"):
        resolve("splash", CALL, Target("cpu"))


def test_vmap_equals_a_larger_batch(small_blocks):
    args = [jnp.concatenate([x, 2 * x]) for x in inputs(t=20, b=1, n=2, k=1)]

    def gradient(function):
        return jax.grad(lambda *x: (function(*x) ** 2).sum(), (0, 1, 2))

    mapped = jax.jit(jax.vmap(gradient(attend)))(*(x[:, None] for x in args))
    for mine, its in zip(mapped, jax.jit(gradient(plain))(*args)):
        assert jnp.abs(mine[:, 0] - its).max() <= 1e-5 * jnp.abs(its).max()


@pytest.mark.slow
def test_in_a_model_of_scanned_and_recomputed_layers(small_blocks):
    """Gradients as with xla and unrolled layers."""
    cfg = preset("tiny", variant="rove", layers=2, scan_layers=True, remat="full", attention="splash")
    unrolled = dataclasses.replace(cfg, scan_layers=False, remat="none", attention="xla")
    params = functional.init(cfg, jax.random.key(0))
    tokens = jax.random.randint(jax.random.key(1), (2, 20), 0, 256)

    def gradient(cfg):
        return jax.jit(jax.grad(lambda p: (functional.apply(cfg, p, tokens).hidden ** 2).sum()))(params)

    with interpret():
        ours = gradient(cfg)
    for mine, its in zip(jax.tree.leaves(ours), jax.tree.leaves(gradient(unrolled))):
        assert jnp.abs(mine - its).max() <= 3e-5 * jnp.abs(its).max()
