"""Bags of unlabelled rows and their label proportions become a model: one class for each estimator.

Alternating Mean Map gives each bag's positive labels to its largest margins, learns, and repeats.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from daskrado.errors import UsageError
from daskrado.lake.collect import Passes, Progress
from daskrado.learners.bags import Bags, laplacian_mean_map, mean_map, similarity
from daskrado.learners.on_passes.linear_odd import Features, Fit, LakeFeatures, fit_mean
from daskrado.losses.margin import Loss
from daskrado.statistics.bag_margins import TOTAL_BITS, WEIGHT_BITS, MarginDigits, SplitAtMargins
from daskrado.statistics.base import Groups

Vector = NDArray[np.float64]
_DIGIT = {True: 12, False: 8}  # bits of a digit: few bags, many bags


class BaggedFeatures(Features, Protocol):
    """Unlabelled rows in bags, wherever they are."""

    def best_labels(self, weights: Vector, positives: Vector, *, largest: bool) -> Vector:
        """The mean operator if, in each bag, the ``positives`` rows of largest (or smallest) margin are positive."""


@dataclass(frozen=True)
class LakeBags(LakeFeatures):
    """The bags of a lake. Rows tied at a bag's cut share the positive labels that are left, so no order matters."""

    totals: Vector | None = None
    rows: float = 0.0

    def best_labels(self, weights: Vector, positives: Vector, *, largest: bool) -> Vector:
        """Digit by digit to the cuts, then one pass of sums."""
        assert self.groups is not None
        assert self.totals is not None
        whole = _whole(weights if largest else -weights)
        cuts = self._cuts(self.groups, whole, positives)
        split = SplitAtMargins(self.passes.domain.width, self.groups, whole, cuts)
        part = split.split(self.passes.sum(split, progress=self.progress).vector)
        tied = np.where(part["count_at"] > 0, part["count_at"], 1)
        share = np.clip((positives - part["count_above"]) / tied, 0.0, 1.0)
        chosen = part["above"] + share[:, None] * part["at"]
        scale = math.ldexp(1.0, -self.passes.lattice.bits)
        return np.asarray((2.0 * chosen.sum(axis=0) * scale - self.totals) / self.rows)

    def _cuts(self, groups: Groups, whole: tuple[int, ...], positives: Vector) -> tuple[int, ...]:
        """For each bag, the largest margin at and above which rows count for ``positives`` or more."""
        bags, bits = len(groups.values), _DIGIT[len(groups.values) <= 64]
        wanted = np.maximum(positives - 1e-9, 1e-9)
        prefix = np.zeros(bags, dtype=np.int64)
        shift = TOTAL_BITS
        while shift > 0:
            step = min(bits, shift)
            shift -= step
            digits = MarginDigits(self.passes.domain.width, groups, whole, tuple(prefix.tolist()), step, shift)
            counts = digits.split(self.passes.sum(digits, progress=self.progress).vector)["counts"]
            from_top = np.cumsum(counts[:, ::-1], axis=1)
            place = (from_top < wanted[:, None]).sum(axis=1)
            before = np.where(place > 0, np.take_along_axis(from_top, np.maximum(place - 1, 0)[:, None], 1)[:, 0], 0)
            wanted = wanted - before
            prefix = (prefix << step) + ((1 << step) - 1 - np.minimum(place, (1 << step) - 1))
        return tuple(prefix.tolist())


@dataclass(frozen=True)
class Alternation:
    """The last fit, its mean operator, the rounds taken, and the objective after each."""

    fit: Fit
    mean: Vector
    objectives: tuple[float, ...]


