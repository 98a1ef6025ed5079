"""The ground under every test: 8 virtual CPU devices, strict rank promotion, a folder of real data if there is one."""

import os
import signal
import sys
from pathlib import Path

assert "jax" not in sys.modules, "jax was imported before tests/conftest.py could choose the CPU and 8 devices"

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = "8"
os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"  # compiling in two processes of tests at once
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # So it is in a shell's background job, and would be in all that the tests start in order to interrupt it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

import jax  # noqa: E402
import pytest  # noqa: E402
from jaxtyping import install_import_hook  # noqa: E402

# The shapes in the signatures of the numeric core are checked in the tests, and only here.
CHECKED = ["rove_jax.rotary", "rove_jax.attention", "rove_jax.losses", "rove_jax.analysis"]
install_import_hook(CHECKED, "beartype.beartype")

jax.config.update("jax_numpy_rank_promotion", "raise")


def pytest_sessionstart() -> None:
    """Too few devices is a broken set-up, so everything stops; a skip would be green."""
    if jax.device_count() != 8:
        pytest.exit(f"{jax.device_count()} devices instead of 8 virtual CPU devices", returncode=1)


@pytest.fixture(scope="session")
def test_data() -> Path:
    """The folder of real data outside the project, named by the environment variable ROVE_TEST_DATA."""
    folder = os.environ.get("ROVE_TEST_DATA")
    if not folder:
        pytest.skip("ROVE_TEST_DATA is not set: no real data")
    assert Path(folder).is_dir(), f"ROVE_TEST_DATA = {folder}: no such folder"
    return Path(folder)


@pytest.fixture
def checkout() -> Path:
    """The root of the source tree, from which `python -m train` and `python -m eval` work."""
    return Path(__file__).resolve().parent.parent
