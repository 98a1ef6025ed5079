"""What a compiled train step is made of, per device, and what one variant's has that another's has not."""

import math
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tqdm import tqdm

from rove_jax import sharding
from rove_jax.evaluation import rates, results
from rove_jax.evaluation.tables import table
from rove_jax.evaluation.workload import Workload
from rove_jax.planning import topology
from rove_jax.planning.hlo import PALLAS, Module
from rove_jax.training import machine
from rove_jax.training import plan as plans
from rove_jax.training.step import compile_update

CONVENTION = (
    "Per device, as the compiler counts: FLOPs and bytes of a kernel are not among them unless it states them, and the "
    "body of a loop counts once. Bytes moved are the compiler's bytes accessed, without what kernels state, plus the "
    "operands and results of each kernel call as they lie in memory, padding to tiles included."
)


ADDED = ("squares", "collectives", "transpositions", "transpositions_in_loops")


def run(asked: Workload, name: str) -> dict:
    """The result document of the train step of every variant and backend, compiled for the topology `name`."""
    devices = topology.devices(name)
    made = [(plans.make(asked.settings(v, b), devices), v, b) for b in asked.backends for v in asked.variants]
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
    with tqdm(total=len(made), desc=f"compiling for {name}", unit="program", disable=None, leave=False) as bar:
        for plan, variant, backend in made:
            found = train_step(plan)
            of = {"variant": variant, "asked": backend, "backend": plan.choice.backend, "reason": plan.choice.reason}
            first = next((r for r in records if r["asked"] == backend), None)
            records.append({**of, "refused": plan.choice.refused, **found, "beside": first and beside(found, first)})
            bar.update()
    return results.document("plan", provenance, {**vars(asked), "mesh": vars(asked.mesh)}, records)


def train_step(plan: plans.Plan) -> dict[str, Any]:
    """Compile the update of a run and say what came out. See `facts`."""
    cfg, model = plan.settings, plan.model
    began = time.perf_counter()
    compiled = compile_update(cfg, model, model.vocab - 1, plan.optimizer, plan.target, plan.mesh)
    seconds = time.perf_counter() - began
    rows = cfg.training.batch_size // cfg.training.accumulation // sharding.batch_ways(plan.mesh)
    heads = model.query_heads // plan.mesh.shape["tensor"]
    dims = (rows, cfg.data.context_length, heads, model.head_dim)
    return {"compile_seconds": seconds, **facts(compiled, dims)}


def facts(compiled: Any, dims: Sequence[int]) -> dict[str, Any]:
    """What one device of an executable computes and moves; None for what its compiler does not tell.

    `dims` are B, T, N, H of queries on a device. JSON values: "flops", "bytes_moved", "bytes_accessed" (the compiler's
    own count), "memory" in bytes, "kernels" (name to calls, bytes of operands and results, bytes stated), "collectives"
    (kind to count and bytes), "squares" (arrays in memory with T twice), "transpositions" (in memory, of arrays with as
    many elements as [B, T, N, H], which the residual stream may have as well), "transpositions_in_loops" (those in
    scanned layers), "loops" (how often each turns).
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
        "collectives": module.collectives(),
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


def plan_table(document: dict) -> str:
    """A row per fact, a column per variant and backend; after a variant's number, its ratio to the first variant."""
    records = document["results"]

    def squares(record: dict) -> str:
        return ", ".join(f"{count} {what}" for what, count in record["squares"].items()) or "none"

    def amount(value: float | None, ratio: float | None, unit: float) -> str:
        if value is None:
            return "not told"
        return f"{value / unit:,.3f}" + ("" if ratio is None else f" ({ratio:.4f}x)")

    def kinds(found: dict[str, dict[str, int]]) -> str:
        return ", ".join(f"{v['count']} {k} {v['bytes'] / 1e6:,.1f} MB" for k, v in sorted(found.items())) or "none"

    def row(name: str, show: Any) -> list[str]:
        return [name, *(show(record, record["beside"] or {}) for record in records)]

    rows = [
        row("attention", lambda r, b: r["backend"]),
        row("TFLOP", lambda r, b: amount(r["flops"], b.get("flops"), 1e12)),
        row("GB moved", lambda r, b: amount(r["bytes_moved"], b.get("bytes_moved"), 1e9)),
        row("GB temporaries", lambda r, b: amount(r["memory"]["temporaries"], b.get("temporaries"), 1e9)),
        row("GB arguments", lambda r, b: amount(r["memory"]["arguments"], None, 1e9)),
        row("GB outputs", lambda r, b: amount(r["memory"]["outputs"], None, 1e9)),
        row("collectives", lambda r, b: kinds(r["collectives"])),
        row("arrays [.., T, T]", lambda r, b: squares(r)),
        row("transposes of B T N H elements", lambda r, b: str(sum(r["transpositions"].values()))),
        row("loops, counted once", lambda r, b: str(len(r["loops"]))),
        row("compile seconds", lambda r, b: f"{r['compile_seconds']:.1f}"),
    ]
    # Without the pieces of its own that XLA calls this way, which move what they are part of.
    names = dict.fromkeys(n for r in records for n, k in r["kernels"].items() if k["bytes"] or n.startswith("__"))
    rows[1:1] = [row(f"calls of {name}", lambda r, b, n=name: calls(r["kernels"].get(n))) for name in names]
    return table(["per device", *(r["variant"] for r in records)], rows)


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
