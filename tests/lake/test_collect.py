"""The one reduction: the same bits in this process, on workers, in any partitioning, and after a worker is killed."""

from __future__ import annotations

import dataclasses
import os
import pickle
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daskrado.cluster import ClusterConfig, connect
from daskrado.errors import DataError
from daskrado.lake import collect as collecting
from daskrado.lake import crew, dealing
from daskrado.lake import partial as partials
from daskrado.lake.collect import Partial, collect
from daskrado.lake.scan import open_lake
from daskrado.lake.seeds import SignatureKey
from daskrado.statistics import BalancedRados, HadamardRados, MeanOperator, Moments, Statistic, UniformRados
from daskrado.statistics.boosting import WeightedEdges
from daskrado.statistics.moments import FINE
from daskrado.table.domain import Domain
from daskrado.table.lattice import Lattice

Clinic = Callable[..., tuple[Path, Domain]]
KEY = SignatureKey.from_seed(3)
ROWS = 3000


def statistics(width: int) -> list[Statistic]:
    return [
        MeanOperator(width),
        Moments(width),
        HadamardRados(width, 64),
        UniformRados(width, 10),
        BalancedRados(width, 10),
    ]


def vectors(source: Any, domain: Domain, client: Any = None, *, strict: bool = False) -> list[np.ndarray]:
    lake = open_lake(source, domain, ids=domain.id is not None, strict=strict)
    lattice = Lattice(domain.norm_bound, 16)
    return [
        collect(s, lake, domain, lattice, key=KEY, client=client, strict=strict).vector
        for s in statistics(domain.width)
    ]


