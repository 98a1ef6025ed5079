"""Processes that are one run, started on this machine."""

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path


class Processes:
    """Processes that are one run, on this machine's CPU, a device each.

    With two devices to a process, collectives over gloo can wait for each other without end on jax 0.10.2. Programs
    are compiled without optimisation, which is most of what a small run costs.
    """

    AROUND = {"JAX_NUM_CPU_DEVICES": "1", "XLA_FLAGS": "--xla_backend_optimization_level=0"}

    def __init__(self, folder: Path, checkout: Path) -> None:
        self.folder, self.checkout = folder, checkout
        self.running: list[subprocess.Popen] = []
        self.outputs: list[Path] = []

    def start(self, count: int, words: list[str]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        self.running, self.outputs = [], []
        for index in range(count):
            place = {
                "JAX_COORDINATOR_ADDRESS": address,
                "JAX_NUM_PROCESSES": str(count),
                "JAX_PROCESS_ID": str(index),
            }
            environment = os.environ | self.AROUND | (place if count > 1 else {})
            self.outputs.append(self.folder / f"output-{index}.txt")
            with self.outputs[-1].open("w") as file:
                self.running.append(
                    subprocess.Popen(
                        [sys.executable, *words],
                        cwd=self.checkout,
                        env=environment,
                        stdout=file,
                        stderr=subprocess.STDOUT,
                    )
                )

    def wait_for(self, condition: Callable[[], bool], seconds: float = 240.0) -> None:
        """Return when `condition` holds; fail if a process ends first, or in so many seconds."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert all(process.poll() is None for process in self.running), self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.05)

    def said(self) -> str:
        return "\n".join(f"== {path.name}\n{path.read_text()}" for path in self.outputs)

    def codes(self, seconds: float = 240.0) -> list[int]:
        """The exit codes, once all have ended."""
        deadline = time.monotonic() + seconds
        return [process.wait(timeout=max(deadline - time.monotonic(), 0.1)) for process in self.running]

    def errors(self, index: int) -> list[str]:
        """Our own lines among what a process printed."""
        return re.findall(r"^error: .*$", self.outputs[index].read_text(), re.MULTILINE)

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *exception: object) -> None:
        for process in self.running:
            process.kill()
            process.wait()
