"""Audits of answers to votes: exact over all votes of a few teachers, and by real draws; with a bug to be found."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from daskrado.engines.answers import REFUSED, Stability, Terms
from daskrado.privacy.noise import discrete_laplace
from daskrado.privacy.vote_laws import laplace_above
from daskrado.statistics.votes import Counts, leaders, published_distance

Law = Mapping[int, float]  # class index or REFUSED -> probability


def neighbouring_votes(teachers: int, classes: int = 2, changed: int = 1) -> Iterator[tuple[Counts, Counts]]:
    """All pairs of votes that differ in the minds of at most ``changed`` teachers, as counts of one query."""
    votes = [v for v in itertools.product(range(teachers + 1), repeat=classes) if sum(v) == teachers]
    for one, two in itertools.permutations(votes, 2):
        if sum(max(0, a - b) for a, b in zip(one, two, strict=True)) <= changed:
            yield np.array([one], dtype=np.int64), np.array([two], dtype=np.int64)


def hockey_stick(one: Law, two: Law, epsilon: float) -> float:
    """sum over answers of (P(answer) - exp(epsilon) Q(answer))_+: the least delta of this pair at this epsilon."""
    return math.fsum(max(0.0, p - math.exp(epsilon) * two.get(answer, 0.0)) for answer, p in one.items())


def worst_delta(
    law: Callable[[Counts], Law], teachers: int, epsilon: float, classes: int = 2, changed: int = 1
) -> float:
    """The exact delta at ``epsilon`` of one answer, over all neighbouring votes."""
    return max(hockey_stick(law(a), law(b), epsilon) for a, b in neighbouring_votes(teachers, classes, changed))


def drawn_delta(
    release: Callable[[Counts], NDArray[np.int64]],
    one: Counts,
    two: Counts,
    epsilon: float,
    runs: int,
    confidence: float = 0.99,
) -> float:
    """A lower bound on delta at ``epsilon`` from real draws on two neighbouring votes, valid with ``confidence``.

    The answer to look for is chosen on one half of the draws and counted on the other: P_lower - exp(epsilon) Q_upper
    by Clopper and Pearson's intervals. Negative where nothing was found.
    """
    arms = [release(np.repeat(counts, 2 * runs, axis=0)) for counts in (one, two)]
    answers = np.unique(np.concatenate(arms))
    seen = [{int(a): float((arm[:runs] == a).mean()) for a in answers} for arm in arms]
    best = max(answers.tolist(), key=lambda a: seen[0][a] - math.exp(epsilon) * seen[1][a])
    hits, misses = (int((arm[runs:] == best).sum()) for arm in arms)
    risk = (1 - confidence) / 2
    low = float(beta.ppf(risk, hits, runs - hits + 1)) if hits else 0.0
    high = float(beta.ppf(1 - risk, misses + 1, runs - misses)) if misses < runs else 1.0
    return low - math.exp(epsilon) * high


class PlantedStability(Stability):
    """A_stab with the margin distance as printed, sensitivity 2 where 1 is claimed: the audit must find it."""

    def __init__(self, epsilon: float, delta: float) -> None:
        super().__init__(Terms(epsilon, delta, 1))
        self.scale = 1 / epsilon
        self.threshold = math.floor(math.log(1 / delta) / epsilon)

    def release(self, counts: Counts) -> NDArray[np.int64]:
        """Compare the noisy margin distance with the paper's threshold."""
        noisy = discrete_laplace(published_distance(counts), self.scale)
        return np.where(noisy > self.threshold, leaders(counts), REFUSED).astype(np.int64)

    def law(self, counts: Counts) -> Law:
        """Probabilities of one answer."""
        return threshold_law(int(published_distance(counts)[0]), int(leaders(counts)[0]), self.scale, self.threshold)


def threshold_law(distance: int, leader: int, scale: float, threshold: int) -> Law:
    """The law of one threshold test with discrete Laplace noise."""
    heard = laplace_above(scale, threshold - distance)
    return {leader: heard, REFUSED: 1 - heard}
