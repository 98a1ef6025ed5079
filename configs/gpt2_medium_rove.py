"""The paper's 354M models (arXiv 2606.11275): 24 layers, 16 heads of 64, 1024 channels, one epoch of FineWeb-Edu 10B.

    rove-prepare fineweb-edu --tokenizer gpt2 --window 1025 --out DATA
    python -m train --config configs/gpt2_medium_rove.py --data.prepared DATA --workdir runs/gpt2_medium_rove
    python -m train --config configs/gpt2_medium_rope.py --data.prepared DATA --workdir runs/gpt2_medium_rope
    python -m eval compare --workdirs runs/gpt2_medium_rope runs/gpt2_medium_rove --out report

Two files, alike but for `VARIANT`: with "rope" queries and keys are rotated, with "rove" values and outputs too.

Hardware: not run here. `configs/README.md` says what a run takes on v5e-256, v5p with 64 chips and 8 x H100, and how to
lay it out there; for others ask `python -m train plan --config configs/gpt2_medium_rove.py --topology v5e:8x8`.
Tokens: 512 x 1024 = 524,288 a step, 19,073 steps, 10.0B: once through the corpus.

The paper states: FineWeb-Edu 10B, context 1024, head size 64 and rotation of whole heads with base 10000, 354M
parameters, all but the rotation alike. Assumed, since it does not say (as in public reproductions of GPT-2 on this
corpus): GPT-2's 24 x 1024 with biases, tied embeddings, no learned positions, GPT-2's tokenizer; AdamW 0.9, 0.95,
1e-8, weight decay 0.1 on matrices, clipping at 1; peak rate 3e-4 after 715 steps, then a cosine to a tenth of it; the
batch; bfloat16.

Expected (theirs, from one second-hand digest of the tables, not checked against the paper; no seeds are known):

                        Core    perplexity at 512   1024    2048    4096     8192    16384
    354M  rope          0.1664                17.68  15.64  293.24  840.10  1412.76  1630.72
    354M  rope + YaRN                                        16.05   48.61   154.61   270.98
    354M  rove          0.1856                17.52  15.52  133.68  311.38   458.15   583.84
    354M  rove + YaRN                                        15.78   18.40    35.95   124.82
    RULER at 4k, nats per token of the answer: CWE, NIAH, QA, VT
    354M  rope + YaRN   4.31  7.61  6.40  4.53
    354M  rove + YaRN   4.39  3.63  5.61  2.11

In distribution the two may differ by less than seeds do; beyond it ratios carry over, levels do not.
"""

from rove_jax.config import Config, Data, Model, Optimizer, Training

VARIANT = "rove"


def config() -> Config:
    return Config(
        model=Model(
            variant=VARIANT,
            layers=24,
            width=1024,
            query_heads=16,
            kv_heads=16,
            head_dim=64,
            mlp_width=4096,
            vocab=50_257,
            vocab_multiple=128,
            dtype="bfloat16",
            scan_layers=True,
        ),
        data=Data(source="fineweb-edu", tokenizer="gpt2", context_length=1024),
        optimizer=Optimizer(peak_lr=3e-4, final_lr_fraction=0.1, warmup_steps=715),
        training=Training(
            steps=19_073,
            batch_size=512,
            validation_every=250,
            validation_tokens=1_048_576,
            checkpoint_every=1000,
        ),
    )
