"""Noisy gradient descent, preconditioned: sums over all rows, exact on the lattice, each released with noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from daskrado.errors import UsageError
from daskrado.lake.steps import begin_step
from daskrado.learners.on_passes import residuals
from daskrado.learners.on_passes.centring import ROUNDS, Centring, as_details, centred, counted, in_words
from daskrado.learners.on_passes.descent_errors import Trace, descent_bars, published_weights
from daskrado.learners.on_passes.iterative import (
    GOOD_NORM,
    Guarantee,
    IterativeLearner,
    Learned,
    LossLearner,
    Session,
    TrainingLoss,
    check_worthwhile,
)
from daskrado.learners.on_passes.outlook import Outlook
from daskrado.learners.on_passes.preconditioner import OWN_DEVIATIONS, Preconditioner
from daskrado.learners.on_passes.schedule import STEPS, Schedule, noises, schedule
from daskrado.losses.margin import Huber, HuberLogistic, Loss, SmoothHinge
from daskrado.losses.residual import ResidualHuber
from daskrado.privacy.accountant import GaussianEvent
from daskrado.privacy.gaussian_calibration import Calibration, calibrate
from daskrado.privacy.noise import MAX_SCALE, discrete_gaussian
from daskrado.privacy.perturbation import PublicFacts
from daskrado.privacy.shares import sum_gap
from daskrado.statistics.base import Statistic, Summary
from daskrado.statistics.bounded import Bounded
from daskrado.statistics.residual_spread import ResidualSpread
from daskrado.statistics.second_moments import MOST_FEATURES, SecondMoments
from daskrado.statistics.slopes import SlopeSum, slope_bits_for
from daskrado.table.label import Label
from daskrado.table.lattice import Lattice

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class PrivateGradient(LossLearner):
    """Noisy second moments S, then T steps z <- y - (noisy mean gradient at P y), y = z + m (z - z'), z' the last z.

    Rows are in the unit ball; u = P z are weights times R, and the mean of their last half is the answer. P is the
    inverse of the loss's curvature times S / n, plus a precision for each weight (``preconditioner``): so a step is
    Newton's where rows say much, and as long as noise allows where they say little. With ``smooth`` neighbouring bins
    of a column learn from each other, and a bin by itself where its summed gradients stand out from their noise,
    whose deviation is known. With ``centre``, plain numbers are centred and scaled first, where that can pay
    (``centring``). Without ``loss`` it goes from Huber's to the logistic loss as noise falls: at equal
    noise Huber's gradient is twice as long where most rows are still near the boundary, and the logistic one gives
    probabilities. ``length`` is how many times larger than by the public rule weights are taken to be.

    Sensitivity
        One row moves the counts of a round of centring by at most sqrt(c) or sqrt(2 c) for c numbers
        (:class:`daskrado.statistics.number_cells.NumberCells`), the moments by at most 1 or sqrt(2)
        (:class:`daskrado.statistics.second_moments.SecondMoments`) and a sum of gradients by at most 1 or 2
        (:class:`daskrado.statistics.slopes.SlopeSum`), whatever the earlier, public iterates are. Discrete Gaussians
        compose to one Gaussian of mu: centring has a share of mu^2, of a number the spread of residuals
        (:class:`daskrado.statistics.residual_spread.ResidualSpread`), and the rest is spent as
        :func:`schedule.noises` says.
        Preconditioning, averaging, momentum and smoothing are post-processing.

    Reference
        Bassily, Smith and Thakurta (2014), full batch; Canonne, Kamath and Steinke (2020), noise and conversion;
        Dong, Roth and Su (2022), the composition of Gaussians. Nesterov (1983), momentum.
    """

    loss: TrainingLoss | None = None
    steps: Annotated[int, Field(ge=1, le=10_000)] = STEPS
    length: Annotated[float, Field(ge=1e-6, le=1e6)] = 1.0
    smooth: bool = True
    centre: bool = True

    name: ClassVar[str] = "gradient"
    tunable: ClassVar[bool] = True
    centres: ClassVar[bool] = True
    loss_name: ClassVar[str] = "huber"

    @classmethod
    def current_spelling(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """``loss: huber`` without a corner leaves the loss to the public rule, as does no loss; as do no steps."""
        found = super().current_spelling(options)
        if "rate" in found:
            raise UsageError(
                "learner gradient has no rate: its steps follow from second moments; length scales weights"
            )
        left = {"loss": ("huber", None), "steps": (None,)}
        return {key: value for key, value in found.items() if value not in left.get(key, ())}

    def __post_init__(self) -> None:
        if self.loss is not None and self.loss.lipschitz is None:
            raise UsageError(f"loss {self.loss.name} has no bound on its slope: gradient needs logistic or a hinge")

    @property
    def vectors(self) -> int:
        """How many vectors of weights there are."""
        return 1

    def for_label(self, label: Label) -> IterativeLearner:
        if label.target == "classes":
            if self.loss is not None:
                raise UsageError("learner gradient has the softmax loss where there are several classes: drop loss")
            return self.of_classes(label)
        found = super().for_label(label)
        # Of a number, finding the places of features cost more than it gave on abalone and wine.
        return replace(found, centre=False) if label.target == "number" else found  # type: ignore[type-var]

    def of_classes(self, label: Label) -> IterativeLearner:
        """The same descent for several classes."""
        from daskrado.learners.on_passes.softmax import SoftmaxGradient

        assert label.classes is not None
        return SoftmaxGradient(None, self.steps, self.length, self.smooth, self.centre, len(label.classes))

    def _slopes(self, weights: NDArray[np.float64], loss: Loss | None, facts: PublicFacts) -> Statistic:
        """The sum of gradients at weights, one row for each vector."""
        return SlopeSum.at(weights[0], loss or Huber(), lattice_of(facts), slope_bits_of(facts))

    def schedule(self, facts: PublicFacts) -> Schedule:
        """All that a run does, from public facts."""
        return schedule(facts, self.loss, self.steps, self._noises(facts, self.calibration(facts).mu), self.length)

    def calibration(self, facts: PublicFacts) -> Calibration:
        """What all draws together cost, and how much noise that is."""
        if not facts.delta > 0:
            raise UsageError("learner gradient adds Gaussian noise and needs budget.delta above 0 (say 1e-6)")
        moments_unit, unit = _units(facts)

        def gap(mu: float) -> float:
            on_moments, on_slopes = (noise / facts.surplus for noise in self._noises(facts, mu))
            drawn = sum_gap(self.vectors * facts.width * self.steps, on_slopes / unit, facts.honest)
            moments = _moments(facts)
            least = on_moments / moments_unit / (math.sqrt(2.0) if moments.pairs else 1.0)
            if (places := self.centring(facts, mu)) is not None and places.noise:
                drawn += sum_gap(ROUNDS * counted(facts).size, places.steps / facts.surplus, facts.honest)
            if (spread := self._spread_noise(facts, mu)) is not None:
                drawn += sum_gap(2, spread / residuals.STEP, facts.honest)
            return drawn + (sum_gap(moments.size, least, facts.honest) if on_moments else 0.0)

        found = calibrate(facts.epsilon, facts.delta, gap)
        if facts.sites > 1 and not isinstance(found.event, GaussianEvent):
            raise UsageError(
                f"epsilon {facts.epsilon:g}: shares of noise on this grid are too far from normal noise; raise "
                "lattice_bits, lower epsilon, or let the noise be central"
            )
        return found

    def centring(self, facts: PublicFacts, mu: float) -> Centring | None:
        """What finding the places of numbers costs, or None where they stay as they are."""
        if not self.centre or not facts.numbers:
            return None
        return Centring.planned(facts, mu)

    def _noises(self, facts: PublicFacts, mu: float) -> tuple[float, float]:
        places = self.centring(facts, mu)
        paid = 0.0 if places is None else places.share  # shares of the whole mu^2, so they add up
        paid += residuals.SHARE if isinstance(self.loss, ResidualHuber) else 0.0
        mu *= math.sqrt(1 - paid)
        slopes = self._slopes(np.zeros((self.vectors, facts.width)), self.loss, facts)
        found = noises(facts, mu, self.steps, _reach(facts, _moments(facts)), _reach(facts, slopes))
        return facts.surplus * found[0], facts.surplus * found[1]

    def guarantee(self, facts: PublicFacts) -> Guarantee:
        """All draws together, as one Gaussian; noise and, where their number is public, rows must fit the lattice."""
        found = self.calibration(facts)
        check_worthwhile(facts, gaussian=True)
        lattice, rows = lattice_of(facts), facts.rows if facts.relation.rows_public else None
        _check_room(self.schedule(facts), facts)
        for statistic in (_moments(facts), SlopeSum.at(np.zeros(1), Huber(), lattice, slope_bits_of(facts))):
            lattice.guard(rows, statistic.largest_per_row(lattice))
        return Guarantee(found.event, facts.delta, "noisy gradient", found.theorem)

    def forecast(self, facts: PublicFacts) -> Iterator[tuple[str, str]]:
        plan = self.schedule(facts)
        yield (
            "descends",
            (
                f"{plan.count} steps on the {_named(plan)} loss, momentum {plan.momentum:g}; weights times the norm "
                f"bound are taken to be about {plan.indicators:.2g}, for numbers {plan.numbers:.2g} times the root "
                "of how many features a row has"
            ),
        )
        if self.centre and facts.numbers:
            yield "numbers", in_words(facts, self.centring(facts, self.calibration(facts).mu))
        if (noise := self._spread_noise(facts, self.calibration(facts).mu)) is not None:
            share = f"{100 * residuals.SHARE:g} % of the budget, standard deviation {noise:.4g} rows"
            yield "residuals", f"how far they spread is released for intervals, by {share}"
        if self.smooth:
            yield "bins", f"if any, go with their neighbours, and alone beyond {OWN_DEVIATIONS:g} deviations of noise"
        what = "squares and products" if plan.pairs else f"squares (more than {MOST_FEATURES:,} features)"
        yield "moments", f"{what} of features in the first pass, standard deviation {plan.moments_noise:.4g} rows"
        yield (
            "noise",
            (
                f"standard deviation {plan.noise:.4g} on each sum of gradients (as much as so many rows); over "
                f"all steps {100 * plan.ratio:.2g} % of the largest gradient"
            ),
        )

    def excess(self, facts: PublicFacts) -> float:
        """D v, D = GOOD_NORM, v noise over signal: the least of D^2 / (2 l) + l v^2 / 2 over lengths l of descent."""
        return GOOD_NORM * self.schedule(facts).ratio

    def outlook(self, facts: PublicFacts) -> Outlook | None:
        plan = self.schedule(facts)
        return Outlook.of(plan.ratio) if plan.loss.target == "sides" else None

    def learn(self, session: Session, facts: PublicFacts) -> Learned:
        """Descend; the grant is spent before the first draw."""
        facts = replace(facts, lattice_bits=session.passes.lattice.bits)
        plan, places = self.schedule(facts), self.centring(facts, self.calibration(facts).mu)
        if places is not None:
            session, facts = centred(session, facts, places)
        domain = session.passes.domain
        moments = self._second_moments(session, facts, plan)
        metric = Preconditioner(domain, plan, moments, neighbours=self.smooth)
        follow = [metric.at(np.zeros(facts.width))] * self.vectors
        place, before, gathered, total, point, late = (np.zeros((self.vectors, facts.width)) for _ in range(6))
        averaged = max(1, plan.count // 2)
        begin_step(session.progress, "descent step")
        for step in range(1, plan.count + 1):
            ahead = place + plan.momentum * (place - before)
            here = _followed(follow, ahead)
            gradient = self._gradient(session, facts, plan, here)
            gathered += gradient
            place, before = ahead - gradient, place
            if metric.bins and step & (step - 1) == 0:  # what stands out changes as the root of the steps does
                noise = plan.noise / facts.rows * math.sqrt(step)
                follow = [metric.at(metric.standing_out(one, noise)) for one in gathered]
            if step > plan.count - averaged:
                total += _followed(follow, place) / averaged
                point, late = point + here / averaged, late + gradient / averaged
            if session.progress is not None:
                session.progress(step, plan.count)
        parts = zip(point, late, gathered, strict=True)
        traces = [Trace.of(plan, facts, moments, at, mean, averaged, whole) for at, mean, whole in parts]
        told = np.array([published_weights(domain, *pair) for pair in zip(traces, total, strict=True)])
        details = self._details(plan)
        if places is not None:
            details |= as_details(facts, places)
        return self._told(session, facts, traces, told / facts.norm_bound, details)

    def _told(
        self, session: Session, facts: PublicFacts, traces: list[Trace], weights: Vector, details: dict[str, Any]
    ) -> Learned:
        """Weights with their error bars; of a number after one more release, of how residuals spread."""
        trace, domain = traces[0], session.passes.domain
        if (noise := self._spread_noise(facts, self.calibration(facts).mu)) is not None:
            found = residuals.released(session, self._spread(facts, trace.point), noise)
            trace, details = replace(trace, residuals=found), details | {"noise_std_of_residuals": noise}
        return Learned(weights[0], details, bars=descent_bars(domain, trace), domain=domain)

    def _spread(self, facts: PublicFacts, weights: Vector) -> ResidualSpread:
        assert isinstance(self.loss, ResidualHuber)
        return ResidualSpread.at(weights, self.loss.h, lattice_of(facts))

    def _spread_noise(self, facts: PublicFacts, mu: float) -> float | None:
        """On the spread of residuals, where the label is a number."""
        if not isinstance(self.loss, ResidualHuber):
            return None
        return residuals.noise_of(mu, _reach(facts, self._spread(facts, np.zeros(facts.width))))

    def _second_moments(self, session: Session, facts: PublicFacts, plan: Schedule) -> NDArray[np.float64]:
        """Of rows in the unit ball, released."""
        unit, statistic = _units(facts)[0], _moments(facts)
        scale = session.part * plan.moments_noise / unit

        def perturb(summary: Summary) -> NDArray[np.int64]:
            squares, products = summary.vector[: facts.width], summary.vector[facts.width :]
            parts = [discrete_gaussian(squares, scale)]
            return np.concatenate([*parts, discrete_gaussian(products, scale / math.sqrt(2.0))])

        begin_step(session.progress, "second moments")
        read = partial(session.passes.sum, statistic, share=session.share)
        if not scale:  # labels alone are secret
            return np.asarray(read().vector * unit)
        return np.asarray(session.draw(read, perturb) * unit)

    def _gradient(
        self, session: Session, facts: PublicFacts, plan: Schedule, weights: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """The mean gradient for rows in the unit ball, released."""
        slopes = self._slopes(weights, plan.loss, facts)
        unit = _units(facts)[1]
        noisy = session.draw(
            partial(session.passes.sum, slopes, share=session.share),
            lambda summary: discrete_gaussian(summary.vector, session.part * plan.noise / unit),
        )
        return np.asarray(noisy * (unit / facts.rows)).reshape(weights.shape)

    def _details(self, plan: Schedule) -> dict[str, Any]:
        details = {
            "loss": plan.loss.name,
            "steps": plan.count,
            "momentum": plan.momentum,
            "noise_std_per_step": plan.noise,
            "noise_std_of_moments": plan.moments_noise,
            "pairs": plan.pairs,
            "size_of_numbers": plan.numbers,
            "size_of_indicators": plan.indicators,
            "smooth": self.smooth,
        }
        if isinstance(plan.loss, Huber | SmoothHinge | HuberLogistic | ResidualHuber):
            details["h"] = plan.loss.h
        return details | ({"huber_share": plan.loss.share} if isinstance(plan.loss, HuberLogistic) else {})


def _followed(follow: Sequence[Callable[[Vector], Vector]], vectors: Vector) -> Vector:
    return np.array([one(vector) for one, vector in zip(follow, vectors, strict=True)])


def _named(plan: Schedule) -> str:
    if not isinstance(plan.loss, HuberLogistic):
        return plan.loss.name
    return "huber" if plan.loss.share == 1 else f"logistic ({100 * plan.loss.share:.2g} % huber)"


def _moments(facts: PublicFacts) -> SecondMoments:
    return SecondMoments(facts.width, facts.width <= MOST_FEATURES)


def _reach(facts: PublicFacts, statistic: Statistic) -> float:
    """How far one protected unit moves a sum."""
    if facts.spread or facts.weighted:
        bits = lattice_of(facts).bits
        return Bounded(facts.width, statistic, facts.rows_per_unit, bits).sensitivity(facts.relation).l2
    return statistic.sensitivity(facts.relation).l2 * facts.rows_per_unit


def lattice_of(facts: PublicFacts) -> Lattice:
    """The grid of the rows, as given or by a public rule."""
    rule = PrivateGradient.default_bits if facts.relation.rows_public else PrivateGradient.secret_bits
    return Lattice(facts.norm_bound, facts.lattice_bits or rule)


def slope_bits_of(facts: PublicFacts) -> int:
    """Of the grid of slopes."""
    return slope_bits_for(lattice_of(facts), rows_public=facts.relation.rows_public)


def _units(facts: PublicFacts) -> tuple[float, float]:
    """What one integer step of the moments, and of a sum of gradients, is worth for rows in the unit ball."""
    bits = lattice_of(facts).bits
    return math.ldexp(1.0, -2 * bits), math.ldexp(1.0, -bits - slope_bits_of(facts))


def _check_room(plan: Schedule, facts: PublicFacts) -> None:
    """Refuse before anything is spent if noise has no room in 64-bit sums."""
    for noise, unit in zip((plan.moments_noise, plan.noise), _units(facts), strict=True):
        if noise > MAX_SCALE * unit:
            raise UsageError(
                f"noise of {noise:.3g} rows has no room in 64-bit sums: raise epsilon, or lower lattice_bits "
                f"(now {lattice_of(facts).bits})"
            )
