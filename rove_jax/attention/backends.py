"""Which attention backend serves a call, and why the others do not."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import get_args

import jax
import jax.numpy as jnp
from jax.core import Tracer

from rove_jax.attention.chunked import chunked
from rove_jax.attention.dense import cudnn, xla
from rove_jax.attention.visibility import Visibility
from rove_jax.config import Backend
from rove_jax.errors import UsageError, nearest

BACKENDS: dict[str, Callable[..., jax.Array]] = {"xla": xla, "cudnn": cudnn, "chunked": chunked}

SCORES_LIMIT = 2**28
"""Bytes of float32 scores [B, N, T, S] in one call up to which `auto` forms them whole."""


@dataclass(frozen=True)
class Call:
    """What decides on a backend: shapes, dtype and features of one attention call, on one device."""

    batch: int
    queries: int
    keys: int
    query_heads: int
    head_dim: int
    dtype: str
    fused: bool = True
    """Causality and window, by index, are all there is to mask."""


@dataclass(frozen=True)
class Choice:
    """A backend, why it was chosen, and why each other one was not."""

    backend: str
    reason: str
    refused: dict[str, str]

    def __str__(self) -> str:
        others = "; ".join(f"not {name}: {why}" for name, why in self.refused.items())
        return f"{self.backend} ({self.reason}; {others})"


def resolve(requested: str, call: Call, *, platform: str, capability: float | None = None) -> Choice:
    """The backend for `call` on `platform` ("cpu", "gpu" or "tpu", the platform of the mesh's devices).

    `requested` is a backend's name, which serves or raises `UsageError` with the reason, or "auto": cudnn where it can
    serve, else xla while the scores fit in SCORES_LIMIT bytes, else chunked.
    """
    if requested not in get_args(Backend):
        raise UsageError(f"attention = {requested!r}: no such backend{nearest(requested, BACKENDS)}")
    scores = 4 * call.batch * call.query_heads * call.queries * call.keys
    fits = "within" if scores <= SCORES_LIMIT else "above"
    size = f"scores of one call take {scores / 2**20:.0f} MiB, {fits} {SCORES_LIMIT >> 20} MiB"
    cannot = cudnn_refusal(call, platform, capability)
    if requested == "cudnn" and cannot:
        raise UsageError(f"attention = 'cudnn': {cannot}; use auto, xla or chunked")
    if requested != "auto":
        return Choice(requested, "asked for by name", {n: "another was asked for" for n in BACKENDS if n != requested})
    if not cannot:
        return Choice(
            "cudnn", "fused kernel that can serve this call", {n: "slower than cudnn" for n in ("xla", "chunked")}
        )
    if scores <= SCORES_LIMIT:
        return Choice("xla", size, {"cudnn": cannot, "chunked": "saves memory that is not short"})
    return Choice("chunked", size, {"cudnn": cannot, "xla": size})


def cudnn_refusal(call: Call, platform: str, capability: float | None) -> str:
    """Why cuDNN cannot serve, or an empty string."""
    largest = 256 if (capability or 0.0) >= 9.0 else 128
    if platform != "gpu":
        return f"needs an NVIDIA GPU, the mesh is on {platform}"
    if capability is not None and capability < 8.0:
        return f"needs compute capability 8.0, the device has {capability}"
    if call.dtype not in ("bfloat16", "float16"):
        return f"takes bfloat16 or float16, not {call.dtype}"
    if call.head_dim % 8 or call.head_dim > largest:
        return f"head_dim must be a multiple of 8 up to {largest}, not {call.head_dim}"
    if not call.fused:
        return "takes no mask by positions, by segments or of the caller's own"
    return ""


def serve(
    backend: str, query: jax.Array, key: jax.Array, value: jax.Array, visibility: Visibility, scale: float
) -> jax.Array:
    """Attention [B, T, N, H] by `backend`; float32 arrays in float32, whatever the platform's default precision.

    "auto" is for direct calls and stays with what runs on every platform; a trainer resolves it beforehand, knowing
    the mesh. Traced arrays do not know their platform, so a name is then checked against everything else.
    """
    batch, queries, heads, head_dim = query.shape
    call = Call(batch, queries, key.shape[1], heads, head_dim, jnp.dtype(query.dtype).name, visibility.fused)
    platform, capability = "gpu" if backend == "cudnn" else "unknown", None
    if backend != "auto" and not isinstance(query, Tracer):
        device = next(iter(jnp.asarray(query).devices()))
        platform, capability = device.platform, getattr(device, "compute_capability", None)
    chosen = resolve(backend, call, platform=platform, capability=float(capability) if capability else None).backend
    with jax.default_matmul_precision("highest") if call.dtype == "float32" else nullcontext():
        return BACKENDS[chosen](query, key, value, visibility, scale)
