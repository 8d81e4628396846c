"""What counts of (score bin, label, group) say about a model: error, ROC, calibration, with intervals.

Everything here is post-processing of counts, noisy or exact. Intervals hold both what the noise adds, whose law is
known, and what another sample of as many units would change.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
CONFIDENCE = 0.95
_Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)


@dataclass(frozen=True)
class Estimate:
    """A figure and its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4f} ({self.low:.4f} to {self.high:.4f})"

    def __contains__(self, truth: float) -> bool:
        return self.low <= truth <= self.high

    def to_json(self) -> dict[str, float]:
        """For a file."""
        return {"value": self.value, "low": self.low, "high": self.high}


def share(part: float, rest: float, noise: tuple[float, float]) -> Estimate:
    """The share p of ``part`` in ``part + rest``; ``noise`` are the variances of the noise on the two.

    The interval holds every p in (0, 1) for which part - p (part + rest) is within z standard deviations of 0, where
    its variance is (part + rest) p (1 - p) by sampling and (1 - p)^2 a + p^2 b by the noise. Without noise that is
    Wilson's interval, and it stays valid where the total is lost in noise: then it is all of [0, 1].

    Reference
        Fieller (1954), ratios of normal estimates; Wilson (1927).

    >>> print(share(10, 90, (0, 0)))
    0.1000 (0.0552 to 0.1744)
    """
    total, (a, b), z = part + rest, noise, _Z * _Z
    if total <= 0:
        return Estimate(0.5, 0.0, 1.0)
    value = min(1.0, max(0.0, part / total))
    square = total * total + z * total - z * (a + b)
    if square <= 0:
        return Estimate(value, 0.0, 1.0)
    middle = (2 * part * total + z * total - 2 * z * a) / (2 * square)
    reach = middle * middle - (part * part - z * a) / square
    if reach < 0:
        return Estimate(value, 0.0, 1.0)
    reach = math.sqrt(reach)
    return Estimate(value, min(value, max(0.0, middle - reach)), max(value, min(1.0, middle + reach)))


@dataclass(frozen=True)
class Cells:
    """Units of one group by label and score bin: ``negative`` and ``positive``, each with noise of ``std``.

    ``edges`` are margins: bin j holds those from edge j - 1 up to, but not at, edge j.
    """

    edges: Floats
    negative: Floats
    positive: Floats
    std: float

    def __post_init__(self) -> None:
        if not len(self.negative) == len(self.positive) == len(self.edges) + 1:
            raise ValueError("one bin more than edges")

    def _share(self, part: Sequence[Floats], rest: Sequence[Floats]) -> Estimate:
        counts = [sum(float(piece.sum()) for piece in side) for side in (part, rest)]
        cells = [sum(len(piece) for piece in side) * self.std**2 for side in (part, rest)]
        return share(counts[0], counts[1], (cells[0], cells[1]))

    @property
    def total(self) -> Estimate:
        """The number of units; its interval is that of the noise alone."""
        count = float(self.negative.sum() + self.positive.sum())
        far = _Z * self.std * math.sqrt(2 * len(self.negative))
        return Estimate(count, count - far, count + far)

    @property
    def seen(self) -> bool:
        """Whether anybody stands out of the noise."""
        return self.total.low > 0

    @property
    def base_rate(self) -> Estimate:
        """The share of positives."""
        return self._share([self.positive], [self.negative])

    @property
    def constant_error(self) -> Estimate:
        """The error of whoever always says the label that is more frequent."""
        rate = self.base_rate
        if rate.value <= 0.5:
            return rate
        return Estimate(1 - rate.value, 1 - rate.high, 1 - rate.low)

    def place(self, threshold: float) -> int:
        """The edge that is nearest to a threshold, as the number of bins below it."""
        return int(np.argmin(np.abs(self.edges - threshold))) + 1

    def error(self, at: int) -> Estimate:
        """The share of wrong labels where the bins from ``at`` on are called positive."""
        wrong = [self.negative[at:], self.positive[:at]]
        return self._share(wrong, [self.negative[:at], self.positive[at:]])

    def true_positives(self, at: int) -> Estimate:
        """Of the positives, how many are called so (recall, sensitivity)."""
        return self._share([self.positive[at:]], [self.positive[:at]])

    def false_positives(self, at: int) -> Estimate:
        """Of the negatives, how many are called positive."""
        return self._share([self.negative[at:]], [self.negative[:at]])

    def precision(self, at: int) -> Estimate:
        """Of those that are called positive, how many are."""
        return self._share([self.positive[at:]], [self.negative[at:]])

    def called(self, at: int) -> Estimate:
        """How many are called positive."""
        return self._share([self.positive[at:], self.negative[at:]], [self.positive[:at], self.negative[:at]])

    @cached_property
    def auc(self) -> Estimate:
        """The chance that a positive has a larger score than a negative.

        Ties within bins count one half, which loses a part of the area that falls with the square of the number of
        bins; so a third of what is lost by joining bins in pairs is added (Richardson). The variance of a count is
        its noise's and, by sampling, the count itself; the last term is the noise on both factors of a product.

        Reference
            Hanley and McNeil (1982); the delta method.
        """
        p, q = float(self.positive.sum()), float(self.negative.sum())
        variance, bins = self.std**2, len(self.positive)
        doubt = _Z * math.sqrt(variance * bins)
        if p <= doubt or q <= doubt:
            return Estimate(0.5, 0.0, 1.0)
        fine, fine_slopes = _area(self.positive, self.negative)
        pairs = np.arange(bins) // 2
        joined = [np.bincount(pairs, weights=side) for side in (self.positive, self.negative)]
        coarse, coarse_slopes = _area(joined[0], joined[1])
        found = (4 * fine - coarse) / 3
        slopes = (4 * fine_slopes - coarse_slopes[:, pairs]) / 3
        spread = max(0.0, float((slopes**2 * [self.positive, self.negative]).sum()))
        spread += variance * float((slopes**2).sum())
        spread += variance**2 * bins**2 / 8 / (p * q) ** 2
        far, value = _Z * math.sqrt(spread), min(1.0, max(0.0, found))
        return Estimate(value, max(0.0, min(value, found - far)), min(1.0, max(value, found + far)))

    def roc(self) -> tuple[Floats, Floats]:
        """False and true positives at every edge, from all called positive to none, each within [0, 1]."""
        found = []
        for counts in (self.negative, self.positive):
            total = max(1.0, float(counts.sum()))
            found.append(np.clip(np.concatenate([np.cumsum(counts[::-1])[::-1], [0.0]]) / total, 0.0, 1.0))
        return found[0], found[1]

    def coarser(self, bins: int) -> list[tuple[int, int]]:
        """Neighbouring bins put together into about ``bins`` of equal counts, as (first, last + 1)."""
        whole = np.cumsum(np.maximum(self.negative + self.positive, 0.0))
        places = np.searchsorted(whole, whole[-1] * np.arange(1, bins) / bins) + 1
        marks = sorted({0, *(int(place) for place in places), len(self.negative)} - {len(self.negative) + 1})
        return list(itertools.pairwise(marks))

    def observed(self, first: int, last: int) -> Estimate:
        """The share of positives among units with scores in some bins."""
        return self._share([self.positive[first:last]], [self.negative[first:last]])

    def to_json(self) -> dict[str, Any]:
        """For a file: what was released, from which all else follows."""
        return {
            "edges": self.edges.tolist(),
            "negative": self.negative.tolist(),
            "positive": self.positive.tolist(),
            "noise_std": self.std,
        }


