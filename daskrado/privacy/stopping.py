"""What the best of a random number of runs costs: hyper-parameter tuning by random stopping.

A base mechanism Q releases a model and a noisy score. It is run K times with fresh noise, and only the run with the
best score is released. K is geometric with mean T, drawn without a look at the rows, and **stays secret**, as do all
other runs. The price is a small multiple of that of one run, whatever T is.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np

from daskrado.errors import UsageError
from daskrado.privacy.curves import zcdp_epsilon
from daskrado.privacy.events import Amount, exact
from daskrado.privacy.noise import uniform_below

PURE_FACTOR = 3
"""The best of a geometric number of runs, each pure epsilon, is 3 epsilon (Liu and Talwar 2019, theorem 3.2)."""
_UP = 1 + 1e-12  # far above the error of the arithmetic below


def stopped_epsilon(rho: float, runs: int, delta: float) -> float:
    """The epsilon at ``delta`` of the best of a geometric number of rho-zCDP runs, ``runs`` of them in the mean.

    Theorem 2 of Papernot and Steinke (2022) for the truncated negative binomial law with eta = 1, which is the
    geometric one with gamma = 1 / T and E[K] = T: where one run is (a, r(a))-Renyi private for all orders a, the best
    of K has

        r'(a) = r(a) + 2 (1 - 1/b) r(b) + 2 log(T) / b + log(T) / (a - 1)     for every a > 1 and b >= 1.

    With r(a) = rho a the terms in b are least at b = sqrt(log(T) / rho), where they are 4 sqrt(rho log T) - 2 rho (at
    b = 1, 2 log T, where rho is above log T). The last term turns delta into delta / T in the optimal conversion of
    what is left, rho a: so epsilon' = zcdp_epsilon(rho, delta / T) + 4 sqrt(rho log T) - 2 rho.

    Sensitivity
        Of the base mechanism, as its rho says. Orders only choose among valid bounds: an inexact one is too large.

    Reference
        Papernot and Steinke (2022), Hyperparameter tuning with Renyi differential privacy, theorem 2; Canonne,
        Kamath and Steinke (2020), the conversion.

    >>> round(stopped_epsilon(0.005, 12, 1e-6), 3), round(zcdp_epsilon(0.005, 1e-6), 3)  # of one run
    (0.918, 0.43)
    """
    if not (isinstance(runs, int) and runs >= 1 and rho > 0 and 0 < delta < 1):
        raise UsageError(f"random stopping needs runs >= 1, rho > 0, 0 < delta < 1: {runs!r}, {rho!r}, {delta!r}")
    log = math.log(runs)
    beside = 4 * math.sqrt(rho * log) - 2 * rho if rho < log else 2 * log
    return (zcdp_epsilon(rho, delta / runs) + beside) * _UP


@lru_cache(maxsize=256)
def largest_rho(epsilon: Amount, delta: Amount, runs: int) -> float:
    """The largest rho of one run such that the best of them is (``epsilon``, ``delta``), rounded down."""
    goal, level = float(exact(epsilon, "epsilon")) * (1 - 1e-12), float(exact(delta, "delta")) * (1 - 1e-12)
    low, high = 0.0, max(1.0, goal)
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if stopped_epsilon(middle, runs, level) <= goal else (low, middle)
        if high < 1e-30:
            raise UsageError(f"epsilon {epsilon!s} is too small for the best of {runs} runs")
    return low * (1 - 1e-12)


def largest_pure(epsilon: Amount, delta: Amount, runs: int) -> Fraction:
    """The largest pure epsilon of one run: a third, or, at a delta, what its zCDP of epsilon^2 / 2 allows if more.

    *Reference*: Liu and Talwar (2019); Bun and Steinke (2016), proposition 1.4.
    """
    third = exact(epsilon, "epsilon") / PURE_FACTOR
    if exact(delta, "delta") == 0:
        return third
    return max(third, Fraction(math.sqrt(2 * largest_rho(epsilon, delta, runs)) * (1 - 1e-12)))


def number_of_runs(mean: int) -> int:
    """A geometric number, 1 at least, with this mean: exactly, from the operating system."""
    runs = 1
    while int(uniform_below(mean, 1)[0]):
        runs += 1
    return runs


def which_runs(kinds: int, runs: int) -> np.ndarray:
    """For each run which of several kinds it is, uniformly and exactly."""
    return uniform_below(kinds, runs)
