"""Risks over rados and over examples, the lemma that joins them, and whether a rado set can be separated."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import UsageError

Matrix = NDArray[np.float64]

SEPARABLE = (
    "the rados are linearly separable: their risk has infimum 0 and no minimiser, so a smaller rado risk says "
    "nothing about the logistic risk on the examples; prefer the learner rado_moments, or a ridge"
)


def log_exponential_risk(rados: Matrix, theta: Matrix) -> float:
    """log F_exp = log of the mean over rados of exp(-rado . theta), by log-sum-exp: nothing is exponentiated.

    Reference: Nock, Patrini and Friedman (2015), equation 2.
    """
    from scipy.special import logsumexp

    return float(logsumexp(-(rados @ theta))) - math.log(len(rados))


def logistic_rado_risk(rados: Matrix, theta: Matrix, rows: int) -> float:
    """log 2 + (1/m) log F_exp: the logistic risk itself over all 2^m rados, a plug-in over a sample of them.

    Reference: Nock, Patrini and Friedman (2015), equation 4.
    """
    if rows < 1:
        raise UsageError(f"rows must be at least 1, got {rows}")
    return math.log(2.0) + log_exponential_risk(rados, theta) / rows


def logistic_risk(edges: Matrix, theta: Matrix) -> float:
    """The mean over examples of log(1 + exp(-edge . theta)), edge = label times row."""
    return float(np.logaddexp(0.0, -(edges @ theta)).mean())


def all_rados(edges: Matrix) -> Matrix:
    """The 2^m rados of m edges: the sum of every subset. Lemma 2 is exact on them.

    >>> edges, theta = np.array([[1.0, 0.0], [2.0, -1.0]]), np.array([0.3, 0.7])
    >>> all_rados(edges).tolist()
    [[0.0, 0.0], [2.0, -1.0], [1.0, 0.0], [3.0, -1.0]]
    >>> math.isclose(logistic_rado_risk(all_rados(edges), theta, rows=2), logistic_risk(edges, theta))
    True
    """
    if len(edges) > 20:
        raise UsageError(f"all 2^m rados are enumerated for m up to 20, got {len(edges)}")
    members = np.array(list(itertools.product((0.0, 1.0), repeat=len(edges))))
    return members @ edges


@dataclass(frozen=True)
class Separability:
    """Whether some theta has rado . theta > 0 for every rado, and by how much over the largest rado entry."""

    separable: bool
    margin: float
    direction: Matrix

    @property
    def warning(self) -> str:
        """What it means, in one sentence; empty if not separable."""
        return SEPARABLE if self.separable else ""


def separability(rados: Matrix) -> Separability:
    """Maximise the least margin over |theta_k| <= 1, a linear program: separable iff the optimum is above 0.

    Columns are scaled by their largest entry, which does not change the answer.
    """
    from scipy.optimize import linprog  # a third of a second, and only some reports ask

    largest = np.abs(rados).max(axis=0)
    used = np.flatnonzero(largest > 0)
    direction = np.zeros(rados.shape[1])
    if not len(used):
        return Separability(False, 0.0, direction)
    scaled = rados[:, used] / largest[used]
    cost = np.append(np.zeros(len(used)), -1.0)
    slack = np.column_stack([-scaled, np.ones(len(scaled))])
    bounds = [(-1.0, 1.0)] * len(used) + [(None, None)]
    solved = linprog(cost, A_ub=slack, b_ub=np.zeros(len(scaled)), bounds=bounds, method="highs")
    if solved.status != 0 or solved.x is None:
        raise RuntimeError(f"the separability program ended with: {solved.message}")
    direction[used] = solved.x[:-1] / largest[used]
    margin = float((scaled @ solved.x[:-1]).min())
    return Separability(margin > 1e-9, margin, direction)
