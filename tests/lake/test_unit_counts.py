"""Units counted out of core: exact, with bounded memory, whatever a footer says and whichever worker dies."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
import tracemalloc
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from daskrado.cli.bench.units import units_figures
from daskrado.cluster import ClusterConfig, connect
from daskrado.errors import DataError
from daskrado.lake import unit_counts
from daskrado.lake.collect import collect
from daskrado.lake.fingerprint import ColumnFacts
from daskrado.lake.scan import Lake, open_lake
from daskrado.lake.unit_counts import Counting, ScratchArray, count_here, stretches
from daskrado.lake.unit_shuffle import ClusterWeights
from daskrado.lake.units import units_of
from daskrado.privacy.protect import Protect
from daskrado.statistics import Moments
from daskrado.statistics.bounded import unit_weights
from daskrado.table.domain import Domain
from daskrado.table.lattice import Lattice
from daskrado.table.yaml_file import parse

KEY = bytes(range(32))
LATTICE = Lattice(1.5, 11)
DOMAIN = parse(
    Domain,
    {
        "id": "visit",
        "label": {"column": "y", "positive": 1, "negative": 0},
        "norm_bound": 1.5,
        "columns": {"a": {"kind": "numeric", "lower": -2, "upper": 2}},
    },
    "here",
)
SPREAD = Protect.model_validate({"relation": "add_remove", "unit": {"column": "patient", "name": "one patient"}})


def people(rows: int, units: int) -> pd.DataFrame:
    draw = np.random.default_rng(rows)
    rest = {"a": draw.normal(size=rows), "y": draw.integers(0, 2, rows)}
    return pd.DataFrame({"visit": np.arange(rows), "patient": draw.integers(0, units, rows), **rest})


def lake_of(folder: Path, frame: pd.DataFrame, parts: int, group: int = 1000) -> Lake:
    folder.mkdir()
    for i, part in enumerate(np.array_split(np.arange(len(frame)), parts)):
        table = pa.Table.from_pandas(frame.iloc[part], preserve_index=False)
        pq.write_table(table, folder / f"{i:03}.parquet", row_group_size=group)
    return open_lake(str(folder), DOMAIN)


def summed(lake: Lake, **options: Any) -> list[int]:
    units = units_of(lake, SPREAD, KEY, None, client=options.get("client"), report=options.pop("report", None))
    return collect(Moments(DOMAIN.width), lake, DOMAIN, LATTICE, units=units, **options).vector.tolist()


def test_stretches_cover_the_lake_once_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unit_counts, "STRETCH_ROWS", 2500)
    lake = lake_of(tmp_path / "lake", people(23_000, 50), 4)
    cuts = stretches(lake.partitions)
    assert [cut.first for cut in cuts] == np.cumsum([0, *(cut.rows for cut in cuts)])[:-1].tolist()
    assert sum(cut.rows for cut in cuts) == 23_000
    assert max(cut.rows for cut in cuts) <= 2500
    read = [table["visit"].to_numpy() for cut in cuts for table in cut.tables(["visit"])]
    assert np.concatenate(read).tolist() == list(range(23_000))


@pytest.mark.parametrize("record", [None, "visit"])
def test_buckets_in_scratch_files_count_as_a_dictionary_does(
    record: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = people(9000, 700)
    lake = lake_of(tmp_path / "lake", frame, 5, group=400)
    for name, value in (("STRETCH_ROWS", 900), ("BUCKET_ROWS", 1000), ("_IN_MEMORY", 0)):
        monkeypatch.setattr(unit_counts, name, value)
    weights = count_here(Counting("patient", 3, record, KEY), lake.partitions).cut(0, 9000)
    owned = Counter(frame.patient)
    if record is None:
        assert weights.tolist() == unit_weights(np.array([owned[p] for p in frame.patient]), 3).tolist()
    else:
        kept = frame[weights > 0]
        assert Counter(kept.patient) == {p: min(3, n) for p, n in owned.items()}


def test_row_groups_with_few_and_with_many_rows_of_a_person_count_alike(tmp_path: Path) -> None:
    """Some make a record for each row, some one for each id, and an id may be in both."""
    draw = np.random.default_rng(5)
    few, many = draw.permutation(4000)[:1000], draw.integers(0, 40, 1000)
    frame = people(5000, 10).assign(patient=np.concatenate([few, many, draw.permutation(1000), many, few]))
    lake = lake_of(tmp_path / "lake", frame, 2, group=500)
    tables = [table for cut in stretches(lake.partitions) for table in cut.tables(["patient"])]
    counting = Counting("patient", 1, None, KEY)
    assert {len(counting.records([table], 0)) == table.num_rows for table in tables} == {True, False}
    owned = Counter(frame.patient)
    expected = unit_weights(np.array([owned[p] for p in frame.patient]), 1)
    assert count_here(counting, lake.partitions).cut(0, 5000).tolist() == expected.tolist()
    placed = counting.weigh(counting.records(tables, 0))
    with pytest.raises(DataError, match="changed while"):
        counting.expand(tables[:1], 0, placed[1:][placed["place"][1:] < 500], 500)


def test_memory_of_this_process_does_not_grow_with_the_number_of_people(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("STRETCH_ROWS", 4000), ("BUCKET_ROWS", 8000), ("_IN_MEMORY", 0)):
        monkeypatch.setattr(unit_counts, name, value)
    peaks = []
    for rows in (40_000, 400_000):
        lake = lake_of(tmp_path / str(rows), people(rows, rows), 8, group=4000)
        counting = Counting("patient", 1, None, KEY)
        gc.collect()
        tracemalloc.start()
        weights = count_here(counting, lake.partitions)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert np.count_nonzero(weights.cut(0, rows)) == rows
    assert peaks[1] < 1.5 * peaks[0]  # ten times as many people; a weight of 4 bytes for each would be 1.4 MB more
    assert peaks[1] - peaks[0] < 400_000


@pytest.mark.cluster
def test_workers_keep_weights_in_scratch_files_and_the_driver_none(
    tmp_path: Path, two_workers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unit_counts, "STRETCH_ROWS", 3000)
    lake = lake_of(tmp_path / "lake", people(30_000, 20_000), 6)
    units = units_of(lake, SPREAD, KEY, None, client=two_workers)
    assert units is not None
    assert isinstance(units.weights, ClusterWeights)
    with pytest.raises(TypeError, match="not copied"):
        pickle.dumps(units.weights)
    sizes = two_workers.submit(lambda held: (sys.getsizeof(held), type(held).__name__), units.weights._held[0])
    assert sizes.result()[0] < 200
    assert sizes.result()[1] == "ScratchArray"
    here = collect(Moments(DOMAIN.width), lake, DOMAIN, LATTICE, units=units_of(lake, SPREAD, KEY, None))
    there = collect(Moments(DOMAIN.width), lake, DOMAIN, LATTICE, units=units, client=two_workers)
    assert there.vector.tolist() == here.vector.tolist()
    assert (
        units.weights.cut(2500, 1000).tolist() == count_here(units.counting, lake.partitions).cut(2500, 1000).tolist()
    )


@pytest.mark.cluster
def test_a_dask_frame_and_wishes_of_a_cluster_file_are_no_obstacle(two_workers: Any) -> None:
    import dask
    import dask.dataframe as dd

    frame = people(900, 200)
    lake = open_lake(dd.from_pandas(frame, npartitions=3), DOMAIN)
    with dask.annotate(priority=3):
        assert summed(lake, client=two_workers) == summed(open_lake(frame, DOMAIN))


def test_a_scratch_array_travels_with_its_content() -> None:
    array = np.arange(1000, dtype=np.uint16)
    assert pickle.loads(pickle.dumps(ScratchArray(array))).array.tolist() == array.tolist()
    assert "1" not in repr(ScratchArray(array))


@pytest.mark.cluster
@pytest.mark.parametrize("moment", ["counting", "between", "passing"])
def test_a_worker_killed_at_any_stage_changes_no_bit(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unit_counts, "STRETCH_ROWS", 2000)
    lake = lake_of(tmp_path / "lake", people(48_000, 20_000), 12)
    expected = summed(lake)
    with connect(ClusterConfig(kind="local", workers=2)) as client:
        assert client is not None
        killed: list[int] = []

        def kill_once(done: int = 0, total: int = 1) -> None:
            if not killed and done < total:
                killed.append(next(iter(client.run(os.getpid).values())))
                os.kill(killed[0], signal.SIGKILL)

        report = kill_once if moment == "counting" else None
        units = units_of(lake, SPREAD, KEY, None, client=client, report=report)
        if moment == "between":
            kill_once()
        progress = kill_once if moment == "passing" else None
        options = {"units": units, "client": client, "progress": progress}
        found = collect(Moments(DOMAIN.width), lake, DOMAIN, LATTICE, **options)
        assert killed
        assert found.vector.tolist() == expected


def test_a_footer_that_errs_splits_nobody_in_two(tmp_path: Path) -> None:
    """Spans that say that files share no patient, where one has rows in both: what is outside counts as nothing."""
    frame = people(400, 40)
    lake = lake_of(tmp_path / "lake", frame, 2)
    assert lake.spans("patient") is None
    lie = replace(lake, facts=({"patient": ColumnFacts(0, 0, 19)}, {"patient": ColumnFacts(0, 20, 39)}))
    units = units_of(lie, SPREAD, KEY, None)
    assert units is not None
    assert units.spans is not None
    weights = np.concatenate([found for _, found in units.of_lake(lie)]).astype(int)
    total = frame.assign(weight=weights).groupby("patient")["weight"].sum()
    assert total.max() <= 1 << 14
    first = np.arange(400) < 200
    assert (weights[first & (frame.patient >= 20)] == 0).all()
    assert (weights[~first & (frame.patient < 20)] == 0).all()


@pytest.mark.cluster
@pytest.mark.parametrize("how", ["spread", "sample"])
def test_a_sorted_lake_needs_no_shuffle_though_people_lie_across_its_files(
    how: str, tmp_path: Path, two_workers: Any
) -> None:
    protect = Protect.model_validate(
        {"relation": "add_remove", "unit": {"column": "patient", "name": "one", "bound": 2, "how": how}}
    )
    frame = people(700, 60).sort_values("patient", kind="stable")
    frame.loc[frame.patient.between(20, 29), "patient"] = 20  # one person in several whole files
    mixed, lake = (
        lake_of(tmp_path / "mixed", frame.sample(frac=1, random_state=2), 3),
        lake_of(tmp_path / "s", frame, 9),
    )
    found = []
    for source, client in ((mixed, None), (lake, None), (lake, two_workers)):
        units = units_of(source, protect, KEY, "visit", client=client)
        assert units is not None
        assert (units.weights is None) == (source is lake)
        options = {"units": units, "client": client}
        found.append(collect(Moments(DOMAIN.width), source, DOMAIN, LATTICE, **options).vector.tolist())
    assert found[0] == found[1] == found[2]
    assert len(units.edges.weights) >= 5
    assert units.edges.kept.size == (0 if how == "spread" else 2 * len(units.edges.weights))
    assert "20" not in repr(units)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.int32(), pa.uint64()])
def test_ids_of_any_type_are_counted_alike(kind: pa.DataType, tmp_path: Path) -> None:
    frame = people(600, 50)
    expected = summed(lake_of(tmp_path / "numbers", frame, 3))
    (tmp_path / "other").mkdir()
    for i, part in enumerate(np.array_split(np.arange(600), 4)):
        table = pa.Table.from_pandas(frame.iloc[part], preserve_index=False)
        ids = table["patient"].cast(kind)
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            blank = pa.array([" "] * 3 + [None], kind)
            nobody = table.slice(0, 4).set_column(1, "patient", blank)
            table = pa.concat_tables([table.set_column(1, "patient", ids), nobody])
        else:
            table = table.set_column(1, "patient", ids)
        pq.write_table(table, tmp_path / "other" / f"{i}.parquet")
    assert summed(open_lake(str(tmp_path / "other"), DOMAIN)) == expected


@pytest.mark.cluster
def test_the_bench_of_units_measures_both_ways() -> None:
    found = units_figures(4000, 3, 1000, memory_limit="1GB")
    assert found["clustered"]["counted_by"] == "tasks"
    assert found["shuffled"]["counted_by"] == "shuffle"
    assert all(found[form]["ratio"] > 0 for form in ("clustered", "shuffled"))
