"""Where plain numbers lie, found in private: a descent centres and scales them before it spends the rest.

Bounds that an owner can declare without looking are wide, and all noise is as large as the norm bound: numbers that
fill a tenth of their bounds learn as if ten times the noise were on them. So a share of the budget counts, in two
rounds, how many rows lie in each of CELLS parts of each number's range. The first round finds the parts that hold
rows, the second looks at those alone. What comes out is the same Domain with ``zero`` and ``one`` of each number and
another norm bound; the model is published with it, so whoever predicts sees nothing of this.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskrado.lake.steps import begin_step
from daskrado.learners.on_passes.iterative import Session
from daskrado.privacy.noise import MAX_SCALE, discrete_gaussian, discrete_laplace
from daskrado.privacy.perturbation import PublicFacts
from daskrado.privacy.relations import Sensitivity
from daskrado.statistics.base import Summary
from daskrado.statistics.bounded import Bounded
from daskrado.statistics.number_cells import FINE, NumberCells
from daskrado.table.columns import plain_numbers
from daskrado.table.domain import Domain, NumericColumn
from daskrado.table.lattice import Lattice

CELLS, ROUNDS = 32, 2
LEAST_SHARE, MOST_SHARE, WANTED, ENOUGH = 0.03, 0.25, 20.0, 4.0
"""Of mu^2 centring gets so much that the noise on a count is 1 / WANTED of the rows, within these limits; where it
would still be above 1 / ENOUGH of them, no count could be told from noise, and nothing is centred."""
SEEN, SOME = 3.0, 0.02
"""A cell counts if it has more than SEEN deviations of noise and more than SOME of the rows."""
DEVIATIONS = 2.5
"""Of a number's values become 1. Chosen with ENOUGH, WANTED and CELLS on magic, covertype and a made-up table of
mails (pipelines/reproduce/centring.py)."""
_BITS, _LOOSE = 20, 1.01  # of the grid of rows that are counted, none of which is clipped
_STEP = math.ldexp(1.0, -FINE)

Counts = NDArray[np.float64]


@dataclass(frozen=True)
class Centring:
    """A share of mu^2, or of epsilon where it is ``pure``, and the deviation of the noise on each count, in rows."""

    share: float
    noise: float
    pure: bool = False

    @classmethod
    def planned(cls, facts: PublicFacts, mu: float) -> Centring | None:
        """The public rule. None where it cannot pay.

        *Sensitivity*: a round moves by at most the l2 of :func:`moved`, so ROUNDS Gaussians of deviation s cost
        ROUNDS l2^2 / s^2 = share mu^2.
        """
        if not facts.numbers or not (far := moved(facts).l2):
            return cls._free(facts)
        alone = far * math.sqrt(ROUNDS) / mu
        share = min(MOST_SHARE, max(LEAST_SHARE, (WANTED * alone / facts.rows) ** 2))
        return cls._worthwhile(facts, cls(share, facts.surplus * alone / math.sqrt(share)))

    @classmethod
    def purely(cls, facts: PublicFacts) -> Centring | None:
        """The same rule with Laplace noise, for learners whose own cost is no Gaussian's.

        *Sensitivity*: a round moves by at most the l1 of :func:`moved`, so ROUNDS draws of Laplace noise of scale b,
        whose deviation is sqrt(2) b, cost ROUNDS l1 / b = share epsilon, a pure guarantee; what follows has the rest
        of epsilon, whatever the counts became (basic composition).
        """
        if facts.sites > 1:  # shares of Laplace noise add up to none
            return None
        if not facts.numbers or not (far := moved(facts).l1):
            return cls._free(facts)
        alone = math.sqrt(2.0) * ROUNDS * far / facts.epsilon * (1 + 1e-9)  # above what rounding may take off
        share = min(MOST_SHARE, max(LEAST_SHARE, WANTED * alone / facts.rows))
        return cls._worthwhile(facts, cls(share, alone / share, pure=True))

    @classmethod
    def _free(cls, facts: PublicFacts) -> Centring | None:
        """Where labels alone are secret, numbers are public."""
        return cls(0.0, 0.0) if facts.numbers else None

    @staticmethod
    def _worthwhile(facts: PublicFacts, plan: Centring) -> Centring | None:
        return plan if plan.noise <= min(facts.rows / ENOUGH, MAX_SCALE * _STEP) else None

    @property
    def steps(self) -> float:
        """The noise in integer steps of the counts."""
        return self.noise / _STEP


def counted(facts: PublicFacts) -> NumberCells:
    """What a round counts, as far as its sensitivity and its size go."""
    return NumberCells(facts.width, tuple(range(facts.numbers)), CELLS, 1.0)


def moved(facts: PublicFacts) -> Sensitivity:
    """How far one protected unit moves the counts of a round."""
    cells = counted(facts)
    if facts.spread or facts.weighted:
        return Bounded(facts.width, cells, facts.rows_per_unit, _BITS).sensitivity(facts.relation)
    return cells.sensitivity(facts.relation).times(facts.rows_per_unit)


def centred(session: Session, facts: PublicFacts, plan: Centring) -> tuple[Session, PublicFacts]:
    """The session and its facts under a Domain whose numbers are centred; spends the grant before the first draw.

    *Sensitivity*: that of ``NumberCells``, in each of ROUNDS releases. The second counts under the Domain that the
    first one made, which is public by then; what the counts become is post-processing.
    """
    domain = session.passes.domain
    begin_step(session.progress, "places of numbers")
    for number in range(1, ROUNDS + 1):
        lattice = Lattice(_LOOSE * domain.largest_norm, _BITS)
        cells = NumberCells(domain.width, plain_numbers(domain), CELLS, lattice.step)
        passes = session.passes.under(domain, lattice, keep=False)
        read = partial(passes.sum, cells, share=session.share)
        drawn = session.draw(read, partial(_perturbed, plan, session.part)) if plan.noise else read().vector
        counts = np.asarray(drawn * _STEP).reshape(-1, CELLS)
        domain = refined(domain, np.where(_seen(counts, plan.noise, facts.rows), counts, 0.0), last=number == ROUNDS)
        if session.progress is not None:
            session.progress(number, ROUNDS)
    facts = replace(facts, norm_bound=domain.norm_bound)
    lattice = Lattice(domain.norm_bound, session.passes.lattice.bits)
    return replace(session, passes=session.passes.under(domain, lattice)), facts


def _perturbed(plan: Centring, part: float, summary: Summary) -> NDArray[np.int64]:
    if plan.pure:
        return discrete_laplace(summary.vector, plan.steps / math.sqrt(2.0))
    return discrete_gaussian(summary.vector, part * plan.steps)


def in_words(facts: PublicFacts, plan: Centring | None) -> str:
    """For a plan."""
    if plan is None:
        return f"{facts.numbers} stay as the domain scales them: too few rows to find their places in this budget"
    noise = f"standard deviation {plan.noise:.4g} rows on counts" if plan.noise else "no noise is needed"
    return f"{facts.numbers} centred and scaled first by {100 * plan.share:.2g} % of the budget ({noise})"


def as_details(facts: PublicFacts, plan: Centring) -> dict[str, Any]:
    """For a model's details."""
    found = {"centred_numbers": facts.numbers, "share_of_centring": plan.share}
    return found | {"noise_std_of_counts": plan.noise}


