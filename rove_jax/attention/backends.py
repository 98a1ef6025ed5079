"""Which attention backend serves a call, and why the others do not."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

import jax

from rove_jax.attention.call import Call, Target
from rove_jax.attention.chunked import chunked
from rove_jax.attention.dense import cudnn, cudnn_refusal, xla
from rove_jax.attention.splash import splash, splash_refusal
from rove_jax.attention.visibility import Visibility
from rove_jax.config import Backend as Name
from rove_jax.config import Rotary
from rove_jax.errors import UsageError, nearest


def never(call: Call, target: Target) -> str:
    """The refusal of a backend that can serve every call."""
    return ""


class Backend(NamedTuple):
    """`attend(query, key, value, visibility, scale)`, and the calls it refuses."""

    attend: Callable[..., jax.Array]
    platform: str | None = None
    """The one platform it exists for; None: all."""
    refusal: Callable[[Call, Target], str] = never
    """Why it cannot serve a call on its platform, in words, or an empty string."""
    turns: bool = False
    """Whether it turns by index itself: `attend` then takes, last, the rotation of queries and keys and that of values
    and outputs (or None)."""


# In the order in which `auto` asks them.
BACKENDS: dict[str, Backend] = {
    "splash": Backend(splash, "tpu", splash_refusal, turns=True),
    "cudnn": Backend(cudnn, "gpu", cudnn_refusal),
    "xla": Backend(xla),
    "chunked": Backend(chunked),
}

HARDWARE = {"gpu": "an NVIDIA GPU", "tpu": "a TPU"}

SCORES_LIMIT = 2**28
"""Bytes of float32 scores [B, N, T, S] in one call up to which `auto` forms them whole."""

SCORES_LIMIT_CPU = 2**20
"""The same on a CPU, where blocks that stay in its cache are faster as well: twice, forward and backward, at 1,024."""


@dataclass(frozen=True)
class Choice:
    """A backend, why it was chosen, and why each other one was not."""

    backend: str
    reason: str
    refused: dict[str, str]

    def __str__(self) -> str:
        others = "; ".join(f"not {name}: {why}" for name, why in self.refused.items())
        return f"{self.backend} ({self.reason}; {others})"


def resolve(requested: str, call: Call, target: Target) -> Choice:
    """The backend for `call` on `target`.

    `requested` is a backend's name, which serves or raises `UsageError` with the reason, or "auto": the fused kernel of
    the platform where it can serve, else xla while the scores are few (SCORES_LIMIT), else chunked.
    """
    check_name(requested)
    if requested != "auto":
        cannot = refusal(requested, call, target)
        if cannot:
            able = ["auto", *(name for name in BACKENDS if not refusal(name, call, target))]
            raise UsageError(f"attention = {requested!r}: {cannot}; use {', '.join(able[:-1])} or {able[-1]}")
        return Choice(requested, "asked for by name", {n: "another was asked for" for n in BACKENDS if n != requested})
    limit = SCORES_LIMIT_CPU if target.platform == "cpu" else SCORES_LIMIT
    fits = "within" if call.scores <= limit else "above"
    size = f"scores of one call take {call.scores / 2**20:.1f} MiB, {fits} {limit >> 20} MiB"
    cannot = {name: refusal(name, call, target) for name in BACKENDS}
    if call.scores > limit:
        cannot["xla"] = size
    chosen = next(name for name, reason in cannot.items() if not reason)
    kernel = BACKENDS[chosen].platform is not None
    slower = "slower than the fused kernel" if kernel else "slower while the scores are few"
    refused = {name: reason or slower for name, reason in cannot.items() if name != chosen}
    return Choice(chosen, "fused kernel that can serve this call" if kernel else size, refused)


def check_name(requested: str) -> None:
    """Raise `UsageError` unless there is such a backend, or it is "auto"."""
    if requested not in get_args(Name):
        raise UsageError(f"attention = {requested!r}: no such backend{nearest(str(requested), BACKENDS)}")


def refusal(name: str, call: Call, target: Target) -> str:
    """Why backend `name` cannot serve, or an empty string."""
    backend = BACKENDS[name]
    if backend.platform not in (None, target.platform):
        place = (
            f"the mesh is on {target.platform}" if target.platform != "unknown" else "the platform is not known here"
        )
        return f"needs {HARDWARE[backend.platform]}, {place}"
    return backend.refusal(call, target)


def choose(requested: str, call: Call, target: Target) -> Backend:
    """The backend that serves a call being traced or run, by the rules of `resolve`.

    A trainer has resolved "auto" beforehand, knowing the devices of its mesh. Under a bare `jax.jit` the platform is
    not known: "auto" then stays with what runs everywhere. A name is checked against all that is known.
    """
    check_name(requested)
    if requested != "auto":
        unknown = target.platform == "unknown"
        platform = (BACKENDS[requested].platform if unknown else None) or target.platform
        target = Target(platform, math.inf if target.capability is None else target.capability)
    return BACKENDS[resolve(requested, call, target).backend]


def varying_alike(arrays: Any) -> Any:
    """The arrays of a pytree, each said to vary over all mesh axes that one of them varies over.

    Inside a caller's `jax.shard_map`, queries may be spread over more axes than keys; what a loop carries may not
    change that. The gradient of an array so spread is summed over those axes again.
    """
    leaves = jax.tree.leaves(arrays)
    over = [jax.typeof(leaf).manual_axis_type.varying for leaf in leaves]
    every = frozenset().union(*over)
    spread = [
        jax.lax.pcast(leaf, tuple(every - own), to="varying") if every - own else leaf
        for leaf, own in zip(leaves, over, strict=True)
    ]
    return jax.tree.unflatten(jax.tree.structure(arrays), spread)


def serve(
    backend: Backend,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    visibility: Visibility,
    scale: float,
    turns: tuple[Rotary | None, Rotary | None] = (None, None),
) -> jax.Array:
    """Attention [B, T, N, H]; float32 arrays in float32, whatever the platform's default precision.

    `turns`: the rotations of queries and keys, and of values and outputs, that a backend with `turns` is to apply.
    """
    query, key, value, visibility = varying_alike((query, key, value, visibility))
    with jax.default_matmul_precision("highest") if query.dtype == "float32" else nullcontext():
        return backend.attend(query, key, value, visibility, scale, *(turns if backend.turns else ()))
