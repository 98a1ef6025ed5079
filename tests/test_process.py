"""The process a command runs in: memory that is freed is kept for the next step, where that is asked for."""

import platform
import subprocess
import sys

import pytest

COUNT_FAULTS = """
import resource, sys
from rove_jax import distributed
if sys.argv[1] == "keep":
    distributed.keep_freed_memory()
import numpy as np
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(2**23)  # 64 MB, freed at once
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(sum(faults() for _ in range(5)))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these settings")
def test_freed_memory_is_kept_on_a_cpu_and_only_there(checkout, monkeypatch):
    def count(platforms, argument):
        monkeypatch.setenv("JAX_PLATFORMS", platforms)
        # Huge pages would make one fault of five hundred, with or without our settings.
        monkeypatch.setenv("NUMPY_MADVISE_HUGEPAGE", "0")
        words = [sys.executable, "-c", COUNT_FAULTS, argument]
        return int(subprocess.run(words, cwd=checkout, check=True, capture_output=True, text=True).stdout)

    pages = 5 * 2**26 // 4096
    assert count("cpu", "leave") > pages / 2
    assert count("tpu,cpu", "keep") > pages / 2
    assert count("cpu", "keep") < pages / 20
