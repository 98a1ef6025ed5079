"""The trade-off: what a larger base and a longer context do to each of the four failures."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rove_jax.analysis import aliasing, inversion
from rove_jax.analysis.product import coefficients, phase_set, rope_frequencies, rope_product
from rove_jax.analysis.quantization import FRACTION_BITS, dtype_name

FAILURES = ("position_inversion", "position_aliasing", "token_inversion", "token_aliasing")
WORSE_WITH_BASE = ("position_inversion", "position_aliasing")
"""The others get better: no base helps both (Du et al., table 1)."""


@dataclass(frozen=True)
class Cell:
    """The failures at one base and length. Amplitudes are 1; the phases are said."""

    base: float
    length: int
    position_phases: str
    token_phases: str
    position_inversion: float
    """P(S(far half) > S(near half)), counted."""
    position_inversion_closed: float
    position_aliasing: int
    """Pairs of positions whose scores differ by at most 2^-f sqrt(h)."""
    position_partner: float
    """Share of positions whose score some other one has in the dtype."""
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
    dtype: str = "bfloat16",
) -> list[Cell]:
    """A `Cell` for each base and length.

    With phases 0 position inversion is at its least; with uniform ones it is 1/2 at once, whatever base and length.
    Tokens: a key with `token_phases` against one with the same amplitudes and phases 0. `draws` counts for uniform
    phases only.
    """
    bits = FRACTION_BITS[dtype_name(dtype)]
    aligned = coefficients(np.zeros(h))
    position = coefficients(phase_set(position_phases, h))
    keys = [coefficients(phase_set(token_phases, h, seed=seed)) for seed in range(draws)]
    cells = []
    for base in bases:
        frequencies = rope_frequencies(h, base)
        scores = rope_product(np.stack([position, aligned, *keys]), frequencies, np.arange(max(lengths)))
        for length in lengths:
            own, reference, *others = scores[:, :length]
            tokens = [
                (np.mean(reference < other), aliasing.token_aliasing(reference, other, tolerance=2.0**-bits * h).count)
                for other in others
            ]
            inverted, aliased = np.mean(tokens, axis=0)
            cells.append(
                Cell(
                    base,
                    length,
                    position_phases,
                    f"{token_phases} against aligned",
                    float(inversion.inverted_share(own[: length // 2], own[length // 2 :])),
                    inversion.closed_position_inversion(h, base, length),
                    aliasing.position_aliasing(own, tolerance=2.0**-bits * h**0.5).pairs,
                    aliasing.position_aliasing(own, dtype).share,
                    float(inverted),
                    inversion.closed_token_inversion(h, base, length),
                    float(aliased),
                    aliasing.token_aliasing_bound(h, length, bits),
                )
            )
    return cells


def against_table(cells: Sequence[Cell]) -> list[str]:
    """Where a sweep goes against the trade-off, one line each; none if it is as theory has it.

    All four failures grow with the length; with the base those of positions grow and those of tokens shrink. Compared
    are the shortest and the longest length at each base, and the bases likewise: in between, counts of one key wave
    about their trend. Equal numbers (0 and 0, say) are not against it.
    """
    table = {(cell.base, cell.length): dataclasses.asdict(cell) for cell in cells}
    bases, lengths = (sorted(set(values)) for values in zip(*table))
    steps = [("length", (base, lengths[0]), (base, lengths[-1])) for base in bases]
    steps += [("base", (bases[0], length), (bases[-1], length)) for length in lengths]
    wrong = []
    for what, before, after in steps:
        for name in FAILURES:
            rise = table[after][name] - table[before][name]
            if rise * (1 if what == "length" or name in WORSE_WITH_BASE else -1) < 0:
                wrong.append(f"{name} {'rises' if rise > 0 else 'falls'} with the {what}, from {before} to {after}")
    return wrong
