"""Local privacy: each person's value is randomised at the source, so nobody needs to be trusted with the rows.

A mechanism turns values into reports, and sums of reports into unbiased estimates with their exact variance. Reports
are public: whatever is computed from them, by anybody, over any partitions, is post-processing.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import UsageError
from daskrado.privacy.accountant import Amount, Event, PureEvent, exact_epsilon
from daskrado.privacy.noise import coins, uniform_below

_WORDS = 2.0**64
MAX_CATEGORIES = 10_000


@dataclass(frozen=True)
class Estimate:
    """Unbiased estimates from reports.

    ``variance`` is over the randomisation alone, the rows taken as fixed; ``population_variance`` also counts the
    rows as a sample. A fraction may fall outside [0, 1]: cutting it off would bias it.
    """

    values: NDArray[np.float64]
    variance: NDArray[np.float64]
    population_variance: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    confidence: float


class Response(ABC):
    """Randomised categories: each of k categories is reported with chance ``p`` where it is true, ``q`` where not."""

    name: ClassVar[str]
    theorem: ClassVar[str]
    categories: int

    @property
    @abstractmethod
    def p(self) -> float:
        """P(reported | true)."""

    @property
    @abstractmethod
    def q(self) -> float:
        """P(reported | not true)."""

    @property
    @abstractmethod
    def event(self) -> Event:
        """What one report costs the person whose value it is."""

    @abstractmethod
    def randomise(self, codes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Reports for values coded 0..k-1, and -1 for none.

        Sensitivity
            No value is reported as one that is drawn uniformly: a mixture of the reports of all values, whose odds
            against any of them are no larger than those between two values.
        """

    def estimate(self, counts: NDArray[np.int64], reports: int, confidence: float = 0.95) -> Estimate:
        """The fraction of each category from how often it was reported: (X - q) / (p - q).

        Interval: Clopper and Pearson's for the rate X, which is linear in the fraction; exact coverage for a sampled
        population, and at least that for fixed rows, whose sum spreads less than the binomial (Hoeffding 1956).
        """
        from scipy.special import betaincinv

        tally = np.asarray(counts, dtype=np.float64)
        if reports < 1 or tally.shape != (self.categories,) or (tally < 0).any() or (tally > reports).any():
            raise UsageError(f"{self.categories} counts between 0 and the number of reports are needed, and a report")
        alpha = alpha_of(confidence)
        rate, gap = tally / reports, self.p - self.q
        fraction = (rate - self.q) / gap
        inside = np.clip(fraction, 0.0, 1.0)
        fixed = inside * self.p * (1 - self.p) + (1 - inside) * self.q * (1 - self.q)
        low = np.where(tally > 0, betaincinv(np.maximum(tally, 1), reports - tally + 1, alpha / 2), 0.0)
        high = np.where(tally < reports, betaincinv(tally + 1, np.maximum(reports - tally, 1), 1 - alpha / 2), 1.0)
        return Estimate(
            fraction,
            fixed / (reports * gap**2),
            rate * (1 - rate) / (reports * gap**2),
            (low - self.q) / gap,
            (high - self.q) / gap,
            confidence,
        )

    def _codes(self, codes: NDArray[np.int64]) -> NDArray[np.int64]:
        array = np.asarray(codes)
        if array.dtype != np.int64 or array.ndim != 1 or ((array < -1) | (array >= self.categories)).any():
            raise UsageError(f"{self.name} takes int64 codes 0..{self.categories - 1}, and -1 for no value")
        if (none := array < 0).any():
            array = array.copy()
            array[none] = uniform_below(self.categories, int(none.sum()))
        return array


