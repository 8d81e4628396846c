"""Rows that are held out: a keyed hash of an id decides, never a row's place or content.

All rows of one id are on the same side, in any partitioning of the lake and in every run. The key is public and
follows from the data set's name, so that a data set has one partition for each column and share.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from daskrado.errors import DataError
from daskrado.lake.frame_columns import id_type
from daskrado.lake.scan import Lake
from daskrado.lake.unit_ids import type_problem, unit_hashes
from daskrado.table.nearest import no_column

TRAINING, HELD_OUT = "training", "held out"


@dataclass(frozen=True)
class Part:
    """The rows that are held out of a data set, a ``share`` of the ids in ``column``, or those that are not."""

    dataset: str
    column: str
    share: float
    name: str

    @property
    def partition(self) -> str:
        """What tells this partition of the data set from others."""
        return f"{self.share!r} held out by {self.column}"  # all digits: another share is another partition

    def absent(self, table: pa.Table) -> NDArray[np.bool_]:
        """Which rows of a table are not in this part; one without an id is in none."""
        key = hashlib.blake2b(f"daskrado held out of {self.dataset}".encode(), digest_size=32).digest()
        found = unit_hashes(table.column(self.column), key)
        held = found[:, 0] < np.uint64(int(self.share * 2**64))
        return np.asarray(~found.any(axis=1) | (held != (self.name == HELD_OUT)))


def check_column(lake: Lake, column: str) -> None:
    """Refuse an id column that the lake's schema shows to be unusable."""
    for path, schema in lake.schemas or (("", lake.schema),):
        where = f"{path}: holdout by {column!r}".removeprefix(": ")
        if column not in schema.names:
            raise DataError(f"{where}: {no_column(column, schema.names)}")
        if (problem := type_problem(id_type(schema.field(column)))) is not None:
            raise DataError(f"{where}: it {problem.replace('a unit is', 'ids are')}")
