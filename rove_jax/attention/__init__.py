"""Rotary attention: `rotary_attention`, its module and Flax adapter, its backends and which of them serves."""

from rove_jax.attention.backends import BACKENDS, Call, Choice, resolve
from rove_jax.attention.flax_adapter import attention_fn
from rove_jax.attention.module import RotaryAttention
from rove_jax.attention.rotary_attention import Store, cached_attention, rotary_attention

__all__ = [
    "BACKENDS",
    "Call",
    "Choice",
    "RotaryAttention",
    "Store",
    "attention_fn",
    "cached_attention",
    "resolve",
    "rotary_attention",
]
