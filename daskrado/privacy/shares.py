"""Noise without a trusted coordinator: every site adds a share, and a declared number of shares is enough."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from daskrado.errors import UsageError
from daskrado.privacy.accountant import Event, ZcdpEvent, rounding_gap
from daskrado.privacy.gaussian_calibration import calibrate
from daskrado.privacy.mechanisms import Mechanism, Target
from daskrado.privacy.noise import discrete_gaussian, gaussian_variance

if TYPE_CHECKING:
    from daskrado.statistics.base import Block, IntVector

SUMMED = "sum of noise shares (Kairouz, Liu and Steinke 2021)"
LEAST_SHARE = 0.5  # of a grid step: below it a sum of shares is far from a discrete Gaussian
_TINY = 1e-300  # stands for what underflows; its square root still vanishes beside any rho
_UP = 1 + 1e-12  # rounds towards less privacy


def closeness(scale: float, shares: int) -> float:
    """A bound T on |log(P(z) / Q(z))|, z any integer: P a sum of discrete Gaussians, Q one of the same total scale.

    P is the law of ``shares`` independent discrete Gaussians of scale s, Q the discrete Gaussian of scale
    s sqrt(shares). T = sum over k = 1 .. shares - 1 of log((1 + e_k) / (1 - e_k)), with
    e_k = 2 (q + q^4 + q^9 + ...), q = exp(-2 pi^2 v_k), v_k = s^2 k / (k + 1).

    Proof
        For X, Y of scales a, b the probability of X + Y = z is proportional to exp(-z^2 / (2 (a^2 + b^2))) times
        the sum over all integers x of exp(-(x - c)^2 / (2 v)), c = z a^2 / (a^2 + b^2), v = a^2 b^2 / (a^2 + b^2).
        By Poisson summation the latter is sqrt(2 pi v) (1 + 2 sum_k exp(-2 pi^2 v k^2) cos(2 pi k c)), within a
        factor 1 - e .. 1 + e of a constant. P / Q has mean 1 under Q, so it lies within (1 - e) / (1 + e) and its
        inverse. Convolving with a further share keeps a factor; the factors of all steps multiply.

    Reference
        Kairouz, Liu and Steinke (2021), "The distributed discrete Gaussian mechanism", bound the same quantity by
        10 sum_k exp(-2 pi^2 s^2 k / (k + 1)).
    """
    if shares < 1:
        raise UsageError(f"the number of noise shares must be at least 1, got {shares}")
    total = 0.0
    for k in range(1, shares):
        q = max(math.exp(-2 * math.pi**2 * scale**2 * k / (k + 1)), _TINY)
        wave = 2 * q / (1 - q**3)  # q + q^4 + q^9 + ... <= q (1 + q^3 + q^6 + ...)
        if wave >= 1:
            return math.inf
        total += 2 * math.atanh(wave)
    return total * _UP


def sum_gap(entries: int, scale: float, honest: int) -> float:
    """How far noise is from rounded normal noise of a scale in grid steps: ``honest`` shares of it on each entry.

    In the log of likelihoods, over all entries: ``closeness`` to one discrete Gaussian and its ``rounding_gap``.
    """
    share = scale / math.sqrt(honest)
    if honest > 1 and share < LEAST_SHARE:
        return math.inf
    return entries * closeness(share, honest) + rounding_gap(entries, scale)


def summed_rho(rho: float, closeness_total: float) -> float:
    """The zCDP of a sum of shares: (sqrt(rho) + sqrt(T))^2 + T, where one discrete Gaussian would have rho.

    T adds ``closeness`` over all entries that carry noise.

    Proof
        Let Q, Q' be the laws of the output on two neighbours under one discrete Gaussian per entry and P, P' those
        under sums. P' <= e^T Q' and P >= e^-T Q, so D_a(P' || P) <= D_a(Q' || Q) + T (2a - 1) / (a - 1)
        <= rho a + 2T + T / (a - 1). With u = sqrt(T / rho): for a >= 1 + u this is at most
        a (rho + 2T + T/u) since a >= 1; for a < 1 + u it is at most its value at 1 + u, because D_a rises
        with a, that is rho (1 + u) + 2T + T/u. Both are at most a (rho + 2 sqrt(rho T) + 2T).

    Reference
        Ours, after Kairouz, Liu and Steinke (2021); Canonne, Kamath and Steinke (2020) for D_a(Q' || Q) <= rho a.
    """
    if closeness_total == 0:
        return rho
    return ((math.sqrt(rho) + math.sqrt(closeness_total)) ** 2 + closeness_total) * (1 + 1e-15)


class GaussianShares(Mechanism):
    """One site's share of discrete Gaussian noise: scale sigma / sqrt(honest) on every entry that is not public.

    However many of the other sites leave their share out, subtract what they know or tell the coordinator, the sum
    of at least ``honest`` shares stays in the total, and it alone gives the event below. Shares beyond ``honest``
    are independent noise on top: post-processing. The noise on the total, as published, is that of all ``sites``.

    Sensitivity
        L2 of the normalised joint vector, from the statistic: a unit's rows, at whichever sites they are, move the
        total exactly as they would move one lake. On a fine grid a sum of shares is within ``closeness`` of one
        discrete Gaussian and that within ``rounding_gap`` of a rounded normal draw: sigma = l2 / mu as for one
        curator (``gaussian_calibration``). On a coarse one it is the least sigma with ``summed_rho`` of
        l2^2 / (2 sigma^2) within (epsilon, delta).

    Reference
        Kairouz, Liu and Steinke (2021), "The distributed discrete Gaussian mechanism for federated learning with
        secure aggregation".
    """

    name: ClassVar[str] = "gaussian_shares"

    def __init__(self, target: Target, epsilon: float, delta: float, *, honest: int, sites: int) -> None:
        if not delta > 0:
            raise UsageError(f"noise shares are Gaussian and need delta above 0, got {delta}")
        if not 1 <= honest <= sites:
            raise UsageError(f"honest must be between 1 and the number of sites, {sites}, got {honest}")
        self.honest, self.sites = honest, sites
        self._event, mu, theorem = calibrate(epsilon, delta, lambda mu: self._gap(target, mu))
        self.theorem = f"{SUMMED}; {theorem}"
        super().__init__(target, target.sensitivity.l2 / mu)
        if isinstance(self._event, ZcdpEvent):
            self._calibrate_coarse(self._event.rho, epsilon)

    def _gap(self, target: Target, mu: float) -> float:
        """How far the sum of honest shares is from rounded normal noise, in the log of likelihoods."""
        total = 0.0
        for block in target.statistic.blocks:
            if block.name not in target.sensitivity.public:
                whole = target.sensitivity.l2 / mu / block.normalised_step(target.lattice)
                total += sum_gap(block.size, whole, self.honest)
        return total

    def _calibrate_coarse(self, goal: float, epsilon: float) -> None:
        """The least scale whose summed shares stay within ``goal`` in zCDP."""
        low, high = goal * 1e-9, goal
        if self._price(low) > goal:
            raise UsageError(f"epsilon {epsilon:g}: the noise share of a site would be below half a grid step")
        while high > low * (1 + 1e-13):
            middle = (low + high) / 2
            low, high = (middle, high) if self._price(middle) <= goal else (low, middle)
        self._event = ZcdpEvent(self._price(low))
        self._check_scales()

    def _price(self, rho: float) -> float:
        """The rho of the summed shares where one discrete Gaussian has ``rho``; leaves the scale set for it."""
        self.scale = self.target.sensitivity.l2 / math.sqrt(2 * rho)
        total = 0.0
        for block in self.target.statistic.blocks:
            if block.name not in self.target.sensitivity.public:
                share = self.grid_scale(block)
                if share < LEAST_SHARE:
                    return math.inf
                total += block.size * closeness(share, self.honest)
        return summed_rho(rho, total)

    @property
    def event(self) -> Event:
        """What one round costs every site that contributes to it."""
        return self._event

    def grid_scale(self, block: Block) -> float:
        """Scale of one share in a block's integer steps."""
        return self.scale / math.sqrt(self.honest) / block.normalised_step(self.target.lattice)

    def noise_std(self) -> dict[str, float]:
        """Standard deviation of the noise on the total of all sites, each adding its share."""
        return {name: std * math.sqrt(self.sites) for name, std in super().noise_std().items()}

    def _noisy(self, values: IntVector, grid_scale: float) -> IntVector:
        return discrete_gaussian(values, grid_scale)

    def _variance(self, grid_scale: float) -> float:
        return gaussian_variance(grid_scale)
