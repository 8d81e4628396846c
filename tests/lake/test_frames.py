"""Frames of any library that speaks Arrow are lakes, and are scored, with the bits of the same rows on disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.dataframe
import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

import daskrado
from daskrado.errors import DataError, UsageError
from daskrado.lake.score import score
from daskrado.table.domain import Domain

Clinic = Callable[[int, int], tuple[Path, Domain]]
KINDS: dict[str, Callable[[pa.Table], Any]] = {
    "arrow table": lambda table: table,
    "arrow batches": lambda table: pa.RecordBatchReader.from_batches(table.schema, table.to_batches()),
    "arrow dataset": pads.dataset,
    "polars": pl.from_arrow,
    "polars categorical": lambda table: pl.from_arrow(table).with_columns(pl.col("ward").cast(pl.Categorical)),
    "duckdb": lambda table: duckdb.arrow(table),
}


@pytest.fixture
def rows(clinic: Clinic) -> tuple[Path, pa.Table, Domain]:
    path, domain = clinic(500, 2)
    return path, pa.concat_tables([pq.read_table(part) for part in sorted(path.glob("*.parquet"))]), domain


@pytest.mark.parametrize("kind", KINDS)
def test_every_frame_is_fitted_and_scored_as_its_file_is(
    kind: str, rows: tuple[Path, pa.Table, Domain], tmp_path: Path
) -> None:
    path, table, domain = rows
    options: dict[str, Any] = {"dataset": "clinic", "private": False, "workers": 0}
    from_files = daskrado.fit(str(path), domain, **options)
    result = daskrado.fit(KINDS[kind](table), domain, **options)
    assert np.array_equal(result.model.weights, from_files.model.weights)
    expected = from_files.model.predict(table.to_pandas()).tolist()
    assert result.model.predict(KINDS[kind](table)).tolist() == expected
    assert score(result.model, KINDS[kind](table), tmp_path / "scored", keep=("age",)) == table.num_rows
    assert pq.read_table(tmp_path / "scored")["predicted"].to_pylist() == expected


FIT: dict[str, Any] = {"dataset": "clinic", "epsilon": 3.0, "delta": 1e-6, "first_limit": (50.0, 1e-3)}
ALL_KINDS = KINDS | {
    "pandas": lambda table: table.to_pandas(),
    "dask": lambda table: dask.dataframe.from_pandas(table.to_pandas(), npartitions=3),
}


@pytest.mark.parametrize("learner", ["moments", "gradient"])
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_every_frame_is_learned_from_in_private_and_evaluated(
    kind: str, learner: str, rows: tuple[Path, pa.Table, Domain], tmp_path: Path
) -> None:
    """A run asks for the columns, the blocks and the units of its lake, then reads it: of a stream there is one read.

    Blocks are those of a column, units those of another; without noise to speak of, all frames give one model.
    """
    _, table, domain = rows
    count = table.num_rows
    table = table.append_column("day", pa.array([f"2026-11-{17 + i % 2}" for i in range(count)]))
    table = table.append_column("person", pa.array([i // 2 for i in range(count)]))
    options = FIT | {"ledger": tmp_path / "ledger.sqlite", "learner": learner, "workers": 0}
    unit = {"column": "person", "name": "one person"}
    fitted = daskrado.fit(ALL_KINDS[kind](table), domain, unit=unit, blocks={"column": "day", "last": 2}, **options)
    assert fitted.statement.column == "person"
    exact = daskrado.evaluate(fitted.model, ALL_KINDS[kind](table), dataset="clinic", private=False)
    wrong = np.mean(fitted.model.predict(table).to_numpy() != table[domain.label.column].to_numpy())
    assert exact.value.error.value == pytest.approx(wrong, abs=1e-12)
    paid = daskrado.evaluate(
        fitted.model, ALL_KINDS[kind](table), dataset="clinic", epsilon=20.0, ledger=tmp_path / "ledger.sqlite"
    )
    assert paid.value.error.low <= wrong <= paid.value.error.high


def test_a_stream_is_read_once_and_a_second_time_is_refused(
    rows: tuple[Path, pa.Table, Domain], tmp_path: Path
) -> None:
    """What was read has no rows any more: a private run would be paid for and learn from nobody, in silence."""
    _, table, domain = rows
    stream = KINDS["arrow batches"](table)
    ledger = tmp_path / "ledger.sqlite"
    model = daskrado.fit(stream, domain, ledger=ledger, **FIT).model
    before = ledger.read_bytes()
    again = "a stream of Arrow batches can be read once, and this one was read before; give a table"
    with pytest.raises(UsageError, match=f"lake: {again}"):
        daskrado.fit(stream, domain, ledger=ledger, **FIT)
    with pytest.raises(UsageError, match=again):
        daskrado.evaluate(model, stream, dataset="clinic", epsilon=1.0, ledger=ledger)
    with pytest.raises(UsageError, match=again):
        model.predict(stream)
    with pytest.raises(UsageError, match=again):
        score(model, stream, tmp_path / "scored")
    assert not (tmp_path / "scored").exists()
    assert ledger.read_bytes() == before


def test_a_stream_is_fitted_and_scored_by_the_estimator(rows: tuple[Path, pa.Table, Domain], tmp_path: Path) -> None:
    from daskrado.sklearn import PrivateClassifier

    _, table, domain = rows
    stream = KINDS["arrow batches"]
    fitted = PrivateClassifier(
        learner="moments",
        domain=domain,
        dataset="clinic",
        epsilon=3.0,
        delta=1e-6,
        ledger=str(tmp_path / "l.sqlite"),
        first_limit=(9.0, 1e-3),
    ).fit(stream(table))
    assert np.array_equal(fitted.predict(stream(table)), fitted.predict(table))
    assert np.array_equal(fitted.decision_function(stream(table)), fitted.decision_function(table))
    with pytest.raises(UsageError, match="these rows are private"):
        fitted.score(stream(table))


@pytest.mark.parametrize("workers", [False, True])
def test_a_dask_frame_is_fitted_and_scored_here_and_on_workers(
    rows: tuple[Path, pa.Table, Domain], tmp_path: Path, workers: bool, request: pytest.FixtureRequest
) -> None:
    path, table, domain = rows
    client = request.getfixturevalue("two_workers") if workers else None
    frame = dask.dataframe.from_pandas(table.to_pandas(), npartitions=3)
    options: dict[str, Any] = {"dataset": "clinic", "private": False}
    from_files = daskrado.fit(str(path), domain, **options)
    model = daskrado.fit(frame, domain, cluster=client, **options).model
    assert np.array_equal(model.weights, from_files.model.weights)
    expected = from_files.model.predict(table.to_pandas()).tolist()
    assert score(model, frame, tmp_path / "scored", keep=("age",), client=client) == table.num_rows
    assert pq.read_table(tmp_path / "scored")["predicted"].to_pylist() == expected
    assert model.predict(frame).compute().tolist() == expected


def test_what_is_no_frame_is_refused_without_a_word_of_its_rows(rows: tuple[Path, pa.Table, Domain]) -> None:
    _, table, domain = rows
    with pytest.raises(UsageError, match="a frame of pandas, Polars, Arrow, DuckDB or Dask, not LazyFrame"):
        daskrado.fit(pl.from_arrow(table).lazy(), domain, dataset="clinic", private=False)
    with pytest.raises(DataError, match="column 'age' is missing"):
        daskrado.fit(pl.from_arrow(table).drop("age"), domain, dataset="clinic", private=False)


def test_equal_bytes_refuse_nothing(rows: tuple[Path, pa.Table, Domain]) -> None:
    """E30: a refusal would tell whoever puts a guess beside a private file whether they are equal; see lake check."""
    path, _, domain = rows
    first, *_ = sorted(path.glob("*.parquet"))
    (path / "copy.parquet").write_bytes(first.read_bytes())
    table = pq.read_table(first)
    assert daskrado.fit(str(path), domain, dataset="clinic", private=False).rows == 500 + table.num_rows
