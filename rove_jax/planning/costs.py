"""What a compiled program does from start to end, read off its text: loops counted as often as they turn.

Compilers count the body of a loop once, and GPU compilers count nothing. The rules here follow XLA's own analysis
(`HloCostAnalysis`): two FLOPs per multiply-add, an array read or written once per instruction, fusions as one.
"""

import math
import re
from collections import defaultdict
from functools import cached_property

from rove_jax.planning.hlo import COLLECTIVES, FUSIONS, NAMES_ONLY, PALLAS, Array, Instruction, Module

FREE = (*NAMES_ONLY, "constant", "iota", "after-all", "partition-id", "replica-id", "async-start", "async-update")
"""Instructions that move nothing by themselves."""

ON_CHIP = 1
"""The memory space of a TPU's own fast memory, whose traffic is not that of the device's memory."""


class Costs:
    """Counts of a whole run of a program on one device. `unknown`: loops of which nobody knows how often they turn,
    counted once."""

    def __init__(self, module: Module, *, tpu: bool) -> None:
        self.module, self.tpu, self.unknown = module, tpu, 0
        self.by_computation: dict[str, list[Instruction]] = defaultdict(list)
        for i in module.instructions:
            self.by_computation[i.computation].append(i)

    def turns(self, loop: Instruction) -> int | None:
        """How often a `while` turns: as the compiler says or, where it counts from 0 up, as its condition does."""
        known = re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.text)
        if known:
            return int(known[1])
        condition = self.by_computation[called(loop, "condition")[0]]
        tests = [i for i in condition if i.opcode == "compare" and "direction=LT" in i.text]
        limits = [i.inside for i in condition if i.opcode == "constant" and i.inside.isdigit()]
        return int(limits[0]) if len(tests) == len(limits) == 1 else None

    @cached_property
    def times(self) -> dict[str, int]:
        """How often each computation runs; those that reductions and the like apply to elements are left out."""
        found: dict[str, int] = defaultdict(int)
        inner = {name for i in self.module.instructions for name in called(i)}
        [entry] = [
            name for name in self.by_computation if name not in inner and name.startswith(("main", "ENTRY"))
        ] or [self.module.instructions[-1].computation]

        def run(computation: str, count: int) -> None:
            found[computation] += count
            for i in self.by_computation[computation]:
                if i.opcode == "while":
                    turns = self.turns(i)
                    self.unknown += turns is None
                    for name in called(i, "body", "condition"):
                        run(name, count * (turns or 1))
                elif i.opcode in (*FUSIONS, "call", "conditional", "async-start"):
                    for name in called(i, "calls", "to_apply", "branch_computations"):
                        run(name, count)

        run(entry, 1)
        return found

    @cached_property
    def products(self) -> float:
        """FLOPs of matrix products and convolutions. What kernels compute is not among them."""
        return float(
            sum(
                count * product_flops(self.module, i)
                for computation, count in self.times.items()
                for i in self.by_computation[computation]
                if i.opcode in ("dot", "convolution")
            )
        )

    def moved(self, *, loops: bool = True) -> float:
        """Bytes read from and written to the device's memory, padding included. Without `loops`: bodies once."""
        return float(
            sum(
                (count if loops else 1) * self.traffic(i)
                for computation, count in self.times.items()
                if computation not in self.module.fused
                for i in self.by_computation[computation]
            )
        )

    def host(self) -> int:
        """Bytes that pass between the device and the memory of its host."""
        return sum(
            count * array.bytes
            for computation, count in self.times.items()
            for i in self.by_computation[computation]
            if i.opcode in ("copy-start", "copy", "dynamic-update-slice", "dynamic-slice") and i.results
            for array in i.results[:1]
            if (array.space == 5) != any(a.space == 5 for a in self.module.operands(i)[:1])
        )

    def collectives(self) -> dict[str, dict[str, int]]:
        """Kind to {"count", "bytes"}: all of a run. A sum of which each device keeps its part is a reduce-scatter."""
        found: dict[str, dict[str, int]] = {}
        seen: set[tuple[str, str]] = set()
        for computation, count in self.times.items():
            for i in self.by_computation[computation]:
                kind = i.opcode.removesuffix("-start")
                if kind not in COLLECTIVES:
                    continue
                # A TPU's collective that runs beside other work is spelled out in each piece of it.
                channel = re.search(r"channel_id=(\d+)", i.text)
                if channel and (kind, channel[1]) in seen:
                    continue
                seen.add((kind, channel[1] if channel else ""))
                if kind == "all-reduce" and computation.startswith("all-reduce-scatter"):
                    kind = "reduce-scatter"
                sums = found.setdefault(kind, {"count": 0, "bytes": 0})
                sums["count"] += count
                sums["bytes"] += count * self.module.handed(i)
        return found

    def traffic(self, i: Instruction) -> int:
        """Bytes that one instruction moves."""
        if i.opcode in FREE or i.opcode.endswith("-done") or i.opcode.removesuffix("-start") in COLLECTIVES:
            return 0
        if i.opcode == "custom-call" and i.target in ("AllocateBuffer", "ConcatBitcast", "AsyncCollectiveDone"):
            return 0
        operands = [self.module.table[i.computation, name] for name in i.operands]
        if i.opcode in FUSIONS:
            [inner] = called(i, "calls")
            parameters = {int(p.inside): p for p in self.by_computation[inner] if p.opcode == "parameter"}
            read = sum(self.read(inner, parameters[n].name, self.bytes(o.results)) for n, o in enumerate(operands))
            return read + sum(self.written(inner, self.root(inner)))
        if i.opcode == "dynamic-update-slice":
            return 2 * self.bytes(operands[1].results)
        if i.opcode in ("slice-start", "dynamic-slice-start"):  # (operand, slice, context)
            return i.results[1].bytes + self.bytes(i.results[1:2])
        if i.opcode in ("dynamic-slice", "slice", "gather"):
            return sum(a.bytes for a in i.results) + self.bytes(i.results)
        results = i.results[:1] if i.opcode.endswith("-start") else i.results
        return self.bytes(results) + sum(self.bytes(o.results) for o in operands)

    def bytes(self, arrays: tuple[Array, ...]) -> int:
        """Those that lie in the device's memory."""
        return sum(a.bytes for a in arrays if not (self.tpu and a.space == ON_CHIP))

    def root(self, computation: str) -> Instruction:
        """The instruction whose result is that of a computation."""
        return self.by_computation[computation][-1]

    def read(self, computation: str, name: str, whole: int) -> int:
        """Bytes that a fusion reads of its parameter `name`, which has `whole`: a part, if it only takes slices."""
        total = 0
        for user in self.users.get((computation, name), ()):
            if user.opcode == "bitcast":
                total += self.read(computation, user.name, whole)
            elif user.opcode in ("dynamic-slice", "slice", "gather") and user.operands[0] == name:
                total += sum(a.bytes for a in user.results)
            elif user.opcode == "dynamic-update-slice" and user.operands[0] == name:
                pass  # written in place
            elif user.opcode in FUSIONS:
                [inner] = called(user, "calls")
                for number, operand in enumerate(user.operands):
                    if operand == name:
                        inside = next(
                            p for p in self.by_computation[inner] if p.opcode == "parameter" and int(p.inside) == number
                        )
                        total += self.read(inner, inside.name, whole)
            else:
                return whole
        return min(total, whole)

    @cached_property
    def users(self) -> dict[tuple[str, str], list[Instruction]]:
        """By computation and name: the instructions that take it."""
        found: dict[tuple[str, str], list[Instruction]] = defaultdict(list)
        for i in self.module.instructions:
            for name in i.operands:
                found[i.computation, name].append(i)
        return found

    def written(self, computation: str, i: Instruction) -> list[int]:
        """Bytes that a fusion with result `i` writes, result by result: a part, where it updates in place."""
        if i.opcode == "tuple":
            inner = [self.module.table[computation, name] for name in i.operands]
            return [size for operand in inner for size in self.written(computation, operand)]
        if i.opcode == "bitcast":
            return self.written(computation, self.module.table[computation, i.operands[0]])
        if i.opcode == "dynamic-update-slice":
            return [self.bytes(self.module.table[computation, i.operands[1]].results)]
        if i.opcode in FUSIONS:
            [inner] = called(i, "calls")
            return self.written(inner, self.root(inner))
        return [self.bytes(i.results)]


