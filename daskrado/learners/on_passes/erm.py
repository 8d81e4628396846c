"""Regularised empirical risk minimisation: exact, with output perturbation, and with objective perturbation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from daskrado.errors import DataError, UsageError
from daskrado.learners.on_passes.iterative import (
    GOOD_NORM,
    Guarantee,
    InRange,
    Learned,
    LossLearner,
    Session,
    TrainingLoss,
    check_worthwhile,
)
from daskrado.learners.on_passes.placing import PlacingLearner
from daskrado.learners.on_passes.solver import Objective, Solution, certifiable, minimise
from daskrado.losses.margin import Huber, Logistic, Loss, SmoothHinge
from daskrado.losses.residual import ResidualHuber, ResidualSquare
from daskrado.models.error_bars import LEVEL, ErrorBars
from daskrado.privacy.accountant import ApproximateEvent, PureEvent
from daskrado.privacy.gamma import (
    DRAWN,
    coordinate_reach,
    integer_l2_gamma,
    l2_gamma,
    l2_gamma_variance,
    normal_vector,
)
from daskrado.privacy.perturbation import (
    ObjectiveNoise,
    PublicFacts,
    check_ridge,
    objective_gamma,
    objective_gaussian,
    output_scale,
    reach,
)
from daskrado.statistics.risk import RiskSum

TOLERANCE = 1e-9  # of the largest gradient norm, L R
FINEST = 1e-12  # of private learners, whose noise covers the solver's distance: what rounding allows is above this
SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
"""Of epsilon, for the solver's distance from the exact minimiser: the one with the least forecast excess is taken."""
IDEALISED = "the tilt is drawn in double precision from the operating system's generator (idealised)"

FINE_BITS = 26  # a minimiser follows its rows: on this grid it is within about 1e-7 of the one for rows as they are


@dataclass(frozen=True)
class Erm(LossLearner):
    """The exact minimiser: a baseline without privacy. ``regularisation`` is Lambda, on every weight."""

    loss: TrainingLoss = Logistic()  # noqa: RUF009 - frozen
    regularisation: Annotated[float, Field(ge=0), InRange] = 1e-4
    tolerance: Annotated[float, Field(gt=0, lt=1)] = TOLERANCE

    name: ClassVar[str] = "erm"
    number_loss: ClassVar[Loss] = ResidualSquare()
    default_bits: ClassVar[int] = FINE_BITS
    secret_bits: ClassVar[int] = FINE_BITS
    private: ClassVar[bool] = False

    def guarantee(self, facts: PublicFacts) -> Guarantee:
        del facts
        raise UsageError(
            "learner erm adds no noise: say private: false, or take objective_perturbation, gradient or auto"
        )

    def forecast(self, facts: PublicFacts) -> Iterator[tuple[str, str]]:
        del facts
        yield "minimises", f"mean {self.loss.name} loss + {self.regularisation:g}/2 |w|^2, intercept included"

    def excess(self, facts: PublicFacts) -> float:
        del facts
        return 0.0

    def learn(self, session: Session, facts: PublicFacts) -> Learned:
        """Minimise, and refuse what has no useful minimiser: there is no private output to protect here."""
        objective = Objective(self.loss, self.regularisation, facts.rows)
        tolerance = self.tolerance * facts.norm_bound * (self.loss.lipschitz or 1.0)
        fine = min(tolerance, 1e-7 * self.regularisation)  # weights to 1e-7, where rounding lets them
        if self.regularisation > 0:
            tolerance = max(tolerance, certifiable(objective, facts.norm_bound, facts.width))
        found = minimise(
            objective,
            session.passes,
            fine or tolerance,
            share=session.share,
            progress=session.progress,
            watch=session.watch,
        )
        label = session.passes.domain.label
        if label.classes is not None and found.positives == found.rows:  # of several classes one may be missing
            raise DataError(f"column {label.column!r}: every row is of one class; a classifier needs two at least")
        if label.target == "sides" and found.positives in (0, found.rows):
            only = label.pair[bool(found.positives)]
            raise DataError(f"column {label.column!r}: every row has the label {only!r}; a classifier needs both")
        if found.gradient > tolerance:
            raise DataError(
                f"the solver stopped at gradient norm {found.gradient:.3g} after {found.passes} passes, above the "
                f"tolerance {tolerance:.3g}: raise regularisation (now {self.regularisation:g})"
            )
        details = _described(self.loss, self.regularisation)
        details |= {"risk": found.value, "gradient_norm": found.gradient, "passes": found.passes}
        return Learned(found.weights, details)


