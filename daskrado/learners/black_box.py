"""Learners as black boxes: rows and class indices in, class indices out. Teachers and students are made here.

A kind of black box is one class, whose fields are the options that a pipeline writes under ``learner``.
"""

from __future__ import annotations

import copy
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from daskrado.errors import UsageError
from daskrado.learners.base import ReleaseLearner
from daskrado.learners.on_release.moments import MeanLearner, MomentsLearner
from daskrado.learners.on_release.radoboost import RadoBoost
from daskrado.privacy.release import release_without_privacy
from daskrado.registry import one_of
from daskrado.statistics import HadamardRados, MeanOperator, Moments, Rows, Statistic, Summary
from daskrado.table.domain import Domain
from daskrado.table.lattice import Lattice

Floats = NDArray[np.float64]
Solver = Callable[[Floats, NDArray[np.int8]], Floats]
RADOS = 64  # of a shard's rows, for radoboost
REHEARSAL_ROWS = 256


class Linear:
    """One weight vector between two classes; for several, one against the rest for each."""

    def __init__(self, solve: Solver) -> None:
        self.solve = solve

    def fit(self, x: Floats, y: NDArray[np.int64]) -> Linear:
        """Learn from rows."""
        self.classes_ = np.unique(y)
        targets = self.classes_[1:] if len(self.classes_) == 2 else self.classes_
        self.weights_ = np.array([self.solve(x, np.where(y == c, 1, -1).astype(np.int8)) for c in targets])
        return self

    def predict(self, x: Floats) -> NDArray[np.int64]:
        """The class index of each row; a score of exactly 0 counts for the later class."""
        scores = x @ self.weights_.T
        at = (scores[:, 0] >= 0).astype(np.int64) if len(self.classes_) == 2 else scores.argmax(axis=1)
        return np.asarray(self.classes_[at])


