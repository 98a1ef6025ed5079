"""What a compiled train step is made of, per device, and what one variant's has that another's has not."""

import math
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from rove_jax import sharding
from rove_jax.evaluation import rates, results
from rove_jax.evaluation.tables import table
from rove_jax.evaluation.workload import Workload
from rove_jax.planning import topology
from rove_jax.planning.costs import Costs
from rove_jax.planning.hlo import PALLAS, Module
from rove_jax.training import machine
from rove_jax.training import setup as setups
from rove_jax.training.step import compile_update

CONVENTION = (
    "Per device, as the compiler counts: FLOPs and bytes of a kernel are not among them unless it states them, and the "
    "body of a loop counts once, but for collectives, which count as often as it turns. Bytes moved are the compiler's "
    "bytes accessed, without what kernels state, plus the operands and results of each kernel call as they lie in "
    "memory, padding to tiles included."
)

ADDED = ("squares", "collectives", "transpositions", "transpositions_in_loops")


def run(asked: Workload, name: str, say: Callable[[str], None]) -> dict:
    """The result document of the train step of every variant and backend, compiled for the topology `name`.

    `say` is called with a line when a program is begun.
    """
    devices = topology.devices(name)
    made = [(setups.make(asked.settings(v, b), devices), v, b) for b in asked.backends for v in asked.variants]
    mesh = made[0][0].mesh
    provenance = {
        "device": devices[0].device_kind,
        "platform": devices[0].platform,
        "devices": mesh.size,
        "topology": name,
        "mesh": dict(mesh.shape),
        "compiler": topology.compiler(name),
        "commit": machine.commit(),
        **machine.compiler_flags(),
    }
    records: list[dict[str, Any]] = []
    for number, (setup, variant, backend) in enumerate(made, start=1):
        say(f"compiling {number} of {len(made)} for {name}: {variant}, attention {backend}")
        found = train_step(setup)
        of = {"variant": variant, "asked": backend, "backend": setup.choice.backend, "reason": setup.choice.reason}
        first = next((r for r in records if r["asked"] == backend), None)
        records.append({**of, "refused": setup.choice.refused, **found, "beside": first and beside(found, first)})
    return results.document("plan", provenance, {**vars(asked), "mesh": vars(asked.mesh)}, records)


def train_step(setup: setups.Setup) -> dict[str, Any]:
    """Compile the update of a run and say what came out. See `facts`."""
    cfg, model = setup.settings, setup.model
    began = time.perf_counter()
    compiled = compile_update(cfg, model, model.vocab - 1, setup.optimizer, setup.target, setup.mesh)
    seconds = time.perf_counter() - began
    rows = cfg.training.batch_size // cfg.training.accumulation // sharding.batch_ways(setup.mesh)
    heads = model.query_heads // setup.mesh.shape["tensor"]
    dims = (rows, cfg.data.context_length, heads, model.head_dim)
    return {"compile_seconds": seconds, **facts(compiled, dims)}


def facts(compiled: Any, dims: Sequence[int]) -> dict[str, Any]:
    """What one device of an executable computes and moves; None for what its compiler does not tell.

    `dims` are B, T, N, H of queries on a device. JSON values: "flops", "bytes_moved", "bytes_accessed" (the compiler's
    own count), "memory" in bytes, "kernels" (name to calls, bytes of operands and results, bytes stated), "collectives"
    (kind to count and bytes of a whole step), "squares" (arrays in memory with T twice), "transpositions" (in memory,
    of arrays with as many elements as [B, T, N, H], which the residual stream may have as well),
    "transpositions_in_loops" (those in scanned layers), "loops" (how often each turns).
    """
    module = Module(compiled.as_text())
    costs = compiled.cost_analysis() or {}
    accessed = costs.get("bytes accessed")
    kernels: dict[str, dict[str, int]] = {}
    for call in module.custom_calls():
        sums = kernels.setdefault(call.kernel, {"calls": 0, "bytes": 0, "stated_bytes": 0})
        sums["calls"] += 1
        if call.target == PALLAS:
            sums["bytes"] += module.traffic(call)
            sums["stated_bytes"] += call.stated_bytes
    moved = sum(k["bytes"] - k["stated_bytes"] for k in kernels.values())
    memory = compiled.memory_analysis()
    return {
        "flops": costs.get("flops"),
        "bytes_moved": None if accessed is None else accessed + moved,
        "bytes_accessed": accessed,
        "memory": {
            "arguments": memory.argument_size_in_bytes,
            "outputs": memory.output_size_in_bytes,
            "aliased": memory.alias_size_in_bytes,
            "temporaries": memory.temp_size_in_bytes,
        },
        "kernels": kernels,
        "collectives": Costs(module, tpu=True).collectives(),
        "squares": dict(module.squares(dims[1])),
        "transpositions": dict(module.transpositions(math.prod(dims))),
        "transpositions_in_loops": dict(module.transpositions(math.prod(dims), repeated=True)),
        "loops": module.loops(),
    }


