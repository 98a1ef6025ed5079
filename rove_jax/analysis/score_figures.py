"""Figures of scores from amplitudes and phases alone: no model is needed, and every run draws the same."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rove_jax.analysis import aliasing, inversion, moments, swap, sweep
from rove_jax.analysis.picture import COLOURS, DASHES, MARKERS, Picture
from rove_jax.analysis.product import PHASES, coefficients, phase_set, rope_frequencies, rope_product

PAIRS, BASE, LENGTH = 64, 1e5, 32_768
BASES = (1e4, 1e5, 5e5, 1e7)
STATED = "h = 64 pairs n, amplitudes 1"


def octaves(longest: int, shortest: int = 64) -> list[int]:
    """shortest, twice that, ... up to `longest`."""
    return [2**n for n in range(shortest.bit_length() - 1, longest.bit_length())]


def several(lengths: Sequence[int] | int) -> Sequence[int]:
    """`lengths`, or where it is the longest alone, the octaves below it from 16 on, and it."""
    return sorted({*octaves(lengths, 16), lengths}) if isinstance(lengths, int) else lengths


def by_length(
    picture: Picture, panel: int, base: float, lengths: Sequence[int], values: Sequence[float], style: int
) -> None:
    """A line of a base, with open markers where theory says nothing: at lengths from the base on."""
    picture.line(panel, base_name(base), lengths, values, style, marked=True)
    beyond = [(length, value) for length, value in zip(lengths, values) if length >= base]
    if beyond:
        look = {"color": COLOURS[style], "marker": MARKERS[style], "markersize": 5, "markerfacecolor": "white"}
        picture.axes[panel].plot(*zip(*beyond), linestyle="none", **look)


def closed_form(picture: Picture, panel: int, base: float, lengths: Sequence[int], values: list, style: int) -> None:
    """A thin line of what theory says."""
    picture.record(panel, f"{base_name(base)}, closed form", lengths, values)
    look = {"color": COLOURS[style], "linestyle": DASHES[style], "linewidth": 0.8}
    picture.axes[panel].plot(lengths, values, **look)


THEORY = "theory is for M < B, beyond which markers are open"


def drawn(step: int) -> str:
    """What a caption says where not every distance is drawn in a line."""
    return "" if step == 1 else f"; lines show one distance in {step}"


def base_name(base: float) -> str:
    """B = 1e5 as a label."""
    return f"B = {base:.0e}".replace("e+0", "e").replace("e+", "e")


def score(length: int = LENGTH, phases: str = "aligned") -> Picture:
    """The RoPE product over distance: the wave, its high and low parts, and its distribution beside a normal one."""
    frequencies, z = rope_frequencies(PAIRS, BASE), coefficients(phase_set(phases, PAIRS))
    wave = rope_product(z, frequencies, np.arange(length))
    split = moments.frequency_split(frequencies, length)
    parts = moments.split_product(z, frequencies, np.arange(length), split.high)
    picture = Picture(["score over distance", "high and low frequencies", "distribution over all distances"])
    thin = slice(None, None, max(1, length // 2048))
    at = np.arange(length)[thin]
    whole = moments.window_moments(z, frequencies, 0, length)
    picture.line(0, "S(m)", at, wave[thin], 1, linestyle="solid", linewidth=0.6)
    mean, sd = float(whole.mean), float(whole.sd)
    picture.record(0, "mean, sd (exact)", [mean], [sd])
    picture.axes[0].axhline(mean, color=COLOURS[0], linewidth=1.2, label=f"mean {mean:.2f}")
    picture.axes[0].axhspan(mean - 3 * sd, mean + 3 * sd, color=COLOURS[0], alpha=0.12, label=f"3 sd, sd {sd:.2f}")
    for style, (name, part) in enumerate((("low", parts[1]), ("high", parts[0]))):
        chosen = np.where(split.high == (name == "high"), z, 0.0)
        own = moments.window_moments(chosen, frequencies, 0, length)
        look: dict[str, Any] = {"label": f"{name}: mean {own.mean:.2f}, sd {own.sd:.2f}", "linestyle": "solid"}
        look |= {"linewidth": 1.6, "zorder": 3} if name == "low" else {"linewidth": 0.5, "zorder": 2}
        picture.line(1, name, at, part[thin], style, **look)
    edges = np.linspace(mean - 4 * sd, mean + 6 * sd, 81)
    picture.bars(2, "counted", edges, np.histogram(wave, edges, density=True)[0], 1)
    grid = np.linspace(edges[0], edges[-1], 200)
    fit = moments.normal_fit(wave)
    density = np.exp(-((grid - mean) ** 2) / (2 * sd**2)) / (sd * np.sqrt(2 * np.pi))
    picture.line(2, "normal", grid, density, 0, label=f"normal; KS {fit.ks:.3f}, skew {fit.skew:.2f}")
    for panel in (0, 1):
        picture.dress(panel, "distance m", "score", xlim=(0, length))
    picture.dress(2, "score", "density", ylim=(0, 1.4 * density.max()))
    picture.caption(
        f"{STATED}, phases {PHASES[phases]}, {base_name(BASE)}, M = {length}; high frequencies: pairs that turn at "
        f"least once over M, low ones the others{drawn(thin.step)}"
    )
    return picture


def inversions(
    lengths: Sequence[int] | int = tuple(octaves(LENGTH)), bases: Sequence[float] = BASES, phases: str = "aligned"
) -> Picture:
    """Position inversion and aliasing: what they are, and how likely against length and base."""
    z = coefficients(phase_set(phases, PAIRS))
    lengths = several(lengths)
    picture = Picture(["a position inversion", "P(far half scores higher)", "P(a position has an equal)"])
    at, frequencies = np.arange(2048), rope_frequencies(PAIRS, BASE)
    wave = rope_product(z, frequencies, at)
    picture.line(0, "S(m)", at, wave, 1, linestyle="solid", linewidth=0.8)
    near, far = int(wave[200:1024].argmin()) + 200, int(wave[1024:].argmax()) + 1024
    picture.dots(0, f"S({near}) < S({far})", [near, far], wave[[near, far]], 0, s=40, zorder=3)
    picture.axes[0].axvline(1024, color="0.45", linewidth=1, linestyle=(0, (2, 2)))
    for style, base in enumerate(bases):
        wave = rope_product(z, rope_frequencies(PAIRS, base), np.arange(max(lengths)))
        counted = [float(inversion.inverted_halves(wave[:m])) for m in lengths]
        by_length(picture, 1, base, lengths, counted, style)
        closed = [inversion.closed_position_inversion(PAIRS, base, m) for m in lengths]
        closed_form(picture, 1, base, lengths, closed, style)
        shares = [aliasing.position_aliasing(wave[:m], "bf16").share for m in lengths]
        by_length(picture, 2, base, lengths, shares, style)
    picture.dress(0, "distance m", f"score, {base_name(BASE)}", xlim=(0, 2048))
    top = 0.5 if phases == "aligned" else 1
    picture.dress(1, "length M", "probability", xscale="log", ylim=(0, top))
    picture.dress(2, "length M", "probability", xscale="log", ylim=(0, 1.02))
    for panel in (1, 2):
        picture.tick(panel, lengths)
    picture.caption(
        f"{STATED}, phases {PHASES[phases]} (0 is a lower bound; uniform ones give 1/2 at once); (b) thin: closed form "
        f"of phases 0; (c) scores in bfloat16; {THEORY}"
    )
    return picture


def tokens(
    lengths: Sequence[int] | int = tuple(octaves(LENGTH)), bases: Sequence[float] = BASES, phases: str = "golden"
) -> Picture:
    """Token inversion and aliasing: what they are, and how often against length and base. `phases`: of the key that is
    compared with that of phases 0."""
    lengths = several(lengths)
    picture = Picture(["two keys of one query", "distances with the wrong order", "distances with equal scores"])
    keys = coefficients(np.stack([phase_set("aligned", PAIRS), phase_set(phases, PAIRS)]))
    longest = max(lengths)
    thin = slice(None, None, max(1, longest // 2048))
    for style, base in enumerate(bases):
        first, second = rope_product(keys, rope_frequencies(PAIRS, base), np.arange(longest))
        if base == BASE:
            at = np.arange(longest)[thin]
            picture.line(0, "phases 0", at, first[thin], 6, linestyle="solid", linewidth=0.7)
            picture.line(0, "other phases", at, second[thin], 4, linestyle="solid", linewidth=0.9, zorder=1.9)
            wrong = np.flatnonzero(inversion.inverted_order(first, second)[thin]) * thin.step
            picture.record(0, "wrong order, score of phases 0", wrong, first[wrong])
            rug = {"transform": picture.axes[0].get_xaxis_transform(), "color": COLOURS[1], "label": "wrong order"}
            picture.axes[0].plot(wrong, np.full(len(wrong), 0.02), "|", markersize=6, rasterized=True, **rug)
        inverted = np.cumsum(inversion.inverted_order(first, second))
        by_length(picture, 1, base, lengths, [float(inverted[m - 1] / m) for m in lengths], style)
        closed = [inversion.closed_token_inversion(PAIRS, base, m) for m in lengths]
        closed_form(picture, 1, base, lengths, closed, style)
        close = np.cumsum(aliasing.same_scores(first, second, tolerance=2**-7 * PAIRS))
        by_length(picture, 2, base, lengths, [float(close[m - 1]) for m in lengths], style)
    bound = [aliasing.token_aliasing_bound(PAIRS, m, 7) for m in lengths]
    picture.line(2, "bound, for M < B", lengths, bound, 6, linestyle="solid", linewidth=1)
    picture.dress(0, "distance m", f"score, {base_name(BASE)}", xlim=(0, longest))
    picture.dress(1, "length M", "share", xscale="log", ylim=(0, 0.55))
    picture.dress(2, "length M", "count", xscale="log", yscale="symlog", ylim=(0, 3 * max(bound[-1], close[-1])))
    for panel in (1, 2):
        picture.tick(panel, lengths)
    picture.caption(
        f"{STATED}, key of phases 0 against one of phases {PHASES[phases]}; (b) thin: closed form; (c) scores within "
        f"2^-7 h of each other, bfloat16's resolution (7 bits) at a score of h; {THEORY}{drawn(thin.step)}"
    )
    return picture


def tradeoff(lengths: Sequence[int] | int = (2048, 8192, LENGTH), bases: Sequence[float] = (*BASES, 1e9)) -> Picture:
    """The four failures against the base: what a larger one costs positions and gives tokens. `lengths`: a number
    alone is the longest of three."""
    if isinstance(lengths, int):
        lengths = [max(lengths // part, 2) for part in (16, 4, 1)]
    titles = ("position inversion", "position aliasing", "token inversion", "token aliasing")
    picture = Picture(titles, columns=2)
    cells = sweep.base_sweep(PAIRS, sorted(bases), lengths, token_phases="uniform", draws=6)
    for style, length in enumerate(lengths):
        row = [cell for cell in cells if cell.length == length]
        for panel, name in enumerate(sweep.FAILURES):
            values = np.array([getattr(cell, name) for cell in row], float)
            picture.line(panel, f"M = {length}", [cell.base for cell in row], values, style, marked=True)
    labels = ("P(far half scores higher)", "pairs within 2^-7 sqrt(h)",
              "share of distances in wrong order", "distances within 2^-7 h")  # fmt: skip
    for panel, label in enumerate(labels):
        most = max(1.0, *(float(getattr(cell, sweep.FAILURES[panel])) for cell in cells))
        scale = {1: {"yscale": "log", "ylim": (None, 9 * most)}, 3: {"yscale": "symlog", "ylim": (0, 2 * most)}}
        scale = scale.get(panel, {})
        picture.dress(panel, "base B", label, legend="below", xscale="log", **scale)
    picture.caption(
        f"{STATED}; positions: phases 0; tokens: uniform phases (6 draws) against phases 0; 2^-7: bfloat16's "
        "resolution; theory is for M < B"
    )
    return picture


def swap_of_two(length: int = 8192) -> Picture:
    """Two tokens change places wherever both keys alias: what the output of a RoPE and of a RoVE head does."""
    frequencies, n = rope_frequencies(PAIRS, BASE), np.arange(PAIRS)

    def channels(pairs: np.ndarray) -> np.ndarray:
        return np.concatenate([np.real(pairs), np.imag(pairs)], -1)

    z = coefficients(np.stack([phase_set("aligned", PAIRS), phase_set("ripple", PAIRS)]))
    waves = rope_product(z, frequencies, np.arange(length))
    pairs = aliasing.attention_invariance(waves[0], waves[1], "bf16")
    picture = Picture(["where two tokens may change places", "what their head's output does"])
    share = len(pairs) / (length * (length - 1) / 2)
    look = {"label": f"{len(pairs):,} pairs, {share:.2g} of all", "s": 0.5, "linewidths": 0}
    picture.dots(0, "pairs of distances", pairs[:, 1], pairs[:, 0], 6, marker="s", **look)
    values = channels(np.stack([np.exp(1j * n), np.exp(-2j * n)]) / 8)
    gap = pairs[:, 1] - pairs[:, 0]
    for style, (name, turning) in enumerate((("RoPE", None), ("RoVE", frequencies))):
        swapped = swap.swap_effect(
            channels(np.ones(PAIRS, complex)),
            channels(z.conj()),
            values,
            *pairs.T,
            frequencies=frequencies,
            value_frequencies=turning,
        )
        look = {"label": f"{name}: mean {swapped.change.mean():.3g}", "alpha": 0.6, "zorder": 3 - style}
        picture.dots(1, name, gap, swapped.change, style, s=3, **look)
    picture.dress(0, "farther distance", "nearer distance", xlim=(0, length), ylim=(length, 0), legend="below")
    picture.dress(1, "how far apart the places are", "||change of the output||", xscale="log", legend="below")
    picture.caption(
        f"{STATED}, keys of phases 0 and {PHASES['ripple']}, {base_name(BASE)}, scores in bfloat16; values "
        "exp(i n) / 8 and exp(-2 i n) / 8, of norm 1; the query sees the two tokens and one of score and value 0"
    )
    return picture
