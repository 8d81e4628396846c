"""What every learner is: one dataclass in one file, whose fields are the options that a pipeline writes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from daskrado.privacy.release import Release


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

    @abstractmethod
    def fit(self, release: Release) -> tuple[NDArray[np.float64], dict[str, Any]]:
        """Weights for the encoded features, and public facts on how they came about."""
