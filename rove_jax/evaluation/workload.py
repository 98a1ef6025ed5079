"""What the speed of models is measured on: a preset as it would be trained, and the programs that are run of it."""

from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from rove_jax import attention, config, sharding
from rove_jax.config.run import VOCABULARIES
from rove_jax.errors import require
from rove_jax.models import functional
from rove_jax.models.presets import preset

PROGRAMS = ("train", "prefill", "decode")


@dataclass(frozen=True)
class Workload:
    """A preset, changed where asked, its batch and its mesh; for each of some variants and attention backends."""

    preset: str
    variants: tuple[str, ...] = ("rope", "rove")
    """The first is what the others are compared with."""
    backends: tuple[str, ...] = ("auto",)
    batch_size: int = 8
    """Rows, over all devices."""
    context_length: int = 1024
    dtype: str | None = None
    """Of activations and products. None: the preset's."""
    layers: int | None = None
    """None: the preset's."""
    scan_layers: bool = False
    """One compiled layer looped over, which compiles faster; or all of them unrolled, which runs faster."""
    mesh: config.Mesh = field(default_factory=config.Mesh)

    def __post_init__(self) -> None:
        for name in ("variants", "backends"):
            given = getattr(self, name)
            require(len(set(given)) == len(given) > 0, name, " ".join(given), "must be one or more, each once")
        require(self.batch_size >= 1, "batch_size", self.batch_size, "must be at least 1")
        require(self.context_length >= 2, "context_length", self.context_length, "must be at least 2")
        require(self.layers is None or self.layers >= 1, "layers", self.layers, "must be at least 1")
        for variant in self.variants:
            for backend in self.backends:
                self.settings(variant, backend)

    def settings(self, variant: str, backend: str) -> config.Config:
        """The run whose update is a training step here. Raises `UsageError` for names that do not exist."""
        asked = {"variant": variant, "attention": backend, "dtype": self.dtype, "layers": self.layers}
        given = {name: value for name, value in asked.items() if value is not None}
        model = preset(self.preset, **given, scan_layers=self.scan_layers)
        return config.Config(
            model=model,
            data=config.Data(
                tokenizer="gpt2" if model.vocab == VOCABULARIES["gpt2"] else "bytes",
                context_length=self.context_length,
            ),
            training=config.Training(batch_size=self.batch_size),
            mesh=self.mesh,
        )


def cached_model(
    model: config.Model, rows: int, queries: int, slots: int, mesh: jax.sharding.Mesh
) -> tuple[config.Model, attention.Choice]:
    """The model with the backend that serves `queries` new tokens over a cache of `slots`, and how it was chosen."""
    heads = (model.query_heads // mesh.shape["tensor"], model.kv_heads // mesh.shape["tensor"], model.head_dim)
    sizes = (rows // sharding.batch_ways(mesh), queries, slots, *heads)
    call = attention.Call(*sizes, model.dtype, window=model.window, aligned=False, segments=True)
    choice = attention.resolve(model.attention, call, attention.Target.device(mesh.devices.flat[0]))
    return replace(model, attention=choice.backend), choice


def extend(
    model: config.Model, params: functional.Params, cache: attention.Store, tokens_bt: jax.Array
) -> tuple[jax.Array, attention.Store]:
    """(float32 logits [B, V] of the last token, the cache with int32 tokens [B, T] appended)."""
    positions = cache.length + jnp.arange(tokens_bt.shape[1], dtype=jnp.int32)
    out = functional.apply(
        model, params, tokens_bt, positions=positions, segments=jnp.ones_like(tokens_bt), cache=cache
    )
    assert out.cache is not None
    return functional.unembed(model, params, out.hidden[:, -1]), out.cache


def prefill(model: config.Model, params: functional.Params, tokens_bt: jax.Array) -> tuple[jax.Array, attention.Store]:
    """`extend` of a new cache that the tokens fill."""
    return extend(model, params, functional.init_cache(model, tokens_bt.shape[0], tokens_bt.shape[1]), tokens_bt)


def filled(model: config.Model, rows: int, slots: int, tokens: int) -> attention.Store:
    """A cache in which `tokens` of the slots are written, with zeros: what stands in them costs nothing."""
    slot = jnp.arange(slots, dtype=jnp.int32)
    place, there = (jnp.broadcast_to(x, (rows, slots)) for x in (slot, (slot < tokens).astype(jnp.int32)))
    return replace(functional.init_cache(model, rows, slots), positions=place, segments=there, length=jnp.int32(tokens))


def cache_shardings(cache: attention.Store, mesh: jax.sharding.Mesh) -> attention.Store:
    """Where a cache of all layers lies: rows like those of a batch, heads like the parameters that make them."""
    by_rank = {
        0: PartitionSpec(),
        1: PartitionSpec(sharding.BATCH),
        2: PartitionSpec(sharding.BATCH),
        5: PartitionSpec(None, sharding.BATCH, None, sharding.RULES["kv_heads"]),
    }
    return jax.tree.map(lambda leaf: NamedSharding(mesh, by_rank[leaf.ndim]), cache)
