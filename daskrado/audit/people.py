"""Audits of a guarantee for people: can releases tell whether all rows of one person are in the lake?

Whoever knows everybody else's rows, and the person's, sees releases of the two lakes and tells them apart as well as
he can. What he achieves is a lower bound on the mu of the guarantee, valid with a stated confidence: one above the mu
that was charged refutes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta, norm

Release = Callable[[], NDArray[np.float64]]  # draws one anew


@dataclass(frozen=True)
class Found:
    """``mu`` was shown, and at most ``reach`` could have been shown by so many releases."""

    mu: float
    reach: float


def audit_person(inside: Release, outside: Release, runs: int, *, confidence: float = 0.999) -> Found:
    """Tell ``runs`` releases with a person's rows from as many without.

    Direction and threshold are chosen on one half of the releases, and counted on the other. ``Release`` should
    scale what it returns so that its noise is about equal in all coordinates.
    """
    first, second = (np.array([[draw() for _ in range(runs // 2)] for draw in (inside, outside)]) for _ in range(2))
    along = first[0].mean(axis=0) - first[1].mean(axis=0)
    tried, counted = first @ along, second @ along
    cuts = np.quantile(tried, np.linspace(0.02, 0.98, 97))
    best = max(cuts, key=lambda cut: lower_mu(tried[0] > cut, tried[1] > cut, confidence))
    every = np.ones(runs // 2, dtype=bool)
    return Found(lower_mu(counted[0] > best, counted[1] > best, confidence), lower_mu(every, ~every, confidence))


def lower_mu(hits: NDArray[np.bool_], false_alarms: NDArray[np.bool_], confidence: float = 0.999) -> float:
    """The least mu of a Gaussian guarantee under which an attack can be right and wrong so often.

    Under mu-Gaussian privacy no test with false alarms at rate a is right more often than Phi(mu + Phi^-1(a)). Both
    rates are bounded by Clopper and Pearson's intervals, each with half of the risk.

    *Reference*: Dong, Roth and Su (2022); Nasr et al. (2023) for audits of mu.
    """
    risk, runs = (1 - confidence) / 2, len(hits)
    right, wrong = int(hits.sum()), int(false_alarms.sum())
    low = float(beta.ppf(risk, right, runs - right + 1)) if right else 0.0
    high = float(beta.ppf(1 - risk, wrong + 1, runs - wrong)) if wrong < runs else 1.0
    return float(norm.ppf(low) - norm.ppf(high)) if low > 0 and high < 1 else -np.inf