def beside(ours: dict[str, Any], first: dict[str, Any]) -> dict[str, Any]:
    """A variant's facts against the first one's: ratios of flops, bytes moved and temporaries, and what it adds of
    what is in ADDED, each with how many more there are."""

    def ratio(mine: float | None, its: float | None) -> float | None:
        return mine / its if mine is not None and its else None

    def more(name: str) -> dict[str, int]:
        mine, its = (
            Counter({key: v["count"] if isinstance(v, dict) else v for key, v in facts[name].items()})
            for facts in (ours, first)
        )
        return dict(mine - its)

    return {
        "flops": ratio(ours["flops"], first["flops"]),
        "bytes_moved": ratio(ours["bytes_moved"], first["bytes_moved"]),
        "temporaries": ratio(ours["memory"]["temporaries"], first["memory"]["temporaries"]),
        "added": {name: more(name) for name in ADDED},
    }


WIDTH = 118
"""Columns of a terminal that text keeps to."""


def plan_text(document: dict) -> str:
    """Caption, table and convention of a result document."""
    caption, convention = (textwrap.fill(text, WIDTH) for text in (plan_caption(document), CONVENTION))
    return f"{caption}\n\n{plan_table(document)}\n\n{convention}"


def plan_table(document: dict) -> str:
    """A row per fact, a column per variant and backend; after a variant's number, its ratio to the first variant.
    Columns that do not fit beside each other come below."""
    records = document["results"]
    shown = records
    while len(shown) > 1 and len(facts_table(records, shown).partition("\n")[0]) > WIDTH:
        shown = shown[:-1]
    steps = range(0, len(records), len(shown))
    return "\n\n".join(facts_table(records, records[start : start + len(shown)]) for start in steps)


def facts_table(records: Sequence[dict], shown: Sequence[dict]) -> str:
    """The rows that `records` need, with the columns of some of them."""

    def amount(value: float | None, ratio: float | None, unit: float) -> str:
        if value is None:
            return "not told"
        return f"{value / unit:,.3f}" + ("" if ratio is None else f" ({ratio:.4f}x)")

    def row(name: str, show: Any) -> list[str]:
        return [name, *(show(record, record["beside"] or {}) for record in shown)]

    def moved(found: dict[str, int] | None) -> str:
        return "none" if found is None else f"{found['count']:,}, {found['bytes'] / 1e6:,.1f} MB"

    # Without the pieces of its own that XLA calls this way, which move what they are part of.
    kernels = dict.fromkeys(n for r in records for n, k in r["kernels"].items() if k["bytes"] or n.startswith("__"))
    collectives, squares = (dict.fromkeys(n for r in records for n in sorted(r[k])) for k in ("collectives", "squares"))
    rows = [
        row("attention", lambda r, b: r["backend"]),
        *(row(f"calls of {name}", lambda r, b, n=name: calls(r["kernels"].get(n))) for name in kernels),
        row("TFLOP", lambda r, b: amount(r["flops"], b.get("flops"), 1e12)),
        row("GB moved", lambda r, b: amount(r["bytes_moved"], b.get("bytes_moved"), 1e9)),
        row("GB temporaries", lambda r, b: amount(r["memory"]["temporaries"], b.get("temporaries"), 1e9)),
        row("GB arguments", lambda r, b: amount(r["memory"]["arguments"], None, 1e9)),
        row("GB outputs", lambda r, b: amount(r["memory"]["outputs"], None, 1e9)),
        *(row(name, lambda r, b, n=name: moved(r["collectives"].get(n))) for name in collectives),
        *(row(f"arrays {name}", lambda r, b, n=name: str(r["squares"].get(n, 0))) for name in squares),
        row("transposes of B T N H elements", lambda r, b: str(sum(r["transpositions"].values()))),
        row("loops", lambda r, b: str(len(r["loops"]))),
        row("compile seconds", lambda r, b: f"{r['compile_seconds']:.1f}"),
    ]
    if not squares:
        rows.insert(-3, row("arrays [.., T, T]", lambda r, b: "none"))
    return table(["per device", *(r["variant"] for r in shown)], rows)


def calls(kernel: dict[str, int] | None) -> str:
    """How often a kernel is called and what it moves."""
    if kernel is None:
        return "none"
    return str(kernel["calls"]) + (f", {kernel['bytes'] / 1e9:.3f} GB" if kernel["bytes"] else "")


def plan_caption(document: dict) -> str:
    """What the numbers of `plan_table` are."""
    settings, made = document["settings"], document["provenance"]
    axes = ", ".join(f"{name} {size}" for name, size in made["mesh"].items())
    layers = "scanned" if settings["scan_layers"] else "unrolled"
    return (
        f"Train step of {settings['preset']}{rates.changes(settings)}, layers {layers}, {settings['batch_size']} x "
        f"{settings['context_length']} tokens, compiled for {made['topology']} ({made['devices']} x {made['device']}; "
        f"{axes}) by {made['compiler']}"
    )
