"""What a config comes to on the devices at hand, before anything is made: mesh, attention backend, layout, sizes."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import optax

from rove_jax import attention, config, sharding
from rove_jax.errors import UsageError
from rove_jax.models import accounting, functional
from rove_jax.training import machine, optimizer, state


@dataclasses.dataclass(frozen=True)
class Setup:
    """A config and what it comes to. See `make`."""

    settings: config.Config
    mesh: jax.sharding.Mesh
    choice: attention.Choice
    model: config.Model
    """The model as computed: `attention` is the chosen backend, never "auto"."""
    optimizer: optax.GradientTransformation
    target: state.State
    """Shapes, dtypes and shardings of the state."""
    parameter_count: int

    @property
    def devices(self) -> str:
        first = self.mesh.devices.flat[0]
        return f"{self.mesh.size} x {first.device_kind} ({first.platform})"

    def record(self) -> dict[str, Any]:
        """What a run writes down about itself, as JSON values."""
        return {
            "parameters": self.parameter_count,
            "mesh": dict(self.mesh.shape),
            "devices": self.devices,
            "processes": jax.process_count(),
            "attention": dataclasses.asdict(self.choice),
            **machine.compiler_flags(),
        }

    def lines(self) -> list[str]:
        """The same for a person."""
        cfg = self.settings
        axes = ", ".join(f"{name} {size}" for name, size in self.mesh.shape.items())
        notes, platform = [], self.mesh.devices.flat[0].platform
        if platform == "gpu" and not machine.compiler_flags()["deterministic"]:
            how = "XLA_FLAGS=--xla_gpu_deterministic_ops=true makes runs repeatable"
            notes = [f"kernels        add in an order of their own: {how}"]
        if platform == "cpu" and jax.process_count() > 1 and jax.local_device_count() > 1:
            # Seen on jax 0.10.2, whose collectives over gloo then take each other's threads; not always, so no refusal.
            how = "JAX_NUM_CPU_DEVICES=1 rules that out"
            notes = [f"devices        several to a process of a CPU can wait for each other without end: {how}"]
        refused = "".join(f"\n               not {name}: {why}" for name, why in self.choice.refused.items())
        return [
            f"parameters     {self.parameter_count:,} (variant {cfg.model.variant}, {cfg.model.layers} layers)",
            f"batch          {cfg.training.batch_size} x {cfg.data.context_length} tokens, {cfg.training.steps} steps",
            f"mesh           {axes}; {self.devices}",
            f"attention      {self.choice.backend}: {self.choice.reason}{refused}",
            *notes,
        ]


def make(settings: config.Config, devices: Sequence[Any] | None = None) -> Setup:
    """The set-up of `settings` on `devices` (default: all). Raises `UsageError` for what cannot run there."""
    mesh = sharding.make_mesh(settings.mesh, devices)
    ways, parts = sharding.batch_ways(mesh), settings.training.accumulation
    rows = settings.training.batch_size
    if rows % (ways * parts):
        needs = f"{parts} accumulation parts on {ways} devices (mesh.data x mesh.fsdp)"
        raise UsageError(f"training.batch_size = {rows}: does not divide into {needs}")
    if settings.model.remat == "offload" and mesh.devices.flat[0].platform == "cpu":
        raise UsageError("model.remat = offload: a CPU has no other memory to move activations to; use full")
    adamw = optimizer.make(settings.optimizer, settings.training.steps, functional.axes(settings.model))
    target = state.abstract(settings, adamw, mesh)
    choice = choose_attention(settings, mesh)
    return Setup(
        settings=settings,
        mesh=mesh,
        choice=choice,
        model=dataclasses.replace(settings.model, attention=choice.backend),
        optimizer=adamw,
        target=target,
        parameter_count=accounting.parameter_count(settings.model),
    )


def choose_attention(settings: config.Config, mesh: jax.sharding.Mesh) -> attention.Choice:
    """The backend for what one device of the mesh computes at a time."""
    model, device = settings.model, mesh.devices.flat[0]
    call = attention.Call(
        batch=settings.training.batch_size // settings.training.accumulation // sharding.batch_ways(mesh),
        queries=settings.data.context_length,
        keys=settings.data.context_length,
        query_heads=model.query_heads // mesh.shape["tensor"],
        kv_heads=model.kv_heads // mesh.shape["tensor"],
        head_dim=model.head_dim,
        dtype=model.dtype,
        window=model.window,
        segments=settings.data.segments,
    )
    return attention.resolve(model.attention, call, attention.Target.device(device))
