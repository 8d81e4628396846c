"""Noisy gradient descent for several classes: one softmax, all classes in every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import UsageError
from daskrado.learners.on_passes.descent_errors import Trace
from daskrado.learners.on_passes.gradient import PrivateGradient, Vector, lattice_of, slope_bits_of
from daskrado.learners.on_passes.iterative import IterativeLearner, Learned, Session
from daskrado.learners.on_passes.schedule import Schedule, schedule
from daskrado.learners.on_passes.softmax_errors import softmax_bars
from daskrado.losses.margin import Logistic, Loss
from daskrado.privacy.perturbation import PublicFacts
from daskrado.statistics.base import Statistic
from daskrado.statistics.softmax_slopes import SoftmaxSlopes
from daskrado.table.label import Label, Target


class _Softmax(Logistic):
    """What a schedule needs of the softmax loss: its Hessian diag(p) - p p' is at most 1/2."""

    smoothness: ClassVar[float] = 0.5
    target: ClassVar[Target] = "classes"


@dataclass(frozen=True)
class SoftmaxGradient(PrivateGradient):
    """As :class:`PrivateGradient`, with weights and gradients of each class; they share preconditioner and noise.

    Sensitivity
        One row moves the moments as there, and a sum of gradients by at most sqrt(2) or 2 sqrt(2)
        (:class:`daskrado.statistics.softmax_slopes.SoftmaxSlopes`). Under replace_one the joint derivation of
        ``schedule.noises`` holds with both sides twice as long: slopes s and s' of length sqrt(2) have
        |s.s'| <= 2, so a gradient moves by at most sqrt(4 + 4 c).
    """

    classes: int = 3  # no file says so: the Domain does

    name: ClassVar[str] = "softmax"
    hidden: ClassVar[frozenset[str]] = frozenset({"loss", "classes"})

    @property
    def vectors(self) -> int:
        return self.classes

    def for_label(self, label: Label) -> IterativeLearner:
        if label.classes is None:
            raise UsageError("learner softmax is for several classes: for this label take gradient")
        return self.of_classes(label)

    def schedule(self, facts: PublicFacts) -> Schedule:
        """All that a run does, from public facts."""
        noise = self._noises(facts, self.calibration(facts).mu)
        return schedule(facts, _Softmax(), self.steps, noise, self.length)

    def _slopes(self, weights: NDArray[np.float64], loss: Loss | None, facts: PublicFacts) -> Statistic:
        del loss
        return SoftmaxSlopes.at(weights, lattice_of(facts), slope_bits_of(facts))

    def _told(
        self, session: Session, facts: PublicFacts, traces: list[Trace], weights: Vector, details: dict[str, Any]
    ) -> Learned:
        """Weights against their mean over the classes, which moves no probability."""
        del facts
        domain = session.passes.domain
        return Learned(weights - weights.mean(axis=0), details, bars=softmax_bars(domain, traces), domain=domain)

    def _details(self, plan: Schedule) -> dict[str, Any]:
        return super()._details(plan) | {"loss": "softmax"}
