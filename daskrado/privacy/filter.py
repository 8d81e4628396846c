"""Filters: rules that refuse an event before it is charged, valid for an analyst who chooses as he goes.

A filter is fixed once, together with the limit (epsilon_L, delta_L) that it keeps. It decides from the costs charged
so far and the cost of one more event, and from nothing else, so that the next mechanism, its budget and whether there
is a next one may all depend on earlier private answers.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar

from daskrado.errors import UsageError
from daskrado.privacy.accountant import within
from daskrado.privacy.costs import Cost, cost_of, pure_epsilon
from daskrado.privacy.curves import MAX_ROUNDING_GAP, gaussian_mu, gaussian_slack, round_down
from daskrado.privacy.events import (
    MAX_EPSILON,
    MIN_DELTA,
    MIN_EPSILON,
    Amount,
    Event,
    GaussianEvent,
    PureEvent,
    asked_epsilon,
    decimal_text,
    exact,
    exact_delta,
    exact_epsilon,
)

__all__ = ["Cost", "Filter", "GaussianFilter", "PureSums", "filter_for", "filter_from_json", "following"]

OWN_DELTAS = Fraction(1, 10)
"""The part of a limit's delta that is kept for events with a delta of their own, unless the owner chooses another.

The Gaussian part hardly misses it: mu_L of (10, 1e-5) falls by 0.5 %.
"""
MOST_DRAWS = 1000
"""How many Gaussian releases a limit counts, at most: each adds 2e-6 to epsilon, 2e-3 in all."""
_DRAWS_PER_EPSILON = 10_000  # so that their part of epsilon stays below 2 % where the limit is small
_LEAST_GAUSSIAN_DELTA = Fraction(1, 10**30)  # below it rounding_gap's lost chances are no longer small beside delta


class Filter(ABC):
    """A refusing rule and the limit (``epsilon``, ``delta``) that it keeps, whatever is asked in whatever order."""

    epsilon: Fraction
    delta: Fraction

    @abstractmethod
    def cost(self, event: Event) -> Cost:
        """What an event takes; a UsageError where this rule cannot charge it."""

    def charge(self, event: Event) -> Cost:
        """What an event takes, or the whole budget where it is too much for the rule and by itself within the limit.

        Proof
            The whole budget is accepted only where nothing was charged before, so the event does not depend on any
            answer, and nothing is accepted after it. It alone is (epsilon_L, delta_L)-differentially private.

        *Not for a run of several charges*, though it may be within the limit as a whole: each can be voided alone.
        What one gives back would be a part of the limit that somebody may spend after seeing the others' answers,
        while by the rule they cost more than what is left of it.
        """
        cost = self.cost(event)
        return self.whole if not self.fits(Cost(), cost) and _alone(event, self.epsilon, self.delta) else cost

    @property
    @abstractmethod
    def whole(self) -> Cost:
        """All of every counter: nothing fits beside it."""

    def can_hold(self, total: Cost) -> bool:
        """Whether this rule can count what another one counted."""
        try:
            return bool(self.shares(total))
        except UsageError:
            return False

    @abstractmethod
    def shares(self, cost: Cost) -> dict[str, Fraction]:
        """The part of each counter that a cost takes. Every counter adds up, and none may exceed 1."""

    @abstractmethod
    def largest_epsilon(self, total: Cost, delta: Amount, steps: int = 1) -> float:
        """The largest epsilon, two digits, of one more release that fits: Gaussian at ``delta``, or pure for 0.

        ``steps`` is how often it counts where the release protects somebody else than the limit does.
        """

    @abstractmethod
    def to_json(self) -> dict[str, str]:
        """The rule as plain JSON; :func:`filter_from_json` reads it."""

    def fits(self, total: Cost, more: Cost) -> bool:
        """Whether ``more`` may be charged after ``total``."""
        return all(share <= 1 for share in self.shares(total + more).values())

    def share(self, cost: Cost) -> Fraction:
        """The largest of the shares: what people see."""
        return max(self.shares(cost).values())

    def more_like(self, total: Cost, one: Cost) -> int:
        """How many more events like ``one`` fit after ``total``."""
        name = self.binding(total, one)
        return max(0, math.floor((1 - self.shares(total)[name]) / self.shares(one)[name]))

    def binding(self, total: Cost, one: Cost) -> str:
        """The counter of which fewest events like ``one`` are left after ``total``."""
        used, each = self.shares(total), self.shares(one)
        return min((name for name, part in each.items() if part > 0), key=lambda name: (1 - used[name]) / each[name])


@dataclass(frozen=True)
class PureSums(Filter):
    """The sum of pure epsilons stays within the limit's; its delta is 0.

    Proof
        Given the answers so far, event i moves the likelihood of its answer by a factor of at most exp(epsilon_i).
        The factors of all answers multiply, and the rule keeps their product below exp(epsilon_L) on every path,
        however the epsilons were chosen.

    Reference
        Dwork, McSherry, Nissim and Smith (2006); Rogers, Roth, Ullman and Vadhan (2016), filters.
    """

    epsilon: Fraction
    delta: ClassVar[Fraction] = Fraction(0)  # type: ignore[misc]

    def cost(self, event: Event) -> Cost:
        """The event's own epsilon; an event without one is refused."""
        found = cost_of(event)
        if found.epsilon is None:
            raise UsageError(
                "the limit has delta 0, and a release with a delta above 0 does not fit it at all: ask for delta 0, "
                "or let the owner set a limit with a delta"
            )
        return found

    @property
    def whole(self) -> Cost:
        """The limit's epsilon."""
        return cost_of(PureEvent(self.epsilon))

    def shares(self, cost: Cost) -> dict[str, Fraction]:
        """One counter: the sum of epsilons."""
        if cost.epsilon is None:
            raise UsageError("a limit with delta 0 holds events that are not pure")
        return {"loss": cost.epsilon / self.epsilon}

    def largest_epsilon(self, total: Cost, delta: Amount, steps: int = 1) -> float:
        """What is left of epsilon; 0 for a release with a delta."""
        if exact(delta, "delta") > 0 or total.epsilon is None:
            return 0.0
        return _two_digits((self.epsilon - total.epsilon) / steps)

    def to_json(self) -> dict[str, str]:
        """Rule and epsilon."""
        return {"rule": "pure sums", "epsilon": decimal_text(self.epsilon)}


