"""The process a command runs in, the others of its run, and how they start, wait for each other and end together."""

from rove_jax.distributed.cluster import Mode, initialize
from rove_jax.distributed.joint import Joint
from rove_jax.distributed.peers import Peers, meet
from rove_jax.distributed.process import (
    end_within,
    is_writer,
    keep_compiled,
    keep_freed_memory,
    last_line,
    screen,
    user_cache,
)

__all__ = [
    "Joint",
    "Mode",
    "Peers",
    "end_within",
    "initialize",
    "is_writer",
    "keep_compiled",
    "keep_freed_memory",
    "last_line",
    "meet",
    "screen",
    "user_cache",
]
