"""Full-batch noisy gradient descent: every gradient is summed exactly on the lattice and released with noise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from daskrado.errors import UsageError
from daskrado.lake.steps import begin_step
from daskrado.learners.on_passes.iterative import (
    GOOD_NORM,
    Guarantee,
    Learned,
    LossLearner,
    Session,
    TrainingLoss,
    check_worthwhile,
)
from daskrado.learners.on_passes.smoothing import NEIGHBOUR_SHARE, OWN_DEVIATIONS, follower
from daskrado.losses.margin import Huber, Loss, SmoothHinge
from daskrado.privacy.accountant import rounding_gap
from daskrado.privacy.gaussian_calibration import Calibration, calibrate
from daskrado.privacy.noise import MAX_SCALE, discrete_gaussian
from daskrado.privacy.perturbation import PublicFacts
from daskrado.statistics.bounded import Bounded
from daskrado.statistics.slopes import SLOPE_BITS, SlopeSum, slope_bits_for
from daskrado.table.lattice import LEAST_BITS, Lattice

MIN_STEPS, MAX_STEPS = 20, 500
_MOMENTUM = 0.9
GROWTH_NOISE = 0.02
"""Where noise over signal v is less, weights of numbers may grow beyond GOOD_NORM, by sqrt(GROWTH_NOISE / v).

