"""What numbers depend on beside the settings: compiler flags, the commit, what else the machine does, its memory."""

import os
import platform
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import rove_jax

REPEATABLE = ("xla_gpu_deterministic_ops", "xla_gpu_exclude_nondeterministic_ops")
"""Flags that keep XLA from GPU kernels that add in an order of their own."""


def compiler_flags() -> dict[str, Any]:
    """{"xla_flags", "libtpu_init_args", "deterministic"}: the two environment variables, and whether a flag asks for
    GPU kernels that give the same bits each time."""
    flags = os.environ.get("XLA_FLAGS", "")
    given = dict(re.findall(r"--(\w+)(?:=(\S+))?", flags))
    on = any(given.get(name, "false").lower() not in ("false", "0") for name in REPEATABLE)
    return {"xla_flags": flags, "libtpu_init_args": os.environ.get("LIBTPU_INIT_ARGS", ""), "deterministic": on}


def commit() -> str | None:
    """The commit of the checkout this package lies in, `+changes` if files differ from it; None outside of one."""
    root = Path(rove_jax.__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None
    try:
        head, changes = (
            subprocess.run(["git", "-C", root, *words], capture_output=True, text=True, check=True).stdout.strip()
            for words in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        )
    except (OSError, subprocess.CalledProcessError):  # no git, or a checkout of another user's
        return None
    return head + ("+changes" if changes else "")


def host() -> str:
    """The CPUs that this process may use and, where Linux tells, their model."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cpuinfo = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*: (.*)$", cpuinfo.read_text(), re.MULTILINE) if cpuinfo.is_file() else None
    return f"{count} x {found[1].strip() if found else platform.machine()}"


def load() -> float | None:
    """Processes that wanted a CPU, averaged over the last minute; None where the system does not say."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def peak_memory(device: Any) -> dict[str, Any]:
    """{"bytes", "of"}: the most memory this process has held so far, on `device` if that one counts, else resident."""
    stats = device.memory_stats()
    if stats and "peak_bytes_in_use" in stats:
        return {"bytes": stats["peak_bytes_in_use"], "of": "device"}
    unit = 1 if sys.platform == "darwin" else 1024
    return {"bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, "of": "process, resident"}