def alternate(
    features: BaggedFeatures,
    loss: Loss,
    start: Vector,
    strength: float,
    positives: Vector,
    *,
    labels: Literal["best", "worst"] = "best",
    rounds: int = 20,
    tolerance: float = 1e-5,
) -> Alternation:
    """Alternate between labels and weights, from the mean operator ``start``.

    Given weights, the labels that fit the bags' counts and have least (``best``) or most (``worst``) risk give the
    positive labels to the largest or smallest margins: with a linear-odd loss the risk is linear in each label. With
    best labels the objective never rises. With worst labels the round with the lowest objective is kept.

    Reference
        Patrini, Nock, Rivera and Caetano (2014), algorithm 2.
    """
    if rounds < 1:
        raise UsageError(f"rounds must be at least 1, got {rounds}")
    fit = fit_mean(features, loss, start, strength)
    mean, kept, objectives = start, None, []
    for _ in range(rounds):
        mean = features.best_labels(fit.weights, positives, largest=labels == "best")
        fit = fit_mean(features, loss, mean, strength, start=fit.weights)
        if kept is None or labels == "best" or fit.objective < min(objectives):
            kept = (fit, mean)
        objectives.append(fit.objective)
        if len(objectives) > 1 and abs(objectives[-2] - objectives[-1]) <= tolerance:
            break
    assert kept is not None
    return Alternation(*kept, tuple(objectives))


def lake_bags(passes: Passes, groups: Groups, totals: Vector, rows: float, progress: Progress | None) -> LakeBags:
    """The bags of a lake; ``totals`` is the sum of all rows as shares of the norm bound."""
    return LakeBags(passes, groups, progress, totals, rows)


def _whole(weights: Vector) -> tuple[int, ...]:
    """Weights as whole numbers of at most 30 bits and a norm below 2^31: only the order of margins matters."""
    size = float(np.abs(weights).max(initial=0.0)) * math.sqrt(len(weights))
    scale = 2.0**WEIGHT_BITS / size if size else 0.0
    return tuple(int(w) for w in np.rint(weights * scale))


@dataclass(frozen=True)
class BagEstimator(ABC):
    """An estimator of the mean operator. ``weights`` of the bags are all the same, or by their rows."""

    weights: Literal["uniform", "rows"] = "uniform"

    name: ClassVar[str]

    @classmethod
    def current_spelling(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """A file may leave the options of another estimator in place: they have no effect."""
        other = {part.name for part in fields(Alternating)} - {part.name for part in fields(cls)}
        return {key: value for key, value in options.items() if key not in other}

    @property
    def needs_squares(self) -> bool:
        """Whether sums of squared norms are needed."""
        return False

    @abstractmethod
    def mean(self, bags: Bags) -> Vector:
        """The mean operator."""

    def learn(self, features: BaggedFeatures, bags: Bags, loss: Loss, strength: float) -> Alternation:
        """Weights from the mean operator."""
        mean = self.mean(bags)
        return Alternation(fit_mean(features, loss, mean, strength), mean, ())

    def _weights(self, bags: Bags) -> Vector | None:
        return bags.rows / bags.rows.mean() if self.weights == "rows" else None


@dataclass(frozen=True)
class MeanMap(BagEstimator):
    """Class means that are the same in every bag."""

    name: ClassVar[str] = "mean_map"

    def mean(self, bags: Bags) -> Vector:
        return mean_map(bags, self._weights(bags))


@dataclass(frozen=True)
class LaplacianMeanMap(BagEstimator):
    """Class means that differ little between similar bags."""

    similarity: Literal["gaussian", "association"] = "gaussian"
    sigma: Annotated[float | None, Field(gt=0)] = None
    gamma: Annotated[float, Field(gt=0)] = 0.1

    name: ClassVar[str] = "laplacian"

    @property
    def needs_squares(self) -> bool:
        return self.similarity == "association"

    def mean(self, bags: Bags) -> Vector:
        graph = similarity(bags, self.similarity, self.sigma)
        return laplacian_mean_map(bags, graph, gamma=self.gamma, weights=self._weights(bags))


@dataclass(frozen=True)
class Alternating(LaplacianMeanMap):
    """Alternates between labels and weights, from the mean operator that ``start`` names."""

    start: Literal["mean_map", "laplacian"] = "laplacian"
    labels: Literal["best", "worst"] = "best"
    rounds: Annotated[int, Field(ge=1, le=1000)] = 20

    name: ClassVar[str] = "alternating"

    def mean(self, bags: Bags) -> Vector:
        """The start."""
        return MeanMap(self.weights).mean(bags) if self.start == MeanMap.name else super().mean(bags)

    def learn(self, features: BaggedFeatures, bags: Bags, loss: Loss, strength: float) -> Alternation:
        start, positives = self.mean(bags), bags.proportions * bags.rows
        return alternate(features, loss, start, strength, positives, labels=self.labels, rounds=self.rounds)
