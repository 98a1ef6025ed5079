"""A plan of a recipe as text, at most 120 columns wide."""

import textwrap
from typing import Any

from rove_jax.evaluation.tables import table
from rove_jax.planning.recipe import ASSUMPTIONS, SOURCES
from rove_jax.planning.sheets import GIB

WIDTH = 118


def plan_text(document: dict[str, Any]) -> str:
    """Caption, the run as its recipe says beside what is proposed, what was tried, sources and assumptions."""
    records, made, settings = document["results"], document["provenance"], document["settings"]
    asked, best = records[0], next((r for r in records if r["best"]), None)
    columns = [("as the recipe says", asked)]
    if best is not None and best is not asked:
        columns.append(("proposed", best))
    title = (
        f"{settings['recipe']} for {made['topology']}: {made['devices']} x {made['device']}, compiled by "
        f"{made['compiler']}; {settings['parameters']:,} parameters, {settings['batch_size']} x "
        f"{settings['context_length']} tokens a step, {settings['steps']:,} steps"
    )
    rows = figures(columns)
    header = ["per device", *(name for name, _ in columns), "source"]
    pieces = [textwrap.fill(title, WIDTH), table(header, rows), verdict(asked, best)]
    if len(records) > 1:
        pieces.append("Tried, at most " + f"{settings['compiles']} programs:\n\n" + tried(records))
    pieces.append(sources(document, {row[-1] for row in rows}))
    return "\n\n".join(pieces)


def figures(columns: list[tuple[str, dict[str, Any]]]) -> list[list[str]]:
    """A row per figure: its name, one for each record, where it comes from; without rows that nobody knows."""

    def row(name: str, source: str, show: Any) -> list[str]:
        return [name, *(show(record) for _, record in columns), source]

    def amount(name: str, source: str, *path: str, unit: float = 1.0, digits: int = 3) -> list[str]:
        def show(found: Any) -> str:
            for key in path:
                found = None if found is None else found.get(key)
            return "-" if found is None else f"{found / unit:,.{digits}f}"

        return row(name, source, show)

    kinds = dict.fromkeys(kind for _, r in columns for kind in r.get("collectives", {}))
    rows = [
        row("mesh: data, fsdp, tensor", "", lambda r: layout(r)),
        row("rows at a time, parts", "", lambda r: f"{r['rows']}, {r['accumulation']}"),
        row("remat, attention", "", lambda r: f"{r['remat']}, {r['attention']}"),
        *(amount(f"GiB {name}", source, "memory", part, unit=GIB) for part, (name, source) in MEMORY.items()),
        row("fits", "", lambda r: {None: "not known", True: "yes", False: "no"}[r["fits"]]),
        amount("TFLOP, products", "executable", "flops", "products", unit=1e12),
        amount("TFLOP, kernels", "accounting", "flops", "kernels", unit=1e12),
        amount("TFLOP, the model alone", "accounting", "flops", "model", unit=1e12),
        amount("GB moved in memory", "executable", "bytes_moved", unit=1e9),
        *(row(f"{kind}: count, GB", "executable", lambda r, k=kind: collective(r, k)) for kind in kinds),
        *(
            amount(f"ms {part}", "estimate", "seconds", part, unit=1e-3, digits=1)
            for part in ("compute", "memory", "network")
        ),
        row("ms a step", "estimate", lambda r: ends(r, "seconds", None, 1e-3, 1)),
        row("thousand tokens / s", "estimate", lambda r: ends(r, "run", "tokens_per_second", 1e3, 0)),
        row("device-hours of the run", "estimate", lambda r: ends(r, "run", "device_hours", 1, 0)),
    ]
    return [cells for cells in rows if set(cells[1:-1]) != {"-"}]


MEMORY = {
    "parameters": ("parameters", "shardings"),
    "optimizer": ("optimizer", "shardings"),
    "gradients": ("gradients", "accounting"),
    "temporaries": ("activations, temporaries", "compiler"),
    "program": ("batch, padding, program", "compiler"),
    "total": ("in all", "sum"),
    "usable": ("usable", "see below"),
}


def verdict(asked: dict[str, Any], best: dict[str, Any] | None) -> str:
    """Whether the recipe fits, and the command-line words of the proposal."""
    total, usable = asked["memory"]["total"], asked["memory"]["usable"]
    if asked["fits"] is None:
        return "Whether it fits is for you to say: no data sheet of this device is known here."
    size = "" if total is None else f" by {abs(usable - total) / GIB:.2f} GiB"
    lines = [f"As the recipe says, it {'fits' if asked['fits'] else 'does not fit'}{size}."]
    if best is None and asked["fits"]:
        lines.append("No time can be estimated for it (a data sheet's rates are for bfloat16), so nothing is proposed.")
    elif best is None:
        lines.append("Nothing that was tried fits; give more devices, or --compiles more tries.")
    elif best is not asked:
        mesh = " ".join(f"--mesh.{name} {size}" for name, size in best["mesh"].items())
        words = f"{mesh} --training.accumulation {best['accumulation']} --model.remat {best['remat']}"
        lines.append(f"Proposed:\n    {words}")
    elif asked.get("seconds"):
        lines.append("Nothing that was tried is faster by this estimate.")
    return "\n".join(lines)


def tried(records: list[dict[str, Any]]) -> str:
    """A row per program compiled."""

    def row(r: dict[str, Any]) -> list[str]:
        fits = {None: "?", True: "yes", False: "no"}[r["fits"]] + (", best" if r["best"] else "")
        time = ends(r, "seconds", None, 1e-3, 1)
        sizes = [layout(r), str(r["rows"]), str(r["accumulation"]), r["remat"], gib(r["memory"]["total"])]
        return [*sizes, fits, time, f"{r['compile_seconds']:.0f}"]

    header = ["mesh", "rows", "parts", "remat", "GiB", "fits", "ms a step", "s to compile"]
    return table(header, [row(r) for r in records])


def sources(document: dict[str, Any], named: set[str]) -> str:
    """What the `named` sources are."""
    asked, made = document["results"][0], document["provenance"]
    lines = [f"{name}: {where}" for name, where in SOURCES.items() if name in named]
    lines.append(f"usable: {made['usable_source']}")
    if asked.get("seconds"):
        lines += [f"assumed: {line}" for line in (*ASSUMPTIONS, made["links_source"])]
    if asked.get("unknown_loops"):
        lines.append(f"{asked['unknown_loops']} loops of unknown length are counted once")
    return "\n".join(textwrap.fill(f"- {line}", WIDTH, subsequent_indent="  ") for line in lines)


def gib(value: float | None) -> str:
    """Bytes in GiB."""
    return "-" if value is None else f"{value / GIB:,.3f}"


def layout(record: dict[str, Any]) -> str:
    """Sizes of the mesh."""
    return " x ".join(str(record["mesh"][name]) for name in ("data", "fsdp", "tensor"))


def collective(record: dict[str, Any], kind: str) -> str:
    """How many of a kind, and their GB."""
    if "collectives" not in record:
        return "-"
    found = record["collectives"].get(kind)
    return "none" if found is None else f"{found['count']:,}, {found['bytes'] / 1e9:,.3f}"


def ends(record: dict[str, Any], part: str, inner: str | None, unit: float, digits: int) -> str:
    """A figure at both ends of the estimate."""
    found = record.get(part)
    if not found:
        return "-"
    values = [found[end] if inner is None else found[end][inner] for end in ("overlapped", "in_turn")]
    return " to ".join(f"{value / unit:,.{digits}f}" for value in values)
