"""The optimizer: its rate, what decays, and its updates, against float64 oracles."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny_runs
from reference import adamw as oracle
from reference import muon
from tiny_runs import SETTINGS, arrays, changed, corpus, differing, keep_programs, rows, train

from rove_jax import config
from rove_jax.models import functional
from rove_jax.training import optimizer, setup

MODEL = config.Model(layers=2, width=16, query_heads=2, kv_heads=1, head_dim=8, mlp_width=32)
AXES = {
    "embedding": ("vocab", "model"),
    "kernel": ("layers", "model", "heads", "head_dim"),
    "bias": ("layers", "heads", "head_dim"),
    "scale": ("layers", "model"),
}
SHAPES = {"embedding": (5, 4), "kernel": (2, 4, 2, 3), "bias": (2, 2, 3), "scale": (2, 4)}


@pytest.mark.parametrize("warmup, steps", [(0, 1), (1, 1), (0, 7), (3, 7), (7, 7), (100, 7), (5, 6), (100, 1000)])
def test_the_rate_of_every_step_equals_the_oracle(warmup, steps):
    settings = config.Optimizer(peak_lr=3e-3, final_lr_fraction=0.1, warmup_steps=warmup)
    rates = jax.vmap(optimizer.learning_rate(settings, steps))(jnp.arange(steps))
    expected = [
        oracle.learning_rate(k, peak=3e-3, final_fraction=0.1, warmup=warmup, steps=steps) for k in range(1, steps + 1)
    ]
    assert rates.dtype == jnp.float32
    np.testing.assert_allclose(rates, expected, rtol=3e-6)
    assert np.isfinite(rates).all() and (np.asarray(rates) > 0).all()


def test_the_rate_peaks_at_the_end_of_the_warm_up_and_ends_at_its_final_fraction():
    rate = optimizer.learning_rate(config.Optimizer(peak_lr=1.0, final_lr_fraction=0.25, warmup_steps=4), 10)
    np.testing.assert_allclose([float(rate(k)) for k in (0, 3, 9, 50)], [0.25, 1.0, 0.25, 0.25], rtol=1e-6)


def test_matrices_and_the_embedding_decay_and_nothing_else():
    mask = jax.tree_util.tree_leaves_with_path(optimizer.decay_mask(functional.axes(MODEL)))
    by_name = {jax.tree_util.keystr(path, simple=True, separator="."): decays for path, decays in mask}
    assert {name.split(".")[-1] for name, decays in by_name.items() if decays} == {"kernel", "embedding"}
    assert {name.split(".")[-1] for name, decays in by_name.items() if not decays} == {"bias", "scale"}
    assert len(by_name) == len(jax.tree.leaves(functional.abstract(MODEL)))


def test_a_mask_by_number_of_dimensions_would_decay_biases():
    """Why the mask goes by axes: stacked over layers, every bias has two dimensions or more."""
    leaves = jax.tree_util.tree_leaves_with_path(functional.abstract(MODEL)["blocks"])
    biases = [leaf for path, leaf in leaves if path[-1].key == "bias"]
    assert biases and all(leaf.ndim >= 2 for leaf in biases)


def gradients(count: int, shapes: dict[str, tuple[int, ...]] = SHAPES) -> list[dict[str, np.ndarray]]:
    """Some of norm far above 1, which is clipped, and some below."""
    draw = np.random.RandomState(0)
    sizes = (10.0, 0.01, 3.0, 0.05, 1.0)
    return [
        {name: (sizes[i % 5] * draw.randn(*shape)).astype(np.float32) for name, shape in sorted(shapes.items())}
        for i in range(count)
    ]


def updated(settings: config.Optimizer, weights: Any, axes: Any, *, steps: int) -> Any:
    """`weights` after `steps` updates by the optimizer under test."""
    transform = optimizer.make(settings, steps, axes)
    moments = transform.init(weights)
    for gradient in gradients(steps, {name: leaf.shape for name, leaf in weights.items()}):
        changes, moments = transform.update(gradient, moments, weights)
        weights = optax.apply_updates(weights, changes)
    return weights


def test_updates_equal_the_oracle():
    settings = config.Optimizer(peak_lr=0.05, warmup_steps=3, weight_decay=0.3, clip_norm=1.0, epsilon=1e-6)
    draw = np.random.RandomState(1)
    weights = {name: draw.randn(*shape).astype(np.float32) for name, shape in SHAPES.items()}
    steps = 12
    rates = [oracle.learning_rate(k, peak=0.05, final_fraction=0.1, warmup=3, steps=steps) for k in range(1, steps + 1)]
    options = {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings)}
    options = {name: options[name] for name in ("beta1", "beta2", "epsilon", "weight_decay", "clip_norm")}
    found = updated(settings, weights, AXES, steps=steps)
    expected = oracle.train(weights, gradients(steps), rates, decayed={"embedding", "kernel"}, **options)
    for name in SHAPES:
        np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=5e-6)

    # The same comparison fails when biases decay too, and when the gradient is not clipped.
    decayed = oracle.train(weights, gradients(steps), rates, decayed=set(SHAPES), **options)
    assert np.abs(found["bias"] - decayed["bias"]).max() > 1e-3
    free = oracle.train(weights, gradients(steps), rates, decayed={"kernel"}, **{**options, "clip_norm": 1e9})
    assert np.abs(found["kernel"] - free["kernel"]).max() > 1e-3


def by_muon(settings: config.Optimizer, weights: Any, rates: list[float], matrices: dict[str, tuple[int, int]]) -> Any:
    """`weights` after one update per rate: layers of `matrices`, of these shapes, by Muon, the rest by AdamW."""
    options = {name: getattr(settings, name) for name in ("beta1", "beta2", "epsilon", "weight_decay")}
    clipped = []
    for gradient in gradients(len(rates), {name: leaf.shape for name, leaf in weights.items()}):
        norm = np.sqrt(sum(float((g.astype(np.float64) ** 2).sum()) for g in gradient.values()))
        clipped.append(
            {name: g.astype(np.float64) * min(1.0, settings.clip_norm / norm) for name, g in gradient.items()}
        )
    found = oracle.train(weights, clipped, rates, decayed={"embedding"}, clip_norm=1e9, **options)
    for name, shape in matrices.items():
        found[name] = weights[name].astype(np.float64)
        for number, layer in enumerate(found[name]):
            directions = muon.directions([g[name][number].reshape(shape) for g in clipped], settings.momentum)
            for rate, direction in zip(rates, directions):
                layer -= rate * (direction.reshape(layer.shape) + settings.weight_decay * layer)
    return found


def test_muon_orthogonalises_each_layer_s_matrices_and_leaves_the_rest_to_adamw():
    axes = {**AXES, "out": ("layers", "heads", "head_dim", "model")}
    shapes = {**SHAPES, "out": (2, 2, 3, 4)}
    settings = config.Optimizer(name="muon", peak_lr=0.05, warmup_steps=3, weight_decay=0.3, epsilon=1e-6)
    draw = np.random.RandomState(1)
    weights = {name: draw.randn(*shape).astype(np.float32) for name, shape in sorted(shapes.items())}
    rates = [oracle.learning_rate(k, peak=0.05, final_fraction=0.1, warmup=3, steps=6) for k in range(1, 7)]
    found = jax.jit(lambda w: updated(settings, w, axes, steps=6))(weights)
    expected = by_muon(settings, weights, rates, {"kernel": (4, 6), "out": (6, 4)})
    for name in shapes:
        np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=1e-5)
    # Heads as matrices of their own, and all layers as one matrix, are something else.
    apart = by_muon(settings, weights, rates, {"kernel": (8, 3)})
    assert np.abs(found["kernel"] - apart["kernel"]).max() > 1e-3


def test_which_parameters_are_muons_and_where_their_momentum_lies():
    cfg = changed(
        SETTINGS, optimizer={"name": "muon"}, training={"batch_size": 8}, mesh={"data": 2, "fsdp": 2, "tensor": 2}
    )
    made = setup.make(cfg)
    kinds = {"muon": set(), "adam": set()}
    placed = {
        jax.tree_util.keystr(path): leaf.sharding
        for path, leaf in jax.tree_util.tree_leaves_with_path(made.target.params)
    }
    for path, leaf in jax.tree_util.tree_leaves_with_path(made.target.optimizer):
        text = jax.tree_util.keystr(path)
        name = next((name for name in placed if text.endswith(name)), None)
        if name is None:
            assert leaf.size <= 3 and leaf.sharding.is_fully_replicated
            continue
        kinds["muon" if "'muon'" in text else "adam"].add(name)
        assert leaf.sharding == placed[name]
    assert kinds["muon"] == {name for name in placed if "kernel" in name}
    assert kinds["adam"] == set(placed) - kinds["muon"]


@pytest.mark.slow
def test_a_run_with_muon_goes_on_to_the_bit(tmp_path, tmp_path_factory):
    keep_programs(tmp_path_factory)
    cfg = tiny_runs.settings(corpus(tmp_path), optimizer={"name": "muon"}, training={"steps": 4})
    train(cfg, tmp_path / "straight")
    for stop in (2, 4):
        train(changed(cfg, training={"stop_after": stop}), tmp_path / "parts")
    assert rows(tmp_path / "parts", "loss", "grad_norm") == rows(tmp_path / "straight", "loss", "grad_norm")
    straight, parts = (arrays(cfg, tmp_path / name, 4) for name in ("straight", "parts"))
    assert differing(straight, parts) == set()
    assert any("muon" in name for name in straight)
