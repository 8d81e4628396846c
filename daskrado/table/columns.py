"""Where the features of each column lie: which of them are one-hot, which stand for a yes or no."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from daskrado.table.domain import BooleanColumn, CategoricalColumn, Column, Domain, NumericColumn


def places(domain: Domain) -> Iterator[tuple[Column, slice]]:
    """Each column with the places of its features, without its null indicator; none under a kernel."""
    start = 0
    for column in domain.columns.values() if domain.kernel is None else ():
        yield column, slice(start, start + column.size)
        start += column.size + column.flags


def one_hot(domain: Domain) -> list[slice]:
    """The places of each column of which every row has exactly one feature: categories and bins.

    >>> label = {"column": "sick", "positive": True, "negative": False}
    >>> age, sex = {"kind": "numeric", "lower": 0, "upper": 100}, {"kind": "categorical", "values": ["f", "m"]}
    >>> one_hot(Domain(label=label, columns={"age": age, "sex": sex}))
    [slice(1, 4, None)]
    """
    return [
        where
        for column, where in places(domain)
        if isinstance(column, CategoricalColumn) or (isinstance(column, NumericColumn) and column.bins is not None)
    ]


def plain_numbers(domain: Domain) -> tuple[int, ...]:
    """The places of numbers that are not cut into bins; none under a kernel."""
    return tuple(
        where.start for column, where in places(domain) if isinstance(column, NumericColumn) and column.bins is None
    )


def booleans(domain: Domain) -> list[int]:
    """The places of features that are +1 or -1."""
    return [where.start for column, where in places(domain) if isinstance(column, BooleanColumn)]


def indicators(domain: Domain) -> NDArray[np.bool_]:
    """Which features are 0 or 1: categories, bins, flags of nulls; not the intercept, which is always there."""
    found = np.zeros(domain.width, dtype=bool)
    for where in one_hot(domain):
        found[where] = True
    for column, where in places(domain):
        found[where.stop : where.stop + column.flags] = True
    return found
