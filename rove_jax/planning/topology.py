"""Devices of named hardware that is not here, good for compiling only: `v5e:4x4`, `h100:8`; or this machine's, `cpu:8`.

A TPU is compiled for by `libtpu`, a GPU by JAX's CUDA plugin; both are ordinary packages that need no device.
"""

import contextlib
import importlib.metadata
import importlib.util
import math
import os
import re
from typing import Any

import jax
from jax.experimental import topologies

from rove_jax.errors import UsageError, nearest

TPUS = ("v5e", "v5p", "v6e")

GPUS: dict[str, dict[str, Any]] = {
    # NVIDIA's H100 SXM5 data sheet and Hopper whitepaper; limits per thread block: CUDA C++ Programming Guide, compute
    # capability 9.0.
    "h100": {
        "description": "NVIDIA H100 80GB HBM3",
        "capability": 9,
        "core_count": 132,
        "fpus_per_core": 128,
        "clock_rate_ghz": 1.98,
        "memory_bandwidth": 3_352_000_000_000,
        "device_memory_size": 80 * 2**30,
        "l2_cache_size": 50 * 2**20,
        "shared_memory_per_core": 228 * 2**10,
        "shared_memory_per_block_optin": 227 * 2**10,
    },
    # The H200 SXM data sheet: an H100 with other memory.
    "h200": {
        "description": "NVIDIA H200",
        "capability": 9,
        "core_count": 132,
        "fpus_per_core": 128,
        "clock_rate_ghz": 1.98,
        "memory_bandwidth": 4_800_000_000_000,
        "device_memory_size": 141_000_000_000,
        "l2_cache_size": 50 * 2**20,
        "shared_memory_per_core": 228 * 2**10,
        "shared_memory_per_block_optin": 227 * 2**10,
    },
}
"""What XLA asks of a GPU, from public figures: bytes, bytes per second, counts."""

SAME_FOR_ALL = {
    "threads_per_warp": 32,
    "threads_per_block_limit": 1024,
    "threads_per_core_limit": 2048,
    "shared_memory_per_block": 48 * 2**10,
    "registers_per_block_limit": 2**16,
    "registers_per_core_limit": 2**16,
    "block_dim_limit_x": 2**31 - 1,
    "block_dim_limit_y": 2**16 - 1,
    "block_dim_limit_z": 2**16 - 1,
}

LIBTPU = {
    # Or it asks the cloud's metadata server what it runs on, and complains on stderr that nobody answers.
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    # Or it refuses while another process has it loaded.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
"""Environment in which libtpu only compiles, whatever the topology. Read when it is loaded."""

LARGEST = 16
"""Chips along an axis of a slice, at most; libtpu does not refuse more, it ends the process."""

HOST = 8
"""GPUs of a host."""

EXAMPLES = "v5e:2x2, v5e:16x16, v6e:2x2, v5p:2x2x1 or h100:8"


def devices(name: str) -> list[Any]:
    """The devices of `name`, KIND:SIZES.

    SIZES of a TPU are its chips along each axis of the slice; of a GPU how many, in hosts of 8, or partitions x hosts x
    devices of a host; of a CPU how many virtual ones. Nothing but compiling can be done with the devices, unless they
    are CPUs. Unless JAX has looked for devices before, it will use the CPU from here.

    Raises:
        UsageError: no such hardware, or the package that compiles for it is not installed.
    """
    kind, _, sizes = name.partition(":")
    known = (*TPUS, *GPUS, "cpu")
    if kind not in known:
        raise UsageError(f"topology = {name!r}: {kind!r} is none of {', '.join(known)}{nearest(kind, known)}")
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){1,2}", sizes) and (kind in TPUS or not re.fullmatch(r"[1-9]\d*", sizes)):
        raise UsageError(f"topology = {name!r}: must be KIND:SIZES, such as {EXAMPLES}")
    if kind == "cpu":
        return cpu(sizes)
    # On a machine with libtpu or the plugin and no such device, looking for one would fail, or wait.
    if not os.environ.get("JAX_PLATFORMS"):
        jax.config.update("jax_platforms", "cpu")
    try:
        return gpu(kind, sizes) if kind in GPUS else tpu(kind, [int(size) for size in sizes.split("x")])
    except RuntimeError as error:  # what XLA raises for a shape that does not exist
        if not str(error).startswith("INVALID_ARGUMENT"):
            raise
        why = str(error).splitlines()[0].removeprefix("INVALID_ARGUMENT: ")
        raise UsageError(f"topology = {name!r}: {why}; use one such as {EXAMPLES}") from error