def _area(positive: NDArray[Any], negative: NDArray[Any]) -> tuple[float, Floats]:
    """The area under the ROC curve with ties as one half, and its derivatives in positives and in negatives."""
    p, q = float(positive.sum()), float(negative.sum())
    below = (np.cumsum(negative) - negative / 2) / q
    above = (p - np.cumsum(positive) + positive / 2) / p
    found = float(positive @ below) / p
    return found, np.array([(below - found) / p, (above - found) / q])


@dataclass(frozen=True)
class Evaluation:
    """A model measured on rows: counts of all units, and of each group."""

    cells: Cells
    groups: Mapping[str, Mapping[str, Cells]]
    threshold: float = 0.0  # the model's own, which is one of the edges

    @property
    def at(self) -> int:
        """The edge of the model's own threshold, as the number of bins below it."""
        return self.cells.place(self.threshold)

    @classmethod
    def of(
        cls,
        counts: Floats,
        edges: Floats,
        std: float,
        columns: Mapping[str, Sequence[str]],
        units: int = 1,
        threshold: float = 0.0,
    ) -> Evaluation:
        """From an array of (groups, labels, bins); ``units`` is how many rows one unit counts for at most.

        All units together are the sum over the groups of a column. Where there are several columns, each has its own
        noise, and their sums are averaged with weights that make the noise least.
        """
        counts, std = counts / units, std / units
        if not columns:
            return cls(Cells(edges, counts[0, 0], counts[0, 1], std), {}, threshold)
        groups: dict[str, dict[str, Cells]] = {}
        mean, at, weight = np.zeros(counts.shape[1:]), 0, sum(1 / len(names) for names in columns.values())
        for column, names in columns.items():
            mine = counts[at : at + len(names)]
            at += len(names)
            mean += mine.sum(axis=0) / len(names) / weight
            own = {name: Cells(edges, one[0], one[1], std) for name, one in zip(names, mine, strict=True)}
            groups[column] = own
        return cls(Cells(edges, mean[0], mean[1], std / math.sqrt(weight)), groups, threshold)

    def to_json(self) -> dict[str, Any]:
        """For a file."""
        groups = {
            column: {name: cells.to_json() for name, cells in found.items()} for column, found in self.groups.items()
        }
        return {"cells": self.cells.to_json(), "groups": groups}


def equal_bins(counts: Floats, bins: int) -> list[int]:
    """Places 1..len(counts) - 1 that cut a fine histogram, noisy or exact, into ``bins`` of about equal counts.

    The middle of the histogram is always one of them, and all differ. Sums from the left are made to rise first: of
    all rising sequences the one that is nearest to the noisy sums.
    """
    from scipy.optimize import isotonic_regression

    grid = len(counts)
    if not 2 <= bins <= grid // 2:
        raise ValueError(f"{bins} bins of {grid}")
    rising = np.asarray(isotonic_regression(np.cumsum(counts)).x)
    low, high = float(rising[0]), float(rising[-1])
    wanted = low + (high - low) * np.arange(1, bins) / bins
    places = np.clip(np.searchsorted(rising, wanted) + 1, 1, grid - 1)
    middle = grid // 2
    if middle not in places:
        places[int(np.argmin(np.abs(places - middle)))] = middle
    found = sorted(set(places.tolist()))
    free = sorted(set(range(1, grid)) - set(found), key=lambda place: (abs(place - found[len(found) // 2]), place))
    return sorted([*found, *free[: bins - 1 - len(found)]])