def _seen(counts: Counts, noise: float, rows: int) -> NDArray[np.bool_]:
    return np.asarray(counts > max(SEEN * noise, SOME * rows))


def refined(domain: Domain, counts: Counts, *, last: bool) -> Domain:
    """The Domain with each number scaled to its counts, by cell of [-1, 1]; a number without any stays as it is.

    First to the cells that hold some, and half a cell on each side. Last so that the mean becomes 0 and DEVIATIONS
    standard deviations, or cells if those are wider, become 1; then the norm bound is the root mean square length of
    a row, as ``Domain.usual_norm`` has it, with numbers as they were counted.
    """
    middles = (2 * np.arange(CELLS) + 1) / CELLS - 1
    columns, square = dict(domain.columns), domain.usual_norm**2
    numbers = [name for name, column in columns.items() if isinstance(column, NumericColumn) and column.bins is None]
    for name, found in zip(numbers, counts, strict=True):
        held, column = np.flatnonzero(found), columns[name]
        if not len(held):
            continue
        if last:
            centre = float(found @ middles / found.sum())
            spread = math.sqrt(float(found @ (middles - centre) ** 2 / found.sum()))
            reach = DEVIATIONS * max(spread, 2 / CELLS)
            square += float(found @ np.clip((middles - centre) / reach, -1, 1) ** 2 / found.sum()) - 1 / 3
        else:
            centre = float(middles[held[0]] + middles[held[-1]]) / 2
            reach = float(middles[held[-1]] - middles[held[0]]) / 2 + 2 / CELLS
        assert isinstance(column, NumericColumn)
        columns[name] = _rescaled(column, centre, reach)
    kept = {key: value for key, value in domain.model_dump().items() if key not in ("columns", "norm_bound")}
    bound = round(math.sqrt(square), 6) if last else domain.norm_bound
    return Domain.model_validate({**kept, "columns": columns, "norm_bound": bound})


def _rescaled(column: NumericColumn, centre: float, reach: float) -> NumericColumn:
    """Where ``centre`` becomes 0 and ``centre + reach`` 1, both on the scale of today; as it is below rounding."""
    middle, far = column.scale
    zero = min(max(column.restored(middle + centre * far), column.lower), column.upper)
    one = column.restored(column.transformed(zero) + reach * far)
    size = max(abs(column.lower), abs(column.upper))
    return column.model_copy(update={"zero": zero, "one": one}) if one - zero > 1e-6 * size else column