@dataclass(frozen=True)
class BinaryResponse(Response):
    """Warner's survey: tell the truth with probability ``keep``, else the opposite. Codes 0 and 1.

    Sensitivity
        The report is the truth with odds keep / (1 - keep), whatever it is: pure epsilon = ln(keep / (1 - keep)).

    Reference
        Warner (1965), "Randomized response".
    """

    keep: float
    categories: int = 2

    name: ClassVar[str] = "binary"
    theorem: ClassVar[str] = "randomised response (Warner 1965)"

    def __post_init__(self) -> None:
        if isinstance(self.keep, bool) or not 0.5 < self.keep < 1 or self.categories != 2:
            raise UsageError(f"the truth must be told with a probability between 1/2 and 1, got {self.keep!r}")

    @classmethod
    def from_epsilon(cls, epsilon: Amount) -> BinaryResponse:
        """keep = exp(epsilon) / (1 + exp(epsilon)), rounded towards a half."""
        e = float(exact_epsilon(epsilon))
        return cls(_towards(1 / (1 + math.exp(-e)), 0.5))

    @property
    def p(self) -> float:
        """The probability of the truth, as drawn."""
        return _word(self.keep) / _WORDS

    @property
    def q(self) -> float:
        """The probability of the opposite."""
        return 1 - self.p

    @property
    def event(self) -> Event:
        """Pure epsilon, rounded up; the one it was made from where it has at most nine decimals."""
        epsilon = math.log(self.p / self.q)
        neat = round(epsilon, 9)
        made = neat > 0 and _towards(1 / (1 + math.exp(-neat)), 0.5) >= self.keep
        return PureEvent(neat if made else epsilon * (1 + 1e-12))

    def randomise(self, codes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Flip each code with probability 1 - keep."""
        values = self._codes(codes)
        truth = coins(np.full(values.shape, _word(self.keep), dtype=np.uint64))
        return np.where(truth, values, 1 - values)


@dataclass(frozen=True)
class KaryResponse(Response):
    """Keep one of k categories with probability e^eps / (e^eps + k - 1), else report another one, uniformly.

    Sensitivity
        Any report has odds at most p / q = exp(epsilon) between two values.

    Reference
        Kairouz, Oh and Viswanath (2016), "Extremal mechanisms for local differential privacy".
    """

    epsilon: float
    categories: int

    name: ClassVar[str] = "kary"
    theorem: ClassVar[str] = "k-ary randomised response (Kairouz, Oh and Viswanath 2016)"

    def __post_init__(self) -> None:
        exact_epsilon(self.epsilon)
        _check_categories(self.categories)

    @property
    def p(self) -> float:
        """The probability of the truth, rounded towards 1/k."""
        return _towards(1 / (1 + (self.categories - 1) * math.exp(-self.epsilon)), 1 / self.categories)

    @property
    def q(self) -> float:
        """The probability of each other category."""
        return (1 - self.p) / (self.categories - 1)

    @property
    def event(self) -> Event:
        """Pure epsilon."""
        return PureEvent(self.epsilon)

    def randomise(self, codes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Keep each code, or move it by a uniform non-zero shift."""
        values = self._codes(codes)
        truth = coins(np.full(values.shape, _word(self.p), dtype=np.uint64))
        shift = 1 + uniform_below(self.categories - 1, values.size)
        return np.where(truth, values, (values + shift) % self.categories)


@dataclass(frozen=True)
class UnaryEncoding(Response):
    """One bit for each category, each randomised by itself; a report is a row of k bits.

    ``symmetric``: a bit tells the truth with probability e^(eps/2) / (1 + e^(eps/2)), as in RAPPOR's basic one-time
    form. ``optimised``: a one is kept with probability 1/2, a zero turns to one with 1 / (1 + e^eps): less variance.

    Sensitivity
        Two values differ in two bits, so a report's odds change by at most p (1 - q) / (q (1 - p)) = exp(epsilon).

    Reference
        Erlingsson, Pihur and Korolova (2014), RAPPOR; Wang, Blocki, Li and Jha (2017), the optimised form.
    """

    epsilon: float
    categories: int
    form: Literal["symmetric", "optimised"] = "symmetric"

    name: ClassVar[str] = "unary"
    theorem: ClassVar[str] = "unary encoding (Erlingsson, Pihur and Korolova 2014)"

    def __post_init__(self) -> None:
        exact_epsilon(self.epsilon)
        _check_categories(self.categories)
        if self.form not in ("symmetric", "optimised"):
            raise UsageError(f"unary encoding is 'symmetric' or 'optimised', got {self.form!r}")

    @property
    def p(self) -> float:
        """P(bit | its category)."""
        return 0.5 if self.form == "optimised" else _towards(1 / (1 + math.exp(-self.epsilon / 2)), 0.5)

    @property
    def q(self) -> float:
        """P(bit | another category)."""
        return 1 - (_towards(1 / (1 + math.exp(-self.epsilon)), 0.5) if self.form == "optimised" else self.p)

    @property
    def event(self) -> Event:
        """Pure epsilon."""
        return PureEvent(self.epsilon)

    def randomise(self, codes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Reports as a 0/1 matrix, one row for each value."""
        values = self._codes(codes)
        chances = np.full((values.size, self.categories), _word(self.q), dtype=np.uint64)
        chances[np.arange(values.size), values] = _word(self.p)
        return coins(chances).astype(np.int64)


def _word(chance: float) -> np.uint64:
    """The probability as a number of 2^64 equal words, rounded down."""
    return np.uint64(min(int(chance * _WORDS), 2**64 - 1))


def _towards(chance: float, fair: float) -> float:
    """A probability moved towards the fair one, by more than the error of a double: less information, never more."""
    moved = chance - max((chance - fair) * 2.0**-48, 2.0**-51)
    if moved <= fair:
        raise UsageError("epsilon is too small to randomise with: the report would say nothing")
    return moved


def _check_categories(count: Any) -> None:
    if not (isinstance(count, int) and 2 <= count <= MAX_CATEGORIES):
        raise UsageError(f"between 2 and {MAX_CATEGORIES:,} categories can be randomised, got {count!r}")


def alpha_of(confidence: float) -> float:
    """1 - confidence, checked."""
    if not 0 < confidence < 1:
        raise UsageError(f"a confidence lies between 0 and 1, got {confidence!r}")
    return 1 - confidence
