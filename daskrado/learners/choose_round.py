"""Choosing among a booster's rounds by their mistakes on the rows: a private choice that is charged.

Taking the round with the fewest training mistakes is an argmin over private counts. Done plainly it would void the
guarantee of the rados; here it is the exponential mechanism, with a ledger entry of its own.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from daskrado.privacy.noise import exponential_choice
from daskrado.statistics.base import Statistic, Summary
from daskrado.statistics.boosting import MistakeCounts
from daskrado.table.lattice import Lattice

THEOREM = "exponential mechanism on training mistakes (McSherry and Talwar 2007)"


def mistakes(thetas: NDArray[np.float64], lattice: Lattice) -> MistakeCounts:
    """The statistic that counts the mistakes of each row of ``thetas``."""
    return MistakeCounts(thetas.shape[1], np.ascontiguousarray(thetas * lattice.step).tobytes())


def choose_by_mistakes(counts: Summary, spend: Callable[[], None], epsilon: float, rows_per_unit: int) -> int:
    """The index of a round, P(t) proportional to exp(-epsilon mistakes_t / (2 rows_per_unit)).

    ``spend`` marks the grant as spent, before the draw. A row changes every count by at most 1, so a unit of k rows,
    or one whose weights are at most k together, by at most k. Counts keep all bits of the weights.
    """
    spend()
    assert isinstance(counts.statistic, Statistic)
    mistakes = counts.vector * counts.statistic.blocks[0].step(counts.lattice)
    return exponential_choice(-mistakes, epsilon, float(rows_per_unit))