def tpu(kind: str, sizes: list[int]) -> list[Any]:
    """A slice of TPU chips."""
    if max(sizes) > LARGEST:
        raise UsageError(f"topology = '{kind}:{'x'.join(map(str, sizes))}': at most {LARGEST} chips along an axis")
    needs("libtpu", kind, "tpu")
    for variable, value in LIBTPU.items():
        os.environ.setdefault(variable, value)
    # Hosts of 2 x 2 chips are the default, into which a single chip does not divide (an error on jax 0.10).
    odd = any(size % 2 for size in sizes[:2])
    hosts = {"chips_per_host_bounds": (*(1 if size % 2 else 2 for size in sizes[:2]), 1)} if odd else {}
    name = f"{kind}:{'x'.join(map(str, sizes))}"
    return list(topologies.get_topology_desc(platform="tpu", topology_name=name, **hosts).devices)


def cpu(sizes: str) -> list[Any]:
    """Virtual devices of this machine."""
    if "x" in sizes:
        raise UsageError(f"topology = 'cpu:{sizes}': CPUs are a number of virtual devices, such as cpu:8")
    with contextlib.suppress(RuntimeError):  # JAX has looked for devices before: there are as many as there are
        jax.config.update("jax_num_cpu_devices", int(sizes))
    there = jax.devices("cpu")
    if int(sizes) > len(there):
        raise UsageError(f"topology = 'cpu:{sizes}': JAX has started with {len(there)}")
    return there[: int(sizes)]


def hosts(name: str) -> int:
    """How many hosts the GPUs of `name` are spread over; 1 for all else, whose network does not end at a host."""
    kind, _, sizes = name.partition(":")
    return int(spelled(kind, sizes).split("x")[1]) if kind in GPUS else 1


def spelled(kind: str, sizes: str) -> str:
    """PARTITIONSxHOSTSxDEVICES of GPUs, from that or from their number."""
    if sizes.isdigit():
        count = int(sizes)
        if count > HOST and count % HOST:
            raise UsageError(
                f"topology = '{kind}:{sizes}': hosts have {HOST} GPUs; ask for up to {HOST}, or whole hosts"
            )
        return f"1x{max(count // HOST, 1)}x{min(count, HOST)}"
    if len(sizes.split("x")) != 3:
        raise UsageError(f"topology = '{kind}:{sizes}': GPUs are a number, or PARTITIONSxHOSTSxDEVICES such as 1x1x8")
    return sizes


def gpu(kind: str, sizes: str) -> list[Any]:
    """GPUs of one kind."""
    sizes = spelled(kind, sizes)
    needs("jax_cuda13_plugin", kind, "cuda")
    text = target_config(kind)
    found = topologies.get_topology_desc(platform="cuda", topology_name=kind, target_config=text, topology=sizes)
    assert len(found.devices) == math.prod(map(int, sizes.split("x")))
    return list(found.devices)


def target_config(kind: str) -> str:
    """The GPU as XLA's `GpuTargetConfigProto` in text form (xla/stream_executor/device_description.proto)."""
    known = dict(GPUS[kind])
    description, major = known.pop("description"), known.pop("capability")
    fields = " ".join(f"{name}: {value}" for name, value in {**SAME_FOR_ALL, **known}.items())
    capability = f"cuda_compute_capability {{ major: {major} }}"
    return f'platform_name: "CUDA" device_description_str: "{description}" gpu_device_info {{ {fields} {capability} }}'


def needs(package: str, kind: str, extra: str) -> None:
    """Raise `UsageError` saying which extra to install unless `package` is there."""
    if importlib.util.find_spec(package) is None:
        raise UsageError(
            f"topology {kind}: compiling for it needs the package {package}; "
            f'install it with `pip install -e ".[{extra}]"`'
        )


def compiler(name: str) -> str:
    """The package, with its version, that compiles for a topology."""
    kind = name.partition(":")[0]
    package = "jax-cuda13-pjrt" if kind in GPUS else "jaxlib" if kind == "cpu" else "libtpu"
    return f"{package} {importlib.metadata.version(package)}"
