"""Rows that are held out: a keyed hash of an id decides, never a row's place or content.

All rows of one id are on the same side, in any partitioning of the lake and in every run. The key is public and
follows from the data set's name, so that a data set has one partition for each column and share, or number of folds.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field, model_validator

from daskrado.errors import DataError
from daskrado.lake.frame_columns import id_type
from daskrado.lake.scan import Lake
from daskrado.lake.unit_ids import type_problem, unit_hashes
from daskrado.table.nearest import no_column
from daskrado.table.yaml_file import Frozen

TRAINING, HELD_OUT = "training", "held out"


class Fold(Frozen):
    """One of ``of`` folds: 0, 1, ... ``of`` - 1."""

    fold: int = Field(ge=0)
    of: int = Field(ge=2, le=100)

    @model_validator(mode="after")
    def _is_one_of_them(self) -> Fold:
        if self.fold >= self.of:
            raise ValueError(f"folds are counted from 0 to {self.of - 1}, got {self.fold}")
        return self


@dataclass(frozen=True)
class Part:
    """The rows that are held out of a data set, or those that are not: a share of the ids in ``column``, or a fold.

    Of a hash h below 2^64 the share s holds out h < s 2^64, and fold j of k holds out j <= h k / 2^64 < j + 1, so
    that the folds of one k are disjoint and hold every id.
    """

    dataset: str
    column: str
    share: float | Fold
    name: str

    @property
    def partition(self) -> str:
        """What tells this partition of the data set from others."""
        if isinstance(self.share, Fold):
            return f"{self.share.of} folds by {self.column}"
        return f"{self.share!r} held out by {self.column}"  # all digits: another share is another partition

    @property
    def names(self) -> tuple[str, ...]:
        """The parts of the partition that these rows are: one, or all folds but one."""
        if not isinstance(self.share, Fold):
            return (self.name,)
        mine = (number for number in range(self.share.of) if (number == self.share.fold) == (self.name == HELD_OUT))
        return tuple(f"fold {number}" for number in mine)

    def absent(self, table: pa.Table) -> NDArray[np.bool_]:
        """Which rows of a table are not in this part; one without an id is in none."""
        key = hashlib.blake2b(f"daskrado held out of {self.dataset}".encode(), digest_size=32).digest()
        found = unit_hashes(table.column(self.column), key)
        if isinstance(self.share, Fold):
            held = folds(found[:, 0], self.share.of) == self.share.fold
        else:
            held = found[:, 0] < np.uint64(int(self.share * 2**64))
        return np.asarray(~found.any(axis=1) | (held != (self.name == HELD_OUT)))


def folds(hashes: NDArray[np.uint64], of: int) -> NDArray[np.int64]:
    """The fold of each hash: as many equal stretches of 0 to 2^64 - 1."""
    edges = np.array([-(-(number << 64) // of) for number in range(1, of)], dtype=np.uint64)
    return np.asarray(np.searchsorted(edges, hashes, side="right"), dtype=np.int64)


def check_column(lake: Lake, column: str) -> None:
    """Refuse an id column that the lake's schema shows to be unusable."""
    for path, schema in lake.schemas or (("", lake.schema),):
        where = f"{path}: holdout by {column!r}".removeprefix(": ")
        if column not in schema.names:
            raise DataError(f"{where}: {no_column(column, schema.names)}")
        if (problem := type_problem(id_type(schema.field(column)))) is not None:
            raise DataError(f"{where}: it {problem.replace('a unit is', 'ids are')}")
