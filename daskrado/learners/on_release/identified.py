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

from daskrado.table.columns import indicators, one_hot
from daskrado.table.domain import Domain

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Mask = NDArray[np.bool_]
CHANCE = 1e-3  # that any feature of a whole Domain that no row has seems to be there
HIDDEN = 0.01  # of a column's rows: a category that noise may hide is forgotten only where it has no more
LITTLE = 0.01  # of a margin: with the error of its column's mean, what noise hides moves a chance by less than 1 %
_DEVIATIONS = 5.0  # from which on a square stands out, about


def stands_out(mean: Vector, square: Vector, mean_noise: float, square_noise: float) -> Mask:
    """Which features have sums that noise alone does not reach: M, or the diagonal of S, by so many deviations.

    But for CHANCE none is among them that no row has.

    >>> stands_out(np.array([0.5, 2.0, -9.0]), np.array([100.0, 3.0, -2.0]), 1.0, 1.0).tolist()  # 3.7 are needed
    [True, False, True]
    """
    reach = _reach(len(mean))
    least = 1e-12 * max(float(square.max(initial=0.0)), 0.0)
    return np.asarray((square > max(least, reach * square_noise)) | (np.abs(mean) > max(least, reach * mean_noise)))


def _reach(width: int) -> float:
    """So many deviations of noise a sum of one of so many features needs to stand out."""
    return -float(ndtri(CHANCE / (3 * max(1, width))))  # one tail of squares, two of M


def may_hide(total: float, noise: float) -> bool:
    """Whether noise may hide more than HIDDEN of the rows in one category, of sums of squares that add to a total."""
    return _DEVIATIONS * noise > HIDDEN * max(0.0, total)


def clearly_there(domain: Domain, second: Matrix, noise: float) -> Mask:
    """Which categories, bins and flags have rows that noise alone does not reach, by all that S says of their number.

    It says it several times: by a feature's square, its product with what a 1 is worth, and the sum of its products
    with all features of any other one-hot column. Their mean by precision has less noise than each.
    """
    total, precision = np.diag(second).copy(), np.ones(domain.width)
    if domain.intercept:
        total += domain.intercept * second[:, -1]
        precision += domain.intercept**2
    for where in one_hot(domain):
        beside = ~_within(where, domain.width) / (where.stop - where.start)
        total += beside * second[:, where].sum(axis=1)
        precision += beside
    return np.asarray(indicators(domain) & (total > _reach(domain.width) * noise * np.sqrt(precision)) & (noise > 0))


def limited(domain: Domain, diagonal: Vector, weights: Matrix, told: Mask, seen: Mask) -> Matrix:
    """Weights as they are published; those that were told and not seen move no prediction by more than LITTLE."""
    middle = np.zeros_like(weights)
    for where in one_hot(domain):
        if told[where].any():
            middle[where] = _shares(diagonal[where], told[where]) @ weights[where]
    near = middle + np.clip(weights - middle, -LITTLE, LITTLE)
    return np.asarray(np.where(seen | ~told, weights.T, near.T).T)


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
        one, _, groups = _constant(domain, seen)
        ties = [np.where(_within(where, domain.width), seen, 0.0) - one for where in groups]
        basis = _across(np.array(ties).reshape(-1, domain.width), seen)
        return cls(seen, basis, against_means(domain, diagonal, seen, np.eye(domain.width)), one)


def against_means(domain: Domain, diagonal: Vector, seen: Mask, weights: Matrix) -> Matrix:
    """Weights as they are published, one vector or one in each column: no more is held than they are.

    One-hot columns are against their mean, which the constant feature takes over; what was not seen is 0 there.
    """
    one, anchor, groups = _constant(domain, seen)
    found = (weights.T * seen).T
    for where in groups:
        mean = _shares(diagonal[where], seen[where]) @ weights[where]
        found[where] -= np.multiply.outer(seen[where], mean)
        at = np.flatnonzero(one)
        found[at] += np.multiply.outer(one[at], mean)
    if anchor is not None:  # no constant feature: the first one-hot column stands for it and keeps its mean
        unseen = np.flatnonzero(_within(anchor, domain.width) & ~seen)
        found[unseen] += _shares(diagonal[anchor], seen[anchor]) @ found[anchor]
    return np.asarray(found)


def _constant(domain: Domain, seen: Mask) -> tuple[Vector, slice | None, list[slice]]:
    """What picks the worth of a 1, the one-hot column that does where no constant feature can, and the other ones."""
    groups = [where for where in one_hot(domain) if seen[where].any()]
    one, anchor = np.zeros(domain.width), None
    if domain.intercept and seen[-1]:
        one[-1] = 1 / domain.intercept
    elif groups:
        anchor = groups.pop(0)
        one[anchor] = seen[anchor]
    return one, anchor, groups


def _shares(squares: Vector, seen: Mask) -> Vector:
    """How the rows are shared out over the seen features of a one-hot column."""
    share = np.where(seen, np.maximum(squares, 0), 0.0)
    return np.asarray(share / share.sum() if share.any() else seen / seen.sum())


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
