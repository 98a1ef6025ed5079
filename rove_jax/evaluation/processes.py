"""An evaluation by several processes: all of them score, the first one alone reads records, writes files and speaks."""

import json
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


def progress(total: int, what: str, unit: str) -> tqdm:
    """A progress bar on stderr, gone when it is closed: on a terminal, and of the first process alone."""
    return tqdm(total=total, desc=what, unit=unit, disable=None if distributed.is_writer() else True, leave=False)
