"""The mesh and the table of axes: what lies where, what is refused, and that results do not depend on it."""

import importlib.util
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec
from tiny_runs import SETTINGS, settings

from rove_jax import config, sharding
from rove_jax.errors import UsageError
from rove_jax.models import functional
from rove_jax.planning import topology
from rove_jax.training import setup, state, step


def mesh_of(data: int, fsdp: int, tensor: int) -> jax.sharding.Mesh:
    return sharding.make_mesh(config.Mesh(data=data, fsdp=fsdp, tensor=tensor))


def test_a_mesh_takes_what_is_left_and_has_automatic_axes():
    mesh = mesh_of(-1, 2, 2)
    assert dict(mesh.shape) == {"data": 2, "fsdp": 2, "tensor": 2}
    assert mesh.axis_types == (AxisType.Auto,) * 3
    assert mesh_of(1, 2, 1).devices.flatten().tolist() == jax.devices()[:2]


@pytest.mark.parametrize("sizes, words", [((4, 4, 1), "needs 16 devices, there are 8"), ((-1, 3, 1), "mesh.data = -1")])
def test_a_mesh_that_does_not_fit_is_refused(sizes, words):
    with pytest.raises(UsageError, match=words):
        mesh_of(*sizes)


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed (extra `tpu`)")
def test_sizes_that_are_no_products_of_a_slices_sides_are_refused():
    slice_4x4 = topology.devices("v6e:4x4")  # on v5e JAX splits sides
    assert sharding.make_mesh(config.Mesh(data=4, fsdp=4), slice_4x4).size == 16
    with pytest.raises(UsageError, match="mesh = data 8 x fsdp 2 x tensor 1: each must be one side of the slice"):
        sharding.make_mesh(config.Mesh(data=8, fsdp=2), slice_4x4)


def test_where_each_kind_of_parameter_lies():
    model, mesh = SETTINGS.model, mesh_of(2, 2, 2)
    placed = sharding.parameters(functional.axes(model), functional.abstract(model), mesh)
    attention, mlp = placed["blocks"]["attention"], placed["blocks"]["mlp"]
    found = {
        "embedding": placed["embedding"].spec,
        "query": attention["query"]["kernel"].spec,
        "query bias": attention["query"]["bias"].spec,
        "value": attention["value"]["kernel"].spec,
        "out": attention["out"]["kernel"].spec,
        "up": mlp["up"]["kernel"].spec,
        "down": mlp["down"]["kernel"].spec,
        "scale": placed["norm"]["scale"].spec,
    }
    assert found == {
        "embedding": PartitionSpec("tensor", "fsdp"),
        "query": PartitionSpec(None, "fsdp", "tensor", None),
        "query bias": PartitionSpec(None, "tensor", None),
        "value": PartitionSpec(None, "fsdp", "tensor", None),
        "out": PartitionSpec(None, "tensor", None, "fsdp"),
        "up": PartitionSpec(None, "fsdp", "tensor"),
        "down": PartitionSpec(None, "tensor", "fsdp"),
        "scale": PartitionSpec("fsdp"),
    }


def test_what_cannot_lie_there_is_refused_by_the_name_of_the_parameter():
    mesh = mesh_of(1, 2, 4)
    with pytest.raises(UsageError, match=r"mesh.tensor = 4: does not divide axis 'heads' = 2 of blocks.query"):
        sharding.partition("blocks.query", ("model", "heads"), (16, 2), mesh)
    with pytest.raises(UsageError, match=r"gate: axes 'heads' and 'mlp' both lie along mesh axis 'tensor'"):
        sharding.partition("gate", ("heads", "mlp"), (4, 4), mesh)
    with pytest.raises(UsageError, match=r"gate: axis 'expert' has no rule"):
        sharding.partition("gate", ("expert",), (4,), mesh)
    assert sharding.partition("gate", ("heads", "model"), (4, 4), mesh) == PartitionSpec("tensor", "fsdp")
    with pytest.raises(
        UsageError, match=r"mesh.tensor = 4: does not divide axis 'kv_heads' = 2 of blocks.attention.key"
    ):
        setup.make(settings(SETTINGS.data, mesh={"data": 1, "tensor": 4}))


def test_a_batch_that_does_not_divide_is_refused():
    with pytest.raises(UsageError, match="training.batch_size = 4: .* 2 accumulation parts on 8 devices"):
        setup.make(settings(SETTINGS.data, mesh={"data": 8}))


