"""From noisy counts on public grids to the bounds and bins of a column: post-processing, no row is seen here.

First a grid of signed powers of two shows roughly where the numbers are; then equal cells inside that range show
their bounds, their median and their quantiles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_POWERS = [2.0**power for power in range(-32, 63)]
GRID = (*(-edge for edge in reversed(_POWERS)), *_POWERS)
"""Edges of the first grid: cells of powers of two, and one for what is nearly zero."""
FAR = 2.0**64  # beyond all edges
CELLS = 128  # of the second grid, beside powers of two
MOST_BINS = 16
HELD = 0.8  # of a column's rows that bounds must hold, as far as the noise shows
_CHANCE = 0.05  # that noise alone is taken for values somewhere in a table
_NEARLY_ZERO = _POWERS[0]

Counts = NDArray[np.float64]


@dataclass(frozen=True)
class Span:
    """A range of numbers, ``low`` included and ``high`` not."""

    low: float
    high: float


def stands_out(tests: int) -> float:
    """How many standard deviations a count must have, so that noise alone hardly ever passes any of so many tests."""
    from scipy.special import ndtri

    return float(-ndtri(_CHANCE / max(1, tests)))


def rough_span(counts: Counts, std: float, limit: float) -> Span | None:
    """Where numbers are, by their counts between the edges of GRID; None where none stand out from the noise.

    Cells, and further out pairs of them, that stand out by ``limit`` standard deviations, and a neighbour on either
    side that may well hold some.
    """
    first, last = _outer(counts, std, limit, 2), len(counts) - 1 - _outer(counts[::-1], std, limit, 2)
    if first > last:
        return None
    first -= int(first > 0 and counts[first - 1] > 1.5 * std)
    last += int(last + 1 < len(counts) and counts[last + 1] > 1.5 * std)
    edges = (-FAR, *GRID, FAR)
    return Span(_near_zero(edges[first]), _near_zero(edges[last + 1]))


def _near_zero(edge: float) -> float:
    """Zero for the lower edge of the cell around it; what lies above stays above."""
    return 0.0 if edge == -_NEARLY_ZERO else edge


def fine_edges(span: Span | None, *, whole: bool) -> tuple[float, ...]:
    """Edges of the second grid: CELLS equal cells of the span and its powers of two; whole numbers where all are."""
    low, high = (-1.0, 1.0) if span is None else (span.low, span.high)
    cuts = {low + (high - low) * step / CELLS for step in range(CELLS + 1)}
    cuts |= {edge for edge in GRID if low < edge < high}
    if whole and high - low <= CELLS:
        cuts = {float(number) for number in range(math.ceil(low), math.ceil(high) + 2)}
    elif whole:
        cuts = {float(math.ceil(edge)) for edge in cuts}
    return tuple(sorted(cuts))


@dataclass(frozen=True)
class Found:
    """What the second grid shows of a column of numbers."""

    lower: float
    upper: float
    median: float
    bins: tuple[float, ...]
    skewed: bool  # most lie near zero, some far above


def found_numbers(
    counts: Counts, edges: Sequence[float], std: float, limit: float, rows: float, *, whole: bool
) -> Found | None:
    """Bounds, median and quantiles from the counts between the edges; None where the column seems constant.

    ``limit``: a run of 1, 2, 4, ... cells must stand out by so many standard deviations of its own noise. Where what
    stands out holds too few of the ``rows``, the bounds are those of the whole grid.
    """
    first, last = _outer(counts, std, limit), len(counts) - 1 - _outer(counts[::-1], std, limit)
    if first > last or counts[first : last + 1].sum() < HELD * rows:
        first, last = 0, len(counts) - 1
    inside, cuts = counts[first : last + 1], np.array(edges[first : last + 2])
    lower, upper = float(cuts[0]), float(cuts[-1])
    if whole:
        lower, upper = math.ceil(lower), math.ceil(upper) - 1
        upper += lower == upper == 0  # of whole numbers that are nearly always 0, what is above counts as 1
    if not lower < upper:
        return None
    running = np.maximum.accumulate(np.cumsum(inside))
    total = max(float(running[-1]), 1.0)
    running = running / total
    middle = int(np.searchsorted(running, 0.5))
    median = float(cuts[middle] if whole else (cuts[middle] + cuts[middle + 1]) / 2)
    skewed = lower >= 0 and upper >= 16 and median <= upper / 16
    most = int(max(2, min(MOST_BINS, total / (6 * std)))) if std else MOST_BINS
    wanted = [int(np.searchsorted(running, share / most)) for share in range(1, most)]
    bins = sorted({float(cuts[cell + 1]) for cell in wanted if lower < cuts[cell + 1] < upper})
    return Found(_short(lower), _short(upper), _short(median), tuple(map(_short, bins)), skewed)


def _outer(counts: Counts, std: float, limit: float, longest: int = CELLS) -> int:
    """The first cell that stands out, or of the runs of 2, 4, ... cells that do so further out."""
    best, sums = len(counts), np.concatenate([[0.0], np.cumsum(counts)])
    length = 1
    while length <= min(best, longest):
        runs = sums[length : best + 1] - sums[: best + 1 - length]
        found = np.flatnonzero(runs > limit * std * math.sqrt(length))
        best = min(best, int(found[0])) if len(found) else best
        length *= 2
    return best


def _short(number: float) -> float:
    """Six digits: edges have a reason only to a few."""
    return float(f"{number:.6g}") if abs(number) < 1e6 or number != int(number) else number
