"""What every learner is: one dataclass in one file, whose fields are the options that a pipeline writes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import UsageError
from daskrado.models.error_bars import ErrorBars
from daskrado.privacy.release import Release
from daskrado.registry import make
from daskrado.statistics.base import Statistic
from daskrado.table.domain import Domain
from daskrado.table.label import Target


@dataclass(frozen=True)
class Learned:
    """Weights, public facts on how they came about, the noise on them where it is additive, and their error bars.

    ``domain`` is what the weights are for where that is not the Domain of the lake: a learner may scale numbers anew.
    """

    weights: NDArray[np.float64]
    details: dict[str, Any]
    noise_std: dict[str, float] = field(default_factory=dict)
    bars: ErrorBars | None = None
    domain: Domain | None = None

    def in_units(self, domain: Domain) -> Learned:
        """Of a number, which is learned on [-1, 1]: weights in the label's own units."""
        if domain.label.target != "number":
            return self
        half = domain.label.span[1]
        bars = None if self.bars is None else replace(self.bars, low=half * self.bars.low, high=half * self.bars.high)
        noise = {name: half * std if name == "weights" else std for name, std in self.noise_std.items()}
        return replace(self, weights=half * self.weights, noise_std=noise, bars=bars)

    def chosen_as(self, learner: str, **details: Any) -> Learned:
        """The same weights, with the facts on how their learner was chosen before its own."""
        return replace(self, details={"chosen": learner, **details} | self.details)


def alike(details: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Facts on several fits as one: what all have in common, else what each has.

    >>> alike([{"ridge": 2, "rounds": 5}, {"ridge": 2, "rounds": 7}])
    {'ridge': 2, 'rounds': [5, 7]}
    """
    listed = {key: [one.get(key) for one in details] for key in details[0]}
    return {key: values[0] if all(one == values[0] for one in values) else values for key, values in listed.items()}


class Learner(ABC):
    """A learner by its ``name`` in a pipeline; registered by lying in ``daskrado.learners``."""

    name: ClassVar[str]
    older_names: ClassVar[Mapping[str, str]] = {}  # spellings of options that stay readable

    @classmethod
    def current_spelling(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Options as a file of any version writes them, under the names of today."""
        return {cls.older_names.get(key, key): value for key, value in options.items()}


class ReleaseLearner(Learner):
    """Learns from one release, which is post-processing. ``statistics`` are those it fits, the default one first."""

    statistics: ClassVar[tuple[str, ...]]
    statistic_of: ClassVar[Mapping[Target, str]] = {}  # that it takes for labels which are not two sides

    def excess(self, noise: Mapping[str, float], norm_bound: float, width: int, rows: int) -> float | None:
        """A public forecast of the risk that noise of such deviations costs on so many rows; None where unknown."""
        del noise, norm_bound, width, rows
        return None

    def statistic_for(self, domain: Domain) -> Statistic:
        """The statistic that it takes where a pipeline names none."""
        target, given = domain.label.target, {"width": domain.width}
        if target != "sides" and target not in self.statistic_of:
            raise UsageError(f"learner {self.name} needs a label of two sides; else take moments or gradient")
        if domain.label.classes is not None:
            given["classes"] = len(domain.label.classes)
        return make(Statistic, ("daskrado.statistics",), self.statistic_of.get(target, self.statistics[0]), given)

    @abstractmethod
    def fit(self, release: Release) -> tuple[NDArray[np.float64], dict[str, Any]]:
        """Weights for the encoded features, and public facts on how they came about."""

    def fit_columns(self, release: Release, domain: Domain) -> Learned:
        """The same for known columns; a learner whose weights have error bars gives them here."""
        del domain
        return Learned(*self.fit(release))
