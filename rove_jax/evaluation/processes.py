"""An evaluation by several processes: all of them score, the first one alone reads records, writes files and speaks."""

import contextlib
import functools
import json
import threading
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.experimental.multihost_utils import broadcast_one_to_all
from tqdm import tqdm

from rove_jax import config, distributed, sharding


def everywhere() -> jax.sharding.Mesh:
    """All devices of all processes, along `data`."""
    return sharding.make_mesh(config.Mesh(data=-1))


def of_first(value: Any) -> Any:
    """What the first process has for `value`, in all of them, so that they come to the same decision. All call this.

    It is what JSON can hold, and comes out as that. In a run of one process it is returned as it is.
    """
    if jax.process_count() == 1:
        return value
    data = json.dumps(value).encode() if distributed.is_writer() else b""
    distributed.meet("word of the first")  # on a CPU, collectives give up on others after 30 s
    size = int(broadcast_one_to_all(np.int32(len(data))))
    text = np.zeros(size, np.uint8)
    text[: len(data)] = np.frombuffer(data, np.uint8)
    return json.loads(np.asarray(broadcast_one_to_all(text)).tobytes())


SECONDS = 1.0
"""Between two drawings of a progress bar."""
LAYOUT = "{desc} {n_fmt}/{total_fmt} |{bar:8}| {elapsed}, {remaining} left{postfix}"
"""What matters first: a narrow terminal cuts the end off."""


class Bar:
    """A progress bar that says what comes now, and whether jax compiles it."""

    def __init__(self, bar: tqdm) -> None:
        self.bar, self.part = bar, ""

    def now(self, part: str) -> None:
        """Say which part of the work comes now."""
        self.part = part

    def update(self, count: int) -> None:
        """So many more units are done."""
        self.bar.update(count)

    def draw(self, closing: threading.Event) -> None:
        """Draw it again and again: a long text takes minutes, and so may a compiler."""
        compiles = compiler()
        while not closing.wait(SECONDS):
            self.bar.set_postfix_str(", ".join(filter(None, ["compiling" if compiles.is_set() else "", self.part])))


@contextlib.contextmanager
def progress(total: int, what: str, unit: str) -> Iterator[Bar]:
    """A progress bar on stderr, gone when it is closed: on a terminal, and of the first process alone."""
    shape: dict[str, Any] = {"leave": False, "bar_format": LAYOUT, **distributed.screen()}
    off = None if distributed.is_writer() else True
    with tqdm(total=total, desc=f"{what}, {unit}", disable=off, **shape) as drawn:
        bar, closing = Bar(drawn), threading.Event()
        drawer = threading.Thread(target=bar.draw, args=[closing], daemon=True)
        if not drawn.disable:
            drawer.start()
        try:
            yield bar
        finally:
            closing.set()
            if drawer.ident:
                drawer.join()


@functools.cache
def compiler() -> threading.Event:
    """Set while jax compiles a program: between two of its events (names in jax 0.10 to 0.12)."""
    busy = threading.Event()

    def heard(event: str, duration_secs: float, **_: object) -> None:
        if event == "/jax/core/compile/jaxpr_to_mlir_module_duration":
            busy.set()
        elif event == "/jax/core/compile/backend_compile_duration":
            busy.clear()

    jax.monitoring.register_event_duration_secs_listener(heard)
    return busy
