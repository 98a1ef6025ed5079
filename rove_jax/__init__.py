"""Language models whose attention is position-relative by rotation: RoPE on queries and keys, RoVE on values too.

Names below are loaded when first used, so that `import rove_jax` costs nothing and touches no device.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

HOMES = {
    "Config": "config",
    "Rotary": "config",
    "RotaryAttention": "attention",
    "RunError": "errors",
    "Scaling": "config",
    "Store": "attention",
    "UsageError": "errors",
    "attention_fn": "attention",
    "cached_attention": "attention",
    "load_model": "zoo",
    "reposition": "attention",
    "retable": "attention",
    "rotary_attention": "attention",
    "rotate": "rotary",
}
"""Name exposed here: module it lives in."""

__all__ = [*HOMES, "__version__"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'rove_jax' has no attribute {name!r}")
    return getattr(importlib.import_module(f"rove_jax.{HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *HOMES})