@dataclass(frozen=True)
class GaussianFilter(Filter):
    """The Gaussian filter: sums of mu^2, of deltas and of draws, each against a part that is fixed with the limit.

    ``own_deltas`` = delta_e is kept for events with a delta of their own, delta_g = delta_L - delta_e for the
    Gaussian curve; ``draws`` = N is the most events with discrete Gaussian noise; ``mu`` = mu_L is the largest number
    of ten digits with

        delta_G(epsilon_L - 2 N g; mu_L) <= delta_g (1 - N g - N 1e-7),    g = MAX_ROUNDING_GAP = 1e-6.

    An event of cost (mu_i, delta_i, n_i) is accepted iff afterwards sum mu_i^2 <= mu_L^2, sum delta_i <= delta_e and
    sum n_i <= N. Everything accepted is (epsilon_L, delta_L)-differentially private, even if each event, its
    parameters and the moment to stop are chosen from the answers so far.

    Proof
        Let P and Q be the laws of all answers on two neighbouring lakes. (1) A cost (mu_i, delta_i) says that the
        event's profile lies below that of the pair "with chance delta_i the lake is told, else a draw from N(0, 1)
        or N(mu_i, 1)". By Blackwell's theorem the event is a random function of that pair (Dong, Roth and Su 2022),
        so let the analyst see the pair itself. (2) Without leaks and with normal noise call the laws P0, Q0. Let him
        end with a further draw that fills sum mu_i^2 up to mu_L^2; he may ignore it. As mu_i depends on earlier
        draws only, the scaled draws mu_i Z_i are increments of one Brownian motion over times mu_i^2 that are known
        when they begin; the log likelihood ratio of all is B(mu_L^2) -+ mu_L^2 / 2, exactly that of one draw with
        mu_L. So P0(f) <= e^eps Q0(f) + delta_G(eps; mu_L) for every test 0 <= f <= 1 (Smith and Thakurta 2022).
        (3) The chance that no leak happens along a path, w = prod (1 - delta_i), is one function of the path under
        both lakes. P(f and no leak) = P0(f w) <= e^eps Q0(f w) + delta_G <= e^eps Q(f) + delta_G, and a leak has
        chance at most E[sum delta_i] <= delta_e, because the sum stays below delta_e on every path. (4) Discrete
        noise changes the likelihood of each of at most N events by a factor within exp(+-g), but for a chance t on
        either side: ``curves.gaussian_slack`` gives what that costs, 2 N g of epsilon and the factor above.
        *The parts must not move*: with a mu_L computed from the deltas that happen to be left, step (3) fails, and
        two events chosen in turn reach nearly 2 delta_L (tests/privacy/test_filter.py shows such a pair).

    Reference
        Smith and Thakurta (2022), fully adaptive Gaussian composition; Dong, Roth and Su (2022); Kairouz, Oh and
        Viswanath (2015) for leaks; Vadhan and Zhang (2023), mechanisms that are interactive themselves.
    """

    epsilon: Fraction
    delta: Fraction
    own_deltas: Fraction
    draws: int
    mu: Fraction

    def __post_init__(self) -> None:
        if not (0 < self.own_deltas < self.delta and self.draws >= 0 and self.mu > 0):
            raise UsageError(f"a Gaussian filter keeps a part of delta {float(self.delta):g} for deltas, got {self}")
        if not _holds(self.epsilon, self.delta - self.own_deltas, self.draws, float(self.mu)):
            raise UsageError(f"mu {float(self.mu)!r} is too large for {self.draws} draws within {self.limit}")

    @property
    def limit(self) -> str:
        """The limit in words."""
        return f"epsilon {decimal_text(self.epsilon)}, delta {decimal_text(self.delta)}"

    def cost(self, event: Event) -> Cost:
        """(mu, delta) of what dominates the event, and a draw for Gaussian noise."""
        found = cost_of(event)
        self.shares(found)
        return found

    @property
    def whole(self) -> Cost:
        """mu_L squared, all that is kept for deltas, and all draws."""
        return Cost(None, self.mu**2, self.own_deltas, self.draws)

    def shares(self, cost: Cost) -> dict[str, Fraction]:
        """Three counters: mu squared, deltas, draws."""
        if cost.draws and not self.draws:
            raise UsageError(f"the limit {self.limit} is too small to count Gaussian noise: ask for delta 0")
        parts = {"loss": cost.mu2 / self.mu**2, "delta": cost.delta / self.own_deltas}
        return parts | ({"draws": Fraction(cost.draws, self.draws)} if self.draws else {})

    def largest_epsilon(self, total: Cost, delta: Amount, steps: int = 1) -> float:
        """By mu: the largest pure epsilon in closed form, that of a Gaussian release by search."""
        left, level = self.mu**2 - total.mu2, exact(delta, "delta")
        if left <= 0 or (level > 0 and total.draws >= self.draws):
            return 0.0
        if level == 0:
            return _two_digits(pure_epsilon(math.sqrt(round_down(left))) / steps)
        low, high = Fraction(0), MAX_EPSILON  # a smaller delta than the limit's leaves room for a larger epsilon
        while high - low > high / 1000:
            middle = (low + high) / 2
            low, high = (
                (middle, high) if (steps * Fraction(gaussian_mu(middle, level))) ** 2 <= left else (low, middle)
            )
        return _two_digits(low)

    def to_json(self) -> dict[str, str]:
        """Everything that was fixed with the limit."""
        fields = {"epsilon": self.epsilon, "delta": self.delta, "own_deltas": self.own_deltas, "mu": self.mu}
        return {
            "rule": "gaussian filter",
            "draws": str(self.draws),
            **{k: decimal_text(v) for k, v in fields.items()},
        }


