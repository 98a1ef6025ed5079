"""Parameters that make a model say something, drawn with NumPy: no compilation, the same on every version of JAX."""

import jax
import numpy as np

from rove_jax.config import Model
from rove_jax.models import functional


def random_params(cfg: Model, seed: int, scale: float = 0.3) -> dict:
    """Every parameter of `cfg`, norm scales and biases included, from N(0, scale)."""
    draw = np.random.RandomState(seed)
    return jax.tree.map(
        lambda leaf: (scale * draw.standard_normal(leaf.shape)).astype(np.float32), functional.abstract(cfg)
    )
