"""The trade-off: what a larger base and a longer context do to each of the four failures."""

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rove_jax.analysis import aliasing, inversion
from rove_jax.analysis.product import coefficients, phase_set, rope_frequencies, rope_product
from rove_jax.analysis.quantization import FRACTION_BITS, dtype_name
from rove_jax.errors import require

UNIFORM = 64
"""Draws of uniform phases beside the phases asked for."""

FAILURES = ("position_inversion", "position_aliasing", "token_inversion", "token_aliasing")
WORSE_WITH_BASE = ("position_inversion", "position_aliasing")
"""The others get better: no base helps both (Du et al., table 1)."""


@dataclass(frozen=True)
class Cell:
    """The failures at one base and length, and whose."""

    h: int
    """Pairs."""
    amplitude: float
    """Of each pair."""
    base: float
    length: int
    dtype: str
    position_phases: str
    token_phases: str
    position_inversion: float
    """P(S(far half) > S(near half)), counted, mean over draws."""
    position_inversion_closed: float
    position_inversion_uniform: float
    """The same with uniform phases, from exact moments, mean over UNIFORM draws: 1/2 but for their spread."""
    position_aliasing: float
    """Pairs of positions whose scores differ by at most 2^-f sqrt(h), mean over draws."""
    position_aliasing_closed: float
    position_partner: float
    """Share of positions whose score some other one has in the dtype, mean over draws."""
    token_inversion: float
    """Share of distances at which the phase-aligned key scores lower, mean over draws."""
    token_inversion_closed: float
    token_aliasing: float
    """Distances at which it scores the same within 2^-f h, mean over draws."""
    token_aliasing_bound: float


def base_sweep(
    h: int,
    bases: Sequence[float],
    lengths: Sequence[int],
    *,
    position_phases: str = "aligned",
    token_phases: str = "golden",
    draws: int = 1,
    seed: int = 0,
    dtype: str = "bfloat16",
) -> list[Cell]:
    """A `Cell` for each base and length.

    With phases 0 position inversion is at its least; with uniform ones it is 1/2 at once, whatever base and length, and
    so it is reported for both. Tokens: a key with `token_phases` against one with the same amplitudes and phases 0.
    Phases by name as in `product.phase_set`; uniform ones are drawn `draws` times, from `seed` on.
    """
    require(bool(bases), "bases", tuple(bases), "must name at least one")
    require(bool(lengths) and min(lengths) >= 2, "lengths", tuple(lengths), "must name lengths of at least 2")
    require(draws >= 1, "draws", draws, "must be at least 1")
    bits = FRACTION_BITS[dtype_name(dtype)]
    drawn = [keys_with(name, h, draws if name == "uniform" else 1, seed) for name in (position_phases, token_phases)]
    z = np.concatenate([keys_with("aligned", h, 1, seed), *drawn])
    uniform = keys_with("uniform", h, UNIFORM, seed)
    cells = []
    for base in bases:
        frequencies = rope_frequencies(h, base)
        scores = rope_product(z, frequencies, np.arange(max(lengths)))
        for length in lengths:
            reference, positions, keys = np.split(scores[:, :length], [1, 1 + len(drawn[0])])
            near = [aliasing.position_aliasing(own, tolerance=2.0**-bits * h**0.5).pairs for own in positions]
            same = [aliasing.position_aliasing(own, dtype).share for own in positions]
            equal = [aliasing.token_aliasing(reference[0], key, tolerance=2.0**-bits * h).count for key in keys]
            spread = inversion.position_inversion(uniform, frequencies, length, method="normal")
            cells.append(
                Cell(
                    h,
                    1.0,
                    base,
                    length,
                    dtype_name(dtype),
                    position_phases,
                    f"{token_phases} against aligned",
                    float(np.mean(inversion.inverted_halves(positions))),
                    inversion.closed_position_inversion(h, base, length),
                    float(np.mean(spread)),
                    float(np.mean(near)),
                    aliasing.closed_position_aliasing(h, base, length, 2.0**-bits * h**0.5),
                    float(np.mean(same)),
                    float(np.mean(reference < keys)),
                    inversion.closed_token_inversion(h, base, length),
                    float(np.mean(equal)),
                    aliasing.token_aliasing_bound(h, length, bits),
                )
            )
    return cells


def keys_with(phases: str, h: int, count: int, seed: int) -> np.ndarray:
    """z of `count` keys: amplitudes 1, phases by name, drawn from `seed`, seed + 1, ...; complex128 [count, h]."""
    return coefficients(np.stack([phase_set(phases, h, seed=seed + index) for index in range(count)]))


def against_table(cells: Sequence[Cell]) -> list[str]:
    """Where a sweep goes against the trade-off, one line each; none if it is as theory has it.

    All four failures grow with the length; with the base those of positions grow and those of tokens shrink. Compared
    are the shortest and the longest length at each base, and the bases likewise: in between, counts of one key wave
    about their trend. Equal numbers (0 and 0, say) are not against it.
    """
    require(bool(cells), "cells", cells, "must be at least one")
    table = {(cell.base, cell.length): dataclasses.asdict(cell) for cell in cells}
    bases, lengths = (sorted(set(values)) for values in zip(*table))
    missing = set(itertools.product(bases, lengths)) - set(table)
    require(not missing, "cells", sorted(missing), "of these bases and lengths are missing")
    steps = [("length", (base, lengths[0]), (base, lengths[-1])) for base in bases]
    steps += [("base", (bases[0], length), (bases[-1], length)) for length in lengths]
    wrong = []
    for what, before, after in steps:
        for name in FAILURES:
            rise = table[after][name] - table[before][name]
            if rise * (1 if what == "length" or name in WORSE_WITH_BASE else -1) < 0:
                wrong.append(f"{name} {'rises' if rise > 0 else 'falls'} with the {what}, from {before} to {after}")
    return wrong
