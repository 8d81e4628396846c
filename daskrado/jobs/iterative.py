"""Learners that read the lake several times, as a pipeline names them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from daskrado.learners.on_passes.auto import Auto
from daskrado.learners.on_passes.erm import Erm, ObjectivePerturbation, OutputPerturbation
from daskrado.learners.on_passes.gradient import MAX_STEPS, PrivateGradient
from daskrado.learners.on_passes.iterative import IterativeLearner
from daskrado.learners.on_passes.tuning import PublicTuning, Tuning
from daskrado.losses.margin import Loss, make_loss
from daskrado.table.yaml_file import Frozen

LossName = Literal["logistic", "huber", "smooth_hinge", "square"]


def _in_range(ridge: float) -> float:
    """Beyond this range noise and weights leave double precision; what is not above 0 a private learner refuses."""
    if ridge > 0 and not 1e-30 <= ridge <= 1e30:
        raise ValueError(f"must be between 1e-30 and 1e30, got {ridge!r}")
    return ridge


Ridge = Annotated[float, AfterValidator(_in_range)]


class _WithLoss(Frozen):
    loss: LossName = "logistic"
    h: float | None = Field(default=None, description="half width of a hinge's rounded corner")

    def made_loss(self) -> Loss:
        """The loss and its corner."""
        return make_loss(self.loss, self.h)


class ErmChoice(_WithLoss):
    """The exact regularised minimiser: a baseline, with private: false."""

    kind: Literal["erm"]
    regularisation: Ridge = Field(default=1e-4, ge=0)
    tolerance: float = Field(default=1e-9, gt=0, lt=1)

    def build(self) -> IterativeLearner:
        """The learner."""
        return Erm(self.made_loss(), self.regularisation, self.tolerance)


class OutputChoice(_WithLoss):
    """Output perturbation; without ``regularisation``, a public rule chooses it."""

    kind: Literal["output_perturbation"]
    regularisation: Ridge | None = None
    tolerance: float = Field(default=1e-9, gt=0, lt=1e-3)

    def build(self) -> IterativeLearner:
        """The learner."""
        return OutputPerturbation(self.made_loss(), self.regularisation, self.tolerance)


class ObjectiveChoice(_WithLoss):
    """Objective perturbation; without ``regularisation``, a public rule chooses it."""

    kind: Literal["objective_perturbation"]
    regularisation: Ridge | None = None
    noise: Literal["auto", "gamma", "gaussian"] = "auto"
    tight: bool = False
    tolerance: float = Field(default=1e-9, gt=0, lt=1e-3)

    def build(self) -> IterativeLearner:
        """The learner."""
        return ObjectivePerturbation(self.made_loss(), self.regularisation, self.noise, self.tight, self.tolerance)


class GradientChoice(_WithLoss):
    """Noisy gradient descent; steps, rate and the corner ``h`` of the Huber loss from a public rule unless given.

    ``smooth`` is for bins that are in an order: neighbours learn from each other.
    """

    kind: Literal["gradient"]
    loss: LossName = "huber"
    steps: int | None = Field(default=None, ge=1, le=20 * MAX_STEPS)
    rate: float | None = Field(default=None, ge=1e-9, le=1e9)
    smooth: bool = True

    def build(self) -> IterativeLearner:
        """The learner."""
        ruled = self.loss == "huber" and self.h is None
        return PrivateGradient(None if ruled else self.made_loss(), self.steps, self.rate, self.smooth)


class AutoChoice(Frozen):
    """The learner that public facts speak for; ``daskrado plan`` says which and why."""

    kind: Literal["auto"]

    def build(self) -> IterativeLearner:
        """The learner."""
        return Auto()


class TuningChoice(Frozen):
    """A grid of learners: chosen privately on parts of the lake, or on a public lake with the same columns."""

    kind: Literal["tuning"]
    grid: tuple[Annotated[OutputChoice | ObjectiveChoice | GradientChoice, Field(discriminator="kind")], ...]
    public_lake: Any = None

    def build(self) -> IterativeLearner:
        """The learner."""
        grid = tuple(choice.build() for choice in self.grid)
        return Tuning(grid) if self.public_lake is None else PublicTuning(grid, self.public_lake)


IterativeChoice = ErmChoice | OutputChoice | ObjectiveChoice | GradientChoice | AutoChoice | TuningChoice
ITERATIVE = ("erm", "output_perturbation", "objective_perturbation", "gradient", "auto", "tuning")


def is_iterative(kind: Any) -> bool:
    """Whether a learner of this kind takes (passes, grant) in place of a release."""
    return kind in ITERATIVE
