"""Letters of a string by their index: a puzzle that takes exact positions, learnt in minutes.

    python -m train --config configs/substring_rove.py --workdir runs/substring_rove
    python -m train --config configs/substring_rope.py --workdir runs/substring_rope
    python -m eval puzzles --workdir runs/substring_rove

Two files, alike but for `VARIANT`. A document is a string of 3 to 16 letters and eight questions, `[kqzvbt]2=zvb`, and
does not see the others of its window. Hardware: two CPU cores. Tokens: 9.2M. Time: two and a half minutes of computing.

Measured (Python 3.11, jax 0.10.2, one seed, 400 puzzles each), share of right answers at strings of 4 / 8 / 12 / 16
letters, and of 24 / 32, which are beyond training: rove 0.46 / 0.26 / 0.54 / 0.44, and 0.14 / 0.09; rope 0.18 / 0.15 /
0.18 / 0.15, and 0.04 / 0.01. Validation loss 1.397 and 1.667. Neither has learnt all it could in so few steps.
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
