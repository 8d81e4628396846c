"""Learners on a Release: post-processing only."""

from __future__ import annotations

from daskrado.learners.on_release.moments import MeanLearner, MomentsLearner
from daskrado.learners.on_release.rado_solvers import RadoMoments, RadoNewton
from daskrado.learners.on_release.radoboost import RadoBoost

__all__ = ["MeanLearner", "MomentsLearner", "RadoBoost", "RadoMoments", "RadoNewton"]
