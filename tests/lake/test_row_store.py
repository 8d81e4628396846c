"""Rows kept between passes: in memory up to a limit, then in scratch files that end with the process."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from daskrado.lake.partial import Job, partition_partial
from daskrado.lake.row_store import RowStore, row_bytes
from daskrado.lake.scan import open_lake
from daskrado.lake.units import Keys
from daskrado.statistics import HadamardRados, Moments
from daskrado.statistics.base import Additive
from daskrado.table.domain import Domain
from daskrado.table.lattice import Lattice

ROWS = 700
COLUMNS = {
    f"c{i}": {"kind": "numeric", "lower": 0, "upper": 1, "bins": [j / 20 for j in range(1, 20)]} for i in range(12)
}
DOMAIN = Domain.model_validate(
    {"label": {"column": "y", "positive": True, "negative": False}, "norm_bound": 3.0, "columns": COLUMNS}
)


def frame() -> pa.Table:
    draw = np.random.default_rng(1)
    return pa.table({**{name: draw.random(ROWS) for name in COLUMNS}, "y": draw.random(ROWS) < 0.5})


def total(statistic: Additive, store: RowStore) -> np.ndarray:
    (partition,) = open_lake(frame(), DOMAIN).partitions
    job = Job(statistic, DOMAIN, Lattice(3.0, 16), by_record=False, seeded=True)
    return partition_partial(job, partition, Keys(bytes(32)), partition.content, 0, store).vector


def test_a_binned_row_takes_a_byte_for_each_column() -> None:
    """Twelve codes, the intercept, a 1's worth in four bytes, the label."""
    assert row_bytes(DOMAIN, seeded=False, grouped=False) == 12 + 1 + 4 + 1


@pytest.mark.parametrize("statistic", [Moments(DOMAIN.width), HadamardRados(DOMAIN.width, 16)], ids=lambda s: s.name)
def test_memory_scratch_and_reading_again_give_the_same_bits(statistic: Additive, tmp_path: Path) -> None:
    size = ROWS * row_bytes(DOMAIN, grouped=False)
    found = []
    for store in (RowStore(0), RowStore(size), RowStore(size - 1, size, tmp_path), RowStore(0, size - 1, tmp_path)):
        found += [total(statistic, store) for _ in range(3)]
    assert all(vector.tobytes() == found[0].tobytes() for vector in found)


def test_rows_go_to_a_file_that_nobody_else_can_open(tmp_path: Path) -> None:
    size = ROWS * row_bytes(DOMAIN, grouped=False)
    store = RowStore(0, size, tmp_path)
    total(Moments(DOMAIN.width), store)
    assert (store.used, store.written) == (0, size)
    assert len(store._kept) == 1
    assert list(tmp_path.iterdir()) == []  # no name: it ends with the process, whatever ends that
    (kept,) = store._kept.values()
    for array in (kept[0].y, kept[0].features.one, *kept[0].features.parts):  # type: ignore[union-attr]
        assert array.size == 0 or not array.flags.writeable  # they lie in the file


def test_what_fits_nowhere_is_not_kept(tmp_path: Path) -> None:
    size = ROWS * row_bytes(DOMAIN, grouped=False)
    store = RowStore(size - 1, size - 1, tmp_path)
    total(Moments(DOMAIN.width), store)
    assert (store.used, store.written, len(store._kept)) == (0, 0, 0)


def test_a_folder_that_cannot_be_written_keeps_nothing(tmp_path: Path) -> None:
    store = RowStore(0, 10**9, tmp_path / "not there")
    assert np.array_equal(total(Moments(DOMAIN.width), store), total(Moments(DOMAIN.width), RowStore(0)))
    assert len(store._kept) == 0


def test_it_travels_without_rows(tmp_path: Path) -> None:
    store = RowStore(10**9, 7, tmp_path)
    total(Moments(DOMAIN.width), store)
    copy = pickle.loads(pickle.dumps(store))
    assert (copy.limit, copy.scratch, copy.folder) == (10**9, 7, tmp_path)
    assert (copy.used, len(copy._kept)) == (0, 0)
    assert repr(store) == "<RowStore of 1 partitions>"
