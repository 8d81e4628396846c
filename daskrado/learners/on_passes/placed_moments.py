"""Least squares from moments of rows whose plain numbers were placed first: learner ``moments`` with ``centre``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from daskrado.lake.steps import begin_step
from daskrado.learners.on_passes.iterative import Guarantee, Learned, Session
from daskrado.learners.on_passes.placing import PlacingLearner
from daskrado.learners.on_release.moment_errors import NoisyMoments
from daskrado.learners.on_release.moments import MomentsLearner
from daskrado.privacy.mechanisms import OneShot, Target, default_mechanism, mechanism
from daskrado.privacy.perturbation import PublicFacts
from daskrado.statistics.bounded import bounded
from daskrado.statistics.moments import Moments, symmetric
from daskrado.table.lattice import Lattice


@dataclass(frozen=True)
class PlacedMoments(PlacingLearner):
    """Three passes in one grant: two rounds of counts, then moments as learner ``moments`` releases them.

    Sensitivity
        See :class:`PlacingLearner` for what both cost together, and :class:`daskrado.statistics.moments.Moments`.
    """

    centre: bool = True

    name: ClassVar[str] = "placed_moments"
    default_bits: ClassVar[int] = Moments.default_bits

    def _mechanism(self, facts: PublicFacts) -> OneShot:
        lattice = Lattice(facts.norm_bound, facts.lattice_bits or self.secret_bits)
        counts = facts.rows_per_unit if facts.by_unit or facts.weighted else None
        statistic = bounded(Moments(facts.width), counts, lattice)
        target = Target(statistic, lattice, facts.relation, facts.rows_per_unit if counts is None else 1)
        return mechanism(default_mechanism(facts.delta), target, facts.epsilon, facts.delta)

    def _guarantee(self, facts: PublicFacts) -> Guarantee:
        found = self._mechanism(facts)
        return Guarantee(found.event, facts.delta, found.name, found.theorem, found.assumptions)

    def _forecast(self, facts: PublicFacts) -> Iterator[tuple[str, str]]:
        for block, noise in self._mechanism(facts).noise_std().items():
            yield "noise", f"{block}: standard deviation {noise:.4g}"

    def _excess(self, facts: PublicFacts) -> float:
        noise = self._mechanism(facts).noise_std()
        return MomentsLearner().excess(noise, facts.norm_bound, facts.width, facts.rows) or 0.0

    def _learn(self, session: Session, facts: PublicFacts) -> Learned:
        passes, bound = session.passes, facts.norm_bound
        chosen, statistic = self._mechanism(facts), Moments(facts.width)
        begin_step(session.progress, "moments")
        read = partial(passes.sum, statistic, share=session.share, progress=session.progress)
        drawn = session.draw(read, lambda summary: chosen.perturb(summary.vector))
        parts, steps = statistic.split(drawn), {one.name: one.step(passes.lattice) for one in statistic.blocks}
        values = {name: np.asarray(part, dtype=np.float64) * steps[name] for name, part in parts.items()}
        noise = chosen.noise_std()
        moments = NoisyMoments(
            values["mean"] / bound,
            symmetric(values["second"], facts.width) / bound**2,
            noise["mean"] / bound,
            noise["second"] / bound**2,
            facts.rows_per_unit if facts.by_unit else 1,
        )
        return MomentsLearner().learned(moments, passes.domain, bound)