def test_optimizer_state_lies_where_its_parameter_lies():
    cfg = settings(SETTINGS.data, training={"batch_size": 8}, mesh={"data": 2, "fsdp": 2, "tensor": 2})
    made = setup.make(cfg)
    kernel = made.target.params["blocks"]["mlp"]["up"]["kernel"].sharding
    moments = [
        leaf.sharding
        for path, leaf in jax.tree_util.tree_leaves_with_path(made.target.optimizer)
        if jax.tree_util.keystr(path).endswith("['up']['kernel']")
    ]
    assert moments == [kernel, kernel]
    scalars = [leaf for leaf in jax.tree.leaves(made.target.optimizer) if not leaf.shape]
    assert scalars and all(leaf.sharding.is_fully_replicated for leaf in scalars)


MESHES = {"1x1x1": (1, 1, 1), "8x1x1": (8, 1, 1), "2x2x2": (2, 2, 2), "1x4x2": (1, 4, 2)}
"""Those of the table of shardings and of the runs that must agree: data x fsdp x tensor."""

GOLDEN = Path(__file__).with_name("shardings.json")


def where_all_lies() -> dict[str, dict[str, str]]:
    """Mesh, then parameter, to its shape, the mesh axis along each of its axes, and the shape of a device's part."""
    table: dict[str, dict[str, str]] = {}
    for name, sizes in MESHES.items():
        abstract = functional.abstract(SETTINGS.model)
        placed = sharding.parameters(functional.axes(SETTINGS.model), abstract, mesh_of(*sizes))
        lines = table.setdefault(name, {})
        for (path, leaf), where in zip(jax.tree_util.tree_leaves_with_path(abstract), jax.tree.leaves(placed)):
            axes = ", ".join(axis or "-" for axis in where.spec)
            part = list(where.shard_shape(leaf.shape))
            lines[jax.tree_util.keystr(path, simple=True, separator=".")] = f"{list(leaf.shape)} along {axes}: {part}"
    return table


def test_the_sharding_of_every_parameter_is_as_written_down():
    """If a change is meant: `python -c "import test_sharding as t; t.write()"` in tests/, and read the difference."""
    assert where_all_lies() == json.loads(GOLDEN.read_text())


def write() -> None:
    """Write down where everything lies now."""
    GOLDEN.write_text(json.dumps(where_all_lies(), indent=1) + "\n")


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_new_state_is_never_whole_on_one_device(optimizer):
    """By the memory of the program that makes it: an eighth of the state, and less beside it than the largest array."""
    sizes = {"data": 1, "fsdp": 4, "tensor": 2}
    cfg = settings(
        SETTINGS.data, training={"batch_size": 8}, mesh=sizes, model={"width": 64}, optimizer={"name": optimizer}
    )
    made = setup.make(cfg)
    fresh = jax.jit(
        lambda key: state.fresh(cfg, made.optimizer, key), out_shardings=state.shardings(made.target)
    ).lower(jax.random.key(0))
    spread = fresh.compile().memory_analysis()
    whole = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(made.target))
    assert spread.output_size_in_bytes < 0.2 * whole
    assert spread.temp_size_in_bytes < 4 * made.target.params["embedding"].size


def updates(cfg: config.Config, count: int):
    """(weights before, weights after `count` updates, losses)."""
    made = setup.make(cfg)
    update = step.compile_update(cfg, made.model, 256, made.optimizer, made.target, made.mesh)
    current = state.create(cfg, made.optimizer, made.target)
    wanted = jax.tree.map(lambda leaf: leaf.sharding, made.target.params)
    before = jax.device_get(current.params)
    draw, losses = np.random.RandomState(0), []
    for _ in range(count):
        assert jax.tree.map(lambda leaf: leaf.sharding, current.params) == wanted
        tokens = draw.randint(0, 257, (cfg.training.batch_size, cfg.data.context_length + 1)).astype(np.int32)
        current, metrics = update(current, jax.device_put(tokens, sharding.batch(made.mesh)))
        losses.append(float(metrics["loss"]))
    return before, jax.device_get(current.params), losses


@pytest.mark.slow
def test_results_do_not_depend_on_the_mesh():
    """Ten updates of 8 rows, dropout included, on one device and on eight: the same start and course.

    The start to a last bit: compiled for a part of an array, jax 0.12 rounds the inverse error function otherwise.
    """
    shape = {"batch_size": 8, "accumulation": 1, "steps": 10}
    runs = [
        updates(settings(SETTINGS.data, training=shape, mesh=dict(zip(sharding.MESH_AXES, sizes))), 10)
        for sizes in MESHES.values()
    ]
    (start, alone, expected), *others = runs
    assert len(set(expected)) == 10 and start["embedding"].std() > 0
    for spread_start, spread, losses in others:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8), start, spread_start)
        np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-5)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=2e-5), alone, spread)
