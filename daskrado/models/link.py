"""From margins to probabilities: a model's own link, or one that was fitted to released counts."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from daskrado.errors import UsageError
from daskrado.models.evaluation import Cells, Floats

OWN = "its own loss"
MOST_HUBER = 0.5  # share of the Huber loss up to which margins count as log-odds
LEAST_SHARE = 1e-6  # of each of several classes, before shares are made to add up to 1
_ROUNDS = 50
_UNLIKELY = 0.01  # a straight line of log-odds is given up where it fits this badly


class Link(ABC):
    """A rising function of the margin; ``about`` says what it was fitted to."""

    about: str

    @abstractmethod
    def __call__(self, margins: Floats) -> Floats:
        """The probability of the positive label."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """As it stands in a model's file."""

    def margin(self, probability: float) -> float:
        """The least margin, to 1e-12 of its size, at which the probability is reached; infinite where it never is."""
        low, high = -1.0, 1.0
        while self(np.array([low]))[0] >= probability and low > -1e12:
            low *= 2
        while self(np.array([high]))[0] < probability and high < 1e12:
            high *= 2
        if self(np.array([high]))[0] < probability:
            return math.inf
        if self(np.array([low]))[0] >= probability:
            return -math.inf
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (low, middle) if self(np.array([middle]))[0] >= probability else (middle, high)
        return high


@dataclass(frozen=True)
class Logistic(Link):
    """1 / (1 + exp(-(slope margin + offset))); with 1 and 0 the link of the logistic loss.

    Reference
        Platt (1999), probabilistic outputs for support vector machines.
    """

    slope: float = 1.0
    offset: float = 0.0
    about: str = OWN

    def __call__(self, margins: Floats) -> Floats:
        return np.asarray(expit(self.slope * np.asarray(margins) + self.offset))

    def to_json(self) -> dict[str, Any]:
        return {"kind": "logistic", "slope": self.slope, "offset": self.offset, "about": self.about}


@dataclass(frozen=True)
class Pieces(Link):
    """Straight lines between points, flat outside; (-1, 0) to (1, 1) is the link of the square loss.

    Reference
        Zadrozny and Elkan (2002), isotonic regression.
    """

    margins: tuple[float, ...] = (-1.0, 1.0)
    probabilities: tuple[float, ...] = (0.0, 1.0)
    about: str = OWN

    def __call__(self, margins: Floats) -> Floats:
        return np.asarray(np.interp(margins, self.margins, self.probabilities))

    def to_json(self) -> dict[str, Any]:
        points = {"margins": list(self.margins), "probabilities": list(self.probabilities)}
        return {"kind": "pieces", **points, "about": self.about}


def own_link(learner: str, details: Mapping[str, Any]) -> Link | None:
    """The link that a learner's loss has: probabilities where that is proper, else none.

    Least squares estimates E[label], labels being -1 and 1, and the logistic loss the log-odds; so nearly does a
    loss that is logistic for the most part. Hinges estimate neither.
    """
    loss, weights = details.get("loss"), details.get("class_weight")
    if loss == "logistic" or (loss == "huber_logistic" and details.get("huber_share", 1.0) <= MOST_HUBER):
        # weights of classes move the log-odds by the log of their ratio
        return Logistic(offset=0.0 if weights is None else math.log(weights[0] / weights[1]))
    if weights is not None:
        return None
    return Pieces() if loss == "square" or (loss is None and learner in ("moments", "placed_moments")) else None


@dataclass(frozen=True)
class Shares:
    """The probability of each of several classes: softmax of the margins, or what ``link`` says of each against the
    rest, at least LEAST_SHARE, made to add up to 1.

    Reference
        Zadrozny and Elkan (2002), one-against-all probabilities, normalised.
    """

    link: Link | None = None

    def __call__(self, margins: Floats) -> Floats:
        if self.link is None:
            powers = np.exp(margins - margins.max(axis=1, keepdims=True))
        else:
            powers = np.maximum(self.link(margins), LEAST_SHARE)
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def own_shares(learner: str, details: Mapping[str, Any]) -> Shares | None:
    """What a learner's loss says of several classes; least squares of moments learns indicators, 0 or 1."""
    loss = details.get("loss")
    if loss == "softmax":
        return Shares()
    link = Pieces((0.0, 1.0), (0.0, 1.0)) if loss is None and learner == "moments" else own_link(learner, details)
    return None if link is None else Shares(link)


