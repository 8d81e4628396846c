"""Ways to release the teachers' label: stability, sparse vector, and Gaussian noise on the votes.

Each is calibrated once from public terms, for all queries of its engine together, and draws through ``noise``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from daskrado.engines.sparse_vector import Count, Engine, SparseVector, largest_fraction, uncounted
from daskrado.errors import UsageError
from daskrado.ledger.journal import Journal
from daskrado.privacy.accountant import (
    ApproximateEvent,
    Event,
    PureEvent,
    SeveralEvents,
    ZcdpEvent,
    compose,
    exact_delta,
    exact_epsilon,
    within,
    zcdp_rho,
)
from daskrado.privacy.composition import Parts, basic, concentrated
from daskrado.privacy.noise import discrete_gaussian, discrete_laplace
from daskrado.privacy.vote_laws import gaussian_above, laplace_above, least
from daskrado.registry import kinds
from daskrado.statistics.votes import Counts, distance, leaders, published_distance

REFUSED = -1
INSTANCES = "instances"  # the lines of a journal that keep a sparse vector's thresholds
PUBLISHED = "algorithm 2 of Bassily, Thakkar and Thakurta (2018) as published, charged at its true cost"
_MANY = 20_000
MAX_QUERIES = 10_000_000


@dataclass(frozen=True)
class Terms:
    """Public terms of an engine.

    ``queries`` is the most that it will ever answer, ``refusals`` the number of refusals at which it stops,
    ``changed`` the number of teachers that one protected unit reaches. Where refusals are ``estimated``, they follow
    from a released value after the charge: it is then epsilon and delta, which cover any number of them.
    """

    epsilon: float
    delta: float
    queries: int
    refusals: int = 1
    changed: int = 1
    published: bool = False
    estimated: bool = False

    def __post_init__(self) -> None:
        exact_epsilon(self.epsilon)
        exact_delta(self.delta)
        if not 1 <= self.queries <= MAX_QUERIES:
            raise UsageError(f"answers.queries must be between 1 and {MAX_QUERIES}, got {self.queries}")
        if not 1 <= self.refusals <= self.queries:
            raise UsageError(f"answers.refusals must be between 1 and answers.queries, got {self.refusals}")
        if self.changed < 1:
            raise UsageError(f"a protected unit reaches at least one teacher, got {self.changed}")


class Answering(ABC):
    """A calibrated way to answer. ``release`` draws noise; everything else is public."""

    name: ClassVar[str]
    refuses: ClassVar[bool] = True  # False where every query gets an answer, right or wrong
    counts_refusals: ClassVar[bool] = False  # True where it stops at a number of them, and only they are paid for
    theorem: str
    accountant: str  # how the answers were composed
    instances: int | None = None  # how many thresholds it may draw in its life; None for a mechanism without

    def __init__(self, terms: Terms, journal: Journal | None = None) -> None:
        if terms.published and not self.counts_refusals:
            raise UsageError(f"constants: as_published exist for sparse_vector only, not for {self.name}")
        self.terms = terms
        self._journal = journal  # of what it has to remember between sessions
        self.event: Event = ApproximateEvent(terms.epsilon, terms.delta)  # what all answers cost together
        self.count: Count = uncounted  # counts a threshold in the ledger, before it is drawn

    @abstractmethod
    def chance(self, margin: int) -> float:
        """The probability that a query on which the votes differ by ``margin`` is answered with the leading class."""

    @abstractmethod
    def release(self, counts: Counts) -> NDArray[np.int64]:
        """A class index or REFUSED for each query; fewer than queries where the engine stopped."""

    @property
    def halted(self) -> bool:
        """Whether it has stopped for good."""
        return False

    @property
    def used(self) -> int:
        """Thresholds drawn so far."""
        return 0

    def needed_margin(self, wanted: float = 0.99) -> int | None:
        """The least vote margin that is answered rightly with probability ``wanted``."""
        return least(lambda margin: self.chance(margin) >= wanted, 1 << 40)

    def close(self) -> None:
        """Release files; most mechanisms hold none."""
        return


class Stability(Answering):
    """A label is released iff distance + Laplace noise exceeds a threshold; every query is paid for.

    With q = exp(-epsilon_0) the discrete noise exceeds w with probability q^(w+1) / (1 + q); w is the least integer
    for which that is at most delta_0 = delta / (2 m). Epsilon_0 is the largest whose m-fold composition with delta_0
    costs at most (epsilon, delta).

    Sensitivity
        ``votes.distance`` moves by 1. Neighbours with one label see a shifted threshold test: epsilon_0. Neighbours
        with two labels have distance 0 on both sides: same refusals, and a label appears with probability delta_0.

    Reference
        Smith and Thakurta (2013), A_stab, with the distance corrected; Kairouz, Oh and Viswanath (2015).
    """

    name: ClassVar[str] = "stability"
    theorem = "distance to instability (Smith and Thakurta 2013), corrected distance"

    def __init__(self, terms: Terms, journal: Journal | None = None) -> None:
        super().__init__(terms, journal)
        method = "optimal" if terms.queries <= _MANY else "zCDP"
        self.accountant = f"{method} composition of {terms.queries} queries"
        delta_0 = Fraction(exact_delta(terms.delta), 2 * terms.queries)
        target, delta = exact_epsilon(terms.epsilon), exact_delta(terms.delta)

        def events(one: Fraction) -> Event:
            return SeveralEvents([(ApproximateEvent(one, delta_0), terms.queries)])

        def fits(one: Fraction) -> bool:
            if terms.queries <= _MANY:
                return within([events(one)], target, delta)
            parts = Parts.of([events(one)])  # the optimum costs a sum over all queries
            return any(theorem(parts, delta).epsilon <= target for theorem in (basic, concentrated))

        self.epsilon_0 = largest_fraction(fits, target)
        if terms.queries <= _MANY:
            self.event = events(self.epsilon_0)
        self.scale = math.nextafter(float(1 / self.epsilon_0), math.inf)
        level = float(delta_0) * (1 - 1e-9)
        threshold = least(lambda w: laplace_above(self.scale, w) <= level)
        assert threshold is not None
        self.threshold = threshold

    def chance(self, margin: int) -> float:
        """P(noise > threshold - distance)."""
        return laplace_above(self.scale, self.threshold - _distance(margin, self.terms.changed))

    def release(self, counts: Counts) -> NDArray[np.int64]:
        noisy = discrete_laplace(distance(counts, self.terms.changed), self.scale)
        return np.where(noisy > self.threshold, leaders(counts), REFUSED).astype(np.int64)


class SparseVotes(Answering):
    """A label is released iff the noisy distance exceeds a noisy threshold; only refusals are paid for.

    At most T instances of the sparse-vector engine, whose rare answer is the refusal, cost epsilon_0 each; epsilon_0
    is the largest whose T-fold composition costs (epsilon, delta / 2). The threshold w is the least with
    T P(Lap(b_q) - Lap(b_t) > w) <= delta / 2.

    Sensitivity
        ``votes.distance`` moves by 1, so the stream of answered/refused is that of the engine. The label itself
        differs between neighbours only on queries of distance 0 on both sides. Until the first of these is answered,
        each one asked ends its instance with a refusal: so at most one is put to each fresh threshold. The noise of
        that query is independent of the threshold and of all before it, so it is answered with probability at most
        P(Lap(b_q) - Lap(b_t) > w), whatever was asked before. The union is over T, not over the m queries.

    ``published`` takes the constants, the distance and the T + 1 instances of the paper instead. That distance
    has sensitivity 2 (for each changed teacher) and may be 1 where a label flips; the cost is computed from that, and
    terms for which the paper's constants are not enough are refused.

    Reference
        Bassily, Thakkar and Thakurta (2018), algorithm 2, repaired; Dwork et al. (2009); Kairouz, Oh and Viswanath
        (2015).
    """

    name: ClassVar[str] = "sparse_vector"
    counts_refusals: ClassVar[bool] = True
    theorem = "distance to instability with sparse vector (Bassily, Thakkar and Thakurta 2018), repaired"

    def __init__(self, terms: Terms, journal: Journal | None = None) -> None:
        super().__init__(terms, journal)
        half = Fraction(exact_delta(terms.delta), 2)
        if terms.published:
            self.theorem = PUBLISHED
            self.plan, self.threshold = _published(terms, half)
        else:
            self.plan = SparseVector.for_budget(terms.epsilon, half, terms.refusals)
            self.threshold = self.plan.least_margin(float(half) * (1 - 1e-9) / terms.refusals)
        self.instances = self.plan.instances  # one for each refusal, and one for each session that ends
        self.accountant = f"optimal composition of {self.instances} sparse-vector instances"
        instance = PureEvent(self.plan.epsilon)
        leaky = ApproximateEvent(self.plan.epsilon, half)  # one of them pays for the labels that slip
        if not terms.estimated:
            self.event = SeveralEvents.of([leaky, *[instance] * (self.plan.instances - 1)])
        self._open: Engine | None = None

    def chance(self, margin: int) -> float:
        """P(query noise - threshold noise > threshold - distance), under a fresh threshold."""
        apart = max(0, margin - 1) if self.terms.published else _distance(margin, self.terms.changed)
        return self.plan.crossing(self.threshold - apart)

    def release(self, counts: Counts) -> NDArray[np.int64]:
        """Ask the engine, which stops at the last refusal."""
        apart = published_distance(counts) if self.terms.published else distance(counts, self.terms.changed)
        above = self._engine.ask(apart)
        return np.where(above, leaders(counts[: len(above)]), REFUSED).astype(np.int64)

    @property
    def halted(self) -> bool:
        return self._engine.halted

    @property
    def used(self) -> int:
        return self._engine.used

    @property
    def _engine(self) -> Engine:
        if self._open is None:
            self._open = Engine(
                self.plan, self.threshold, "below", self._journal, name=INSTANCES, count=lambda name: self.count(name)
            )
        return self._open

    def close(self) -> None:
        """The open instance is lost and stays paid for."""
        if self._open is not None:
            self._open.close()
            self._open = None


class GaussianVotes(Answering):
    """The class with most noisy votes: never a refusal, every query is paid for.

    Two classes: sign(v_1 - v_0 + N(0, s^2)); more: the largest of v_c + N(0, s^2 / 2). With discrete Gaussian noise
    one query is ((2 c)^2 / (2 s^2))-zCDP, m of them rho = 2 c^2 m / s^2, the largest that (epsilon, delta) allows.

    Sensitivity
        c changed votes move v_1 - v_0 by 2 c, and the vector of votes by at most sqrt(2) c in L2 norm.

    Reference
        Papernot et al. (2018), GNMax; Canonne, Kamath and Steinke (2020).
    """

    name: ClassVar[str] = "gaussian"
    refuses: ClassVar[bool] = False
    theorem = "discrete Gaussian noise on votes (Papernot et al. 2018; Canonne, Kamath and Steinke 2020)"

    def __init__(self, terms: Terms, journal: Journal | None = None) -> None:
        super().__init__(terms, journal)
        self.accountant = f"zCDP of {terms.queries} queries"
        self.rho = zcdp_rho(terms.epsilon, terms.delta)
        self.event = ZcdpEvent(self.rho)
        self.scale = 2 * terms.changed * math.sqrt(terms.queries / (2 * self.rho)) * (1 + 1e-12)

    def chance(self, margin: int) -> float:
        """P(noise > -margin): the leading of two classes is answered."""
        return gaussian_above(self.scale, -margin)

    def release(self, counts: Counts) -> NDArray[np.int64]:
        """Noise on the difference of two classes, on the votes of more."""
        if counts.shape[1] == 2:
            return (discrete_gaussian(counts[:, 1] - counts[:, 0], self.scale) > 0).astype(np.int64)
        return leaders(discrete_gaussian(counts, self.scale / math.sqrt(2)))


def vote_mechanism(name: str) -> type[Answering]:
    """The class of a mechanism by its name in a pipeline: all are in this module, or in an installed extension."""
    known = kinds(Answering)
    if name not in known:
        raise UsageError(f"mechanism {name!r} is unknown; allowed: {', '.join(sorted(known))}")
    return known[name]


def answering(name: str, terms: Terms, journal: Journal | None = None) -> Answering:
    """A calibrated mechanism by its name in a pipeline; ``journal`` keeps the sparse vector's instances."""
    return vote_mechanism(name)(terms, journal)


def _distance(margin: int, changed: int) -> int:
    return max(0, (margin + 1) // 2 - 1) // changed


def _published(terms: Terms, half: Fraction) -> tuple[SparseVector, int]:
    """lambda = sqrt(32 T ln(2 / delta)) / epsilon, threshold 2 lambda ln(2 m / delta), T + 1 instances."""
    scale = math.sqrt(32 * terms.refusals * math.log(2 / terms.delta)) / terms.epsilon
    moves = 2 * terms.changed
    one = Fraction(repr(2 * moves / scale))
    plan = SparseVector(one, terms.refusals + 1, moves, Fraction(1, 2))
    threshold = math.ceil(2 * scale * math.log(2 * terms.queries / terms.delta))
    total = compose([PureEvent(one)] * plan.instances, half).epsilon
    slips = plan.instances * plan.crossing(threshold - (moves - 1))
    if total > exact_epsilon(terms.epsilon) or slips > half:
        raise UsageError(
            f"constants as_published: {terms.refusals} refusals cost epsilon {float(total):.4g} and a slip of "
            f"{slips:.3g}, above epsilon {terms.epsilon:g} and half of delta {terms.delta:g}; use constants: exact"
        )
    return plan, threshold
