"""Sums of numbers of up to three digits: a puzzle that takes exact positions, learnt in minutes.

    python -m train --config configs/addition_rove.py --workdir runs/addition_rove
    python -m train --config configs/addition_rope.py --workdir runs/addition_rope
"""

from rove_jax.config import Config, Data, Model, Optimizer, Training

VARIANT = "rope"


def config() -> Config:
    return Config(
        model=Model(variant=VARIANT, layers=2, width=64, query_heads=2, kv_heads=2, head_dim=32, mlp_width=256),
        data=Data(source="addition", context_length=64, segments=True),
        optimizer=Optimizer(peak_lr=2e-3, warmup_steps=100),
        training=Training(steps=1500, batch_size=64),
    )
