"""Rotary attention: `rotary_attention`, its module and Flax adapter, its backends and which of them serves."""

from rove_jax.attention.backends import BACKENDS, Choice, resolve
from rove_jax.attention.cache import Store, cached_attention
from rove_jax.attention.call import Call, Target, interpret
from rove_jax.attention.flax_adapter import attention_fn
from rove_jax.attention.module import RotaryAttention
from rove_jax.attention.reposition import joined, keep, reposition, retable
from rove_jax.attention.rotary_attention import rotary_attention

__all__ = [
    "BACKENDS",
    "Call",
    "Choice",
    "RotaryAttention",
    "Store",
    "Target",
    "attention_fn",
    "cached_attention",
    "interpret",
    "joined",
    "keep",
    "reposition",
    "resolve",
    "retable",
    "rotary_attention",
]
