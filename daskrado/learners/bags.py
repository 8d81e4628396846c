"""Mean Map and Laplacian Mean Map: the mean operator from bags of unlabelled rows and their label proportions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import DataError, UsageError

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
_SAME = 1e-9
MAX_CONDITION = 1e4  # multiplies every error of a bag's mean: the grid's 2^-20 alone becomes 1 % of the norm bound


@dataclass(frozen=True)
class Bags:
    """By bag: sum of rows (shares of the norm bound), rows, sum of squared norms, share of positive labels."""

    sums: Matrix
    rows: Vector
    squares: Vector | None
    proportions: Vector

    def __post_init__(self) -> None:
        check_sizes(self.rows)
        bad = ~((self.proportions >= 0) & (self.proportions <= 1))
        if bad.any():
            raise UsageError(f"{int(bad.sum())} of {len(self.rows)} proportions are not between 0 and 1")

    @property
    def means(self) -> Matrix:
        """Mean row of each bag."""
        return self.sums / self.rows[:, None]

    @property
    def shares(self) -> Vector:
        """Each bag's share of all rows."""
        return np.asarray(self.rows / self.rows.sum())

    @property
    def condition(self) -> float:
        """The condition number of the least squares problem b_j = pi_j mu+ + (1 - pi_j) mu-."""
        return float(np.linalg.cond(np.column_stack([self.proportions, 1 - self.proportions])))

    def check_rank(self, names: Sequence[str]) -> None:
        """Refuse proportions from which the two class means cannot be told apart, naming the columns concerned."""
        trouble = self.indistinct(names)
        if trouble is not None:
            raise DataError(trouble)

    def indistinct(self, names: Sequence[str]) -> str | None:
        """Why the two class means cannot be told apart, with the columns concerned; None where they can."""
        p, condition = self.proportions, self.condition
        if condition <= MAX_CONDITION:
            return None
        means = self.means
        varying = [n for n, low, high in zip(names, means.min(0), means.max(0), strict=True) if high - low > _SAME]
        columns = f"{', '.join(varying[:8])}{f' and {len(varying) - 8} more' if len(varying) > 8 else ''}"
        problem = f"all {len(p)} bags have the proportion {p[0]:g}, so the proportions have rank 1"
        if p.max() - p.min() > _SAME:
            problem = (
                f"the proportions of all {len(p)} bags lie between {p.min():.9g} and {p.max():.9g}, so their "
                f"condition number is {condition:.2g} (at most {MAX_CONDITION:g} will do)"
            )
        elif p[0] in (0.0, 1.0):
            problem = f"all {len(p)} bags hold one label only ({'positive' if p[0] else 'negative'})"
        left_out = f"columns that cannot be estimated: {columns or 'all'}"
        return f"{problem} and the class means cannot be told apart; {left_out}"


def check_sizes(rows: Vector, names: Sequence[object] | None = None) -> None:
    """Refuse bags without rows, by name where bags have names: a public fact, wherever bags are."""
    empty = np.flatnonzero(rows <= 0)
    if len(rows) < 1 or len(empty):
        which = "" if names is None else f" ({', '.join(str(names[j]) for j in empty[:8])})"
        raise DataError(f"{len(empty)} of {len(rows)} bags have no rows{which}: drop them")


def mean_map(bags: Bags, weights: Vector | None = None) -> Vector:
    """Class means by least squares over bags, b_j = pi_j mu+ + (1 - pi_j) mu-, then mu = p mu+ - (1 - p) mu-.

    ``weights`` of the bags are 1 by default. Consistent if the class means are the same in every bag (homogeneity).

    Reference
        Quadrianto, Smola, Caetano and Le (2009).
    """
    w = np.sqrt(_weights(bags, weights))
    design = np.column_stack([bags.proportions, 1 - bags.proportions])
    classes, *_ = np.linalg.lstsq(design * w[:, None], bags.means * w[:, None], rcond=None)
    p = float(bags.shares @ bags.proportions)
    return np.asarray(p * classes[0] - (1 - p) * classes[1])


