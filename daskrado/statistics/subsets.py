"""Uniform subsets of exact size of all rows of a lake, drawn piece by piece by whoever reads a piece.

Rows are numbered through the lake. A binary tree halves them down to leaves of LEAF rows; at each node the number
that falls into the left half is hypergeometric, and inside a leaf the subset is uniform. So the union is exactly a
uniform subset of its size, every task can work out its own part from the key and the row count in the footers, and
the subset does not depend on how the lake is cut into files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import UsageError
from daskrado.statistics.base import Place

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

LEAF = 1 << 13
MOST_ROWS = 10**9 - 1  # of NumPy's hypergeometric sampler

Sizes = NDArray[np.int64]


def stream(key: bytes, name: str) -> np.random.Philox:
    """A counter-based generator that is a pure function of a key and a name."""
    words = np.frombuffer(hashlib.blake2b(name.encode(), key=key, digest_size=32).digest(), dtype=np.uint64)
    return np.random.Philox(key=words[:2], counter=[0, 0, words[2], words[3]])


def check_population(rows: int, what: str) -> None:
    """Refuse a lake that the exact samplers cannot number."""
    if rows > MOST_ROWS:
        raise UsageError(f"{what} need a lake of at most {MOST_ROWS:,} rows, this one has more")


def leaf_sizes(key: bytes, total: int, sizes: Sizes, leaf: int) -> Sizes:
    """How many of each subset's members fall into a leaf: multivariate hypergeometric over all leaves."""
    low, high, held = 0, -(-total // LEAF), sizes
    while high - low > 1:
        middle = (low + high) // 2
        left = middle * LEAF - low * LEAF
        right = min(high * LEAF, total) - middle * LEAF
        draw = np.random.Generator(stream(key, f"split\0{low}\0{high}"))
        taken = draw.hypergeometric(left, right, held).astype(np.int64)
        if leaf < middle:
            high, held = middle, taken
        else:
            low, held = middle, held - taken
    return held


def leaf_members(key: bytes, total: int, sizes: Sizes, leaf: int) -> csr_matrix:
    """Members of every subset inside one leaf, as a 0/1 matrix of subsets by the leaf's rows."""
    from scipy.sparse import csr_matrix

    held = leaf_sizes(key, total, sizes, leaf)
    rows = min(LEAF, total - leaf * LEAF)
    draw = np.random.Generator(stream(key, f"leaf\0{leaf}"))
    members = [draw.choice(rows, size=k, replace=False, shuffle=False) for k in held.tolist()]
    starts = np.concatenate([[0], np.cumsum(held)])
    indices = np.concatenate(members) if members else np.zeros(0, dtype=np.int64)
    return csr_matrix((np.ones(len(indices)), indices, starts), shape=(len(sizes), rows))


def subset_sums(place: Place, sizes: Sizes, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each subset, the sum of the rows of ``values`` that are its members; whole numbers are summed exactly."""
    total = np.zeros((len(sizes), values.shape[1]))
    for leaf, inside, outside in _leaves(place, len(values)):
        padded = np.zeros((min(LEAF, place.total - leaf * LEAF), values.shape[1]))
        padded[inside] = values[outside]
        total += leaf_members(place.key, place.total, sizes, leaf) @ padded
    return total


def membership_matrix(place: Place, sizes: Sizes, rows: int) -> NDArray[np.bool_]:
    """Members among ``rows`` rows from ``place`` on, as a dense matrix of subsets by rows: for audits and tests."""
    out = np.zeros((len(sizes), rows), dtype=bool)
    for leaf, inside, outside in _leaves(place, rows):
        out[:, outside] = leaf_members(place.key, place.total, sizes, leaf).toarray()[:, inside] > 0
    return out


def _leaves(place: Place, rows: int) -> Iterator[tuple[int, slice, slice]]:
    """The leaves that a block touches, with the rows they share, counted in the leaf and in the block."""
    for leaf in range(place.first // LEAF, -(-(place.first + rows) // LEAF)):
        start, stop = max(leaf * LEAF, place.first), min((leaf + 1) * LEAF, place.first + rows)
        yield leaf, slice(start - leaf * LEAF, stop - leaf * LEAF), slice(start - place.first, stop - place.first)
