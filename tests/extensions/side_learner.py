"""A learner of one's own: the difference of the two classes' sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from daskrado.learners.base import ReleaseLearner
from daskrado.privacy.release import Release


@dataclass(frozen=True)
class Sides(ReleaseLearner):
    """Weights proportional to the difference of the sums, shrunk."""

    shrink: Annotated[float, Field(ge=0, lt=1)] = 0.0

    name: ClassVar[str] = "sides"
    statistics: ClassVar[tuple[str, ...]] = ("side_sums",)

    def fit(self, release: Release) -> tuple[NDArray[np.float64], dict[str, Any]]:
        """Post-processing of the release."""
        positive, negative = release.values["sides"]
        gap = (positive - negative) * (1 - self.shrink)
        return gap / max(float(np.linalg.norm(gap)), 1.0), {"shrink": self.shrink}