@lru_cache(maxsize=256)
def _alone(event: Event, epsilon: Fraction, delta: Fraction) -> bool:
    return within([event], epsilon, delta)


def filter_for(epsilon: Amount, delta: Amount, own_deltas: Amount | None = None) -> Filter:
    """The rule for a limit: plain sums where its delta is 0, else the Gaussian filter.

    A tenth of delta is kept for events with a delta of their own unless ``own_deltas`` says otherwise; Gaussian
    releases are counted up to 1,000, or 10,000 for each unit of epsilon where that is less. All of it is a function
    of the limit: nobody can tune it to the answers.

    >>> rule = filter_for(10, 1e-5)
    >>> float(rule.mu), rule.draws, float(rule.own_deltas)
    (1.992254604, 1000, 1e-06)
    >>> from daskrado.privacy.accountant import GaussianEvent, gaussian_mu
    >>> run = rule.cost(GaussianEvent(gaussian_mu(1, 1e-6)))
    >>> rule.more_like(Cost(), run), round(100 * float(rule.share(run)), 1)
    (70, 1.4)
    """
    target, level = asked_epsilon(epsilon), exact_delta(delta, zero=True)
    if level == 0:
        if own_deltas is not None:
            raise UsageError("a limit with delta 0 keeps nothing for events with a delta of their own")
        return PureSums(target)
    kept = level * OWN_DELTAS if own_deltas is None else exact(own_deltas, "own_deltas")
    if not 0 < kept < level:
        raise UsageError(f"own_deltas must lie between 0 and the limit's delta {float(level):g}, got {float(kept):g}")
    draws = min(MOST_DRAWS, math.floor(target * _DRAWS_PER_EPSILON)) if level - kept >= _LEAST_GAUSSIAN_DELTA else 0
    return GaussianFilter(target, level, kept, draws, _largest_mu(target, level - kept, draws))


