"""Votes of teachers on queries, and how many teachers a change of label needs: the distance to instability."""

from __future__ import annotations

from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import UsageError

Counts = NDArray[np.int64]


class Votes:
    """Un-noised votes: one row for each query, one column for each class. Shows its shape, refuses to be written."""

    __slots__ = ("counts",)

    def __init__(self, counts: Counts) -> None:
        if counts.dtype != np.int64 or counts.ndim != 2 or counts.shape[1] < 2:
            raise UsageError(f"votes are int64 of shape (queries, classes), got {counts.dtype} of {counts.shape}")
        self.counts = counts

    def __len__(self) -> int:
        return len(self.counts)

    def __repr__(self) -> str:
        return f"<Votes: {self.counts.shape[1]} classes on {len(self)} queries, private>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("Votes are un-noised and are never written or sent; ask an engine for private answers")


def leaders(counts: Counts) -> NDArray[np.int64]:
    """The class with most votes on each query; a tie goes to the class declared first, a public rule."""
    return np.asarray(counts.argmax(axis=1), dtype=np.int64)


def margins(counts: Counts) -> NDArray[np.int64]:
    """Votes of the leading class less votes of the runner-up."""
    ranked = np.sort(counts, axis=1)
    return (ranked[:, -1] - ranked[:, -2]).astype(np.int64)


def distance(counts: Counts, changed: int = 1) -> NDArray[np.int64]:
    """How many protected units can change their minds before the leading class may change.

    With g the margin, j teachers that defect to the runner-up leave 2 j < g, so j = ceil(g / 2) - 1 defections (none
    where g = 0) never change the label. A unit that reaches ``changed`` teachers counts for as many: the distance
    is max(0, ceil(g / 2) - 1) // changed.

    Sensitivity
        One changed vote moves g by at most 2, for any number of classes, hence ceil(g / 2) by at most 1; ``changed``
        votes move the dividend by at most ``changed`` and the quotient by at most 1. Where neighbours lead with
        different labels, at most ``changed`` votes close the gap on either side, so both distances are 0.

    Reference
        Smith and Thakurta (2013); Bassily, Thakkar and Thakurta (2018), whose g - 1 has sensitivity 2, not 1.
    """
    return (np.maximum((margins(counts) + 1) // 2 - 1, 0) // changed).astype(np.int64)


def published_distance(counts: Counts) -> NDArray[np.int64]:
    """max(0, g - 1), as printed by Bassily, Thakkar and Thakurta (2018).

    Sensitivity
        2, not 1; and with an even number of teachers a label flips at distances 1 and 0, not 0 and 0. Kept to compare
        with the paper's constants and as a bug that the audit must find; never used where 1 is claimed.
    """
    return np.maximum(margins(counts) - 1, 0).astype(np.int64)
