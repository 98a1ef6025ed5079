"""Sums of numbers of up to three digits: a puzzle that takes exact positions, learnt in minutes.

    python -m train --config configs/addition_rove.py --workdir runs/addition_rove
    python -m train --config configs/addition_rope.py --workdir runs/addition_rope
    python -m eval puzzles --workdir runs/addition_rove

Two files, alike but for `VARIANT`. A document is four sums, `[12+405=417]`, and does not see the others of its window.
Hardware: two CPU cores. Tokens: 6.1M. Time: two minutes of computing.

Measured (Python 3.11, jax 0.10.2, one seed, 400 sums each), share of right answers with numbers of up to 1 / 2 / 3
digits, and of up to 4, which is beyond training: rove 1.00 / 0.79 / 0.41, and 0.26; rope 1.00 / 0.68 / 0.32, and 0.22.
Validation loss 1.158 and 1.186. Neither has learnt all it could in so few steps.
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
