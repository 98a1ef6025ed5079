"""The device mesh, and the one table that says which axis of an array lies along which axis of the mesh."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from rove_jax import config
from rove_jax.errors import UsageError

MESH_AXES = ("data", "fsdp", "tensor")

BATCH = ("data", "fsdp")
"""Rows of a batch are spread over both: parameters sharded over `fsdp` are gathered when used, rows never are."""

RULES: dict[str, str | None] = {
    "layers": None,
    "vocab": "tensor",
    "model": "fsdp",
    "heads": "tensor",
    "kv_heads": "tensor",
    "head_dim": None,
    "mlp": "tensor",
}
"""Logical axis of a parameter -> mesh axis. An axis that is not here is an error, not a replicated one."""


def make_mesh(sizes: config.Mesh, devices: Sequence[Any] | None = None) -> jax.sharding.Mesh:
    """The mesh (data, fsdp, tensor) of `sizes` over `devices` (default: all of them, in JAX's order).

    A -1 takes what is left. Fewer devices than there are may be asked for, in a run of one process; the first ones
    are taken. Raises `UsageError` if the sizes do not fit, in number or in the shape of a TPU slice.
    """
    available = list(jax.devices() if devices is None else devices)
    shape = [sizes.data, sizes.fsdp, sizes.tensor]
    fixed = math.prod(size for size in shape if size != -1)
    if -1 in shape:
        free = MESH_AXES[shape.index(-1)]
        if len(available) % fixed:
            raise UsageError(
                f"mesh.{free} = -1: the other axes multiply to {fixed}, which does not divide {len(available)} devices"
            )
        shape[shape.index(-1)] = len(available) // fixed
    wanted = math.prod(shape)
    if wanted > len(available) or (wanted < len(available) and jax.process_count() > 1):
        product = " x ".join(f"{name} {size}" for name, size in zip(MESH_AXES, shape))
        raise UsageError(f"mesh = {product}: needs {wanted} devices, there are {len(available)}")
    # Auto, because the default of make_mesh is Explicit since jax 0.9, under which sharded lookups do not trace.
    try:
        return jax.make_mesh(shape, MESH_AXES, axis_types=(AxisType.Auto,) * 3, devices=available[:wanted])
    except NotImplementedError as error:  # kept by JAX for a TPU slice of other sides
        product = " x ".join(f"{name} {size}" for name, size in zip(MESH_AXES, shape))
        raise UsageError(
            f"mesh = {product}: each must be one side of the slice of chips, or a product of sides"
        ) from error


def partition(
    name: str,
    axes: Sequence[str],
    shape: Sequence[int],
    mesh: jax.sharding.Mesh,
    rules: Mapping[str, str | None] = RULES,
) -> PartitionSpec:
    """Where the parameter `name` lies, from the logical names of its axes.

    Raises `UsageError` naming the parameter if two of its axes claim one mesh axis, if a mesh axis does not divide
    the size of the axis laid along it, or if an axis has no rule.
    """
    if len(axes) != len(shape):
        raise UsageError(
            f"{name}: shape {tuple(shape)} has {len(shape)} axes, their names {tuple(axes)} are {len(axes)}"
        )
    claims: dict[str, str] = {}
    spec: list[str | None] = []
    for axis, size in zip(axes, shape):
        if axis not in rules:
            raise UsageError(f"{name}: axis {axis!r} has no rule in the sharding table")
        along = rules[axis]
        spec.append(along)
        if along is None:
            continue
        if along in claims:
            raise UsageError(f"{name}: axes {claims[along]!r} and {axis!r} both lie along mesh axis {along!r}")
        claims[along] = axis
        if size % mesh.shape[along]:
            raise UsageError(f"mesh.{along} = {mesh.shape[along]}: does not divide axis {axis!r} = {size} of {name}")
    return PartitionSpec(*spec)


def parameters(axes: Any, abstract: Any, mesh: jax.sharding.Mesh) -> Any:
    """The tree of `NamedSharding` of a tree of parameters, from the tree of their axis names. Errors as `partition`."""

    def place(path: Any, leaf: jax.ShapeDtypeStruct, names: tuple[str, ...]) -> NamedSharding:
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        return NamedSharding(mesh, partition(name, names, leaf.shape, mesh))

    return jax.tree_util.tree_map_with_path(place, abstract, axes)


def batch(mesh: jax.sharding.Mesh) -> NamedSharding:
    """Of an array whose first axis is the batch; all other axes are whole on every device."""
    return NamedSharding(mesh, PartitionSpec(BATCH))


def replicated(mesh: jax.sharding.Mesh) -> NamedSharding:
    """Of an array that is whole on every device."""
    return NamedSharding(mesh, PartitionSpec())


def batch_ways(mesh: jax.sharding.Mesh) -> int:
    """Into how many parts the batch axis is split."""
    return math.prod(mesh.shape[name] for name in BATCH)


def unclaimed() -> dict[str, int]:
    """The axes of the mesh in force, with their sizes, over which no enclosing `shard_map` has spread the call yet."""
    mesh = jax.sharding.get_abstract_mesh()
    return {n: s for n, s, kind in zip(mesh.axis_names, mesh.axis_sizes, mesh.axis_types) if kind != AxisType.Manual}
