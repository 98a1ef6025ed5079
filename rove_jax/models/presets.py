"""Named model sizes."""

import dataclasses
from typing import Any

from rove_jax.config import Model
from rove_jax.errors import UsageError, nearest

PRESETS = {
    # 0.8M parameters, for a CPU in minutes. Heads of 64, as in the paper.
    "tiny": Model(layers=4, width=128, query_heads=2, kv_heads=2, head_dim=64, mlp_width=512),
    # The paper's 124M (arXiv 2606.11275): GPT-2 small without learned positions, 123.65M with biases.
    "gpt2-small": Model(layers=12, width=768, query_heads=12, kv_heads=12, head_dim=64, mlp_width=3072),
    # The paper's 354M: GPT-2 medium likewise, 353.77M with biases.
    "gpt2-medium": Model(layers=24, width=1024, query_heads=16, kv_heads=16, head_dim=64, mlp_width=4096),
}
GPT2_VOCAB = {"vocab": 50_257, "vocab_multiple": 128, "dtype": "bfloat16", "scan_layers": True}


def preset(name: str, **overrides: Any) -> Model:
    """The `Model` called `name` with some fields replaced."""
    if name not in PRESETS:
        raise UsageError(f"preset = {name!r}: must be one of {', '.join(PRESETS)}{nearest(name, PRESETS)}")
    defaults = {} if name == "tiny" else GPT2_VOCAB
    return dataclasses.replace(PRESETS[name], **{**defaults, **overrides})
