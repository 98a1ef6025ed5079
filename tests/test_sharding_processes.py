"""Who joins other processes, and who does not: only the environment variables meant for it decide."""

from pathlib import Path

import jax
import pytest

from rove_jax import distributed
from rove_jax.errors import UsageError

NAMES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")


@pytest.fixture
def joined(monkeypatch):
    """What `jax.distributed.initialize` was called with, call by call."""
    calls = []
    monkeypatch.setattr(jax.distributed, "initialize", lambda *inputs: calls.append(inputs))
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    return calls


def test_a_job_of_a_scheduler_is_one_process_unless_told_otherwise(joined, monkeypatch):
    for name in ("SLURM_JOB_ID", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE"):
        monkeypatch.setenv(name, "2")
    distributed.initialize()
    assert joined == [] and distributed.is_writer()


def test_an_address_joins(joined, monkeypatch):
    for name, value in zip(NAMES, ("host:1234", "4", "3")):
        monkeypatch.setenv(name, value)
    distributed.initialize()
    assert joined == [("host:1234", 4, 3)]


@pytest.mark.parametrize("number", ["", "three", "-1"])
def test_an_address_without_its_numbers_is_refused(joined, monkeypatch, number):
    for name, value in zip(NAMES, ("host:1234", "4", number)):
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match="JAX_PROCESS_ID = "):
        distributed.initialize()
    assert joined == []


def test_compiled_programs_go_where_they_are_told_or_to_the_users_cache(monkeypatch, tmp_path):
    settings = {}
    monkeypatch.setattr(jax.config, "update", settings.__setitem__)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert distributed.keep_compiled() == tmp_path / "rove_jax" / "xla"
    assert distributed.keep_compiled("/elsewhere") == Path(settings["jax_compilation_cache_dir"]) == Path("/elsewhere")
    assert not list(tmp_path.iterdir()), "nothing is made before something is kept"
