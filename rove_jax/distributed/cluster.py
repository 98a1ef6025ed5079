"""Which processes a run consists of, and how this one joins the others."""

import importlib.util
import os
import re
import sys
from typing import Any, Literal

from rove_jax.distributed.peers import Peers
from rove_jax.errors import UsageError

Mode = Literal["auto", "on", "off"]

ADDRESS = "JAX_COORDINATOR_ADDRESS"
NUMBERS = ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
SLURM_STEP = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")
"""What `srun` sets for each task. Within an allocation, but outside of a step, some of them are there as well."""


def initialize(
    mode: Mode = "auto", *, heartbeat_seconds: int = 10, join_seconds: int = 120, processes: int | None = None
) -> Peers | None:
    """Join the other processes of a run, and return what keeps watch over them; None in a run of one process.

    With "auto", others are looked for where something says that there are some (see `find`); with "on" there must be
    some; with "off" nothing is looked for. They are waited for `join_seconds`; a process that is silent for
    `heartbeat_seconds` is taken for dead.
    Must come before anything that looks at devices.

    Raises `UsageError` if there is nobody to join, if the environment contradicts itself, or if the run has not
    `processes` processes. Peers that do not come end this process: see `Peers.join`.
    """
    found = find() if mode != "off" else None
    check_count(processes, (found or {}).get("num_processes"))  # where it is known: before the others are kept waiting
    if found is None and mode == "on":
        by_hand = f"set {ADDRESS} (host:port of process 0), {' and '.join(NUMBERS)}"
        raise UsageError(f"--distributed on: no other process to join; {by_hand}, or start it by srun or on a TPU pod")
    peers = Peers.join(heartbeat_seconds, join_seconds=join_seconds, **found) if found is not None else None
    try:
        check_count(processes, 1 if peers is None else peers.count)
    except UsageError as error:
        if peers is None:
            raise
        print(f"error: {error}", file=sys.stderr)
        peers.leave(2)
    return peers


def check_count(wanted: int | None, there: int | None) -> None:
    """Raise `UsageError` if there are not as many processes as are wanted; None: not known, or any number."""
    if None not in (wanted, there) and wanted != there:
        raise UsageError(f"mesh.processes = {wanted}: the run has {there}; start that many, or set it to {there}")


def find() -> dict[str, Any] | None:
    """Arguments of `jax.distributed.initialize` for the processes that the environment tells of; None if it does not.

    In this order: the variables that are set by hand or by a script, a step of Slurm with several tasks, a TPU pod.
    """
    if os.environ.get(ADDRESS):
        return by_hand()
    for name in NUMBERS:
        if os.environ.get(name):
            raise UsageError(f"{name} is set and {ADDRESS} is not; set it to host:port of process 0, or unset {name}")
    if all(os.environ.get(name) for name in SLURM_STEP) and os.environ["SLURM_NTASKS"] != "1":
        return {"cluster_detection_method": "slurm"}
    return {} if on_a_tpu_pod() else None


def by_hand() -> dict[str, Any]:
    """The arguments from JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID."""
    address = os.environ[ADDRESS]
    if not re.fullmatch(r".+:[0-9]+", address):
        raise UsageError(f"{ADDRESS} = {address!r}: must be host:port of process 0")
    numbers = {}
    for name in NUMBERS:
        value = os.environ.get(name, "")
        if not value.isdecimal():
            raise UsageError(f"{name} = {value!r}: {ADDRESS} is set, so this must be a whole number")
        numbers[name] = int(value)
    count, index = (numbers[name] for name in NUMBERS)
    if index >= count:
        raise UsageError(f"JAX_PROCESS_ID = {index}: must be below JAX_NUM_PROCESSES = {count}; they count from 0")
    # Deactivated, since jax would otherwise still ask the cluster for what is not given, such as GPUs.
    return {
        "coordinator_address": address,
        "num_processes": count,
        "process_id": index,
        "cluster_detection_method": "deactivate",
    }


def on_a_tpu_pod() -> bool:
    """Whether this machine has TPU chips that jax is to use, and the metadata that jax asks who its neighbours are.

    False without a question to the network anywhere else.
    """
    platforms = os.environ.get("JAX_PLATFORMS")
    if (platforms and "tpu" not in platforms.split(",")) or importlib.util.find_spec("libtpu") is None:
        return False
    asked_not_to = "TPU_SKIP_MDS_QUERY" in os.environ and "," not in os.environ.get("TPU_WORKER_HOSTNAMES", "")
    # Not public, but what jax itself decides by (jax 0.10 to 0.12).
    from jax._src import cloud_tpu_init

    return cloud_tpu_init.running_in_cloud_tpu_vm and not asked_not_to
