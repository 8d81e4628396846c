"""Sufficient statistics: exact integer sums over rows, each with its sensitivity under every relation."""

from __future__ import annotations

from daskrado.statistics.base import Block, Groups, IntVector, Rows, Statistic, Summary
from daskrado.statistics.counts import Histogram
from daskrado.statistics.margins import MarginHistogram
from daskrado.statistics.mean_operator import MeanOperator
from daskrado.statistics.moments import Moments
from daskrado.statistics.protected_rados import NoisyColumnRados, NoisyEdgeRados, RandomisedRados
from daskrado.statistics.rados import BalancedRados, HadamardRados, UniformRados
from daskrado.statistics.subset_rados import FeatureRados, FixedSupportRados

__all__ = [
    "BalancedRados",
    "Block",
    "FeatureRados",
    "FixedSupportRados",
    "Groups",
    "HadamardRados",
    "Histogram",
    "IntVector",
    "MarginHistogram",
    "MeanOperator",
    "Moments",
    "NoisyColumnRados",
    "NoisyEdgeRados",
    "RandomisedRados",
    "Rows",
    "Statistic",
    "Summary",
    "UniformRados",
]