@dataclass(frozen=True)
class OutputPerturbation(PlacingLearner, LossLearner):
    """The minimiser plus L2-gamma noise: pure epsilon.

    Without ``regularisation``, a public rule balances noise and bias: 2 sqrt(d reach R / (n epsilon)) / GOOD_NORM.

    Sensitivity
        See :func:`daskrado.privacy.perturbation.output_scale`; weights are rounded to a grid first, which moves each
        by at most half a step, counted in.

    Reference
        Chaudhuri, Monteleoni and Sarwate (2011), algorithm 1.
    """

    loss: TrainingLoss = Logistic()  # noqa: RUF009 - frozen
    regularisation: Annotated[float | None, InRange] = None
    tolerance: Annotated[float, Field(gt=0, lt=1e-3)] = FINEST
    centre: bool = False

    name: ClassVar[str] = "output_perturbation"
    default_bits: ClassVar[int] = FINE_BITS
    secret_bits: ClassVar[int] = FINE_BITS
    tunable: ClassVar[bool] = True

    def ridge(self, facts: PublicFacts) -> float:
        """The regularisation, as given or from public facts."""
        if self.regularisation is not None:
            return self.regularisation
        lever = facts.width * reach(self.loss, facts) * facts.norm_bound / (facts.rows * facts.epsilon)
        return math.sqrt(2 * lever) * facts.norm_bound / GOOD_NORM

    def _guarantee(self, facts: PublicFacts) -> Guarantee:
        check_ridge(self.ridge(facts))
        reach(self.loss, facts)
        check_worthwhile(facts)
        l2_gamma_variance(facts.width, self._scale(facts) / self._step(facts))  # refuses what cannot be drawn
        theorem = "output perturbation (Chaudhuri, Monteleoni and Sarwate 2011), approximate minimiser counted in"
        return Guarantee(PureEvent(facts.epsilon), 0.0, "output perturbation", theorem, (DRAWN,))

    def _forecast(self, facts: PublicFacts) -> Iterator[tuple[str, str]]:
        scale = self._scale(facts)
        yield "minimises", f"mean {self.loss.name} loss + {self.ridge(facts):.4g}/2 |w|^2, intercept included"
        yield "noise", f"length {scale * facts.width:.4g} expected on the weights"

    def _excess(self, facts: PublicFacts) -> float:
        """slope * |noise| R + ridge/2 |w|^2 at |w| R = GOOD_NORM."""
        noise = self._scale(facts) * facts.width * facts.norm_bound * (self.loss.lipschitz or 1.0)
        return noise + _bias(self.ridge(facts), facts)

    def _tolerance(self, facts: PublicFacts) -> float:
        return _tolerance(self.tolerance, self.loss, self.ridge(facts), facts)

    def _step(self, facts: PublicFacts) -> float:
        """The grid of the published weights: a power of 2 far below the noise."""
        plain = output_scale(self.loss, self.ridge(facts), facts, facts.epsilon, self._tolerance(facts))
        return 2.0 ** math.floor(math.log2(plain * facts.epsilon / math.sqrt(facts.width)) - 20)

    def _scale(self, facts: PublicFacts) -> float:
        """Of the noise on weights that were rounded to the grid."""
        plain = output_scale(self.loss, self.ridge(facts), facts, facts.epsilon, self._tolerance(facts))
        return plain + self._step(facts) * math.sqrt(facts.width) / facts.epsilon

    def _learn(self, session: Session, facts: PublicFacts) -> Learned:
        objective = Objective(self.loss, self.ridge(facts), facts.rows)

        def solved() -> Solution:
            _read(session, self.loss)
            return minimise(objective, session.passes, self._tolerance(facts), share=session.share, certify=True)

        weights = session.draw(solved, lambda found: self.release(found, facts).weights)
        return self._published(weights, facts)

    def release(self, found: Solution, facts: PublicFacts) -> Learned:
        """Draw the noise. Every call is a release of its own and costs epsilon."""
        return self._published(_noisy(_certified(found), self._step(facts), self._scale(facts)), facts)

    def _published(self, weights: NDArray[np.float64], facts: PublicFacts) -> Learned:
        scale = self._scale(facts)
        details = _described(self.loss, self.ridge(facts)) | {"noise_length": scale * facts.width}
        bars = ErrorBars.of_noise(weights, scale * coordinate_reach(facts.width, LEVEL))
        return Learned(weights, details, {"weights": scale * math.sqrt(facts.width + 1)}, bars)


