"""From the seconds of `speed.py` to a result document and its table."""

import dataclasses
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from rove_jax.distributed import screen
from rove_jax.evaluation import results, speed
from rove_jax.evaluation.speed import Program
from rove_jax.evaluation.tables import table
from rove_jax.evaluation.workload import Workload
from rove_jax.models import accounting
from rove_jax.training import machine

CONVENTION = (
    "Model FLOPs: two per multiply-add of products with weights (unembedding included, embedding lookup not) and of "
    "attention over the keys that the mask leaves; training counts three forward passes, nothing recomputed. "
    "Utilisation is model FLOPs per second over the rate of a large matrix product, measured in the same rounds and "
    "dtype, or over the data sheet's bfloat16 peak of the device."
)


def run(asked: Workload, what: tuple[str, ...], rounds: int) -> dict:
    """The result document of a workload on all devices (or those its mesh takes), with a progress bar on stderr.

    Raises `UsageError`, before anything is compiled, for a backend that cannot serve or sizes that do not divide.
    """
    # Now: by the end the checkout may have moved on, and the load is this measurement itself.
    start = {"commit": machine.commit(), "load_before": machine.load()}
    count = len(what) * len(asked.variants) * len(asked.backends)
    with tqdm(total=count, desc="compiling", unit="program", disable=None, leave=False, **screen()) as bar:
        programs, mesh = speed.compile_all(asked, what, bar.update)
        bar.reset(total=len(programs) * (rounds + 1))
        bar.set_description("measuring")
        bar.unit = "run"
        times = speed.measure(programs, rounds, bar.update)
    return document(asked, what, times, mesh, start)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, middle, high = np.quantile(np.asarray(values, np.float64), (0.25, 0.5, 0.75))
    return {"median": float(middle), "lower_quartile": float(low), "upper_quartile": float(high)}


def document(
    asked: Workload,
    what: Sequence[str],
    times: dict[Program, list[float]],
    mesh: jax.sharding.Mesh,
    start: dict[str, Any],
) -> dict:
    """The result document of a measurement. `start`: provenance of its beginning."""
    first = mesh.devices.flat[0]
    rounds = len(next(iter(times.values())))
    dtype = asked.settings(asked.variants[0], asked.backends[0]).model.dtype
    measured, sheet = product_rate(times), accounting.peak_flops(first.device_kind)
    sheet = sheet * mesh.size if sheet and dtype == "bfloat16" else None
    provenance = {
        "device": first.device_kind,
        "platform": first.platform,
        "host": machine.host(),
        "devices": mesh.size,
        "mesh": dict(mesh.shape),
        **start,
        **machine.compiler_flags(),
        "load_after": machine.load(),
    }
    settings = {**dataclasses.asdict(asked), "what": list(what), "rounds": rounds, "convention": CONVENTION}
    whole = {
        "product_flops_per_second": measured,
        "data_sheet_flops_per_second": sheet,
        "peak_memory": machine.peak_memory(first),
    }
    records = [
        record(program, seconds, baseline(program, times, asked.variants[0]), measured, sheet)
        for program, seconds in times.items()
        if program.name != "product"
    ]
    return {**results.document("speed", provenance, settings, records), "whole": whole}


def product_rate(times: dict[Program, list[float]]) -> float:
    """FLOPs per second of the large matrix product, on all devices: its median."""
    [(program, seconds)] = [(program, seconds) for program, seconds in times.items() if program.name == "product"]
    return program.flops / spread(seconds)["median"]


def baseline(program: Program, times: dict[Program, list[float]], variant: str) -> list[float] | None:
    """The seconds of the same program of the first variant; None of the first variant itself."""
    if program.variant == variant:
        return None

    def of(p: Program) -> tuple:
        return p.name, p.filled, p.choice and p.choice.backend

    [found] = [seconds for p, seconds in times.items() if of(p) == of(program) and p.variant == variant]
    return found


def record(
    program: Program, seconds: list[float], first: list[float] | None, measured: float, sheet: float | None
) -> dict[str, Any]:
    """One record of the document. `ratio` is of the times to those of the first variant, round by round."""
    assert program.choice is not None
    rate = program.flops / spread(seconds)["median"]
    ratio = None if first is None else spread([mine / its for mine, its in zip(seconds, first, strict=True)])
    return {
        "what": program.name,
        "filled": program.filled,
        "variant": program.variant,
        "backend": program.choice.backend,
        "asked": program.backend,
        "reason": program.choice.reason,
        "refused": program.choice.refused,
        "tokens_per_second": program.tokens / spread(seconds)["median"],
        "seconds": {**spread(seconds), "each": seconds},
        "model_flops": program.flops,
        "utilisation": {"of_product": rate / measured, "of_data_sheet": sheet and rate / sheet},
        "memory": program.memory,
        "compile_seconds": program.compile_seconds,
        "ratio": ratio and {**ratio, "pairs": len(seconds)},
    }