def similarity(bags: Bags, kind: Literal["gaussian", "association"], sigma: float | None = None) -> Matrix:
    """How alike two bags are, 0 on the diagonal.

    * gaussian: exp(-|b_j - b_k| / sigma) of the bag means; sigma is by default the median distance of a bag to its
      nearest other bag;
    * association: 1 / (1 + A_jk / A_jj) + 1 / (1 + A_jk / A_kk), A_jk the sum of squared distances between the
      rows of the two bags: the normalised association of spectral clustering, from sums alone. At a distance D of
      the bag means and a spread v within each it is 1 / (1 + D^2 / 4v), which falls slowly: where bags overlap, every
      bag stays a neighbour of every other, and the Laplacian Mean Map stays close to Mean Map.

    Reference
        Patrini, Nock, Rivera and Caetano (2014), section 3.
    """
    if kind == "gaussian":
        gaps = np.linalg.norm(bags.means[:, None, :] - bags.means[None, :, :], axis=2)
        if sigma is None:
            nearest = (gaps + np.diag(np.full(len(gaps), np.inf))).min(axis=1)
            sigma = float(np.median(nearest[np.isfinite(nearest)], keepdims=False)) if len(gaps) > 1 else 1.0
            sigma = sigma or 1.0
        if not sigma > 0:
            raise UsageError(f"sigma must be above 0, got {sigma!r}")
        graph = np.exp(-gaps / sigma)
    elif kind == "association":
        if bags.squares is None:
            raise UsageError("similarity association needs the sums of squares of the bags")
        cross = bags.rows[:, None] * bags.squares[None, :] + bags.rows[None, :] * bags.squares[:, None]
        spread = np.maximum(cross - 2 * bags.sums @ bags.sums.T, 0.0)
        own = np.maximum(np.diag(spread), 1e-300)
        graph = 1 / (1 + spread / own[:, None]) + 1 / (1 + spread / own[None, :])
    else:
        raise UsageError(f"similarity {kind!r} is unknown; allowed: gaussian, association")
    np.fill_diagonal(graph, 0.0)
    return np.asarray(graph)


def laplacian_mean_map(
    bags: Bags, graph: Matrix, *, gamma: float, weights: Vector | None = None, ridge: float = 0.0
) -> Vector:
    """Class means of each bag, close to those of similar bags, then mu = sum of p_j (pi_j b_j+ - (1 - pi_j) b_j-).

    Minimises sum w_j |b_j - pi_j b_j+ - (1 - pi_j) b_j-|^2 + gamma (tr X+' L X+ + tr X-' L X-), with
    L = ridge I + D - V the graph's Laplacian. As gamma grows it becomes Mean Map; homogeneity is not assumed.

    Reference
        Patrini, Nock, Rivera and Caetano (2014), equation 8.
    """
    if not gamma > 0:
        raise UsageError(f"gamma must be above 0, got {gamma!r}")
    count = len(bags.rows)
    w, p = _weights(bags, weights), bags.proportions
    laplacian = np.diag(graph.sum(axis=1)) - graph + ridge * np.eye(count)
    system = np.zeros((2 * count, 2 * count))
    pairs = (p, 1 - p)
    for i, left in enumerate(pairs):
        for j, right in enumerate(pairs):
            block = np.diag(w * left * right) + (gamma * laplacian if i == j else 0.0)
            system[i * count : (i + 1) * count, j * count : (j + 1) * count] = block
    target = np.concatenate([(w * share)[:, None] * bags.means for share in pairs])
    # Least norm where a bag has no neighbour: its absent class then has no weight in mu.
    classes = np.linalg.lstsq(system, target, rcond=1e-13)[0]
    q = bags.shares
    return np.asarray((q * p) @ classes[:count] - (q * (1 - p)) @ classes[count:])


def _weights(bags: Bags, weights: Vector | None) -> Vector:
    if weights is None:
        return np.ones(len(bags.rows))
    if weights.shape != bags.rows.shape or not (weights > 0).all():
        raise UsageError("weights must be one number above 0 for each bag")
    return weights
