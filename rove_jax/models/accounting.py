"""Parameters and floating-point operations of a model, in closed form."""

from rove_jax.config import Model


def parameter_count(cfg: Model, *, padded: bool = False) -> int:
    """Parameters, tied embedding once, over the vocabulary that exists (or, `padded`, as stored)."""
    bias = int(cfg.bias)
    query, kv = cfg.query_heads * cfg.head_dim, cfg.kv_heads * cfg.head_dim
    attention = cfg.width * (query + 2 * kv) + query * cfg.width + bias * (query + 2 * kv + cfg.width)
    mlp = 2 * cfg.width * cfg.mlp_width + bias * (cfg.mlp_width + cfg.width)
    norm = (1 + bias) * cfg.width
    vocab = cfg.padded_vocab if padded else cfg.vocab
    return vocab * cfg.width + cfg.layers * (attention + mlp + 2 * norm) + norm


def forward_flops(cfg: Model, new: int, *, before: int = 0, logits: int | None = None) -> float:
    """Model FLOPs of a forward pass over `new` tokens of one row that follow `before` others, logits at `logits` of
    them (None: at all).

    Two per multiply-add of each product with weights (unembedding over the vocabulary that exists included, embedding
    lookup not) and of scores and their product with values. Attention counts what the mask leaves: all earlier tokens
    and the token itself, fewer with a window. Rotations are not counted.
    """
    query, kv = cfg.query_heads * cfg.head_dim, cfg.kv_heads * cfg.head_dim
    weights = cfg.layers * (cfg.width * (2 * query + 2 * kv) + 2 * cfg.width * cfg.mlp_width)
    unembedding = cfg.vocab * cfg.width * (new if logits is None else logits)
    return 2.0 * (weights * new + unembedding) + attention_flops(cfg, new, before=before)


def attention_flops(cfg: Model, new: int, *, before: int = 0) -> float:
    """The part of `forward_flops` that is scores and their product with values, of all layers."""

    def seen(tokens: int) -> float:
        """Keys that the first `tokens` tokens see: 1, 2, ..., window, and window each from there on."""
        full = min(cfg.window or tokens, tokens)
        return full * (full + 1) / 2 + (tokens - full) * full

    keys = seen(before + new) - seen(before)
    return cfg.layers * 2.0 * 2.0 * cfg.query_heads * cfg.head_dim * keys


def flops_per_token(cfg: Model, context_length: int) -> float:
    """Model FLOPs of one training token: forward and backward, three times the forward, nothing recomputed.

    On average (T + 1) / 2 keys of a context of T are seen. See `forward_flops` for what is counted.
    """
    return 3.0 * forward_flops(cfg, context_length) / context_length


PEAKS = {
    # Google Cloud's TPU pages, for one chip; a v4 and a v5p chip is one device of JAX, a 7x chip is two.
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5": 459e12,
    "TPU v6 lite": 918e12,
    "TPU7x": 2307e12 / 2,
    # NVIDIA's data sheets, SXM, without sparsity.
    "NVIDIA A100": 312e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H200": 989e12,
    "NVIDIA B200": 2250e12,
}
"""Products of bfloat16 with float32 sums, FLOPs per second of a device, by what its kind begins with."""


def peak_flops(device_kind: str) -> float | None:
    """The data sheet's bfloat16 peak of a device of this kind, None where it is not known."""
    fitting = [name for name in PEAKS if device_kind.startswith(name)]
    return PEAKS[max(fitting, key=len)] if fitting and "PCIe" not in device_kind else None