def speed_table(document: dict) -> str:
    """A row per program: rate, time of a call, utilisation, memory, compile time, ratio to the first variant.

    Columns that say nothing are left out: of one backend alone, which the caption names, and of no data sheet.
    """
    found = document["results"]
    columns: dict[str, Callable[[dict], str]] = {
        "program": name_of,
        "variant": lambda r: r["variant"],
        "attention": lambda r: r["backend"],
        "tokens/s": lambda r: three_digits(r["tokens_per_second"]),
        "ms": lambda r: three_digits(1000 * r["seconds"]["median"]),
        "% of product": lambda r: three_digits(100 * r["utilisation"]["of_product"]),
        "% of sheet": lambda r: three_digits(100 * r["utilisation"]["of_data_sheet"]),
        "MiB": lambda r: "-" if r["memory"] is None else three_digits(r["memory"]["total"] / 2**20),
        "compile s": lambda r: f"{r['compile_seconds']:.1f}",
        f"time / {document['settings']['variants'][0]}": lambda r: ratio_of(r["ratio"]),
    }
    if len({(r["what"], r["backend"]) for r in found}) == len({r["what"] for r in found}):
        del columns["attention"]
    if document["whole"]["data_sheet_flops_per_second"] is None:
        del columns["% of sheet"]
    return table(list(columns), [[show(r) for show in columns.values()] for r in found])


def three_digits(value: float) -> str:
    """At least so many, and none after them: 0.123, 45.6, 7,891."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def name_of(record: dict) -> str:
    """train, prefill, or decode with how many tokens the cache holds."""
    return record["what"] if record["filled"] is None else f"{record['what']} at {record['filled']}"


def ratio_of(ratio: dict | None) -> str:
    """Median and, of more than one round, quartiles."""
    if ratio is None or ratio["pairs"] == 1:
        return "-" if ratio is None else f"{ratio['median']:.3f}"
    return f"{ratio['median']:.3f} ({ratio['lower_quartile']:.3f} to {ratio['upper_quartile']:.3f})"


def changes(settings: dict) -> str:
    """What was asked for beside the preset, for a title."""
    layers, dtype = settings["layers"], settings["dtype"]
    asked = [f"{layers} layer{'s' if layers > 1 else ''} alone" if layers else "", dtype or ""]
    return f" ({', '.join(x for x in asked if x)})" if any(asked) else ""


def busy(provenance: dict) -> str:
    """A warning where other work had the CPUs as the measurement began, else nothing.

    Ratios are paired, so they bear some work elsewhere; at three processes a CPU, those of equal programs were 0.33 to
    1.09.
    """
    load, cpus = provenance["load_before"], int(provenance["host"].split(" x ")[0])
    if load is None or load <= cpus / 2:
        return ""
    advice = "trust ratios, not rates" if load <= cpus else "measure again"
    return f"; OTHER WORK WAS RUNNING (load {load:g} on {cpus} CPUs): {advice}"


def speed_caption(document: dict) -> str:
    """What the numbers of `speed_table` are."""
    settings, made, whole = document["settings"], document["provenance"], document["whole"]
    peak, sheet = whole["peak_memory"], whole["data_sheet_flops_per_second"]
    known = f"{sheet / 1e12:,.0f} TFLOP/s by data sheet" if sheet else "no data-sheet peak for this device and dtype"
    chosen: dict[str, list[str]] = {}
    for r in document["results"]:
        programs = chosen.setdefault(f"{r['backend']} ({r['reason']})", [])
        programs += [] if r["what"] in programs else [r["what"]]
    lines = {
        "measured": "one round"
        if settings["rounds"] == 1
        else f"medians of {settings['rounds']} rounds; ratios are paired by round, with quartiles",
        "matrix product": f"{whole['product_flops_per_second'] / 1e9:,.0f} GFLOP/s measured; {known}",
        "peak memory": f"{peak['bytes'] / 2**20:,.0f} MiB ({peak['of']}) with all programs; "
        "MiB below: what the compiler plans for one program, on one device",
        "attention": "; ".join(f"{', '.join(programs)}: {backend}" for backend, programs in chosen.items()),
        "repeatable": f"deterministic GPU kernels {'' if made['deterministic'] else 'not '}asked for in XLA_FLAGS",
        "host": f"{made['host']}; load {made['load_before']} before, {made['load_after']} after{busy(made)}",
        "utilisation": CONVENTION,
    }
    size = f"{settings['batch_size']} x {settings['context_length']} tokens"
    where = f"{made['devices']} x {made['device']} ({made['platform']})"
    title = f"Speed of {settings['preset']}{changes(settings)}, {size}, on {where}"
    if made["platform"] != "gpu":
        del lines["repeatable"]
    wrapped = (
        textwrap.fill(text, 118, initial_indent=f"{name:16}", subsequent_indent=" " * 16)
        for name, text in lines.items()
    )
    return "\n".join([title, *wrapped])
