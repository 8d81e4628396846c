"""Local privacy for numbers and for whole rows: discrete noise on each report, drawn at the source."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import UsageError
from daskrado.privacy.accountant import Event, PureEvent, ZcdpEvent, exact_delta, exact_epsilon, zcdp_rho
from daskrado.privacy.local import Estimate, alpha_of
from daskrado.privacy.noise import discrete_gaussian, discrete_laplace, gaussian_variance, laplace_variance


@dataclass(frozen=True)
class LocalNumber:
    """A number between public bounds, put on a grid of 2^bits steps, plus discrete noise. Reports are whole steps.

    Sensitivity
        Any two values lie at most 2^bits steps apart: Laplace noise of scale 2^bits / epsilon is pure epsilon;
        Gaussian noise of scale 2^bits / sqrt(2 rho) is rho-zCDP, rho the largest that (epsilon, delta) allows.

    Reference
        Dwork, McSherry, Nissim and Smith (2006); Canonne, Kamath and Steinke (2020).
    """

    lower: float
    upper: float
    epsilon: float
    delta: float = 0.0
    bits: int = 16

    theorem: ClassVar[str] = "discrete Laplace or Gaussian noise on each value (Canonne, Kamath and Steinke 2020)"

    def __post_init__(self) -> None:
        exact_epsilon(self.epsilon)
        exact_delta(self.delta, zero=True)
        if not (math.isfinite(self.lower) and math.isfinite(self.upper) and self.lower < self.upper):
            raise UsageError(f"lower {self.lower!r} must be below upper {self.upper!r}, both finite")
        if not 1 <= self.bits <= 24:
            raise UsageError(f"the grid has between 1 and 24 bits, got {self.bits!r}")

    @property
    def name(self) -> str:
        """Laplace without a delta, Gaussian with one."""
        return "gaussian" if self.delta else "laplace"

    @property
    def step(self) -> float:
        """Worth of one step."""
        return math.ldexp(self.upper - self.lower, -self.bits)

    @property
    def event(self) -> Event:
        """What one report costs."""
        return ZcdpEvent(zcdp_rho(self.epsilon, self.delta)) if self.delta else PureEvent(self.epsilon)

    @property
    def noise_variance(self) -> float:
        """Variance of one report's noise, in the number's own unit."""
        steps = gaussian_variance(self._scale) if self.delta else laplace_variance(self._scale)
        return float(steps) * self.step**2

    @property
    def _scale(self) -> float:
        event = self.event
        if isinstance(event, ZcdpEvent):
            return math.nextafter(2.0**self.bits / math.sqrt(2 * event.rho), math.inf)
        return math.nextafter(2.0**self.bits / self.epsilon, math.inf)

    def randomise(self, values: NDArray[np.float64]) -> NDArray[np.int64]:
        """Noisy steps above ``lower``; values beyond the bounds are clipped first."""
        array = np.asarray(values, dtype=np.float64)
        if not np.isfinite(array).all():
            raise UsageError("a number to randomise must be finite")
        steps = np.rint((np.clip(array, self.lower, self.upper) - self.lower) / self.step).astype(np.int64)
        steps = np.clip(steps, 0, 2**self.bits)
        return discrete_gaussian(steps, self._scale) if self.delta else discrete_laplace(steps, self._scale)

    def estimate(self, total_steps: int, reports: int, confidence: float = 0.95) -> Estimate:
        """The mean from the sum of reports; the interval is normal (many reports), for the rows as they are.

        Values are rounded to the grid first: at most half a step of bias.
        """
        if reports < 1:
            raise UsageError("an estimate needs at least one report")
        mean = self.lower + self.step * (total_steps / reports)
        variance = self.noise_variance / reports
        spread = variance + (self.upper - self.lower) ** 2 / (4 * reports)  # Popoviciu's bound on the rows' variance
        reach = NormalDist().inv_cdf(1 - alpha_of(confidence) / 2) * math.sqrt(variance)
        one = [np.array([number]) for number in (mean, variance, spread, mean - reach, mean + reach)]
        return Estimate(one[0], one[1], one[2], one[3], one[4], confidence)


@dataclass(frozen=True)
class LocalEdges:
    """Edge vectors y x on the lattice, plus discrete Gaussian noise on every coordinate: one report for each row.

    Sensitivity
        Two edge vectors of norm at most 2^bits steps lie at most 2 * 2^bits apart: rho-zCDP with
        scale = 2 * 2^bits / sqrt(2 rho), rho the largest that (epsilon, delta) allows.

    Reference
        Nock, Patrini and Friedman (2015), perturbed examples; Canonne, Kamath and Steinke (2020).
    """

    epsilon: float
    delta: float
    bits: int

    name: ClassVar[str] = "edges"
    theorem: ClassVar[str] = "discrete Gaussian noise on each edge vector (Canonne, Kamath and Steinke 2020)"

    def __post_init__(self) -> None:
        exact_epsilon(self.epsilon)
        exact_delta(self.delta)

    @property
    def event(self) -> Event:
        """What one report costs."""
        return ZcdpEvent(zcdp_rho(self.epsilon, self.delta))

    @property
    def scale(self) -> float:
        """Of the noise, in grid steps."""
        rho = zcdp_rho(self.epsilon, self.delta)
        return math.nextafter(math.ldexp(2.0, self.bits) / math.sqrt(2 * rho), math.inf)

    def randomise(self, edges: NDArray[np.int64]) -> NDArray[np.int64]:
        """Noisy edge vectors; a row whose norm exceeds the grid is refused."""
        if int((edges.astype(object) ** 2).sum(axis=1).max(initial=0)) > 4**self.bits:
            raise UsageError(f"an edge vector is longer than 2^{self.bits} grid steps")
        return discrete_gaussian(edges, self.scale)
