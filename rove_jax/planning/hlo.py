"""Optimised HLO text, read: arrays with their layouts, kernels, collectives, transpositions, loops.

The text is what `compiled.as_text()` gives; its grammar is XLA's own (openxla.org, "HLO operation semantics" and
"Shapes and layout"). Only what is asked about here is understood.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

SHAPE = re.compile(r"([a-z]\w*)\[([\d,<=]*)\](?:\{([^}]*)\})?")
HEAD = re.compile(r"\s*(?:ROOT )?%([\w.\-]+) = ")
COMPUTATION = re.compile(r"(?:ENTRY )?%([\w.\-]+) \(.*\{$")
OPCODE = re.compile(r"\s*([\w\-]+)\(")
NAME = re.compile(r"%([\w.\-]+)")

NAMES_ONLY = (
    "parameter",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "while",
    "conditional",
    "call",
    "optimization-barrier",
)
"""What makes no array, but passes on those that are there."""

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")
FUSIONS = ("fusion", "fusion-start")
"""The second beside other work, on a GPU."""
PALLAS = "tpu_custom_call"
"""The custom-call target of every Pallas kernel on TPU."""


@dataclass(frozen=True)
class Array:
    """One array as it lies in memory, such as `bf16[8,12,1024,64]{3,2,1,0:T(8,128)(2,1)}`."""

    dtype: str
    dims: tuple[int, ...]
    order: tuple[int, ...]
    """Axes from the slowest to the fastest (HLO writes them the other way round)."""
    tiles: tuple[tuple[int, ...], ...] = ()
    """The tile that the fastest axes are cut into, then the tile that this one is cut into, and so on."""
    space: int = 0
    """0: the device's memory. On a TPU 1 is memory on the chip, on all 5 the memory of the host."""

    @staticmethod
    def all_in(text: str) -> tuple["Array", ...]:
        """Every array that `text` spells out, those of a tuple one by one."""
        return tuple(Array.of(match) for match in SHAPE.finditer(text))

    @staticmethod
    def of(match: re.Match[str]) -> "Array":
        dtype, sizes, layout = match.groups()
        dims = tuple(int(size.lstrip("<=")) for size in sizes.split(",") if size)
        order, _, rest = (layout or "").partition(":")
        axes = tuple(int(axis) for axis in order.split(",") if axis) or tuple(reversed(range(len(dims))))
        found = re.search(r"T((?:\([\d,]+\))+)", rest)
        tiles = re.findall(r"\(([\d,]+)\)", found[1]) if found else []
        space = re.search(r"S\((\d+)\)", rest)
        sizes = tuple(tuple(map(int, tile.split(","))) for tile in tiles)
        return Array(dtype, dims, axes[::-1], sizes, int(space[1]) if space else 0)

    @property
    def bits(self) -> int:
        """Of one element."""
        if self.dtype in ("token", "opaque"):
            return 0
        width = re.search(r"\d+", self.dtype)
        return int(width[0]) if width else 8  # pred

    @property
    def bytes(self) -> int:
        """What it takes in memory, padding to whole tiles included."""
        return padded([self.dims[axis] for axis in self.order], self.tiles) * self.bits // 8

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


