"""What a run would take on hardware that is not here: memory, work and time of its train step, each with its source."""

import dataclasses
import math
import re
import time
from typing import Any

import jax

from rove_jax import config, sharding
from rove_jax.models import accounting
from rove_jax.planning import sheets
from rove_jax.planning.costs import Costs, kernel_calls
from rove_jax.planning.hlo import Module
from rove_jax.training import setup as setups
from rove_jax.training.step import compile_update

SOURCES = {
    "shardings": "shapes and shardings of the state",
    "accounting": "the model's own: gradients a float32 tree like the parameters; FLOPs of kernels, of which compilers "
    "know nothing, as attention over what the mask leaves, 2 products forward and 5 backward",
    "compiler": "its memory analysis: all temporaries but the gradients; all arguments and code but the state",
    "executable": "its text: products, operands and results in device memory, collectives; loops as often as they turn",
    "estimate": "between all at once (overlapped) and one after the other (in turn): products at the data sheet's "
    "bfloat16 peak, memory and links at full rate. A bound, not a forecast",
}
"""What the words in the last column of a plan mean."""

ASSUMPTIONS = (
    "collectives use all links of a device, one way; a sum that all devices get is sent twice; latency is nothing",
    "input, validation, checkpoints and start-up take no time",
)


def estimate(settings: config.Config, devices: list[Any], hosts: int = 1) -> dict[str, Any]:
    """Compile the update of `settings` for `devices` and say what one device needs and does, as JSON values.

    "fits" is None where nobody knows how much memory there is. A program that the compiler itself finds too large has
    "memory" with "total" and "usable" alone, and nothing else. Raises `UsageError` for what cannot run there.
    """
    made = setups.make(settings, devices)
    known = sheets.sheet(devices[0])
    ways = sharding.batch_ways(made.mesh)
    record: dict[str, Any] = {
        "mesh": dict(made.mesh.shape),
        "accumulation": settings.training.accumulation,
        "remat": settings.model.remat,
        "attention": made.choice.backend,
        "rows": settings.training.batch_size // settings.training.accumulation // ways,
    }
    began = time.perf_counter()
    try:
        compiled: Any = compile_update(
            settings, made.model, made.model.vocab - 1, made.optimizer, made.target, made.mesh
        )
    except jax.errors.JaxRuntimeError as error:
        if not str(error).startswith("RESOURCE_EXHAUSTED"):
            raise
        needed, usable = too_large(str(error), local(made.target))
        return record | {
            "fits": False,
            "memory": {"total": needed, "usable": usable},
            "compile_seconds": time.perf_counter() - began,
        }
    seconds = time.perf_counter() - began
    held = memory(made, compiled, known.usable if known else None)
    fits = None if known is None else held["total"] <= known.usable
    return record | {"fits": fits, "memory": held, **work(made, compiled, hosts), "compile_seconds": seconds}


def too_large(message: str, state: int) -> tuple[float | None, float | None]:
    """(bytes a program needs, bytes it may take) by what the compiler says of it; `state`: those of its arguments,
    which one of its two forms of saying so leaves out. None where it says neither."""
    sizes = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
    forms = {
        r"Used ([\d.]+)(\w?) of ([\d.]+)(\w?) hbm": 0,
        r"temporaries \(([\d.]+)(\w?)\) exceeds available HBM \(([\d.]+)(\w?)\)": state,
    }
    for form, beside in forms.items():
        if found := re.search(form, message):
            needed, needed_unit, there, there_unit = found.groups()
            return float(needed) * sizes[needed_unit] + beside, float(there) * sizes[there_unit]
    return None, None


def local(tree: Any) -> int:
    """Bytes of a tree of abstract arrays on one device."""
    return sum(x.dtype.itemsize * math.prod(x.sharding.shard_shape(x.shape)) for x in jax.tree.leaves(tree))


def memory(made: setups.Setup, compiled: Any, usable: float | None) -> dict[str, Any]:
    """Bytes on one device while a step runs: parts, "total", and what is "usable"."""
    parameters, optimizer = local(made.target.params), local(made.target.optimizer)
    said = compiled.memory_analysis()
    arguments = said.argument_size_in_bytes + said.output_size_in_bytes - said.alias_size_in_bytes
    gradients = min(parameters, said.temp_size_in_bytes)
    parts = {
        "parameters": parameters,
        "optimizer": optimizer,
        "gradients": gradients,
        "temporaries": said.temp_size_in_bytes - gradients,
        "program": arguments - parameters - optimizer + said.generated_code_size_in_bytes,
    }
    return {**parts, "total": sum(parts.values()), "usable": usable, "host": said.host_temp_size_in_bytes}


def work(made: setups.Setup, compiled: Any, hosts: int) -> dict[str, Any]:
    """What one device does in a step: FLOPs, bytes, collectives, and the time these take at least."""
    cfg, device = made.settings, made.mesh.devices.flat[0]
    costs = Costs(Module(compiled.as_text()), tpu=device.platform == "tpu")
    calls = kernel_calls(costs)
    length, ways = cfg.data.context_length, sharding.batch_ways(made.mesh)
    rows = cfg.training.batch_size // cfg.training.accumulation // ways
    # A call is one layer's, for the rows of a part and the heads of a device.
    once = rows * accounting.attention_flops(cfg.model, length) / cfg.model.layers / made.mesh.shape["tensor"]
    kernels = sum(count * once * (2.5 if "backward" in name.lower() else 1.0) for name, count in calls.items())
    told = (compiled.cost_analysis() or {}).get("flops")
    tokens = cfg.training.batch_size * length
    found: dict[str, Any] = {
        "flops": {
            "products": costs.products,
            "kernels": kernels,
            "model": accounting.flops_per_token(cfg.model, length) * tokens / made.mesh.size,
            "compiler, loops once": told,
        },
        "bytes_moved": costs.moved(),
        "host_bytes": costs.host(),
        "collectives": costs.collectives(),
        "kernels": calls,
        "unknown_loops": costs.unknown,
    }
    times = sheets.roofline(
        device,
        cfg.model.dtype,
        hosts,
        flops=costs.products + kernels,
        bytes_moved=costs.moved(),
        collectives=found["collectives"],
    )
    return found | {"seconds": times, "run": None if times is None else whole_run(cfg, made.mesh.size, times)}


def whole_run(cfg: config.Config, devices: int, times: dict[str, float]) -> dict[str, dict[str, float]]:
    """Tokens per second, and device-hours of all steps, at either end of the estimate."""
    tokens, steps = cfg.training.batch_size * cfg.data.context_length, cfg.training.steps
    return {
        end: {"tokens_per_second": tokens / times[end], "device_hours": steps * times[end] * devices / 3600}
        for end in ("overlapped", "in_turn")
    }


def changed(settings: config.Config, *, data: int, fsdp: int, accumulation: int, remat: str) -> config.Config:
    """The same run, laid out and computed otherwise."""
    return dataclasses.replace(
        settings,
        model=dataclasses.replace(settings.model, remat=remat),
        training=dataclasses.replace(settings.training, accumulation=accumulation),
        mesh=dataclasses.replace(settings.mesh, data=data, fsdp=fsdp),
    )
