"""Folds of private rows: by a hash of ids, so that a search pays for each unit what reads it."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from daskrado.errors import UsageError
from daskrado.lake.frames import to_arrow
from daskrado.lake.holdout import HELD_OUT, TRAINING, Fold, Part
from daskrado.table.arrow_arrays import as_table


class Origin(NamedTuple):
    """What decided which rows are in a fold: ids of a column, or, without ``fold``, places alone."""

    dataset: str
    by: str | None
    fold: Fold | None


_KNOWN: dict[int, tuple[weakref.ref[NDArray[np.intp]], Origin]] = {}  # by the identity of arrays that live


def origin_of(indices: Any) -> Origin | None:
    """What decided places of rows that a PrivateKFold gave out; None of any others, slices and copies included."""
    given, origin = _KNOWN.get(id(indices), (None, None))
    return origin if given is not None and given() is indices else None


class PrivateKFold:
    """``n_splits`` folds of private rows, for ``cv=`` of scikit-learn's searches inside a ``daskrado.budget``.

    ``by`` is the column of ids (of units where units are protected, else of records), and must be a column of the
    frame that is searched; ``estimator.folds(5)`` knows both. A keyed hash of the id decides, by a public key that
    follows from the data set's name: all rows of a unit are in one fold, in every search. ``by=None`` cuts rows by
    their places, which is sound only where rows are replaced and keep their places (``replace_one``, ``label_flip``,
    no units); there every fit and every score is charged in full.

    Sensitivity
        A unit takes part in ``n_splits`` - 1 fits and in one score, and is charged for those alone: see
        :func:`daskrado.jobs.holdout.of_parts` for the proof. The run itself leaves the fold out, whatever rows it is
        given. Splitters of scikit-learn cut by place, by class or by the size of groups: taking one row away moves
        others from one fold to another, so that the rows of a fit differ in more than that row, and even ``n_splits``
        full charges prove nothing. They are refused.

    Reference
        McSherry (2009), parallel composition.
    """

    def __init__(self, n_splits: int = 5, *, dataset: str, by: str | None) -> None:
        Fold(fold=0, of=n_splits)
        self.n_splits = n_splits
        self.dataset = dataset
        self.by = by

    def __repr__(self) -> str:
        return f"PrivateKFold({self.n_splits}, dataset={self.dataset!r}, by={self.by!r})"

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:
        """The number of folds."""
        del X, y, groups
        return self.n_splits

    def split(self, X: Any, y: Any = None, groups: Any = None) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
        """Places of the rows of each fit, and of its score."""
        del y, groups
        for number in range(self.n_splits):
            fold = Fold(fold=number, of=self.n_splits)
            train, test = self._masks(X, fold)
            yield self._indices(train, fold), self._indices(test, fold)

    def _masks(self, X: Any, fold: Fold) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        if self.by is None:
            held = np.arange(len(X)) * fold.of // max(1, len(X)) == fold.fold
            return ~held, held
        ids = self._ids(X)
        train, test = (~Part(self.dataset, self.by, fold, name).absent(ids) for name in (TRAINING, HELD_OUT))
        return train, test

    def _indices(self, mask: NDArray[np.bool_], fold: Fold) -> NDArray[np.intp]:
        found, origin = np.flatnonzero(mask), Origin(self.dataset, self.by, None if self.by is None else fold)
        own = id(found)
        _KNOWN[own] = weakref.ref(found, lambda _: _KNOWN.pop(own, None) and None), origin
        return found

    def _ids(self, X: Any) -> pa.Table:
        table = as_table(X)
        if table is not None and self.by in table.column_names:
            return table.select([self.by])
        if isinstance(X, pd.DataFrame) and self.by in X.columns:
            return to_arrow(X, [str(self.by)])
        raise UsageError(f"folds go by column {self.by!r}, which the rows must hold: give a frame with it")
