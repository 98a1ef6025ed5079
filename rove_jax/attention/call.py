"""What decides on an attention backend: the call, and the hardware it is for."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from rove_jax.attention.visibility import Visibility
from rove_jax.errors import UsageError, require

PLATFORMS = ("cpu", "gpu", "tpu", "unknown")

_interpreted: ContextVar[bool] = ContextVar("interpreted", default=False)


@dataclass(frozen=True)
class Call:
    """Shapes, dtype and features of one attention call, on one device."""

    batch: int
    queries: int
    keys: int
    query_heads: int
    kv_heads: int
    head_dim: int
    dtype: str
    causal: bool = True
    window: int | None = None
    aligned: bool = True
    """Index order is position order, with steps of one inside every segment, the same for queries and keys."""
    segments: bool = False
    mask: bool = False
    """A mask of the caller's own."""

    def __post_init__(self) -> None:
        sizes = {name: getattr(self, name) for name in ("batch", "queries", "keys", "query_heads", "head_dim")}
        for name, size in sizes.items():
            require(size >= 0, f"call.{name}", size, "must be at least 0")
        even = not self.aligned or self.queries == self.keys
        require(even, "call.aligned", self.aligned, f"{self.queries} queries and {self.keys} keys are not; set False")
        heads = f"must divide query_heads = {self.query_heads}"
        require(self.kv_heads >= 1 and self.query_heads % self.kv_heads == 0, "call.kv_heads", self.kv_heads, heads)

    @staticmethod
    def of(query: jax.Array, key: jax.Array, visibility: Visibility) -> "Call":
        """The call of query [B, T, N, H] on key [B, S, K, H]."""
        batch, queries, heads, head_dim = query.shape
        return Call(
            *(batch, queries, key.shape[1], heads, key.shape[2], head_dim, jnp.dtype(query.dtype).name),
            causal=visibility.causal,
            window=visibility.window,
            # A kernel takes one array of segments, for queries and keys alike.
            aligned=visibility.aligned and visibility.query_segments is visibility.key_segments,
            segments=visibility.query_segments is not None,
            mask=visibility.given is not None,
        )

    @property
    def scores(self) -> int:
        """Bytes of float32 scores [B, N, T, S]."""
        return 4 * self.batch * self.query_heads * self.queries * self.keys


@dataclass(frozen=True)
class Target:
    """The hardware a call is compiled for."""

    platform: str
    """"cpu", "gpu" or "tpu"; "unknown" in a traced call outside `jax.set_mesh`."""
    capability: float | None = None
    """Compute capability of an NVIDIA GPU, where known."""

    def __post_init__(self) -> None:
        require(self.platform in PLATFORMS, "target.platform", self.platform, f"must be one of {', '.join(PLATFORMS)}")
        number = self.capability is None or isinstance(self.capability, int | float)
        require(number, "target.capability", self.capability, "must be a number, such as 9.0")

    @staticmethod
    def device(device: Any) -> "Target":
        """That of a `jax.Device`."""
        capability = getattr(device, "compute_capability", None)  # devices that have no such notion lack the attribute
        return Target("tpu" if _interpreted.get() else device.platform, float(capability) if capability else None)

    @staticmethod
    def here(x: jax.Array) -> "Target":
        """Where a call with `x` will run: by the mesh of `jax.set_mesh`, else by the device of `x`, unless traced."""
        mesh = jax.sharding.get_abstract_mesh()
        if _interpreted.get():
            return Target("tpu")
        if not mesh.empty and mesh.abstract_device is not None:
            return Target(mesh.abstract_device.platform)
        return Target("unknown") if isinstance(x, Tracer) else Target.device(next(iter(jnp.asarray(x).devices())))


@contextmanager
def interpret() -> Iterator[None]:
    """Within this context TPU kernels are interpreted, on any platform: slow, and for tests.

    Backends are chosen as on a TPU. What was compiled before by an enclosing `jax.jit` keeps its backend.
    """
    token = _interpreted.set(True)
    try:
        yield
    finally:
        _interpreted.reset(token)


def first_order(rule: Callable, static: int) -> Callable:
    """A forward or backward rule, whose argument number `static` is not traced, that refuses to be differentiated:
    kernels and loops have no derivatives of their own, and JAX would say nothing of what that means."""

    def differentiated(static: Any, primals: Any, tangents: Any) -> Any:
        raise UsageError("attention: this backend has first derivatives only; use backend='xla' for second ones")

    wrapped = jax.custom_jvp(rule, nondiff_argnums=(static,))
    wrapped.defjvp(differentiated)
    return wrapped


def interpreted() -> bool:
    """Whether `interpret` is in force."""
    return _interpreted.get()
