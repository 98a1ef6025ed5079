"""Tokens per second of the train step, of prefill and of decoding, variants side by side in one process.

Every program is compiled first. Then they are run in turns, round after round, in an order that is reversed every other
round, so that what changes slowly on a machine meets all of them alike; a ratio is of two times of the same round.
"""

import dataclasses
import functools
import math
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from rove_jax import attention, config, sharding
from rove_jax.evaluation import workload
from rove_jax.evaluation.workload import Workload
from rove_jax.models import accounting
from rove_jax.training import setup as setups
from rove_jax.training import state
from rove_jax.training.step import compile_update

SECONDS = 0.2
"""A measurement calls a program as often as it takes to fill this time, so that starting and waiting weigh little."""

CALLS = 100
"""At most."""

PRODUCT = {"cpu": 2048}
"""Sizes n of the product of two n x n matrices whose rate is measured."""

FILLED = (0.25, 0.5, 0.75)
"""How full the cache is when decoding is measured."""


@dataclasses.dataclass(eq=False)
class Program:
    """One compiled program and what it works on."""

    name: str
    """train, prefill, decode or product."""
    call: Callable[[], Any]
    """Starts it once and returns what to wait for."""
    flops: float
    """Model FLOPs of a call, on all devices; of `product`, all there are."""
    tokens: int = 0
    """That a call reads."""
    variant: str = ""
    backend: str = ""
    """As asked for."""
    choice: attention.Choice | None = None
    filled: int | None = None
    """decode: tokens in the cache to begin with."""
    compile_seconds: float = 0.0
    memory: dict[str, int] | None = None
    """Of one device, as the compiler says."""
    ready: Callable[[], Any] = lambda: None
    """Puts in place what a measurement uses up; not timed."""
    limit: int = CALLS
    """How often it may be called in one measurement."""


class Shared:
    """What the programs hand on to each other: one training state, which each update replaces, and tokens."""

    def __init__(self, setup: setups.Setup) -> None:
        self.state = state.create(setup.settings, setup.optimizer, setup.target)
        shape = (setup.settings.training.batch_size, setup.settings.data.context_length + 1)
        tokens_bt = np.random.RandomState(0).randint(0, setup.model.vocab, shape).astype(np.int32)
        self.tokens_bt = jax.device_put(tokens_bt, sharding.batch(setup.mesh))


def compile_all(asked: Workload, what: tuple[str, ...], advance: Callable[[], Any]) -> tuple[list[Program], Mesh]:
    """The programs `what` of every variant and backend, variants next to each other, and the mesh they are for.

    Backends that come to the same one, such as "auto" and what it chooses, share a program.

    `advance` is told of each one compiled.

    Raises `UsageError`, before the first is compiled, for a backend that cannot serve.
    """
    made = {
        (backend, variant): setups.make(asked.settings(variant, backend))
        for backend in asked.backends
        for variant in asked.variants
    }
    first = next(iter(made.values()))
    chosen = {(name, *key): cached(setup, name) for name in what for key, setup in made.items()}
    shared, programs = Shared(first), [product(first)]
    there: set[tuple[str, str, str]] = set()
    for (name, backend, variant), (model, choice) in chosen.items():
        if (name, variant, choice.backend) in there:  # "auto" beside what it comes to
            advance()
            continue
        there.add((name, variant, choice.backend))
        setup, build = made[backend, variant], {"train": train, "prefill": prefill, "decode": decode}[name]
        with jax.set_mesh(setup.mesh):
            found = build(setup, model, shared)
        for program in found:
            program.variant, program.backend, program.choice = variant, backend, choice
        programs += found
        advance()
    order = ("product", *what)
    return sorted(programs, key=lambda p: (order.index(p.name), p.filled or 0, p.backend)), first.mesh


def cached(setup: setups.Setup, name: str) -> tuple[config.Model, attention.Choice]:
    """The model as program `name` computes it, and how its backend was chosen."""
    if name == "train":
        return setup.model, setup.choice
    rows, slots = setup.settings.training.batch_size, setup.settings.data.context_length
    return workload.cached_model(setup.settings.model, rows, slots if name == "prefill" else 1, slots, setup.mesh)


def train(setup: setups.Setup, model: config.Model, shared: Shared) -> list[Program]:
    """The update of the trainer, as it is."""
    began = time.perf_counter()
    update = compile_update(setup.settings, model, model.vocab - 1, setup.optimizer, setup.target, setup.mesh)
    seconds = time.perf_counter() - began

    def call() -> Any:
        shared.state, numbers = update(shared.state, shared.tokens_bt)
        return shared.state, numbers

    tokens = setup.settings.training.batch_size * setup.settings.data.context_length
    flops = tokens * accounting.flops_per_token(model, setup.settings.data.context_length)
    return [Program("train", call, flops, tokens, compile_seconds=seconds, memory=memory(update))]


