"""Who joins other processes, and who does not: only what is meant for it decides."""

import importlib.util
from pathlib import Path

import jax
import pytest
from jax._src import cloud_tpu_init

from rove_jax import distributed
from rove_jax.distributed import cluster
from rove_jax.errors import UsageError

BY_HAND = {"JAX_COORDINATOR_ADDRESS": "host:1234", "JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "3"}
STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_NTASKS": "2", "SLURM_PROCID": "0"}
STEP |= {"SLURM_LOCALID": "0"}
POD = {"JAX_PLATFORMS": "tpu,cpu", "TPU_WORKER_HOSTNAMES": "a,b"}


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch):
    """A machine that no variable says anything about."""
    for name in {**BY_HAND, **STEP, **POD, "TPU_SKIP_MDS_QUERY": ""}:
        monkeypatch.delenv(name, raising=False)


def found(monkeypatch, environment: dict[str, str]):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return cluster.find()


@pytest.mark.parametrize("left_out", STEP)
def test_a_job_that_is_not_a_whole_step_is_one_process(monkeypatch, left_out):
    """By ssh within a job of Slurm, or in its batch script, some of these are set and others are not."""
    environment = {name: value for name, value in STEP.items() if name != left_out}
    assert found(monkeypatch, {**environment, "OMPI_COMM_WORLD_SIZE": "2"}) is None
    assert distributed.initialize() is None and distributed.is_writer()


def test_a_step_of_several_tasks_joins_and_of_one_does_not(monkeypatch):
    assert found(monkeypatch, STEP) == {"cluster_detection_method": "slurm"}
    assert found(monkeypatch, {"SLURM_NTASKS": "1"}) is None


def test_an_address_joins_whatever_else_is_there(monkeypatch):
    assert found(monkeypatch, {**STEP, **BY_HAND}) == {
        "coordinator_address": "host:1234",
        "num_processes": 4,
        "process_id": 3,
        "cluster_detection_method": "deactivate",
    }
    assert distributed.initialize("off") is None


@pytest.mark.parametrize(
    "name, value, line",
    [
        *(("JAX_PROCESS_ID", number, "JAX_PROCESS_ID = ") for number in ("", "three", "-1", "²", "4")),
        ("JAX_NUM_PROCESSES", "0", "JAX_PROCESS_ID = 3: must be below JAX_NUM_PROCESSES = 0"),
        ("JAX_COORDINATOR_ADDRESS", "", "JAX_NUM_PROCESSES is set and JAX_COORDINATOR_ADDRESS is not"),
        ("JAX_COORDINATOR_ADDRESS", "host", "JAX_COORDINATOR_ADDRESS = 'host': must be host:port"),
    ],
)
def test_an_address_with_wrong_numbers_is_refused(monkeypatch, name, value, line):
    with pytest.raises(UsageError, match=line):
        found(monkeypatch, {**BY_HAND, name: value})


def test_too_few_or_too_many_are_refused_before_the_others_are_met(monkeypatch):
    monkeypatch.setattr(jax.distributed, "initialize", lambda **where: pytest.fail("joined"))
    for name, value in BY_HAND.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match="mesh.processes = 3: the run has 4"):
        distributed.initialize(processes=3)


def test_a_tpu_pod_is_left_to_jax_and_a_laptop_is_not_asked(monkeypatch):
    """The chips decide; without them, or with another platform asked for, jax would not look either."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(cloud_tpu_init, "running_in_cloud_tpu_vm", False)
    assert found(monkeypatch, POD) is None
    monkeypatch.setattr(cloud_tpu_init, "running_in_cloud_tpu_vm", True)
    assert found(monkeypatch, POD) == {}
    assert found(monkeypatch, {"JAX_PLATFORMS": "cpu"}) is None
    assert found(monkeypatch, {"JAX_PLATFORMS": "", "TPU_SKIP_MDS_QUERY": "1"}) == {}
    assert found(monkeypatch, {"TPU_WORKER_HOSTNAMES": "localhost"}) is None, "one host, and no metadata to ask"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert found(monkeypatch, POD) is None


def test_what_is_asked_for_must_be_there():
    with pytest.raises(UsageError, match="--distributed on: no other process to join; set JAX_COORDINATOR_ADDRESS"):
        distributed.initialize("on")
    for mode in ("auto", "off"):
        assert distributed.initialize(mode, processes=1) is None
        with pytest.raises(UsageError, match="mesh.processes = 2: the run has 1"):
            distributed.initialize(mode, processes=2)


def test_compiled_programs_go_where_they_are_told_or_to_the_users_cache(monkeypatch, tmp_path):
    settings = {}
    monkeypatch.setattr(jax.config, "update", settings.__setitem__)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert distributed.keep_compiled() == tmp_path / "rove_jax" / "xla"
    assert distributed.keep_compiled("/elsewhere") == Path(settings["jax_compilation_cache_dir"]) == Path("/elsewhere")
    assert not list(tmp_path.iterdir()), "nothing is made before something is kept"