@dataclass(frozen=True)
class Tilt:
    """What objective perturbation draws: the tilt, and L2-gamma noise of scale ``cover`` on a grid of ``step``."""

    share: float
    ridge: float
    noise: ObjectiveNoise
    tolerance: float
    step: float
    cover: float

    @property
    def total(self) -> float:
        """The regularisation of what is minimised."""
        return self.ridge + self.noise.extra

    def margins(self, facts: PublicFacts) -> float:
        """How far the cover moves margins of rows of length R: E|b|^2 = d (d + 1) scale^2, in any direction alike."""
        return self.cover * math.sqrt(facts.width + 1) * facts.norm_bound

    def excess(self, loss: Loss, facts: PublicFacts) -> float:
        """Of the tilt, of the ridge, and of the cover: c s^2 / 2 or L s, whichever is less, s its part in margins."""
        tilt, moved = self.noise.expected_norm(facts.width) / facts.rows, self.margins(facts)
        cover = min(0.5 * (loss.smoothness or math.inf) * moved**2, (loss.lipschitz or math.inf) * moved)
        return tilt * tilt / (2 * self.total) + _bias(self.total, facts) + cover


@dataclass(frozen=True)
class ObjectivePerturbation(PlacingLearner, LossLearner):
    """The minimiser of a randomly tilted objective: pure epsilon, or (epsilon, delta) with Gaussian noise.

    ``noise`` auto takes the Gaussian where there is a delta and its expected length is below that of the L2-gamma
    noise. ``tight`` uses the halved slack of ``privacy.perturbation``. Without ``regularisation`` a public rule takes
    E|b| R / (n GOOD_NORM), where the tilt and the bias cost alike.

    Sensitivity
        See :func:`daskrado.privacy.perturbation.objective_gamma` and ``objective_gaussian``. Both proofs are
        about the exact minimiser. The solver goes on until it certifies |grad| <= g, so its answer is within
        r = g / ridge of it, and is published with L2-gamma noise of scale 2 r / e2: its density is within exp(+-e2/2)
        of that around the exact minimiser, for which epsilon - e2 holds. In total epsilon, and a delta that is
        exp(e2/2) times the tilt's.

    Reference
        Chaudhuri, Monteleoni and Sarwate (2011), algorithm 2, repaired; Kifer, Smith and Thakurta (2012); Redberg,
        Koskela and Wang (2023).
    """

    loss: TrainingLoss = Logistic()  # noqa: RUF009 - frozen
    regularisation: Annotated[float | None, InRange] = None
    noise: Literal["auto", "gamma", "gaussian"] = "auto"
    tight: bool = False
    tolerance: Annotated[float, Field(gt=0, lt=1e-3)] = FINEST
    centre: bool = False

    name: ClassVar[str] = "objective_perturbation"
    default_bits: ClassVar[int] = FINE_BITS
    secret_bits: ClassVar[int] = FINE_BITS
    tunable: ClassVar[bool] = True

    def planned(self, facts: PublicFacts) -> Tilt:
        """All that a run draws, from public facts: the kind of noise and the share of cover that cost least."""
        if self.noise == "gaussian" and not facts.delta > 0:
            raise UsageError("noise gaussian needs budget.delta above 0; use gamma for a pure guarantee")
        kinds: tuple[str, ...] = (self.noise,)
        if self.noise == "auto":
            kinds = (
                ("gamma", "gaussian")
                if facts.delta > 0 and facts.rows_per_unit == 1 and not facts.spread
                else ("gamma",)
            )
        options = [self._planned(kind, share, facts) for kind in kinds for share in SHARES]
        return min(options, key=lambda plan: plan.excess(self.loss, facts))

    def settled(self, facts: PublicFacts) -> ObjectivePerturbation:
        kind = self.planned(facts).noise.kind
        return replace(self, noise="gamma" if kind == "gamma" else "gaussian")

    def _planned(self, kind: str, share: float, facts: PublicFacts) -> Tilt:
        ridge, noise = self._calibrated(kind, share, facts)
        total = ridge + noise.extra
        tolerance = _tolerance(self.tolerance, self.loss, total, facts, noise.rarely_above(facts.width) / facts.rows)
        radius = tolerance / total
        step = 2.0 ** math.floor(math.log2(radius / math.sqrt(facts.width)))
        radius += step * math.sqrt(facts.width) / 2  # for rounding the weights to the grid
        return Tilt(share, ridge, noise, tolerance, step, 2 * radius / (share * facts.epsilon))

    def _calibrated(self, kind: str, share: float, facts: PublicFacts) -> tuple[float, ObjectiveNoise]:
        if self.regularisation is not None:
            return self.regularisation, self._noise(kind, share, self.regularisation, facts)
        length = reach(self.loss, facts) * facts.width / facts.epsilon
        for _ in range(8):  # the rule's ridge and the slack that it leaves settle within a few rounds
            ridge = length * facts.norm_bound / (facts.rows * GOOD_NORM)
            noise = self._noise(kind, share, ridge, facts)
            length = noise.expected_norm(facts.width)
        return ridge, noise

    def _noise(self, kind: str, share: float, ridge: float, facts: PublicFacts) -> ObjectiveNoise:
        epsilon = facts.epsilon * (1 - share)
        if kind == "gamma":
            return objective_gamma(self.loss, ridge, facts, epsilon, tight=self.tight)
        delta = facts.delta * math.exp(-facts.epsilon * share / 2)
        return objective_gaussian(self.loss, ridge, facts, epsilon, delta, tight=self.tight)

    def _guarantee(self, facts: PublicFacts) -> Guarantee:
        noise = self.planned(facts).noise
        check_worthwhile(facts)
        if noise.kind == "gamma":
            theorem = (
                "objective perturbation (Chaudhuri, Monteleoni and Sarwate 2011), approximate minimiser counted in"
            )
            return Guarantee(PureEvent(facts.epsilon), 0.0, "objective perturbation", theorem, (IDEALISED,))
        theorem = "Gaussian objective perturbation (Kifer, Smith and Thakurta 2012; Redberg, Koskela and Wang 2023)"
        event = ApproximateEvent(facts.epsilon, facts.delta)
        return Guarantee(event, facts.delta, "gaussian objective perturbation", theorem, (IDEALISED,))

    def _forecast(self, facts: PublicFacts) -> Iterator[tuple[str, str]]:
        plan = self.planned(facts)
        raised = f" (raised by {plan.noise.extra:.4g})" if plan.noise.extra else ""
        yield "minimises", f"mean {self.loss.name} loss + {plan.ridge:.4g}/2 |w|^2{raised}, intercept included"
        tilt = plan.noise.expected_norm(facts.width) / facts.rows
        yield (
            "noise",
            f"{plan.noise.kind}: a tilt of length {tilt:.4g} against gradients of at most {facts.norm_bound:g}",
        )
        yield (
            "cover",
            (
                f"{100 * plan.share:g} % of epsilon hides how exact the solver is: noise that moves margins by "
                f"{plan.margins(facts):.2g} at most, in standard deviations"
            ),
        )

    def _excess(self, facts: PublicFacts) -> float:
        """|tilt|^2 / (2 ridge) + ridge/2 |w|^2 at |w| R = GOOD_NORM, the bias at the raised ridge, and the cover."""
        return self.planned(facts).excess(self.loss, facts)

    def _learn(self, session: Session, facts: PublicFacts) -> Learned:
        """Spend, draw the tilt, solve, and publish with the noise that covers the solver's distance."""
        plan = self.planned(facts)
        noise = plan.noise
        sample = l2_gamma if noise.kind == "gamma" else normal_vector

        def read() -> int:
            _read(session, self.loss)  # what is wrong with a row is found before anything is spent
            return facts.rows

        tilt = session.draw(read, lambda rows: sample(facts.width, noise.scale) / rows)
        objective = Objective(self.loss, plan.total, facts.rows, tilt)
        weights = session.draw(
            lambda: minimise(objective, session.passes, plan.tolerance, share=session.share, certify=True),
            lambda found: _noisy(_certified(found), plan.step, plan.cover),
        )
        details = _described(self.loss, plan.ridge)
        details |= {
            "noise": noise.kind,
            "added_regularisation": noise.extra,
            "tilt_length_expected": noise.expected_norm(facts.width) / facts.rows,
            "cover_share": plan.share,
            "cover_std_of_margins": plan.margins(facts),
        }
        return Learned(weights, details)


