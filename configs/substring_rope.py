"""Letters of a string by their index: a puzzle that takes exact positions, learnt in minutes.

    python -m train --config configs/substring_rove.py --workdir runs/substring_rove
    python -m train --config configs/substring_rope.py --workdir runs/substring_rope
"""

from rove_jax.config import Config, Data, Model, Optimizer, Training

VARIANT = "rope"


def config() -> Config:
    return Config(
        model=Model(variant=VARIANT, layers=2, width=64, query_heads=2, kv_heads=2, head_dim=32, mlp_width=256),
        data=Data(source="substring", context_length=96, segments=True),
        optimizer=Optimizer(peak_lr=2e-3, warmup_steps=100),
        training=Training(steps=1500, batch_size=64),
    )
