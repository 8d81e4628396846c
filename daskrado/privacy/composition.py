"""Composition theorems: what several events cost together, each theorem a function of the same sorted events.

All hold for adaptively chosen mechanisms with *fixed* parameters; each function rounds epsilon up.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING

from daskrado.errors import UsageError
from daskrado.privacy.curves import gaussian_epsilon, gaussian_slack, round_down, round_up, zcdp_epsilon
from daskrado.privacy.events import (
    MAX_EPSILON,
    ApproximateEvent,
    Event,
    GaussianEvent,
    PureEvent,
    SeveralEvents,
    SingleEvent,
    ZcdpEvent,
    each,
)
from daskrado.privacy.repeated_losses import repeated_losses
from daskrado.privacy.total_loss import (
    Losses,
    bounded_losses,
    gaussian_curve,
    leaky_response,
    mixed_epsilon,
    normal_losses,
    optimal_epsilon,
    summed,
    zcdp_curve,
)

if TYPE_CHECKING:
    from daskrado.privacy.total_loss import Floats

_ROUND_UP = 1 + 1e-12  # far above the error of the sums below
_LEAK_ALONE = Fraction(1, 10**15)  # the epsilon of what is a leak and nothing else: 0 is no epsilon


@dataclass(frozen=True, slots=True)
class Composition:
    """A guarantee (epsilon, delta) for several events together, and the method that proves it.

    ``epsilon`` is an exact fraction for basic composition, a float rounded up otherwise, and infinite when the
    events have no finite epsilon at this delta.
    """

    epsilon: Fraction | float
    delta: Fraction
    method: str


@dataclass(frozen=True, slots=True)
class Parts:
    """Events sorted for accounting: bounded losses with their multiplicity, and the others.

    ``rho`` adds up what is known by its zCDP alone; ``mus`` are those of Gaussian events.
    """

    bounded: Counter[tuple[Fraction, Fraction]]
    rho: float
    mus: tuple[float, ...] = ()

    @classmethod
    def of(cls, events: Iterable[Event]) -> Parts:
        """Count equal events together."""
        bounded: Counter[tuple[Fraction, Fraction]] = Counter()
        rhos, mus = [], []
        for event, times in (part for some in events for part in each(some)):
            match event:
                case PureEvent():
                    bounded[event.epsilon, Fraction(0)] += times
                case ApproximateEvent():
                    bounded[event.epsilon, event.delta] += times
                case ZcdpEvent():
                    rhos.append(event.rho * times * (_ROUND_UP if times > 1 else 1))
                case GaussianEvent():
                    mus.extend([event.mu] * times)
                    if event.delta:
                        bounded[_LEAK_ALONE, event.delta] += times
                case _:  # what nobody can account for is no event
                    raise UsageError(f"{type(event).__name__} is no privacy event that can be accounted for")
        return cls(bounded, math.fsum(rhos), tuple(mus))

    @property
    def mu(self) -> float:
        """Of all Gaussian events together, rounded up."""
        return math.sqrt(math.fsum(mu * mu for mu in self.mus)) * _ROUND_UP

    @property
    def total_rho(self) -> float:
        """The zCDP of all events that are not bounded."""
        return math.fsum([self.rho, self.mu**2 / 2]) * _ROUND_UP if self.mus else self.rho

    def unbounded(self, delta: float) -> tuple[float, str]:
        """Epsilon at ``delta`` of the events that are not bounded, and the curve that gives it."""
        found = zcdp_epsilon(self.total_rho, delta), "zCDP"
        if not self.mus:
            return found
        if self.rho == 0:
            return min(found, (gaussian_epsilon(self.mu, delta, len(self.mus)), "Gaussian"))
        curve = partial(zcdp_curve, rho=self.rho)
        return min(
            found, (self.with_curve(lambda level: normal_losses(self.mu, level), curve, delta), "Gaussian + zCDP")
        )

    def with_curve(self, losses: Callable[[float], Losses], curve: Callable[[Floats], Floats], delta: float) -> float:
        """Epsilon of losses and a curve, one of which is that of the Gaussian events."""
        level, more = gaussian_slack(delta, len(self.mus))
        if level <= 0:
            return math.inf
        alone = zcdp_epsilon(self.rho, level) if self.rho else gaussian_epsilon(self.mu, level, len(self.mus))
        found = round_up(mixed_epsilon(losses(level), curve, alone, level) + more)
        return found if found <= MAX_EPSILON else math.inf

    @property
    def epsilon(self) -> Fraction:
        """The sum of the epsilons."""
        return sum((epsilon * times for (epsilon, _), times in self.bounded.items()), Fraction(0))

    @property
    def delta(self) -> Fraction:
        """The sum of the deltas."""
        return sum((delta * times for (_, delta), times in self.bounded.items()), Fraction(0))

    def weighted(self, cost: Callable[[float], float]) -> float:
        """The sum of ``cost(epsilon)`` over the bounded events."""
        return math.fsum(cost(float(epsilon)) * times for (epsilon, _), times in self.bounded.items())

    def groups(self) -> list[tuple[Fraction, int]]:
        """Distinct epsilons with their multiplicity."""
        counts: Counter[Fraction] = Counter()
        for (epsilon, _), times in self.bounded.items():
            counts[epsilon] += times
        return sorted(counts.items())

    def slack(self, delta: Fraction) -> float:
        """The delta left for the bounded losses: (delta - D) / (1 - D), D = 1 - prod (1 - delta_i), rounded down.

        *Reference*: Kairouz, Oh and Viswanath (2015), where total delta = 1 - (1 - delta') prod (1 - delta_i).
        """
        logs = math.fsum(times * math.log1p(-float(d)) for (_, d), times in self.bounded.items() if d)
        leaked = -math.expm1(logs)
        return (round_down(delta) - leaked * _ROUND_UP) / (1 - leaked) * (1 - 1e-12) if leaked else round_down(delta)


def basic(parts: Parts, delta: Fraction) -> Composition:
    """Epsilons and deltas add up, in exact rationals; the rest is converted at the delta that is left.

    Rhos add up; the squares of mus add up.

    *Reference*: Dwork and Lei (2009); Bun and Steinke (2016); Dong, Roth and Su (2022).
    """
    left = delta - parts.delta
    if left < 0 or (parts.total_rho > 0 and left == 0):
        return Composition(math.inf, delta, "none: the deltas of the events leave nothing")
    if parts.total_rho == 0:
        return Composition(parts.epsilon, delta, "basic")
    converted, curve = parts.unbounded(round_down(left))
    if not parts.bounded:
        return Composition(converted, delta, curve)
    return Composition(round_up(parts.epsilon + Fraction(converted)), delta, f"basic + {curve}")


def concentrated(parts: Parts, delta: Fraction) -> Composition:
    """All in zCDP: an epsilon counts as rho = epsilon^2 / 2, its delta adds up.

    *Reference*: Bun and Steinke (2016), also for the approximate form.
    """
    left = delta - parts.delta
    if left <= 0:
        return Composition(math.inf, delta, "zCDP")
    squares = sum((epsilon**2 / 2 * times for (epsilon, _), times in parts.bounded.items()), Fraction(0))
    return Composition(zcdp_epsilon(round_up(squares + Fraction(parts.total_rho)), round_down(left)), delta, "zCDP")


def lecture(parts: Parts, delta: Fraction) -> Composition:
    """sqrt(2 ln(1/delta) sum eps^2) + 2 sum eps^2: McDiarmid's inequality with a loose bound on the mean loss."""
    return _concentration(parts, delta, lambda e: 2 * e * e, "advanced, loose drift")


def advanced(parts: Parts, delta: Fraction) -> Composition:
    """sqrt(2 ln(1/delta) sum eps^2) + sum eps (exp(eps) - 1).

    *Reference*: Dwork, Rothblum and Vadhan (2010).
    """
    return _concentration(parts, delta, lambda e: e * math.expm1(e), "advanced")


def advanced_tanh(parts: Parts, delta: Fraction) -> Composition:
    """sqrt(2 ln(1/delta) sum eps^2) + sum eps tanh(eps / 2).

    A loss in [-eps, eps] of a mechanism with that epsilon has mean at most eps tanh(eps/2), which randomised response
    attains; Azuma's inequality does the rest.

    *Reference*: Dwork, Rothblum and Vadhan (2010); the drift as in Kairouz, Oh and Viswanath (2015).
    """
    return _concentration(parts, delta, lambda e: e * math.tanh(e / 2), "advanced, tanh drift")


def _concentration(parts: Parts, delta: Fraction, drift: Callable[[float], float], name: str) -> Composition:
    if not parts.bounded and parts.total_rho == 0:
        return Composition(Fraction(0), delta, name)
    level = parts.slack(delta)
    if level <= 0 or parts.total_rho > 0:
        return Composition(math.inf, delta, name)
    try:
        total = math.sqrt(-2 * math.log(level) * parts.weighted(lambda e: e * e)) + parts.weighted(drift)
    except OverflowError:
        return Composition(math.inf, delta, name)
    return Composition(total * _ROUND_UP, delta, name)


def optimal(parts: Parts, delta: Fraction) -> Composition:
    """The least epsilon that holds for *all* mechanisms with these parameters, homogeneous or not.

    delta(eps) = 1 - prod(1 - delta_i) (1 - E[(1 - exp(eps - L))_+]), where L is a sum of independent losses: +eps_i
    with probability exp(eps_i) / (1 + exp(eps_i)), else -eps_i. For k equal epsilons it is the binomial sum
    sum_l C(k, l) (exp((k-l) eps_0) - exp(eps + l eps_0))_+ / (1 + exp(eps_0))^k.

    With a zCDP or Gaussian part of curve d(.) the expectation is E[d(eps - L)]. With both, L is the sum of bounded
    and normal losses: a Gaussian mechanism is a function of one normal draw with that loss (Dong, Roth and Su 2022),
    which may be drawn before all else, so that the rest is zCDP given it.

    *Reference*: Kairouz, Oh and Viswanath (2015); Murtagh and Vadhan (2016), heterogeneous; Vadhan and Zhang (2023),
    interleaved interactive mechanisms.
    """
    level = parts.slack(delta)
    if level <= 0:
        return Composition(math.inf, delta, "optimal")
    losses = bounded_losses(parts.groups(), level)  # what it drops is a leak, at this level and at one below it
    if parts.total_rho == 0:
        return Composition(min(optimal_epsilon(losses, level), round_up(parts.epsilon)), delta, "optimal")
    rho = parts.total_rho
    found = mixed_epsilon(losses, partial(zcdp_curve, rho=rho), zcdp_epsilon(rho, min(level, 0.5)), level)
    best = found, "optimal + zCDP"
    if parts.mus and parts.rho == 0:
        gaussian = partial(gaussian_curve, mu=parts.mu)
        best = min(best, (parts.with_curve(lambda _: losses, gaussian, level), "optimal + Gaussian"))
    elif parts.mus and parts.bounded:
        both = partial(zcdp_curve, rho=parts.rho)
        exact = parts.with_curve(lambda at: summed(losses, normal_losses(parts.mu, at)), both, level)
        best = min(best, (exact, "optimal + Gaussian + zCDP"))
    return Composition(best[0], delta, best[1])


def loss_distribution(parts: Parts, delta: Fraction) -> Composition:
    """The numerical loss distribution of bounded events, by convolution: an independent route to ``optimal``.

    It is never below ``optimal``, so only comparisons use it.

    *Reference*: Koskela, Jälkö and Honkela (2020).
    """
    name = "loss distribution"
    if parts.total_rho > 0 or parts.delta >= delta:
        return Composition(math.inf, delta, name)
    if not parts.bounded:
        return Composition(Fraction(0), delta, name)
    level = round_down(delta)
    laws = [(leaky_response(round_up(e), round_up(mass)), times) for (e, mass), times in parts.bounded.items()]
    found = optimal_epsilon(repeated_losses(laws, level), level)
    return Composition(min(found, round_up(parts.epsilon)), delta, name)


THEOREMS: tuple[Callable[[Parts, Fraction], Composition], ...] = (
    basic,
    lecture,
    advanced,
    advanced_tanh,
    concentrated,
    optimal,
    loss_distribution,
)


def group_event(event: Event, size: int) -> Event:
    """What an event that protects one row costs a person who owns ``size`` rows.

    epsilon becomes size epsilon; delta becomes delta (exp(size epsilon) - 1) / (exp(epsilon) - 1); rho becomes
    size^2 rho; mu becomes size mu. (A statistic whose sensitivity is multiplied beforehand, as runs do, pays nothing
    here.)

    *Reference*: Vadhan (2017), group privacy; Bun and Steinke (2016) for zCDP; Dong, Roth and Su (2022) for mu.
    """
    if not (isinstance(size, int) and 1 <= size <= 10_000):
        raise UsageError(f"a group has between 1 and 10000 rows, got {size!r}")
    return SeveralEvents.of(SeveralEvents([(_grown(one, size), times)]) for one, times in each(event))


def _grown(event: SingleEvent, size: int) -> SingleEvent:
    match event:
        case PureEvent():
            return PureEvent(event.epsilon * size)
        case ApproximateEvent():
            try:
                growth = math.expm1(float(event.epsilon * size)) / math.expm1(float(event.epsilon))
            except OverflowError:
                raise UsageError(f"{event} protects nobody who owns {size} rows: their delta is above 1") from None
            delta = event.delta if size == 1 else Fraction(round_up(float(event.delta) * growth * _ROUND_UP))
            return ApproximateEvent(event.epsilon * size, delta)
        case ZcdpEvent():
            return ZcdpEvent(round_up(event.rho * size * size) if size > 1 else event.rho)
        case GaussianEvent() if size > 1:
            return GaussianEvent(round_up(event.mu * size), _grown_leak(event.mu, event.delta, size))
        case GaussianEvent():
            return event


def _grown_leak(mu: float, delta: Fraction, size: int) -> Fraction:
    """The leak of ``size`` steps of N(0, 1) against N(mu, 1) with a leak of ``delta`` each.

    A test that passes with chance x passes with at most delta + G(x) on a neighbour, G(x) = Phi(Phi^-1(x) + mu). G is
    concave with G(0) = 0, so G(delta + y) <= G(delta) + G(y): after t steps it is G_(t mu)(x) and the sum of
    G_(j mu)(delta) over j below t.
    """
    if not delta:
        return delta
    from scipy.special import log_ndtr, ndtri_exp

    at = float(ndtri_exp(math.log(delta)))
    leaks = [math.exp(float(log_ndtr(at + step * mu))) for step in range(1, size)]
    return Fraction(round_up(float(delta) * _ROUND_UP + math.fsum(leaks) * (1 + 1e-9)))