def _tolerance(asked: float, loss: Loss, ridge: float, facts: PublicFacts, tilt: float = 0.0) -> float:
    """What the solver must certify: as asked, or what it always can; from public facts."""
    check_ridge(ridge)
    floor = certifiable(Objective(loss, ridge, facts.rows), facts.norm_bound, facts.width, tilt)
    return max(asked * facts.norm_bound * (loss.lipschitz or 1.0), floor)


def _read(session: Session, loss: Loss) -> None:
    """One pass with a bar. How many more the solver takes depends on the rows, so those show none."""
    passes, width = session.passes, session.passes.domain.width
    start = RiskSum(width, loss, np.zeros(width), passes.lattice, passes.lake.rows, second=False)
    passes.sum(start, share=session.share, progress=session.progress)


def _certified(found: Solution) -> NDArray[np.float64]:
    """The minimiser. All that is proved of the noise on it is proved for a certified one, and no other gets here."""
    if not found.certified:  # no assert, which python -O would leave out
        raise ValueError("noise was calibrated for a certified minimiser, and this one is not")
    return found.weights


def _noisy(weights: NDArray[np.float64], step: float, scale: float) -> NDArray[np.float64]:
    """Weights rounded to a grid, plus L2-gamma noise on integers."""
    room = 2.0**52
    grid = np.rint(np.clip(weights / step, -room, room)).astype(np.int64)
    return integer_l2_gamma(grid, scale / step).astype(np.float64) * step


def _bias(ridge: float, facts: PublicFacts) -> float:
    return 0.5 * ridge * (GOOD_NORM / facts.norm_bound) ** 2


def _described(loss: Loss, ridge: float) -> dict[str, Any]:
    details: dict[str, Any] = {"loss": loss.name, "regularisation": ridge}
    return details | ({"h": loss.h} if isinstance(loss, Huber | SmoothHinge | ResidualHuber) else {})
