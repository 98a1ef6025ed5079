"""The table of backends and features in the README, from the resolver: `python -m rove_jax.attention.table`."""

import os
import sys
from dataclasses import replace

from rove_jax.attention.backends import BACKENDS, HARDWARE, refusal
from rove_jax.attention.call import Call, Target

PLAIN = Call(8, 1024, 1024, 12, 12, 64, "bfloat16")

FEATURES: dict[str, tuple[Call, float]] = {
    "bfloat16, causal": (PLAIN, 9.0),
    "float16": (replace(PLAIN, dtype="float16"), 9.0),
    "float32": (replace(PLAIN, dtype="float32"), 9.0),
    "not causal": (replace(PLAIN, causal=False), 9.0),
    "sliding window": (replace(PLAIN, window=256), 9.0),
    "sliding window, not causal": (replace(PLAIN, window=256, causal=False), 9.0),
    "grouped key heads": (replace(PLAIN, kv_heads=3), 9.0),
    "heads of 36": (replace(PLAIN, head_dim=36), 9.0),
    "heads of 80": (replace(PLAIN, head_dim=80), 9.0),
    "heads of 128": (replace(PLAIN, head_dim=128), 9.0),
    "heads of 256": (replace(PLAIN, head_dim=256), 9.0),
    "heads of 256, NVIDIA before 9.0": (replace(PLAIN, head_dim=256), 8.0),
    "NVIDIA before 8.0": (PLAIN, 7.5),
    "odd length": (replace(PLAIN, queries=1023, keys=1023), 9.0),
    "packed documents, branches of a tree, padding": (replace(PLAIN, segments=True), 9.0),
    "positions of any order; a cache": (replace(PLAIN, queries=1, aligned=False, segments=True), 9.0),
    "a mask of the caller's own": (replace(PLAIN, mask=True), 9.0),
}
"""What a call may need -> such a call, and the compute capability of the NVIDIA GPU it is asked of."""


def rows() -> list[list[str]]:
    """One row a feature: its name, then "yes" or the reason against it of each backend on its own platform."""
    return [
        [
            feature,
            *(
                refusal(name, call, Target(row.platform or "cpu", capability)) or "yes"
                for name, row in BACKENDS.items()
            ),
        ]
        for feature, (call, capability) in FEATURES.items()
    ]


def markdown() -> str:
    """The table, platforms first."""
    lines = [
        ["", *BACKENDS],
        ["---"] * (len(BACKENDS) + 1),
        ["platform", *("any" if row.platform is None else HARDWARE[row.platform] for row in BACKENDS.values())],
        *rows(),
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    try:
        print(markdown(), flush=True)
    except BrokenPipeError:  # whoever reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