def same(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.cluster
def test_partitionings_shuffled_files_and_workers_give_the_same_bits(
    clinic: Clinic, two_workers: Any, tmp_path: Path
) -> None:
    path, domain = clinic(ROWS, 1)
    here = vectors(path, domain)
    for partitions in (1, 2, 7, 64):
        path, domain = clinic(ROWS, partitions)
        assert same(vectors(path, domain, two_workers), here)
    files = sorted(str(p) for p in path.glob("*.parquet"))
    random.Random(1).shuffle(files)
    assert same(vectors(files, domain, two_workers), here)
    frame = pd.concat([pd.read_parquet(f) for f in files])
    assert same(vectors(frame, domain, two_workers), here)
    import dask.dataframe as dd

    assert same(vectors(dd.from_pandas(frame, npartitions=5), domain, two_workers), here)


@pytest.mark.cluster
@pytest.mark.parametrize(("threads", "runs"), [(1, [71]), (2, [64, 7]), (3, [8] * 8 + [7]), (20, [1] * 71)])
def test_tasks_that_read_several_small_files_give_the_same_bits(
    clinic: Clinic, two_workers: Any, monkeypatch: pytest.MonkeyPatch, threads: int, runs: list[int]
) -> None:
    """Also of float sums, which depend on the order: runs of files are whole groups of the tree of merges."""
    path, domain = clinic(ROWS, 71)
    lake = open_lake(path, domain, ids=True)
    floats = WeightedEdges(domain.width, theta=tuple(np.linspace(-1e-5, 1e-5, domain.width)))
    one = ROWS // 71 * partials.row_bytes(domain)
    sums = lambda client: [  # noqa: E731
        *vectors(path, domain, client),
        *[v for memory in (0, None, 12 * one) for v in _passes(lake, domain, client, floats, memory)],
    ]
    here, seen = sums(None), []
    plain = crew.cut

    def few(partitions: Any, width: int, _threads: int) -> Any:
        seen.append([len(run) for run in plain(partitions, width, threads)])
        return plain(partitions, width, threads)

    monkeypatch.setattr(crew, "cut", few)
    monkeypatch.setattr(dealing, "LEAST_TASKS", 1)
    assert same(sums(two_workers), here)
    assert seen[:7] == [runs] * 7
    assert seen[7:9] == [[], []]  # all rows are kept: nothing is read again
    assert all(71 - 24 <= sum(read) < 71 for read in seen[9:])  # a dozen files stay on each of the two workers


@pytest.mark.cluster
def test_rows_that_have_no_room_in_memory_go_to_scratch_files(
    clinic: Clinic, two_workers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No worker is promised memory: rows are written once, read from there in the next pass, and leave nothing."""

    def scratch_files() -> int:
        """Mapped files of a worker that have no name."""
        return sum("dask" in line and "(deleted)" in line for line in open("/proc/self/maps"))

    path, domain = clinic(ROWS, 7)
    lake = open_lake(path, domain)
    monkeypatch.setattr(crew, "promised", lambda client, ticket, wanted: {})
    lattice, statistic = Lattice(domain.norm_bound, 16), Moments(domain.width)
    with collecting.open_passes(lake, domain, lattice, client=two_workers) as passes:
        found = [passes.sum(statistic).vector for _ in range(3)]
        assert passes._crew is not None
        stores = two_workers.gather([piece.store for piece in passes._crew._kept or ()])
        assert sum(len(piece.partitions) for piece in passes._crew._kept or ()) == 7
        assert all(store.limit == 0 for store in stores)
        held = two_workers.run(scratch_files)
    expected = collect(statistic, lake, domain, lattice).vector
    assert all(np.array_equal(vector, expected) for vector in found)
    assert sum(names > 0 for names in held.values()) == 2
    gone = lambda: not any(two_workers.run(scratch_files).values())  # noqa: E731
    deadline = time.monotonic() + 60
    while not gone() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert gone()


def _passes(lake: Any, domain: Domain, client: Any, statistic: Any, memory: int | None) -> list[np.ndarray]:
    lattice = Lattice(domain.norm_bound)
    with collecting.open_passes(lake, domain, lattice, placed=True, client=client, memory=memory) as passes:
        return [passes.sum(statistic).vector for _ in range(2)]  # as read, and as kept


def test_a_task_reads_no_more_than_its_share() -> None:
    part = dataclasses.make_dataclass("part", ["rows"])
    row = dealing.TASK_BYTES // 100 // 8  # of one feature: a hundredth of what a task may read
    shape = lambda sizes, threads: [len(r) for r in dealing.cut([part(s * row) for s in sizes], 1, threads)]  # noqa: E731
    assert shape([12] * 800, 1) == [8] * 100
    assert shape([1] * 512, 1) == [64] * 8
    assert shape([1] * 511, 1) == [64] * 7 + [63]
    assert shape([1] * 512, 2) == [8] * 64
    assert shape([12] * 800 + [13] * 8, 1) == [1] * 808
    assert shape([500, 1], 4) == [1, 1]


@given(st.lists(st.integers(0, 120), min_size=1, max_size=6), st.integers(1, 30))
def test_all_partitions_are_dealt_where_there_is_room(rooms: list[int], count: int) -> None:
    """Partitions of 10 bytes: each is dealt once, in order; none is left over unless every room is full."""
    part = dataclasses.make_dataclass("part", ["rows", "number"])
    parts = [part(10, number) for number in range(count)]
    slots = [(str(number), room) for number, room in enumerate(rooms)]
    dealt = list(dealing.deal(parts, slots, 1))
    assert [p.number for *_, run in dealt for p in run] == list(range(min(count, sum(room // 10 for room in rooms))))
    assert all(10 * len(run) == used <= rooms[int(home)] for home, used, _, _, run in dealt)
    assert all((place, first) == (run[0].number, 10 * run[0].number) for *_, place, first, run in dealt)
    if min(rooms) >= 10 * count:
        assert max(len(run) for *_, run in dealt) == -(-count // len(rooms))


@pytest.mark.cluster
@pytest.mark.parametrize("victim", [0, 1])
def test_a_worker_killed_in_mid_run_changes_no_bit(clinic: Clinic, victim: int) -> None:
    path, domain = clinic(ROWS, 64)
    expected = vectors(path, domain)[2]
    with connect(ClusterConfig(kind="local", workers=2)) as client:
        assert client is not None
        killed: list[int] = []

        def kill_once(done: int, total: int) -> None:
            if not killed and done < total:
                pid = list(client.run(os.getpid).values())[victim]
                os.kill(pid, signal.SIGKILL)
                killed.append(done)

        lake = open_lake(path, domain, ids=True)
        lattice = Lattice(domain.norm_bound, 16)
        got = collect(
            HadamardRados(domain.width, 64), lake, domain, lattice, key=KEY, client=client, progress=kill_once
        )
        assert killed
        assert killed[0] < 64
        assert np.array_equal(got.vector, expected)


@pytest.mark.cluster
def test_neither_key_nor_sums_show_in_the_graph_or_on_the_scheduler(clinic: Clinic, two_workers: Any) -> None:
    path, domain = clinic(ROWS, 7)
    secret = SignatureKey.secret()
    seen: list[bytes] = []

    def look(done: int, total: int) -> None:
        # Everything that the scheduler holds about tasks while the run is under way.
        def dump(dask_scheduler: Any) -> list[bytes]:
            return [pickle.dumps(t.run_spec) + t.key.encode() for t in dask_scheduler.tasks.values() if t.run_spec]

        seen.extend(two_workers.run_on_scheduler(dump))

    lake = open_lake(path, domain, ids=True)
    collect(
        UniformRados(domain.width, 10),
        lake,
        domain,
        Lattice(domain.norm_bound, 16),
        key=secret,
        client=two_workers,
        progress=look,
    )
    assert seen
    assert not any(secret.key_bytes() in blob for blob in seen)
    assert secret.key_bytes().hex() not in repr(secret)
    assert repr(Partial(np.arange(5), 5)) == "<Partial of 5 private numbers>"


@pytest.mark.cluster
def test_problems_on_workers_come_back_as_one_data_error(clinic: Clinic, two_workers: Any) -> None:
    path, domain = clinic(ROWS, 2)
    frame = pd.concat([pd.read_parquet(f) for f in sorted(path.glob("*.parquet"))])
    frame.loc[frame.index[5], "readmitted"] = "perhaps"
    with pytest.raises(DataError, match=r"label outside \['yes', 'no'\]") as caught:
        vectors(frame, domain, two_workers, strict=True)
    assert "perhaps" not in str(caught.value)


@pytest.mark.parametrize("bad", [4, 17])
def test_a_refusal_tells_no_number_of_rows(clinic: Clinic, tmp_path: Path, bad: int) -> None:
    path, domain = clinic(ROWS, 2)
    rows = pd.read_parquet(path / "part-00000.parquet").iloc[:20]
    rows.loc[rows.index[:bad], "readmitted"] = "perhaps"
    for i in range(len(rows)):
        rows.iloc[[i]].to_parquet(tmp_path / f"{chr(97 + i)}.parquet")
    with pytest.raises(DataError) as caught:
        vectors(tmp_path, domain, strict=True)
    assert [part.partition(".parquet")[0][-1] for part in str(caught.value).split("; ")] == ["a", "b", "c"]
    assert str(caught.value).endswith("(and others)")


def test_progress_reaches_the_total(clinic: Clinic) -> None:
    path, domain = clinic(ROWS, 7)
    steps: list[tuple[int, int]] = []
    collect(
        MeanOperator(domain.width),
        open_lake(path, domain),
        domain,
        Lattice(domain.norm_bound),
        progress=lambda done, total: steps.append((done, total)),
    )
    assert steps == [(i, 7) for i in range(1, 8)]


def test_the_sums_are_those_of_plain_python(clinic: Clinic) -> None:
    """Independent check: big integers, row by row, from the encoded rows."""
    from daskrado.table.encoding import encode_table, needed_columns

    path, domain = clinic(300, 2)
    lattice = Lattice(domain.norm_bound, 20)
    lake = open_lake(path, domain)
    mean = [0] * domain.width
    second = [[0] * domain.width for _ in range(domain.width)]
    for partition in lake.partitions:
        for _, table in partition.tables(needed_columns(domain)):
            encoded = encode_table(domain, table)
            x = encoded.block(0, encoded.length, np.empty((encoded.length, domain.width), order="F"))
            for row, y in zip(lattice.quantise(x).tolist(), encoded.labels.tolist(), strict=True):
                whole = [int(v) for v in row]
                for i, a in enumerate(whole):
                    mean[i] += y * a
                    for j in range(i, domain.width):
                        second[i][j] += a * whole[j]
    got = collect(Moments(domain.width), lake, domain, lattice).vector.tolist()
    assert got == [m << FINE for m in mean] + [
        second[i][j] for i in range(domain.width) for j in range(i, domain.width)
    ]


def test_secret_keys_differ_and_public_seeds_repeat(clinic: Clinic) -> None:
    path, domain = clinic(ROWS, 2)
    lake = open_lake(path, domain, ids=True)
    statistic, lattice = UniformRados(domain.width, 10), Lattice(domain.norm_bound, 16)

    def once(key: SignatureKey | None) -> np.ndarray:
        return collect(statistic, lake, domain, lattice, key=key).vector

    assert np.array_equal(once(SignatureKey.from_seed(1)), once(SignatureKey.from_seed(1)))
    assert not np.array_equal(once(SignatureKey.from_seed(1)), once(SignatureKey.from_seed(2)))
    assert not np.array_equal(once(None), once(None))


def test_one_row_group_is_held_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, draw = 50_000, np.random.default_rng(1)
    table = pa.table({**{name: draw.normal(size=4 * rows) for name in "abc"}, "y": draw.random(4 * rows) < 0.5})
    pq.write_table(table, tmp_path / "one.parquet", row_group_size=rows)
    group = table.nbytes / 4
    del table
    columns = {name: {"kind": "numeric", "lower": -4, "upper": 4} for name in "abc"}
    label = {"column": "y", "positive": True, "negative": False}
    domain = Domain.model_validate({"label": label, "norm_bound": 1.0, "columns": columns})
    before, held = pa.total_allocated_bytes(), []
    encode = partials.encode_table

    def weighed(*arguments: Any, **options: Any) -> Any:
        held.append(pa.total_allocated_bytes() - before)
        return encode(*arguments, **options)

    monkeypatch.setattr(partials, "encode_table", weighed)
    collect(MeanOperator(domain.width), open_lake(str(tmp_path), domain), domain, Lattice(1.0))
    assert len(held) == 4
    assert max(held) < 1.5 * group
