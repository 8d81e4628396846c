"""Features where only labels are secret: what is public about them, measured in one pass that looks at no label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import DataError
from daskrado.lake.collect import Passes, Progress
from daskrado.lake.scan import Lake, open_lake
from daskrado.statistics.base import Groups
from daskrado.statistics.features import FeatureFacts, normalised_l2
from daskrado.statistics.label_means import LabelMeans
from daskrado.table.domain import Domain

Vector = NDArray[np.float64]


def open_features(source: Any, domain: Domain, *columns: str, ids: bool = False, strict: bool = False) -> Lake:
    """A lake whose label column is not looked at; ``columns`` must be there too."""
    lake = open_lake(source, domain, label=False, ids=ids, strict=strict)
    for name in columns:
        if name not in lake.schema.names:
            raise DataError(f"the lake has no column {name!r}; it has {', '.join(lake.schema.names[:20])}")
    return lake


@dataclass(frozen=True)
class Measured:
    """Public facts about the features: largest norms in grid steps, and sums by group in shares of the norm bound."""

    width: int
    bits: int
    l1_steps: int
    square_steps: int
    sums: NDArray[np.float64]
    rows: Vector
    squares: Vector | None

    @property
    def total_rows(self) -> float:
        """All rows, or what they count for together where units are bounded."""
        return float(self.rows.sum())

    @property
    def largest(self) -> float:
        """The largest norm of a row, as a share of the norm bound."""
        return normalised_l2(self.square_steps, self.bits)

    def label_means(self, groups: Groups | None = None, *, missing: bool = False) -> LabelMeans:
        """The statistic to be released, with the bounds of these features."""
        return LabelMeans(self.width, self.l1_steps, self.square_steps, self.bits, groups, missing)


def measure(
    passes: Passes, groups: Groups | None = None, *, squares: bool = False, progress: Progress | None = None
) -> Measured:
    """One label-free pass: norms, sums and counts. Where units are bounded, sums and counts are weighted."""
    width, bits = passes.domain.width, passes.lattice.bits
    statistic = FeatureFacts(width, groups, squares)
    part = statistic.split(passes.sum(statistic, progress=progress).vector)
    if not part["largest"][0]:  # noise for them would have the scale 0: refused before anything is spent
        raise DataError(f"every row is zero in all {width} features on a grid of {bits} bits: nothing to learn from")
    return Measured(
        width,
        bits,
        int(part["largest"][0]),
        int(part["largest"][1]),
        np.ldexp(part["sum"].astype(np.float64), -bits),
        part["count"].astype(np.float64),
        np.ldexp(part["squares"].astype(np.float64), -2 * bits) if squares else None,
    )
