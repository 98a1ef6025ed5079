"""Runs for tests of the adapter to lm_eval: random weights, and a tokenizer whose tokens span words."""

from pathlib import Path
from typing import Any

import numpy as np
from reference.weights import random_params

from rove_jax import config, sharding
from rove_jax.data import tokenizers
from rove_jax.evaluation import runs
from rove_jax.evaluation.engine import Engine
from rove_jax.evaluation.harness.adapter import Adapter
from rove_jax.training.run_folder import Origin

PIECES = ["Answer", " the", " union", "people", "nion", "ess", " of", "  ", "ate", "ing", "at"]
FIRST = 245
"""From here to 255 no byte occurs in UTF-8; there is a piece for each."""


class Merging(tokenizers.ByteTokenizer):
    """Bytes, end-of-text, and the longest of `PIECES` wherever one stands."""

    name = "merging"
    identity = "0" * 64

    def encode(self, text: str) -> np.ndarray:
        ids, at = [], 0
        data = text.encode("utf-8", "replace")
        longest = sorted(PIECES, key=len, reverse=True)
        while at < len(data):
            piece = next((piece for piece in longest if data.startswith(piece.encode(), at)), None)
            ids.append(data[at] if piece is None else FIRST + PIECES.index(piece))
            at += 1 if piece is None else len(piece)
        return np.array(ids, np.int32)

    def decode_bytes(self, ids) -> bytes:
        return b"".join(PIECES[id - FIRST].encode() if id >= FIRST else bytes([id]) for id in ids if id != self.eot)


MODEL = config.Model(
    layers=1,
    width=32,
    query_heads=2,
    kv_heads=2,
    head_dim=16,
    mlp_width=64,
    variant="rove",
    vocab=257,
    vocab_multiple=64,
)


def run(params: Any = None, **data: Any) -> runs.Run:
    """A run of `MODEL` that no folder holds, trained on windows of 64 tokens."""
    cfg = config.Config(model=MODEL, data=config.Data(source="files", path="none", context_length=64, **data))
    params = random_params(MODEL, seed=3) if params is None else params
    return runs.Run(Path("made") / "up", cfg, params, 7, Merging(), Origin("data", "tokenizer"))


class Kept:
    """What lm_eval's cache is told."""

    def __init__(self) -> None:
        self.parts: list[tuple[str, Any, Any]] = []

    def add_partial(self, kind: str, args: Any, result: Any) -> None:
        self.parts.append((kind, args, result))


class Plain(Adapter):
    """The adapter without lm_eval's part."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.cache_hook = Kept()
        one = sharding.make_mesh(config.Mesh(data=1))  # programs for eight devices take longer to compile
        self.engine = Engine(self.run.config.model, self.run.params, batch_size=self.batch_size, mesh=one)