def prefill(setup: setups.Setup, model: config.Model, shared: Shared) -> list[Program]:
    """Prompts of the context length into a new cache, and the logits of their last tokens."""
    tokens_bt = shared.tokens_bt[:, :-1]
    began = time.perf_counter()
    run = jax.jit(functools.partial(workload.prefill, model)).lower(shared.state.params, tokens_bt).compile()
    seconds = time.perf_counter() - began
    flops = tokens_bt.shape[0] * accounting.forward_flops(model, tokens_bt.shape[1], logits=1)
    return [
        Program(
            *("prefill", lambda: run(shared.state.params, tokens_bt), flops, tokens_bt.size),
            compile_seconds=seconds,
            memory=memory(run),
        )
    ]


def decode(setup: setups.Setup, model: config.Model, shared: Shared) -> list[Program]:
    """One more token for each row, from caches that are a quarter, half and three quarters full to begin with."""
    rows, slots = setup.settings.training.batch_size, setup.settings.data.context_length
    make = functools.partial(workload.filled, model, rows, slots)
    placed = workload.cache_shardings(jax.eval_shape(lambda: make(0)), setup.mesh)
    fill = jax.jit(make, out_shardings=placed)
    tokens_b1 = shared.tokens_bt[:, :1]
    whole = sharding.batch(setup.mesh)
    began = time.perf_counter()
    step = jax.jit(functools.partial(workload.extend, model), donate_argnums=1, out_shardings=(whole, placed))
    run = step.lower(shared.state.params, fill(0), tokens_b1).compile()
    seconds = time.perf_counter() - began

    def at(tokens: int) -> Program:
        cache: Any = None

        def ready() -> None:
            nonlocal cache
            cache = jax.block_until_ready(fill(tokens))

        def call() -> Any:
            nonlocal cache
            logits, cache = run(shared.state.params, cache, tokens_b1)
            return logits, cache

        flops = rows * accounting.forward_flops(model, 1, before=tokens)
        limit = min(CALLS, slots // 4)
        return Program("decode", call, flops, rows, filled=tokens, ready=ready, limit=max(limit, 1))

    found = [at(int(slots * part)) for part in FILLED]
    for program in found:
        program.compile_seconds, program.memory = seconds, memory(run)
    return found


def product(setup: setups.Setup) -> Program:
    """On each device the product of two square matrices of the model's dtype, as precise as the model's own."""
    mesh, dtype = setup.mesh, setup.model.dtype
    size = PRODUCT.get(mesh.devices.flat[0].platform, 8192)
    shape, placed = (mesh.size, size, size), jax.sharding.NamedSharding(mesh, jax.P(sharding.MESH_AXES))
    left, right = (
        jax.jit(lambda key: jax.random.normal(key, shape, dtype), out_shardings=placed)(jax.random.key(seed))
        for seed in (0, 1)
    )
    precision = "highest" if dtype == "float32" else None
    run = jax.jit(functools.partial(jnp.matmul, precision=precision)).lower(left, right).compile()
    return Program("product", lambda: run(left, right), 2.0 * mesh.size * size**3)


def memory(compiled: Any) -> dict[str, int] | None:
    """Bytes that one device needs for a program: {"arguments", "outputs", "temporaries", "total"}, where outputs that
    take the place of arguments count once."""
    found = compiled.memory_analysis()
    if found is None:
        return None
    sizes = {
        "arguments": found.argument_size_in_bytes,
        "outputs": found.output_size_in_bytes - found.alias_size_in_bytes,
        "temporaries": found.temp_size_in_bytes,
    }
    return {**sizes, "total": sum(sizes.values())}


def measure(programs: list[Program], rounds: int, advance: Callable[[], Any]) -> dict[Program, list[float]]:
    """Seconds per call of each program in each round. See the module for the order; `advance` is told of each."""
    calls: dict[str, int] = {}
    for program in programs:
        timed(program, 1)  # what only a first call pays for
        seconds = timed(program, 1)
        often = max(1, min(program.limit, math.ceil(SECONDS / seconds)))
        calls[program.name] = min(often, calls.get(program.name, often))
        advance()
    found: dict[Program, list[float]] = {program: [] for program in programs}
    for turn in range(rounds):
        for program in programs if turn % 2 == 0 else reversed(programs):
            found[program].append(timed(program, calls[program.name]))
            advance()
    return found


def timed(program: Program, calls: int) -> float:
    """Mean seconds of a call, of so many one after another. Nothing is read back in between."""
    program.ready()
    began = time.perf_counter()
    for _ in range(calls):
        out = program.call()
    jax.block_until_ready(out)
    return (time.perf_counter() - began) / calls