class BlackBox(ABC):
    """Makes one fresh estimator for each teacher, or the student. Picklable."""

    name: ClassVar[str]
    older_names: ClassVar[Mapping[str, str]] = {"ridge": "regularisation"}
    rehearsed: ClassVar[bool] = True  # not learners of this library, whose options are checked when they are read

    @classmethod
    def current_spelling(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Options as a file of any version writes them; an older one may write null for what does not apply."""
        given = {key: v for key, v in options.items() if not (v is None and key in ("ridge", "rounds"))}
        return {cls.older_names.get(key, key): value for key, value in given.items()}

    @abstractmethod
    def make(self, domain: Domain, seed: int) -> Any:
        """An unfitted estimator for rows of the Domain, with fit(x, y) and predict(x); ``seed`` is public."""

    @property
    def title(self) -> str:
        """What manifests and messages call it."""
        return self.name

    @property
    def rehearsal_rows(self) -> int:
        """How many rows it needs to learn at all."""
        return REHEARSAL_ROWS

    def make_quick(self, domain: Domain) -> Any:
        """An estimator that takes the same options and does not learn for long."""
        return self.make(domain, 0)


@dataclass(frozen=True)
class Logistic(BlackBox):
    """Newton's method on mean log(1 + exp(-y theta x)) + (regularisation / 2) |theta|^2, with step halving.

    Not private by itself: it sees rows that are public, or the rows of one shard.
    """

    regularisation: Annotated[float, Field(ge=0)] = 1e-3
    steps: Annotated[int, Field(ge=1, le=10_000)] = 30

    name: ClassVar[str] = "logistic"
    rehearsed: ClassVar[bool] = False

    def make(self, domain: Domain, seed: int) -> Linear:
        del domain, seed
        return Linear(self.solve)

    def solve(self, x: Floats, y: NDArray[np.int8]) -> Floats:
        """The weights."""
        from scipy.special import expit

        rows, width = x.shape
        theta = np.zeros(width)
        value = self._value(x, y, theta)
        for _ in range(self.steps):
            slope = expit(-y * (x @ theta))
            gradient = -(x.T @ (slope * y)) / rows + self.regularisation * theta
            if np.abs(gradient).max() < 1e-10:
                break
            curvature = (x.T * (slope * (1 - slope))) @ x / rows + self.regularisation * np.eye(width)
            step = np.linalg.solve(curvature, gradient)
            scale = 1.0
            while (new := self._value(x, y, theta - scale * step)) > value and scale > 1e-6:
                scale /= 2
            theta, value = theta - scale * step, new
        return theta

    def _value(self, x: Floats, y: NDArray[np.int8], theta: Floats) -> float:
        return float(np.logaddexp(0, -y * (x @ theta)).mean() + self.regularisation / 2 * (theta @ theta))


class OnStatistic(BlackBox):
    """One of this library's learners on a statistic of rows in memory, with no noise."""

    rehearsed: ClassVar[bool] = False

    @abstractmethod
    def parts(self, width: int) -> tuple[Statistic, ReleaseLearner]:
        """What is summed over the rows, and what learns from the sum."""

    def make(self, domain: Domain, seed: int) -> Linear:
        return Linear(partial(self._solve, domain.norm_bound, seed))

    def _solve(self, norm_bound: float, seed: int, x: Floats, y: NDArray[np.int8]) -> Floats:
        statistic, learner = self.parts(x.shape[1])
        lattice = Lattice(norm_bound, statistic.default_bits)
        seeds = np.random.Philox(key=[seed, 1]).random_raw(len(y)) if statistic.needs_seeds else None
        rows = Rows(lattice.quantise(np.array(x, order="F")), y, seeds)
        summary = Summary(statistic, lattice, statistic.partial(rows), len(y))
        return learner.fit(release_without_privacy(summary))[0]


@dataclass(frozen=True)
class LeastSquares(OnStatistic):
    """Least squares from moments."""

    regularisation: Annotated[float | None, Field(ge=0)] = None

    name: ClassVar[str] = "moments"

    def parts(self, width: int) -> tuple[Statistic, ReleaseLearner]:
        return Moments(width), MomentsLearner(self.regularisation)


@dataclass(frozen=True)
class MeanDirection(OnStatistic):
    """The direction of the mean operator."""

    name: ClassVar[str] = "mean"

    def parts(self, width: int) -> tuple[Statistic, ReleaseLearner]:
        return MeanOperator(width), MeanLearner()


@dataclass(frozen=True)
class BoostedRados(OnStatistic):
    """RadoBoost on Hadamard rados."""

    rounds: Annotated[int, Field(ge=1, le=100_000)] = 1000

    name: ClassVar[str] = "radoboost"

    def parts(self, width: int) -> tuple[Statistic, ReleaseLearner]:
        return HadamardRados(width, RADOS), RadoBoost(self.rounds)


@dataclass(frozen=True)
class PythonObject(BlackBox):
    """Copies of an unfitted object with ``fit(x, y)`` and ``predict(x)``: a learner that no file can name."""

    prototype: Any

    def __post_init__(self) -> None:
        for method in ("fit", "predict"):
            if not callable(getattr(self.prototype, method, None)):
                raise UsageError(f"a learner has fit and predict; {type(self.prototype).__name__} has no {method}")

    @property
    def title(self) -> str:
        return f"{type(self.prototype).__module__}.{type(self.prototype).__qualname__}"

    def make(self, domain: Domain, seed: int) -> Any:
        """A copy; the seed is the prototype's own business."""
        del domain, seed
        return copy.deepcopy(self.prototype)


AnyBlackBox = Annotated[BlackBox, one_of("daskrado.learners")]


def rehearse(box: BlackBox, where: str, domain: Domain, classes: int) -> None:
    """Fit and ask a throw-away estimator on synthetic rows, or a UsageError that begins with ``where``.

    Parameters that a learner does not take are found so before anything is spent. The rows are drawn from a public
    seed inside the norm bound, with all classes among them, so the error's text tells nothing.
    """
    if not box.rehearsed:
        return
    rows, width = box.rehearsal_rows, domain.width
    draw = np.random.Generator(np.random.Philox(key=[13, 0]))
    x = draw.uniform(-1, 1, size=(rows, width)) * (domain.norm_bound / np.sqrt(width))
    y = np.arange(rows, dtype=np.int64) % classes
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            estimator = box.make_quick(domain)
            estimator.fit(x, y)
            np.asarray(estimator.predict(x), dtype=np.float64).reshape(rows)
    except Exception as error:  # whatever a black box raises
        text = " ".join(str(error).split()) or "no reason given"
        raise UsageError(f"{where}: {box.title} does not learn ({type(error).__name__}: {text})") from error


def linear_weights(estimator: Any, classes: int) -> Floats | None:
    """The weights of a fitted estimator whose prediction is the sign of a dot product, else None."""
    if classes != 2:
        return None
    if isinstance(estimator, Linear):
        return estimator.weights_[0] if len(estimator.classes_) == 2 else None
    weights = getattr(estimator, "coef_", None)
    known = getattr(estimator, "classes_", None)
    if weights is None or known is None or len(known) != 2 or np.any(np.asarray(estimator.intercept_) != 0):
        return None
    return np.asarray(weights, dtype=np.float64).reshape(-1)


def class_weights(estimator: Any, classes: int) -> Floats | None:
    """The same for several classes, of which the largest dot product is predicted: one row of weights for each."""
    weights = estimator.weights_ if isinstance(estimator, Linear) else getattr(estimator, "coef_", None)
    known, constant = getattr(estimator, "classes_", ()), getattr(estimator, "intercept_", 0.0)
    if weights is None or list(known) != list(range(classes)) or np.any(np.asarray(constant) != 0):
        return None
    found = np.asarray(weights, dtype=np.float64)
    return found if found.shape == (classes, found.shape[-1]) else None