def following(rule: Filter, steps: int) -> Filter | None:
    """The limit that follows for somebody whose changes are ``steps`` of those that ``rule`` limits; None above 50.

    A release then takes the same share of both: steps times epsilon of epsilon_L, steps times mu of mu_L. The epsilon
    is the least of three digits whose mu_L is that large, at the same delta, and that holds the largest
    single Gaussian release that the first limit holds.
    """
    if isinstance(rule, PureSums):
        return PureSums(steps * rule.epsilon) if steps * rule.epsilon <= MAX_EPSILON else None
    assert isinstance(rule, GaussianFilter)
    low, high = rule.epsilon, MAX_EPSILON
    if not _follows(high, rule, steps):
        return None
    while high - low > high / 2000:
        middle = (low + high) / 2
        low, high = (low, middle) if _follows(middle, rule, steps) else (middle, high)
    return filter_for(min(MAX_EPSILON, _ceil(high, 3)), rule.delta, rule.own_deltas)


def _follows(epsilon: Fraction, rule: GaussianFilter, steps: int) -> bool:
    other = filter_for(epsilon, rule.delta, rule.own_deltas)
    assert isinstance(other, GaussianFilter)
    if not rule.draws:
        return other.mu >= steps * rule.mu
    largest = GaussianEvent(steps * gaussian_mu(rule.epsilon, rule.delta))
    return other.mu >= steps * rule.mu and _alone(largest, epsilon, rule.delta)


def filter_from_json(value: object) -> Filter:
    """The rule that ``to_json`` wrote; a stored mu that is too large for its limit is refused."""
    fields: dict[str, Any] = dict(value) if isinstance(value, Mapping) else {}
    rule = fields.pop("rule", None)
    if rule == "pure sums" and set(fields) == {"epsilon"}:
        return PureSums(exact_epsilon(fields["epsilon"]))
    if rule == "gaussian filter" and set(fields) == {"epsilon", "delta", "own_deltas", "draws", "mu"}:
        epsilon, delta = exact_epsilon(fields["epsilon"]), exact_delta(fields["delta"])
        draws = exact(fields["draws"], "draws")
        if draws.denominator == 1:
            return GaussianFilter(epsilon, delta, exact(fields["own_deltas"]), int(draws), exact(fields["mu"]))
    raise UsageError(f"a filter is 'pure sums' or 'gaussian filter' with its numbers, got {value!r}")


def _largest_mu(epsilon: Fraction, delta: Fraction, draws: int) -> Fraction:
    """mu_L: ten digits, rounded down, so that every machine that stores it reads the same number."""
    low, high = 0.0, 1.0
    while _holds(epsilon, delta, draws, high):
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high and high - low > 1e-13 * high:
        low, high = (middle, high) if _holds(epsilon, delta, draws, middle) else (low, middle)
    return _floor(Fraction(low), 10)


def _holds(epsilon: Fraction, delta: Fraction, draws: int, mu: float) -> bool:
    """Whether delta_G(epsilon - 2 N g; mu) <= delta (1 - N g - N 1e-7), every rounding against it."""
    level = gaussian_slack(round_down(delta), draws)[0] if draws else round_down(delta)
    left = round_down(epsilon - 2 * draws * exact(MAX_ROUNDING_GAP))
    return left > 0 and _delta_above(left, mu) <= level


def _delta_above(epsilon: float, mu: float) -> float:
    """An upper bound on ``gaussian_delta`` that counts in the error of double arithmetic.

    log Phi is off by less than 1e-14 of itself, so is its change by the rounding of its argument; the difference of
    two that nearly cancel, at small mu, is off by as much in all.
    """
    from scipy.special import log_ndtr

    first = float(log_ndtr(mu / 2 - epsilon / mu))
    second = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    error = 1e-14 * (abs(first) + abs(second) + epsilon)
    return -math.exp(first + error) * math.expm1(min(0.0, second - first) - 2 * error)


def _two_digits(value: Fraction | float) -> float:
    """Two significant digits, rounded down: readable, and it fits; 0 below what can be asked for."""
    number = Fraction(value)
    return float(_floor(number, 2)) if number >= MIN_EPSILON else 0.0


def _ceil(value: Fraction, digits: int) -> Fraction:
    unit = Fraction(10) ** (math.floor(math.log10(value)) - digits + 1)
    return math.ceil(value / unit) * unit


def _floor(value: Fraction, digits: int) -> Fraction:
    if value < MIN_DELTA:
        return Fraction(0)
    unit = Fraction(10) ** (math.floor(math.log10(value)) - digits + 1)
    return math.floor(value / unit) * unit
