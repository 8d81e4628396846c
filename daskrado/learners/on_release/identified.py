"""Which weights the rows can tell apart: features that stand out of the noise, one-hot columns against their mean.

In every row the features of a one-hot column add up to the constant feature, so least squares can move weight from
one to the other and no prediction changes. Only what is left after that is identified, and only that is solved for.
All of it follows from the Domain and from a release.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from daskrado.table.columns import one_hot
from daskrado.table.domain import Domain

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Mask = NDArray[np.bool_]
CHANCE = 1e-3  # that any feature of a whole Domain that no row has seems to be there


def stands_out(mean: Vector, square: Vector, mean_noise: float, square_noise: float) -> Mask:
    """Which features have sums that noise alone does not reach: M, or the diagonal of S, by so many deviations.

    But for CHANCE none is among them that no row has.

    >>> stands_out(np.array([0.5, 2.0, -9.0]), np.array([100.0, 3.0, -2.0]), 1.0, 1.0).tolist()  # 3.7 are needed
    [True, False, True]
    """
    reach = -float(ndtri(CHANCE / (3 * max(1, len(mean)))))  # one tail of squares, two of M
    least = 1e-12 * max(float(square.max(initial=0.0)), 0.0)
    return np.asarray((square > max(least, reach * square_noise)) | (np.abs(mean) > max(least, reach * mean_noise)))


@dataclass(frozen=True)
class Identified:
    """Columns of ``basis`` span the weights that rows can tell apart; ``centre`` maps weights to those that are told.

    ``one`` picks what a 1 is worth in a row: the constant feature, or the sum of the first one-hot column; zeros
    where the Domain has neither.
    """

    seen: Mask
    basis: Matrix
    centre: Matrix
    one: Vector

    @classmethod
    def of(cls, domain: Domain, diagonal: Vector, seen: Mask) -> Identified:
        """From the sums of squares of the features, of which those count that were ``seen``."""
        groups = [where for where in one_hot(domain) if seen[where].any()]
        one, anchor = np.zeros(domain.width), None
        if domain.intercept and seen[-1]:
            one[-1] = 1 / domain.intercept
        elif groups:
            anchor = groups.pop(0)
            one[anchor] = seen[anchor]
        else:
            groups = []
        centre, ties = np.diag(seen.astype(np.float64)), []
        for where in groups:
            share = np.where(seen[where], np.maximum(diagonal[where], 0), 0.0)
            share = share / share.sum() if share.any() else seen[where] / seen[where].sum()
            centre[where, where] -= np.outer(seen[where], share)
            centre[:, where] += np.outer(one, share)
            ties.append(np.where(_within(where, domain.width), seen, 0.0) - one)
        if anchor is not None:  # no constant feature: the first one-hot column stands for it and keeps its mean
            share = np.where(seen[anchor], np.maximum(diagonal[anchor], 0), 0.0)
            share = share if share.any() else seen[anchor].astype(np.float64)
            unseen = np.where(_within(anchor, domain.width) & ~seen, 1.0, 0.0)
            mean = np.zeros(domain.width)
            mean[anchor] = share / share.sum()
            centre += np.outer(unseen, mean @ centre)
        return cls(seen, _across(np.array(ties).reshape(-1, domain.width), seen), centre, one)


def _within(where: slice, width: int) -> Mask:
    found = np.zeros(width, dtype=bool)
    found[where] = True
    return found


def _across(ties: Matrix, seen: Mask) -> Matrix:
    """An orthonormal basis of the seen features, orthogonal to all ties."""
    kept = np.eye(len(seen))[:, seen]
    if not len(ties):
        return kept
    full, _ = np.linalg.qr(ties[:, seen].T, mode="complete")
    return np.asarray(kept @ full[:, len(ties) :])
