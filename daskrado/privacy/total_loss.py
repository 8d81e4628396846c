"""The law of the total privacy loss of bounded events, and the epsilons that follow from it, by direct sums.

All terms are positive and nothing is transformed, so the relative error stays near that of one addition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from daskrado.privacy.curves import LEAST_MU

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_NEGLIGIBLE = 1e-13  # of delta; the mass of dropped tails counts as a leak
_POINTS = 2**16  # enumerate up to so many losses, else put them on a grid of so many cells
_MIXED_CELLS = 2**13
_ORDERS = 200
_SAFE = 1e-10  # relative; bounds the rounding error of all sums


@dataclass(frozen=True, slots=True)
class Losses:
    """Values of the loss with their probabilities, and the probability that was counted as a leak."""

    values: Floats
    chances: Floats
    leak: float


def bounded_losses(groups: Sequence[tuple[Fraction, int]], delta: float) -> Losses:
    """The law of the sum of independent losses +-epsilon, for (epsilon, times) groups.

    Each group is binomial. Their sum is enumerated where it has few values; else the groups' losses are rounded up to
    a common grid (exact where the epsilons share it), which can only raise delta(eps) = E[(1 - exp(eps - L))_+].
    """
    import numpy as np

    cut = delta * _NEGLIGIBLE / max(1, len(groups))
    laws = [_binomial(epsilon, times, cut) for epsilon, times in groups]
    leak = math.fsum(lost for _, _, lost in laws)
    if math.prod(len(values) for values, _, _ in laws) <= _POINTS:
        values, chances = np.zeros(1), np.ones(1)
        for more, masses, _ in laws:
            values = np.add.outer(values, more).ravel()
            chances = np.multiply.outer(chances, masses).ravel()
        return Losses(values, chances, leak)
    return _on_grid(groups, laws, leak, cut)


def leaky_response(epsilon: float, delta: float) -> Losses:
    """The loss of the worst mechanism with (epsilon, delta): randomised response that tells all with chance delta.

    *Reference*: Kairouz, Oh and Viswanath (2015).
    """
    import numpy as np

    chances = np.array([1 / (1 + math.exp(epsilon)), 1 / (1 + math.exp(-epsilon))])
    return Losses(np.array([-epsilon, epsilon]), chances * (1 - delta) * (1 + 2.0**-49), delta)


def _binomial(epsilon: Fraction, times: int, cut: float) -> tuple[Floats, Floats, float]:
    """Values (times - 2 l) epsilon and their probabilities, without tails of total mass below ``cut``.

    Probabilities follow from the mode by ratios, whose logarithms are small where the mass is not negligible.
    """
    import numpy as np

    e = float(epsilon)
    low = np.arange(times + 1, dtype=np.float64)  # how many losses are -epsilon
    steps = np.log((times - low[:-1]) / (low[:-1] + 1.0)) - e
    mode = min(times, int((times + 1) / (1 + math.exp(e))))
    logs = np.concatenate([-np.cumsum(steps[:mode][::-1])[::-1], [0.0], np.cumsum(steps[mode:])])
    chances = np.exp(logs)
    chances /= math.fsum(chances)
    below, above = np.cumsum(chances), np.cumsum(chances[::-1])[::-1]
    keep = (below > cut / 2) & (above > cut / 2)
    return (times - 2.0 * low[keep]) * e, chances[keep], math.fsum(chances[~keep])


def _on_grid(groups: Sequence[tuple[Fraction, int]], laws: Sequence[Any], leak: float, cut: float) -> Losses:
    """The sum of the laws on a common grid; tails of mass below ``cut`` are dropped after every law, and are a leak.

    The sum of many laws is far narrower than the sum of their widths, so that most cells are such tails.
    """
    import numpy as np

    spread = sum(float(values.max() - values.min()) for values, _, _ in laws)
    common = math.lcm(*(epsilon.denominator for epsilon, _ in groups))
    shared = float(Fraction(math.gcd(*(int(epsilon * common) for epsilon, _ in groups)), common))
    # On the shared grid nothing is rounded; 1e-9 of a cell absorbs the division's last bit, and is paid for by _SAFE.
    cell = max(shared, spread / _POINTS)
    placed: list[tuple[int, Floats]] = []
    for values, chances, _ in laws:
        index = np.ceil(values / cell - 1e-9).astype(np.int64)
        start = int(index.min())
        placed.append((start, np.bincount(index - start, weights=chances).astype(np.float64)))
    start, total = 0, np.ones(1)
    for offset, masses in sorted(placed, key=lambda item: -len(item[1])):
        total = _convolve(total, masses)
        below, above = np.cumsum(total), np.cumsum(total[::-1])[::-1]
        keep = np.flatnonzero((below > cut / 2) & (above > cut / 2))
        first, last = int(keep[0]), int(keep[-1]) + 1
        leak += math.fsum(total[:first]) + math.fsum(total[last:])
        start += offset + first
        total = total[first:last]
    hit = np.flatnonzero(total)
    values = (hit + start).astype(np.float64) * cell
    return Losses(values + 2e-9 * cell * len(laws) * (cell > shared), total[hit], leak)


def _convolve(a: Floats, b: Floats) -> Floats:
    """The plain convolution: positive terms, no Fourier transform, skipping the zeros of ``b``."""
    import numpy as np

    out = np.zeros(len(a) + len(b) - 1)
    for at in np.flatnonzero(b):
        out[at : at + len(a)] += b[at] * a
    return out


def optimal_epsilon(losses: Losses, delta: float) -> float:
    """The least epsilon with E[(1 - exp(epsilon - L))_+] <= delta, rounded up."""
    import numpy as np

    level = (delta - losses.leak) * (1 - _SAFE)
    if level <= 0:
        return math.inf
    positive = losses.values > 0
    values, chances = losses.values[positive], losses.chances[positive]

    def within(epsilon: float) -> bool:
        above = values > epsilon
        return float(np.dot(chances[above], -np.expm1(epsilon - values[above]))) <= level

    top = float(values.max(initial=0.0))
    return _least(within, top) * (1 + _SAFE)


def _least(within: Callable[[float], bool], top: float) -> float:
    """The least number in [0, top] at which a monotone test holds, from above; ``top`` must pass."""
    if within(0.0):
        return 0.0
    low, high = 0.0, top
    while low < (middle := (low + high) / 2) < high and high - low > 1e-13 * high:
        low, high = (low, middle) if within(middle) else (middle, high)
    return high


def normal_losses(mu: float, delta: float) -> Losses:
    """The law N(mu^2 / 2, mu^2) of the loss of the Gaussian mechanism, rounded up to a grid."""
    import numpy as np
    from scipy.special import log_ndtr, ndtr

    far = math.sqrt(-2 * math.log(delta * _NEGLIGIBLE))
    ends = np.linspace(-far, far, _MIXED_CELLS + 1)
    # Both tails by their own side, so that no small mass is the difference of two large ones.
    below, above = ndtr(ends), ndtr(-ends)
    chances = np.where(ends[1:] <= 0, np.diff(below), -np.diff(above))
    chances[0] += below[0]
    return Losses(mu * mu / 2 + mu * ends[1:], chances * (1 + 1e-12), math.exp(float(log_ndtr(-far))))


def summed(one: Losses, other: Losses) -> Losses:
    """The law of the sum of two independent losses, each rounded up to a common grid."""
    import numpy as np

    cell = float(np.ptp(one.values) + np.ptp(other.values)) / _MIXED_CELLS
    start, total = 0, np.ones(1)
    for losses in (one, other):
        index = np.ceil(losses.values / cell).astype(np.int64)
        start += int(index.min())
        total = _convolve(total, np.bincount(index - index.min(), weights=losses.chances).astype(np.float64))
    hit = np.flatnonzero(total)
    return Losses((hit + start).astype(np.float64) * cell, total[hit], one.leak + other.leak)


def mixed_epsilon(losses: Losses, curve: Callable[[Floats], Floats], alone: float, delta: float) -> float:
    """The least epsilon, on a grid, with E[d(epsilon - L)] <= delta.

    Given the losses L, the rest has a hockey-stick divergence of at most d(x), the ``curve``, at any real level x,
    and at the level ``alone`` one of at most delta.
    """
    import numpy as np

    level = (delta - losses.leak) * (1 - _SAFE)
    if level <= 0 or alone == math.inf:
        return math.inf
    # Enough, but for the last percent of delta and of the curve: there every term is at most level.
    top = float(losses.values.max()) + 1.02 * alone
    if top <= 0:
        return 0.0
    cell = top / _MIXED_CELLS
    index = np.ceil(losses.values / cell).astype(np.int64)
    start = int(index.min())
    masses = np.bincount(index - start, weights=losses.chances)
    hit = np.flatnonzero(masses)
    steps = np.arange(-int(index.max()), _MIXED_CELLS + 2 - start)
    heights = curve(steps.astype(np.float64) * cell)

    def within(at: int) -> bool:
        return float(np.dot(masses[hit], heights[at - (hit + start) - steps[0]])) <= level

    low, high = -1, _MIXED_CELLS + 1
    if not within(high):
        return math.inf
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if within(middle) else (middle, high)
    return high * cell * (1 + _SAFE)


def zcdp_curve(levels: Floats, rho: float) -> Floats:
    """An upper bound on the hockey-stick divergence of rho-zCDP at any real levels x (P(S) - exp(x) Q(S)).

    At every order a > 1: exp((a - 1) (a rho - x)) (1 - 1/a)^a / (a - 1); at most 1; and at a negative level
    1 - exp(x) + exp(x) d(-x), the same divergence seen from the other side.

    *Reference*: Canonne, Kamath and Steinke (2020).
    """
    import numpy as np

    widest = float(np.abs(levels).max(initial=1.0))
    excess = np.geomspace(min(1e-2, 1e-2 / (1 + rho)), 4 + 2 * widest / rho, _ORDERS)  # a - 1
    log_factor = (1 + excess) * (np.log(excess) - np.log1p(excess)) - np.log(excess)
    size = np.abs(levels)
    best = np.full(len(size), np.inf)
    for a_less_1, factor in zip(excess, log_factor, strict=True):
        np.minimum(best, a_less_1 * ((1 + a_less_1) * rho - size) + factor, out=best)
    positive = np.exp(np.minimum(best, 0.0))
    negative = -np.expm1(-size) + np.exp(-size) * positive
    curve: Floats = np.where(levels >= 0, positive, negative) * (1 + 1e-12)
    return curve


def gaussian_curve(levels: Floats, mu: float) -> Floats:
    """The hockey-stick divergence of the Gaussian mechanism at any real levels, as in :func:`zcdp_curve`.

    *Reference*: Balle and Wang (2018).
    """
    import numpy as np
    from scipy.special import log_ndtr

    size, mu = np.abs(levels), max(mu, LEAST_MU)
    first, second = log_ndtr(mu / 2 - size / mu), size + log_ndtr(-mu / 2 - size / mu)
    positive = np.where(second < first, -np.exp(first) * np.expm1(np.minimum(second - first, 0.0)), 0.0)
    negative = -np.expm1(-size) + np.exp(-size) * positive
    curve: Floats = np.where(levels >= 0, positive, negative) * (1 + 1e-8)
    return curve
