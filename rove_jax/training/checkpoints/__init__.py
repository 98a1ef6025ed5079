"""The checkpoints of a run: `Checkpoints` finds, reads, writes, keeps and deletes them. `checkpoints/STEP/` is one."""

from rove_jax.training.checkpoints.manager import RETRY, SETTLE, Checkpoints, say
from rove_jax.training.checkpoints.shelf import FOLDER
from rove_jax.training.checkpoints.stored import Damaged

__all__ = ["FOLDER", "RETRY", "SETTLE", "Checkpoints", "Damaged", "say"]