Chosen on magic, covertype, KDDCup99, diabetes130 and synthetic tables, as GOOD_NORM was
(pipelines/reproduce/gradient_rule.py --length).
"""


@dataclass(frozen=True)
class Steps:
    """How a run goes, from public facts: number of steps, rate (momentum included), noise on the sum of gradients."""

    loss: Loss
    count: int
    rate: float
    momentum: float
    noise: float
    ratio: float
    growth: float


@dataclass(frozen=True)
class PrivateGradient(LossLearner):
    """T steps V <- m V + (noisy mean gradient), G <- G + (1 - m) V, u = -rate S(G), and the mean of their last half.

    Rows are in the unit ball and u = R w. Without ``loss`` it is Huber's: at equal noise its gradient is twice as
    long as the logistic one where most rows are still near the boundary. S is a public map
    (``smoothing``); with ``smooth`` it lets neighbouring bins of a column learn from each other, and a bin by itself
    where its sum G stands out from the noise in it, whose deviation is known.

    Sensitivity
        One row moves a sum of gradients by at most 1 or 2 (:class:`daskrado.statistics.slopes.SlopeSum`), whatever
        the earlier, public iterates are. T discrete Gaussians of scale s compose to the one Gaussian of scale
        s / sqrt(T), mu = sqrt(T) sensitivity / s (``privacy.gaussian_calibration``). Averaging, momentum
        and smoothing are post-processing.

    Reference
        Bassily, Smith and Thakurta (2014), full batch; Canonne, Kamath and Steinke (2020), noise and conversion;
        Dong, Roth and Su (2022), the composition of Gaussians.

    The public rule. With v = |noise of one full-budget gradient| / (n times the largest gradient), descent by a total
    length l = rate T ends within D^2 / (2 l) + l v^2 / 2 of the best of norm D, whatever T is: the noise of T steps
    grows as sqrt(T) on each and averages out again. So l = D / v, with D = GOOD_NORM. Where little noise leaves room,
    numeric columns go farther by sqrt(GROWTH_NOISE / v): S has that on their diagonal, or rather 1 there and its
    inverse on the others, and l is as much longer. As much wider is the corner of the Huber loss then, from h = 1/2
    up to 1, for margins are larger. The steps must be short enough for descent with momentum m to be stable, rate <
    2 (1 + m) / ((1 - m) c) at curvature c; T is the least number that keeps to half of that at m = 0.9, within
    MIN_STEPS and MAX_STEPS. Where MAX_STEPS, or those given, are too few, m is raised until they do, and l stops at
    T^2 / c, where momentum remembers half of the run. All this is in the norm of S's inverse, where noise counts as
    trace S <= d and curvature is at most c x.Sx <= c; a smooth classifier has the smaller norm there. Bins that stand
    out add at most one half to that: then steps keep to three quarters of the limit.
    """

    loss: TrainingLoss | None = None
    steps: Annotated[int | None, Field(ge=1, le=20 * MAX_STEPS)] = None
    rate: Annotated[float | None, Field(ge=1e-9, le=1e9)] = None
    smooth: bool = True

    name: ClassVar[str] = "gradient"
    tunable: ClassVar[bool] = True
    loss_name: ClassVar[str] = "huber"

    @classmethod
    def current_spelling(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """``loss: huber`` without a corner leaves the corner to the public rule, as does no loss."""
        found = super().current_spelling(options)
        return {key: value for key, value in found.items() if key != "loss" or value not in ("huber", None)}

    def __post_init__(self) -> None:
        if self.loss is not None and self.loss.lipschitz is None:
            raise UsageError(f"loss {self.loss.name} has no bound on its slope: gradient needs logistic or a hinge")

    def schedule(self, facts: PublicFacts) -> Steps:
        """Loss, steps, rate and noise."""
        once = self._reach(facts) / self.calibration(facts).mu
        ratio = once * math.sqrt(facts.width) / facts.rows
        growth = max(1.0, math.sqrt(GROWTH_NOISE / ratio))
        loss = self.loss or Huber(0.5 * min(2.0, growth))
        curvature = loss.smoothness or 1.0
        length = min(GOOD_NORM * growth / ratio, (self.steps or MAX_STEPS) ** 2 / curvature)
        fastest = self.rate or (1 + _MOMENTUM) / ((1 - _MOMENTUM) * curvature)
        count = self.steps or math.ceil(min(MAX_STEPS, max(MIN_STEPS, length / fastest)))
        rate = self.rate or length / count
        momentum = max(_MOMENTUM, (rate * curvature - 1) / (rate * curvature + 1))
        growth = 1.0 if self.rate else max(1.0, length * ratio / GOOD_NORM)
        return Steps(loss, count, rate, momentum, once * math.sqrt(count), ratio, growth)

    def calibration(self, facts: PublicFacts) -> Calibration:
        """What all steps together cost, and how much noise that is."""
        if not facts.delta > 0:
            raise UsageError("learner gradient adds Gaussian noise and needs budget.delta above 0 (say 1e-6)")
        steps = self.steps or MAX_STEPS
        grid = self._reach(facts) * math.sqrt(steps) * 2.0 ** (LEAST_BITS + SLOPE_BITS)  # or finer
        return calibrate(facts.epsilon, facts.delta, lambda mu: rounding_gap(facts.width * steps, grid / mu))

    def _reach(self, facts: PublicFacts) -> float:
        """How far one protected unit moves a sum of gradients."""
        lattice = _lattice(facts)
        slopes = SlopeSum.at(np.zeros(facts.width), self.loss or Huber(), lattice, _slope_bits(facts))
        if facts.spread:
            return Bounded(facts.width, slopes, facts.rows_per_unit, lattice.bits).sensitivity(facts.relation).l2
        return slopes.sensitivity(facts.relation).l2 * facts.rows_per_unit

    def guarantee(self, facts: PublicFacts) -> Guarantee:
        """All steps together, as one Gaussian; noise and, where their number is public, rows must fit the lattice."""
        found = self.calibration(facts)
        check_worthwhile(facts, gaussian=True)
        lattice, bits = _lattice(facts), _slope_bits(facts)
        _unit(self.schedule(facts), lattice, bits)
        lattice.guard(facts.rows if facts.relation.rows_public else None, 1 << (lattice.bits + bits))
        return Guarantee(found.event, facts.delta, "noisy gradient", found.theorem)

    def forecast(self, facts: PublicFacts) -> Iterator[tuple[str, str]]:
        plan = self.schedule(facts)
        numbers, others = f"{plan.rate:.3g}", f"{plan.rate / plan.growth:.3g}"
        rates = f"rate {numbers}" if numbers == others else f"rate {numbers} for numbers and {others} for the rest"
        yield (
            "descends",
            f"{plan.count} steps of {rates} on the {plan.loss.name} loss, momentum {plan.momentum:.3g}",
        )
        if self.smooth:
            half, alone = (
                f"{NEIGHBOUR_SHARE * plan.rate / plan.growth:.3g}",
                f"{OWN_DEVIATIONS:g} standard deviations of their noise",
            )
            yield "bins", f"if any, go with their neighbours at rate {half}, and alone at {numbers} beyond {alone}"
        yield (
            "noise",
            (
                f"standard deviation {plan.noise:.4g} on each sum of gradients (as much as so many rows); over "
                f"all steps {100 * plan.ratio:.2g} % of the largest gradient"
            ),
        )

    def excess(self, facts: PublicFacts) -> float:
        """D^2 / (2 l) + l v^2 / 2 at |w| R = D = GOOD_NORM: what a finite run leaves, and its noise.

        At the length that is best for it, or as given: the rule goes on where noise is low, towards larger norms.
        """
        ratio = self.schedule(facts).ratio
        length = self.rate * self.steps if self.rate and self.steps else GOOD_NORM / ratio
        return 0.5 * (GOOD_NORM**2 / length + length * ratio**2)

    def learn(self, session: Session, facts: PublicFacts) -> Learned:
        """Descend; the grant is spent before the first draw."""
        plan, lattice, bits = self.schedule(facts), session.passes.lattice, _slope_bits(facts)
        unit = _unit(plan, lattice, bits)
        follow = follower(session.passes.domain, neighbours=self.smooth, growth=plan.growth)
        u, velocity, gathered, total = (np.zeros(facts.width) for _ in range(4))
        averaged, spread = max(1, plan.count // 2), 0.0
        begin_step(session.progress, "descent step")
        for step in range(plan.count):
            slopes = SlopeSum.at(u, plan.loss, lattice, bits)
            noisy = session.draw(
                partial(session.passes.sum, slopes, share=session.share),
                lambda summary: discrete_gaussian(summary.vector, plan.noise / unit),
            )
            velocity = plan.momentum * velocity + noisy * (unit / facts.rows)
            gathered += (1 - plan.momentum) * velocity
            spread += (1 - plan.momentum ** (step + 1)) ** 2  # what one draw counts for after so many steps, squared
            u = -plan.rate * follow(gathered, plan.noise / facts.rows * math.sqrt(spread))
            if step >= plan.count - averaged:
                total += u / averaged
            if session.progress is not None:
                session.progress(step + 1, plan.count)
        details = {
            "loss": plan.loss.name,
            "steps": plan.count,
            "rate": plan.rate,
            "growth": plan.growth,
            "momentum": plan.momentum,
            "noise_std_per_step": plan.noise,
            "smooth": self.smooth,
        }
        if isinstance(plan.loss, Huber | SmoothHinge):
            details["h"] = plan.loss.h
        return Learned(total / facts.norm_bound, details)


def _lattice(facts: PublicFacts) -> Lattice:
    rule = PrivateGradient.default_bits if facts.relation.rows_public else PrivateGradient.secret_bits
    return Lattice(facts.norm_bound, facts.lattice_bits or rule)


def _slope_bits(facts: PublicFacts) -> int:
    return slope_bits_for(_lattice(facts), rows_public=facts.relation.rows_public)


def _unit(plan: Steps, lattice: Lattice, slope_bits: int) -> float:
    """What one integer step of a sum of gradients is worth; refused before anything is spent if noise has no room."""
    unit = math.ldexp(1.0, -lattice.bits - slope_bits)
    if plan.noise > MAX_SCALE * unit:
        raise UsageError(
            f"noise of {plan.noise:.3g} rows has no room in 64-bit sums: raise epsilon, or lower lattice_bits "
            f"(now {lattice.bits})"
        )
    return unit
