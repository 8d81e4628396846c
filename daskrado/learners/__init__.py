"""Learners on a Release: post-processing only."""

from __future__ import annotations

from daskrado.learners.moments import MeanLearner, MomentsLearner
from daskrado.learners.rado_solvers import RadoMoments, RadoNewton
from daskrado.learners.radoboost import RadoBoost

__all__ = ["MeanLearner", "MomentsLearner", "RadoBoost", "RadoMoments", "RadoNewton"]