def link_from_json(content: Any, where: str) -> Link:
    """Read what a link wrote; anything else is refused in one line."""
    try:
        about = content["about"]
        if content["kind"] == "logistic":
            found: Link = Logistic(float(content["slope"]), float(content["offset"]), about)
            fine = found.slope >= 0 and all(map(math.isfinite, (found.slope, found.offset)))  # type: ignore[attr-defined]
        else:
            points = [tuple(map(float, content[key])) for key in ("margins", "probabilities")]
            found = Pieces(points[0], points[1], about)
            rising = [np.diff(np.array(part)) for part in points]
            fine = content["kind"] == "pieces" and len(points[0]) == len(points[1]) >= 1
            fine = fine and bool((rising[0] > 0).all() and (rising[1] >= 0).all())
            fine = fine and all(0 <= value <= 1 for value in points[1]) and all(map(math.isfinite, points[0]))
        if not fine or not isinstance(about, str):
            raise ValueError
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UsageError(f"{where}: link is no rising function from margins to probabilities") from None
    return found


def fitted(cells: Cells, about: str) -> Link:
    """The link that released counts say: log-odds on a straight line where that fits, else a rising curve.

    With n units in a bin, of which y are positive, y - n p has mean 0 whatever the noise on y and n, and the variance
    n p (1 - p) by sampling and ((1 - p)^2 + p^2) sigma^2 by noise. The straight line is fitted by least squares with
    these variances, in turns with p, and given up where the sum of squares is above the 99 % point of its law.
    """
    middles = _middles(cells.edges)
    total, positive = cells.negative + cells.positive, cells.positive
    line = _line(middles, total, positive, cells.std)
    spread = _variance(total, line(middles), cells.std)
    misfit = float(((positive - total * line(middles)) ** 2 / spread).sum())
    from scipy.stats import chi2

    if misfit <= chi2.ppf(1 - _UNLIKELY, max(1, len(total) - 2)):
        return Logistic(line.slope, line.offset, about)
    return _rising(middles, total, positive, cells.std, about)


def _middles(edges: Floats) -> Floats:
    """Where the scores of each bin lie: between its edges, in outer bins as far beyond as the next bin is wide."""
    if len(edges) == 1:
        return np.array([edges[0] - 1.0, edges[0] + 1.0])
    inner = (edges[1:] + edges[:-1]) / 2
    return np.concatenate([[2 * edges[0] - edges[1]], inner, [2 * edges[-1] - edges[-2]]])


def _variance(total: Floats, p: Floats, std: float) -> Floats:
    sampled = np.maximum(total, 1.0) * p * (1 - p)
    return np.asarray(np.maximum(sampled, 1e-3) + std**2 * (p**2 + (1 - p) ** 2))


def _line(middles: Floats, total: Floats, positive: Floats, std: float) -> Logistic:
    """Gauss and Newton's steps for the two numbers, each bin weighted by the variance at the last ones."""
    centre, width = float(np.median(middles)), max(1e-12, float(np.ptp(middles)) / 4)
    at = np.column_stack([np.ones(len(middles)), (middles - centre) / width])
    rate = min(1 - 1e-3, max(1e-3, float(positive.sum()) / max(1.0, float(total.sum()))))
    theta = np.array([math.log(rate / (1 - rate)), 0.0])
    for _ in range(_ROUNDS):
        p = expit(at @ theta)
        spread = _variance(total, p, std)
        change = at * (np.maximum(total, 0.0) * p * (1 - p))[:, None]
        curve = (change / spread[:, None]).T @ change + np.eye(2) * 1e-6
        step = np.linalg.solve(curve, change.T @ ((positive - total * p) / spread))
        step *= min(1.0, 2.0 / max(1e-12, float(np.abs(step).max())))
        theta = theta + step
        if np.abs(step).max() < 1e-10:
            break
    theta[1] = max(0.0, theta[1])  # a larger margin never means less
    slope = float(theta[1]) / width
    return Logistic(slope, float(theta[0]) - slope * centre)


def _rising(middles: Floats, total: Floats, positive: Floats, std: float, about: str) -> Pieces:
    """The nearest rising shares, each bin weighted by its variance; bins that noise hides take no part."""
    from scipy.optimize import isotonic_regression

    seen = total > 2 * std * math.sqrt(2)
    seen = seen if seen.any() else np.ones(len(total), dtype=bool)
    share = np.clip(positive[seen] / np.maximum(total[seen], 1.0), 0.0, 1.0)
    weight = np.maximum(total[seen], 1.0) ** 2 / _variance(total[seen], np.clip(share, 0.02, 0.98), std)
    found: NDArray[np.float64] = np.asarray(isotonic_regression(share, weights=weight).x)
    return Pieces(tuple(middles[seen].tolist()), tuple(found.tolist()), about)