def called(i: Instruction, *kinds: str) -> list[str]:
    """Names of the computations that an instruction calls, by kind; of all kinds if none is given."""
    which = "|".join(kinds) if kinds else r"calls|body|condition|to_apply|branch_computations"
    found = re.findall(rf"\b(?:{which})=(\{{[^}}]*\}}|%[\w.\-]+)", i.text)
    return [name for group in found for name in re.findall(r"%([\w.\-]+)", group)]


def product_flops(module: Module, i: Instruction) -> int:
    """Two per multiply-add of a `dot` or a `convolution`, those with padding left out."""
    left, right, *_ = module.operands(i)
    [result] = i.results
    if i.opcode == "dot":
        axes = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", i.text)
        summed = [left.dims[int(axis)] for axis in axes[1].split(",")] if axes and axes[1] else []
        return 2 * math.prod(result.dims) * math.prod(summed)
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", i.text)
    assert labels, i.text
    lhs, rhs, out = labels.groups()
    window = dict(re.findall(r"(\w+)=([\w\-]+)", (re.search(r"window=\{([^}]*)\}", i.text) or ["", ""])[1]))
    products = 2 * result.dims[out.index("b")] * result.dims[out.index("f")] * right.dims[rhs.index("i")]
    for axis in range(len(lhs) - 2):
        size, reach = left.dims[lhs.index(str(axis))], right.dims[rhs.index(str(axis))]
        places = result.dims[out.index(str(axis))]

        def number(name: str, default: str, axis: int = axis) -> list[int]:
            values = window.get(name)
            return [int(n) for n in (values.split("x")[axis] if values else default).split("_")]

        [stride], [low, _] = number("stride", "1"), number("pad", "0_0")
        [apart], [steps] = number("lhs_dilate", "1"), number("rhs_dilate", "1")
        offsets = (o * stride + k * steps - low for o in range(places) for k in range(reach))
        products *= sum(0 <= at <= (size - 1) * apart and at % apart == 0 for at in offsets)
    return products


def kernel_calls(costs: Costs) -> dict[str, int]:
    """How often each kernel that the compiler sees nothing of is called in a run."""
    found: dict[str, int] = defaultdict(int)
    for computation, count in costs.times.items():
        for i in costs.by_computation[computation]:
            if i.opcode == "custom-call" and (i.target == PALLAS or i.target.startswith("__cudnn")):
                found[i.kernel] += count
    return dict(found)
