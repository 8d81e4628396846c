"""How much noise every edge vector needs for a budget, and the finest grid on which it can be drawn."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from daskrado.errors import UsageError
from daskrado.privacy.accountant import MAX_DELTA, ApproximateEvent, Event, SeveralEvents, ZcdpEvent, zcdp_rho
from daskrado.statistics.row_noise import MOST_SCALE, TABLE_ERROR

FINEST_BITS = 20  # of the grid, where the sampler would allow more: as for other rados
_COARSEST_BITS = 4
_NO_LOSS = Fraction(1, 10**15)  # the sampler's error is a delta alone; an event has an epsilon


@dataclass(frozen=True)
class EdgeNoise:
    """Gaussian noise of ``scale`` grid steps on every coordinate of every edge vector, on a grid of ``bits``."""

    bits: int
    scale: float
    event: Event

    @classmethod
    def for_budget(
        cls, epsilon: float, delta: float, width: int, rows_per_unit: int, wanted: int | None = None
    ) -> EdgeNoise:
        """zCDP of the changed rows at a delta that leaves room for the sampler's own error.

        The grid is as fine as the sampler's largest scale allows, unless ``wanted`` bits are given.

        Sensitivity
            A unit with k rows moves k edge vectors by at most 2 each, 2 sqrt(k) together in L2. Their noise is
            within k d TABLE_ERROR of the exact law, which costs (1 + exp(epsilon)) times that in delta.
        """
        lost = (1 + math.exp(epsilon)) * width * rows_per_unit * TABLE_ERROR
        if lost > float(MAX_DELTA) / 2:
            raise UsageError(f"epsilon {epsilon:g} is too large for noise on rows; lower it")
        if lost > delta / 2:
            raise UsageError(
                f"the row noise is exact to {lost:.2g} in delta at this epsilon and width; budget.delta must be at "
                f"least {2 * lost:.2g}, got {delta:g}"
            )
        rho = zcdp_rho(epsilon, delta - lost)
        unit_scale = 2 * math.sqrt(rows_per_unit) / math.sqrt(2 * rho) * (1 + 1e-12)
        fitting = [b for b in range(_COARSEST_BITS, FINEST_BITS + 1) if unit_scale * 2**b <= MOST_SCALE]
        if not fitting:
            raise UsageError(
                f"epsilon {epsilon:g} needs more noise on rows than the sampler gives "
                f"({unit_scale * 2**_COARSEST_BITS:.3g} grid steps, at most {MOST_SCALE:g}); raise epsilon or delta"
            )
        if wanted is not None and wanted > fitting[-1]:
            raise UsageError(
                f"lattice_bits {wanted} is finer than noise on rows can be drawn at this budget: at most "
                f"{fitting[-1]}, which it has where lattice_bits is left out"
            )
        bits = wanted or fitting[-1]
        return cls(bits, unit_scale * 2**bits, SeveralEvents.of([ZcdpEvent(rho), ApproximateEvent(_NO_LOSS, lost)]))
