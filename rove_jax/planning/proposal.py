"""Which layout of a run fits hardware best: batch in parts, remat and sharding, tried by compiling a few."""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

from rove_jax import config, sharding
from rove_jax.errors import UsageError
from rove_jax.models import accounting
from rove_jax.planning import recipe, sheets

TOKEN_BYTES = {"none": 90.0, "dots": 40.0, "full": 4.0}
"""Bytes of activations kept per token, layer and channel: a first guess, corrected by each program compiled."""

AGAIN = {"none": 0.0, "dots": 0.02, "full": 1 / 3}
"""What remat computes again, as a part of the model's FLOPs."""

NARROW = 8
"""Channels that fsdp leaves a device, at least: below, a TPU pads them, and moves the padding."""


class Layout(NamedTuple):
    """What a proposal may change. None of it changes what is learnt."""

    data: int
    fsdp: int
    accumulation: int
    remat: str

    def __str__(self) -> str:
        return f"data {self.data}, fsdp {self.fsdp}, {self.accumulation} parts, remat {self.remat}"


@dataclasses.dataclass
class Guess:
    """What is expected of a layout before it is compiled, for the order in which layouts are tried."""

    settings: config.Config
    device: Any
    kept: dict[str, float]

    def rows(self, layout: Layout) -> int:
        """Rows that a device computes at a time."""
        return self.settings.training.batch_size // (layout.data * layout.fsdp * layout.accumulation)

    def fixed(self, layout: Layout) -> float:
        """Bytes that do not depend on rows: state and gradient, the table and its gradient whole, logits."""
        model = self.settings.model
        share = layout.fsdp * self.settings.mesh.tensor
        table = 10.0 * model.padded_vocab * model.width
        return 16.0 * accounting.parameter_count(model, padded=True) / share + table

    def units(self, layout: Layout) -> float:
        """Tokens x layers x channels of a device at a time."""
        return (
            self.rows(layout)
            * self.settings.data.context_length
            * self.settings.model.layers
            * self.settings.model.width
        )

    def memory(self, layout: Layout) -> float:
        """Bytes of a device."""
        return self.fixed(layout) + self.kept[layout.remat] * self.units(layout)

    def learn(self, layout: Layout, total: float) -> None:
        """Correct `kept` by what a program was found to need; the other policies keep their ratio to it."""
        found = max(total - self.fixed(layout), 0.1 * total) / self.units(layout)
        ratio = found / self.kept[layout.remat]
        for remat in self.kept:
            self.kept[remat] *= ratio if remat == layout.remat or ratio > 1 else 1.0

    def seconds(self, layout: Layout) -> float:
        """Of a step, compute and network one after the other."""
        model, training = self.settings.model, self.settings.training
        known, peak = sheets.sheet(self.device), accounting.peak_flops(self.device.device_kind)
        assert known and peak
        ways = layout.data * layout.fsdp * self.settings.mesh.tensor
        length = self.settings.data.context_length
        work = accounting.flops_per_token(model, length) * training.batch_size * length / ways
        weights = accounting.parameter_count(model, padded=True) / self.settings.mesh.tensor
        # Weights in bfloat16, gathered for each pass of each part; gradients, in float32, added up for each part.
        gathers = 2.0 * weights * (3 if layout.remat == "full" else 2) * layout.accumulation if layout.fsdp > 1 else 0.0
        sums = 4.0 * weights * layout.accumulation * (1 if layout.fsdp > 1 else 2)
        across = 8.0 * weights / layout.fsdp if layout.data > 1 and layout.fsdp > 1 else 0.0
        alone = ways == 1
        return work * (1 + AGAIN[layout.remat]) / peak + (0.0 if alone else (gathers + sums + across) / known.links)


def layouts(settings: config.Config, devices: list[Any]) -> list[Layout]:
    """All of them: fsdp and accumulation in powers of two, as far as rows go."""
    spread = len(devices) // settings.mesh.tensor
    powers = [2**k for k in range(spread.bit_length()) if spread % 2**k == 0]
    powers = [fsdp for fsdp in powers if lies(config.Mesh(spread // fsdp, fsdp, settings.mesh.tensor), devices)]
    parts = [2**k for k in range(settings.training.batch_size.bit_length())]
    return [
        Layout(spread // fsdp, fsdp, accumulation, remat)
        for fsdp, accumulation, remat in itertools.product(powers, parts, TOKEN_BYTES)
        if settings.training.batch_size % (spread * accumulation) == 0 and settings.model.width % (fsdp * NARROW) == 0
    ]


def lies(sizes: config.Mesh, devices: list[Any]) -> bool:
    """Whether a mesh can be laid over devices: not every one can over a TPU slice."""
    try:
        sharding.make_mesh(sizes, devices)
    except UsageError:
        return False
    return True


def propose(
    settings: config.Config, devices: list[Any], hosts: int, compiles: int, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Estimates (see `recipe.estimate`) of the run as its recipe says and of other layouts, `compiles` in all at most.

    After the first, the next is always the fastest one by `Guess` that should fit by what is known so far. The best
    one, by the time of its parts one after the other, has "best": True. Where no data sheet is known, only the first.
    """
    mesh = sharding.make_mesh(settings.mesh, devices)
    devices = list(mesh.devices.flat)
    asked = Layout(mesh.shape["data"], mesh.shape["fsdp"], settings.training.accumulation, settings.model.remat)
    whole = dataclasses.replace(settings, mesh=dataclasses.replace(settings.mesh, tensor=mesh.shape["tensor"]))
    guess = Guess(whole, devices[0], dict(TOKEN_BYTES))
    left = {x for x in layouts(whole, devices) if x != asked}
    records: list[dict[str, Any]] = []
    layout: Layout | None = asked
    while layout is not None:
        say(f"compiling {len(records) + 1} of at most {compiles}: {layout}")
        found = recipe.estimate(recipe.changed(whole, **layout._asdict()), devices, hosts)
        records.append({**found, "best": False})
        say(f"    {found['compile_seconds']:.0f} s: {outcome(found)}")
        if found.get("seconds") is None and found["fits"] is not False:
            break  # nothing to rank by
        if found["memory"]["total"]:
            guess.learn(layout, found["memory"]["total"]) if layout.remat in guess.kept else None
        layout = following(guess, left, records) if len(records) < compiles else None
        left.discard(layout) if layout else None
    good = [r for r in records if r["fits"] and r["seconds"]]
    if good:
        min(good, key=lambda r: r["seconds"]["in_turn"])["best"] = True
    return records


def following(guess: Guess, left: set[Layout], records: list[dict[str, Any]]) -> Layout | None:
    """The layout to try next; None if none is promising."""
    known = sheets.sheet(guess.device)
    if known is None or not left:
        return None
    fitting = [x for x in left if guess.memory(x) <= 0.97 * known.usable]
    if fitting:
        return min(fitting, key=lambda x: (guess.seconds(x), x))
    return None if any(r["fits"] for r in records) else min(left, key=lambda x: (guess.memory(x), x))


def outcome(record: dict[str, Any]) -> str:
    """In a few words."""
    total, usable = record["memory"]["total"], record["memory"]["usable"]
    if total is None:
        return "does not fit"
    size = f"{total / sheets.GIB:.2f} GiB"
    if usable is None:
        return size
    verdict = "fits" if record["fits"] else f"does not fit by {(total - usable) / sheets.GIB:.2f} GiB"
    times = record.get("seconds")
    shown = "" if times is None else f", {1000 * times['overlapped']:.1f} to {1000 * times['in_turn']:.1f} ms"
    return f"{verdict}: {size} of {usable / sheets.GIB:.2f}{shown}"
