"""Sufficient statistics: exact integer sums over rows, each with its sensitivity under every relation."""

from __future__ import annotations

from daskrado.statistics.base import Block, Groups, IntVector, Rows, Statistic, Summary
from daskrado.statistics.mean_operator import MeanOperator
from daskrado.statistics.moments import Moments
from daskrado.statistics.rados import BalancedRados, HadamardRados, UniformRados

__all__ = [
    "BalancedRados",
    "Block",
    "Groups",
    "HadamardRados",
    "IntVector",
    "MeanOperator",
    "Moments",
    "Rows",
    "Statistic",
    "Summary",
    "UniformRados",
]
