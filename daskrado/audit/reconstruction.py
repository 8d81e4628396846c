"""Attacks that recover examples from rados, given what an attacker may know. They read published rados only.

A set of rados is recoverable when one of them applies: that is a fact about the set's kind and sizes, so it can be
told before anything is read (``recoverable``), and shown on a file (the three attacks).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import UsageError
from daskrado.statistics.rados import walsh_hadamard
from daskrado.table.domain import Domain

Matrix = NDArray[np.float64]

MOST_ALONE = 1e-3  # expected number of rows alone in their bucket above which a Hadamard set counts as recoverable
_DETERMINED = 1e-8
_IN_SPAN = 1e-6


def recoverable(kind: str, count: int, rows: int, support: int | None = None) -> str | None:
    """Why ``count`` un-noised rados of ``rows`` examples give examples away; None if no attack here applies.

    None is not a guarantee: un-noised rados are never differentially private.
    """
    if kind == "hadamard":
        alone = expected_alone(count, rows)
        if alone > MOST_ALONE:
            return (
                f"Hadamard rados invert publicly to their {count} bucket sums, and about {alone:.3g} of {rows} "
                "examples are alone in their bucket"
            )
        return None
    if support is not None and min(support, rows - support) <= 1 and rows > support:
        return f"a rado of support {support} out of {rows} is one example, or all but one"
    if count >= rows:
        return f"{count} rados of {rows} examples: with their signatures known, every edge vector solves (lemma 9)"
    return None


def expected_alone(buckets: int, rows: int) -> float:
    """The expected number of rows that share their bucket with nobody: m (1 - 1/(N - 1))^(m - 1)."""
    others = max(buckets - 1, 1)
    return rows * math.exp((rows - 1) * math.log1p(-1.0 / others)) if others > 1 else float(rows == 1)


@dataclass(frozen=True)
class Recovery:
    """Edge vectors that the attack found: ``indices`` into the examples, one row of ``edges`` each."""

    indices: NDArray[np.int64]
    edges: Matrix
    examples: int


def solve_signatures(rados: Matrix, members: Matrix) -> Recovery:
    """Lemma 9: with the 0/1 membership matrix U (rados by examples) known, solve rados = U edges.

    Edge i is determined iff the unit vector e_i lies in the row space of U, that is iff entry i of the diagonal of
    pinv(U) U is 1. With fewer rados than examples some edges may still be.

    Reference
        Nock, Patrini and Friedman (2015), lemma 9.
    """
    if members.shape[0] != len(rados):
        raise UsageError(f"{members.shape[0]} signatures for {len(rados)} rados")
    inverse = np.linalg.pinv(members)
    leverage = np.einsum("ij,ji->i", inverse, members)
    found = np.flatnonzero(leverage > 1 - _DETERMINED)
    return Recovery(found, (inverse @ rados)[found], members.shape[1])


@dataclass(frozen=True)
class SpanTest:
    """Relative distance of each candidate from the span of the rados: 0 for members, when the test applies."""

    applies: bool
    rank: int
    residuals: Matrix

    @property
    def inside(self) -> NDArray[np.bool_]:
        """Candidates that lie in the span."""
        return np.asarray(self.residuals < _IN_SPAN)


def spannable(domain: Domain, rados: Matrix, columns: NDArray[np.intp] | None = None) -> int:
    """The dimension that rows of a Domain can span over the columns in use, among ``columns`` if given.

    Columns that are 0 in every rado belong to values that no row has, and are not in use. The one-hot columns of a
    feature sum to 1 in every row, and the intercept is a constant too, as is a column that is proportional to such a
    constant in every rado: each such tie between the columns costs a dimension.
    """
    used = np.abs(rados).max(axis=0) > 0
    if columns is not None:
        used &= np.isin(np.arange(len(used)), columns)
    names = list(domain.feature_names)
    ones: list[Matrix] = []  # combinations of the columns that are 1 in every row
    if domain.kernel is None:
        for name, column in domain.columns.items():
            group = column.feature_names(name)
            if group != [name]:
                ones.append(np.isin(names, group).astype(np.float64))
    if domain.intercept:
        ones.append(np.eye(len(names))[-1] / domain.intercept)
    constant = rados @ ones[-1] if ones else np.zeros(len(rados))
    size = float(constant @ constant)
    for k in np.flatnonzero(used) if size else ():
        factor = float(rados[:, k] @ constant) / size
        if factor and np.abs(rados[:, k] - factor * constant).max() <= 1e-12 * np.abs(rados[:, k]).max():
            ones.append(np.eye(len(names))[k] / factor)
    ties = np.array([one - ones[-1] for one in ones[:-1]])[:, used] if len(ones) > 1 else np.zeros((0, 1))
    return int(used.sum()) - (int(np.linalg.matrix_rank(ties)) if ties.size else 0)


def span_test(rados: Matrix, candidates: Matrix, dimension: int | None = None) -> SpanTest:
    """Were these rows summed in the rados? Needs no signature: rados lie in the span of the examples.

    With d > m features and at least m rados, the span of the rados is the span of the examples, and a row from
    outside is not in it. Where the rados span all that rows of their kind can, ``dimension`` (by default, one for
    each column; see :func:`spannable`), any row lies in it, and the test says nothing.
    """
    _, values, basis = np.linalg.svd(rados, full_matrices=False)
    rank = int((values > values.max(initial=0.0) * max(rados.shape) * 2.0**-48).sum())
    inside = candidates @ basis[:rank].T @ basis[:rank]
    length = np.linalg.norm(candidates, axis=1)
    distance = np.linalg.norm(candidates - inside, axis=1)
    most = rados.shape[1] if dimension is None else dimension
    return SpanTest(rank < most, rank, distance / np.where(length > 0, length, 1.0))


def invert_hadamard(rados: Matrix) -> tuple[Matrix, Matrix]:
    """The mean operator and the bucket sums behind Hadamard rados: B' = (2/N) H rados. No secret is needed.

    A bucket that holds one example shows it up to its sign.
    """
    count = len(rados)
    if count & (count - 1):
        raise UsageError(f"Hadamard rados come in powers of two, got {count}")
    sketch = walsh_hadamard(rados) * (2.0 / count)
    return sketch[0], sketch[1:]


def matched(found: Matrix, edges: Matrix, *, tolerance: float = 1e-6) -> int:
    """How many of ``edges`` appear in ``found`` up to sign: for an owner who can check an attack against the rows."""
    from scipy.spatial import cKDTree

    scale = max(float(np.abs(edges).max(initial=0.0)), 1e-300)
    wanted = edges[np.linalg.norm(edges, axis=1) > 0]
    if not len(found) or not len(wanted):
        return 0
    tree = cKDTree(np.concatenate([found, -found]))
    distances, _ = tree.query(wanted, distance_upper_bound=tolerance * scale * math.sqrt(edges.shape[1]))
    return int(np.isfinite(distances).sum())
