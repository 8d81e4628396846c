"""The law of a sum of many independent privacy losses, on a grid; the delta that follows is never below the truth.

An outcome with mass p under one of two neighbouring laws and q under the other is an atom of mass p at the loss
log(p / q). For the sum L of independent losses, delta(epsilon) = leak + E[(1 - exp(epsilon - L))_+], where leak
is the mass of infinite losses. This grows with every mass and with every loss, so each step may round both up:

1. *Grid.* An atom at L between neighbouring points l and u of the grid is split in two: the mass
   p (1 - exp(l - L)) / (1 - exp(l - u)) goes to u and the rest to l, which keeps the sums of p and of q. Merging the
   two is post-processing and restores the atom, so the split pair of laws is at least as easy to tell apart. The mean
   grows by less than the square of a cell; rounding each loss up would add about half a cell.
2. *Tails.* The upper tail is added to the leak; the lower tail moves up to the lowest point that is kept.
3. *Arithmetic.* All terms are positive and none is subtracted, so errors are relative: each step multiplies masses
   by a bound on its error.

A sum of twice as many losses is wider by about sqrt(2), so every other doubling needs cells of twice the size. Cells
are powers of two: two grids share all points of the coarser one.

*Reference*: Koskela, Jälkö and Honkela (2020), numerical loss distributions; Doroshenko, Ghazi, Kamath, Kumar and
Manurangsi (2022), the split of step 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from daskrado.privacy.total_loss import Losses

if TYPE_CHECKING:
    from daskrado.privacy.total_loss import Floats

_CELLS = 2**13
_NEGLIGIBLE = 1e-9  # of delta: what all tails together may leak
_STEPS = 200  # more sums than doubling and adding ever takes for one law
_UNDERFLOW = 1e-250  # far above all products that double arithmetic rounds to zero


@dataclass(frozen=True, slots=True)
class _Grid:
    """Masses of the losses ``(start + i) cell``, of the sum of ``times`` losses."""

    cell: float
    start: int
    chances: Floats
    leak: float
    times: int

    def coarser(self, cell: float) -> _Grid:
        """The same on a grid of larger cells, another power of two."""
        import numpy as np

        grid = self
        while grid.cell < cell:
            # An odd point lies in the middle of two new ones: the shares of step 1 are those of randomised response.
            first = grid.start % 2
            padded = np.pad(grid.chances, (first, 2 - (first + len(grid.chances)) % 2))
            merged, odd = np.append(padded[::2], 0.0), padded[1::2]
            merged[:-1] += odd / (1 + math.exp(grid.cell))
            merged[1:] += odd / (1 + math.exp(-grid.cell))
            grid = _Grid(2 * grid.cell, (grid.start - first) // 2, merged * raised(0), grid.leak, grid.times)
        return grid

    def trimmed(self, cut: float) -> _Grid:
        """Without tails of a mass of at most ``cut`` each, and with at most ``_CELLS`` points."""
        first, last, below, above = _tails(self.chances, cut)
        kept = self.chances[first:last].copy()
        kept[0] += below
        grid = _Grid(self.cell, self.start + first, kept, self.leak + above, self.times)
        return grid.coarser(2 * self.cell) if len(kept) > _CELLS else grid

    def plus(self, other: _Grid, share: float) -> _Grid:
        """The sum with independent losses, without tails of a mass of ``share`` for each loss in it."""
        import numpy as np

        cell, times = max(self.cell, other.cell), self.times + other.times
        one, two = self.coarser(cell), other.coarser(cell)
        chances = np.convolve(one.chances, two.chances) * raised(_CELLS)
        leak = (one.leak + two.leak * max(0.0, 1 - one.leak)) * raised(0)
        return _Grid(cell, one.start + two.start, chances, leak, times).trimmed(share * times)


def raised(terms: int) -> float:
    """The factor that makes up for the rounding of a sum of so many positive terms and of a few products."""
    return 1 + (terms + 64) * 2.0**-52


def repeated_losses(terms: Iterable[tuple[Losses, int]], delta: float) -> Losses:
    """The sum of independent losses, each law as often as its number says; as sharp as ``delta`` needs it to be."""
    import numpy as np

    known = list(terms)
    share = delta * _NEGLIGIBLE / (_STEPS * len(known) * sum(times for _, times in known))
    total: _Grid | None = None
    for losses, times in known:
        power = _on_grid(losses, share)
        while times:
            if times % 2:
                total = power if total is None else total.plus(power, share)
            times //= 2
            if times:
                power = power.plus(power, share)
    assert total is not None
    values: Floats = (total.start + np.arange(len(total.chances))) * np.float64(total.cell)
    return Losses(values, total.chances, total.leak + _UNDERFLOW)


def _on_grid(losses: Losses, share: float) -> _Grid:
    """Split every atom between the two points beside it."""
    import numpy as np

    order = np.argsort(losses.values)
    first, last, _, above = _tails(losses.chances[order], share)
    chances = losses.chances[order[:last]]
    # The last bits of a value are an error, too; the lower tail moves up.
    values = np.maximum(losses.values[order[:last]], losses.values[order[first]])
    values = values + np.abs(values) * 2.0**-50
    width = max(float(np.ptp(values)), float(np.abs(values).max()) * 2.0**-30) or 1.0
    cell = 2.0 ** math.ceil(math.log2(width / (_CELLS - 2)))
    at = np.floor(values / cell)
    up = np.expm1(at * cell - values) / math.expm1(-cell)
    down = np.exp(at * cell - values) * np.expm1(values - (at + 1) * cell) / math.expm1(-cell)
    start = int(at[0])
    index = at.astype(np.int64) - start
    points = int(index[-1]) + 2
    split = np.bincount(index, weights=down * chances, minlength=points)
    split = split + np.bincount(index + 1, weights=up * chances, minlength=points)
    return _Grid(cell, start, split.astype(np.float64) * raised(len(values)), losses.leak + above, 1)


def _tails(chances: Floats, cut: float) -> tuple[int, int, float, float]:
    """Where to begin and end so that at most ``cut`` is lost on either side, and the mass below and above."""
    import numpy as np

    below, above = np.cumsum(chances), np.cumsum(chances[::-1])
    last = max(len(chances) - int(np.searchsorted(above, cut, "right")), 1)
    first = min(int(np.searchsorted(below, cut, "right")), last - 1)
    scale = raised(len(chances))
    return (
        first,
        last,
        float(below[first - 1]) * scale if first else 0.0,
        float(above[len(chances) - last - 1]) * scale if last < len(chances) else 0.0,
    )