def padded(sizes: Sequence[int], tiles: Sequence[Sequence[int]]) -> int:
    """Elements of an array of `sizes`, slowest axis first, after its fastest axes are filled up to whole tiles."""
    if not tiles:
        return math.prod(sizes)
    tile, *inner = tiles
    sizes = [1] * (len(tile) - len(sizes)) + list(sizes)
    slow, fast = sizes[: -len(tile)], sizes[-len(tile) :]
    return math.prod(slow) * math.prod(-(-size // step) for size, step in zip(fast, tile)) * padded(tile, inner)


class Instruction(NamedTuple):
    """One instruction. `operands` are names of the same computation, `inside` is what stands where operands do (the
    value of a constant, the number of a parameter), `text` everything after it."""

    computation: str
    name: str
    results: tuple[Array, ...]
    opcode: str
    operands: tuple[str, ...]
    inside: str
    text: str

    @property
    def target(self) -> str:
        """Of a custom call."""
        found = re.search(r'custom_call_target="([^"]+)"', self.text)
        return found[1] if found else ""

    @property
    def kernel(self) -> str:
        """The name a Pallas kernel was given, any other custom call's target."""
        if self.target != PALLAS:
            return self.target
        path = re.search(r'op_name="[^"]*?([^"/]+)/pallas_call', self.text)
        return path[1] if path else re.sub(r"(\.\d+|\.clone)+$", "", self.name)

    @property
    def stated_bytes(self) -> int:
        """What a Pallas kernel's own cost estimate says it moves, 0 without one: the part of the compiler's count."""
        found = re.search(r'"cost_estimate":\{[^}]*"bytes_accessed":"?(\d+)', self.text)
        return int(found[1]) if found else 0


class Module:
    """A whole program."""

    def __init__(self, text: str) -> None:
        self.instructions = list(read(text))
        self.table = {(i.computation, i.name): i for i in self.instructions}

    def operands(self, instruction: Instruction) -> tuple[Array, ...]:
        """The arrays an instruction reads."""
        found = (self.table[instruction.computation, name] for name in instruction.operands)
        return tuple(array for operand in found for array in operand.results)

    @cached_property
    def fused(self) -> set[str]:
        """Computations inside fusions: their intermediate arrays never reach memory."""
        calls = (i.text for i in self.instructions if i.opcode in FUSIONS)
        return {name for text in calls for name in re.findall(r"calls=%([\w.\-]+)", text)}

    def custom_calls(self, target: str | None = None) -> list[Instruction]:
        """The calls of code that is not XLA's own, or those of one target."""
        found = (i for i in self.instructions if i.opcode == "custom-call")
        return [i for i in found if target in (None, i.target)]

    def traffic(self, instruction: Instruction) -> int:
        """Bytes of operands and results, as laid out."""
        return sum(array.bytes for array in (*self.operands(instruction), *instruction.results))

    def handed(self, collective: Instruction) -> int:
        """Bytes of the operands of a collective or of its results, whichever are more."""
        before = sum(array.bytes for array in self.operands(collective))
        after = sum(array.bytes for array in collective.results)
        if collective.opcode.endswith("-start") and len(collective.results) > len(collective.operands):
            after -= before  # its result is the pair of both
        return max(before, after)

    def squares(self, length: int) -> Counter[str]:
        """Arrays in memory that have the axis `length` twice, such as the scores [B, N, T, T], with their counts."""
        return Counter(
            str(array)
            for i in self.instructions
            if i.computation not in self.fused and i.opcode not in NAMES_ONLY and not i.opcode.endswith("-done")
            for array in i.results
            if array.dims.count(length) >= 2
        )

    @cached_property
    def repeated(self) -> set[str]:
        """Computations that loops run, with all that these call: the layers, where they are scanned."""
        calls: dict[str, set[str]] = {}
        for i in self.instructions:
            calls.setdefault(i.computation, set()).update(re.findall(r"(?:calls|body|to_apply)=%([\w.\-]+)", i.text))
        whiles = (i.text for i in self.instructions if i.opcode == "while")
        new = {name for text in whiles for name in re.findall(r"body=%([\w.\-]+)", text)}
        found: set[str] = set()
        while new:
            found |= new
            new = {name for computation in new for name in calls.get(computation, ())} - found
        return found

    def transpositions(self, size: int, *, repeated: bool = False) -> Counter[str]:
        """Instructions, fused ones too, that bring the axes of an array of `size` elements into another order in
        memory: `transpose`, and `copy` from one layout to another. `repeated`: those in loops alone."""
        found: Counter[str] = Counter()
        for i in self.instructions:
            if i.opcode not in ("copy", "copy-start", "transpose") or (repeated and i.computation not in self.repeated):
                continue
            before, after = self.operands(i)[0], i.results[0]
            permuted = re.search(r"dimensions=\{([\d,]*)\}", i.text) if i.opcode == "transpose" else None
            axes = [int(axis) for axis in permuted[1].split(",")] if permuted else list(range(len(after.dims)))
            now = [axes[axis] for axis in after.order if after.dims[axis] > 1]
            then = [axis for axis in before.order if before.dims[axis] > 1]
            if now != then and math.prod(after.dims) == size:
                found[f"{i.opcode.removesuffix('-start')} {after}"] += 1
        return found

    def loops(self) -> list[int | None]:
        """How often each loop turns, None where the compiler does not know. Costs count a body once."""
        whiles = (i.text for i in self.instructions if i.opcode == "while")
        counts = (re.search(r'"known_trip_count":\{"n":"(\d+)"', text) for text in whiles)
        return [int(count[1]) if count else None for count in counts]


def read(text: str) -> Iterator[Instruction]:
    """The instructions of a module, computation by computation."""
    computation, lines = "", []
    for line in [*text.splitlines(), "}"]:
        starts = HEAD.match(line)
        if lines and (starts or line == "}"):
            yield instruction(computation, "\n".join(lines))
            lines = []
        if starts:
            lines = [line]
        elif opened := COMPUTATION.match(line):
            computation = opened[1]
        elif lines:  # metadata of a kernel may hold line breaks
            lines.append(line)


def instruction(computation: str, line: str) -> Instruction:
    """One instruction from its text, `%name = shape opcode(operands), attributes`."""
    line = re.sub(r"/\*.*?\*/", "", line)
    head = HEAD.match(line)
    assert head, line
    rest = line[head.end() :]
    end = closing(rest) if rest.startswith("(") else rest.index(" ")
    opcode = OPCODE.match(rest, end)
    assert opcode, line
    stop = closing(rest, opcode.end() - 1)
    inside = rest[opcode.end() : stop - 1]
    operands = tuple(NAME.findall(inside))
    return Instruction(computation, head[1], Array.all_in(rest[:end]), opcode[1], operands, inside, rest[stop:])


def closing(text: str, start: int = 0) -> int:
    """One past the bracket that closes the one at `start`."""
    depth = 0
    for place in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return place + 1
    raise ValueError(f"no closing bracket: {text[start : start + 80]}")
