"""What data sheets and compilers say of a device: its memory, and how fast it reads it and talks to others."""

from dataclasses import dataclass
from typing import Any

from rove_jax.models import accounting

GIB = 2**30


@dataclass(frozen=True)
class Sheet:
    """Figures of one device. Bytes, and bytes per second."""

    memory: float
    usable: float
    """What one program may take."""
    usable_source: str
    bandwidth: float
    """Of its memory."""
    links: float
    """To other devices, all links together, in one direction."""
    links_source: str
    between_hosts: float | None = None
    """The same between hosts, where that is another network."""


LIBTPU = "libtpu's own limit, as it states it when a program is too large"
PREALLOCATED = "JAX takes 75% of a GPU's memory unless XLA_PYTHON_CLIENT_MEM_FRACTION says otherwise"
ICI = "data sheet: interconnect of a chip, all links, one way"
NVLINK = "data sheet: NVLink one way within a host of 8, 400 Gb/s a GPU between hosts"

SHEETS = {
    # Google Cloud's pages of TPU v5e, v5p and v6e: HBM, its bandwidth, 1600, 4800 and 3200 Gb/s between chips.
    "TPU v5 lite": Sheet(16e9, 15.75 * GIB, LIBTPU, 819e9, 200e9, ICI),
    "TPU v5": Sheet(95e9, 95.73 * GIB, LIBTPU, 2765e9, 600e9, ICI),
    "TPU v6 lite": Sheet(32e9, 31.24 * GIB, LIBTPU, 1600e9, 400e9, ICI),
    # NVIDIA's data sheets of the SXM forms; NVLink 900 GB/s both ways together; DGX H100: a 400 Gb/s port for each.
    "NVIDIA H100": Sheet(80e9, 0.75 * 80e9, PREALLOCATED, 3352e9, 450e9, NVLINK, 50e9),
    "NVIDIA H200": Sheet(141e9, 0.75 * 141e9, PREALLOCATED, 4800e9, 450e9, NVLINK, 50e9),
}
"""By what a device's kind begins with."""


def sheet(device: Any) -> Sheet | None:
    """The figures of a device, None where they are not known (a CPU's)."""
    fitting = [name for name in SHEETS if device.device_kind.startswith(name)]
    return SHEETS[max(fitting, key=len)] if fitting else None


def roofline(
    device: Any, dtype: str, hosts: int, *, flops: float, bytes_moved: float, collectives: dict[str, dict[str, int]]
) -> dict[str, float] | None:
    """Seconds of a step on each of three limits, and in all; None where a limit is not known.

    "compute": FLOPs at the data sheet's bfloat16 peak. "memory": bytes at the memory's bandwidth. "network": what
    collectives send, at the bandwidth of all links together (a sum of arrays that all devices get is sent twice).
    "overlapped" is the largest of them, "in_turn" their sum: the step lies between, if all runs at these rates.
    """
    known, peak = sheet(device), accounting.peak_flops(device.device_kind)
    if known is None or peak is None or dtype != "bfloat16":
        return None
    links = known.between_hosts if known.between_hosts and hosts > 1 else known.links
    sent = sum((2 if kind == "all-reduce" else 1) * found["bytes"] for kind, found in collectives.items())
    parts = {"compute": flops / peak, "memory": bytes_moved / known.bandwidth, "network": sent / links}
    return {**parts, "overlapped": max(parts.values()), "in_turn": sum(parts.values())}
