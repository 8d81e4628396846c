"""Dates are numbers with date bounds, in files, frames, folders, SQL and drafts."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import daskrado
from daskrado.errors import DataError, UsageError
from daskrado.lake.ingest import ingest
from daskrado.lake.propose import propose
from daskrado.lake.scan import draft_schema
from daskrado.models.linear import LinearModel
from daskrado.table.arrow_arrays import in_days
from daskrado.table.domain import Domain
from daskrado.table.encoding import encode_table
from daskrado.table.yaml_file import parse, read_yaml

TEXT = """
label: {column: y, positive: 1, negative: 0}
norm_bound: 2
columns:
  seen: {kind: date, lower: 2020-01-01, upper: 2020-12-31, nulls: {fill: 2020-07-01}}
  born: {kind: date, lower: 1900-01-01, upper: 2020-01-01, bins: [1950-01-01, '1980-01-01']}
  price: {kind: numeric, lower: 0, upper: 10}
"""


@pytest.fixture
def domain(tmp_path: Path) -> Domain:
    (tmp_path / "domain.yaml").write_text(TEXT)
    return Domain.load(tmp_path / "domain.yaml")


def table(kind: pa.DataType) -> pa.Table:
    days = [dt.date(2020, 1, 1), dt.date(2020, 12, 31), dt.date(2020, 7, 1), None, dt.date(2031, 1, 1)]
    born = [
        dt.date(1949, 12, 31),
        dt.date(1950, 1, 1),
        dt.date(1979, 12, 31),
        dt.date(1980, 1, 1),
        dt.date(1999, 1, 1),
    ]
    prices = [Decimal("0.00"), Decimal("2.50"), Decimal("5.00"), Decimal("7.50"), Decimal("10.00")]
    columns = {"seen": pa.array(days).cast(kind), "born": pa.array(born).cast(kind), "price": pa.array(prices)}
    return pa.table({**columns, "y": [0, 1, 0, 1, 0]})


KINDS = [pa.date32(), pa.date64(), pa.timestamp("s"), pa.timestamp("ns"), pa.timestamp("us", "UTC")]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_date_is_scaled_between_its_bounds(domain: Domain, kind: pa.DataType) -> None:
    assert domain.feature_names[2:5] == (
        "born[1900-01-01,1950-01-01)",
        "born[1950-01-01,1980-01-01)",
        "born[1980-01-01,2020-01-01)",
    )
    encoded = encode_table(domain, table(kind))
    rows = encoded.block(0, 5, np.empty((5, domain.width), order="F"))
    share = (dt.date(2020, 7, 1) - dt.date(2020, 1, 1)) / (dt.date(2020, 12, 31) - dt.date(2020, 1, 1))
    assert rows[:, 0] == pytest.approx([-1, 1, 2 * share - 1, 2 * share - 1, 1], abs=1e-12)
    assert rows[:, 1].tolist() == [0, 0, 0, 1, 0]  # the null
    assert rows[:, 2:5].argmax(axis=1).tolist() == [0, 1, 1, 2, 2]
    assert rows[:, 5] == pytest.approx([-1, -0.5, 0, 0.5, 1])  # decimals


def test_moments_of_a_day_lie_between_days(domain: Domain) -> None:
    noon = table(pa.timestamp("us")).set_column(
        0, "seen", pa.array([dt.datetime(2020, 1, 1, 12)] * 5, pa.timestamp("us"))
    )
    rows = encode_table(domain, noon).block(0, 5, np.empty((5, domain.width), order="F"))
    assert rows[0, 0] == pytest.approx(2 * 0.5 / 365 - 1, abs=1e-12)


def test_files_folders_and_frames_agree_and_sql_gives_the_margins(
    domain: Domain, tmp_path: Path, own_ledger: Path
) -> None:
    rows = table(pa.date32())
    (tmp_path / "lake").mkdir()
    pq.write_table(rows, tmp_path / "lake/a.parquet")
    options = {"dataset": "d", "private": False, "workers": 0}
    model: LinearModel = daskrado.fit(str(tmp_path / "lake"), domain, **options).model
    assert np.array_equal(model.weights, daskrado.fit(rows, domain, **options).model.weights)
    for i in range(rows.num_rows):
        born = rows["born"][i].as_py()
        folder = tmp_path / f"tree/born={born}"
        folder.mkdir(parents=True)
        pq.write_table(rows.slice(i, 1).drop_columns(["born"]), folder / "a.parquet")
    assert np.array_equal(model.weights, daskrado.fit(str(tmp_path / "tree"), domain, **options).model.weights)
    shown = duckdb.sql(model.sql("rows").replace('"rows"', "rows")).fetchall()
    assert [row[0] for row in shown] == pytest.approx(model.margins(rows).tolist(), abs=1e-12)
    again = LinearModel.from_json(model.to_json())
    assert again.domain == domain
    assert again.domain.digest() == domain.digest()


def test_wrong_kinds_say_what_to_do(tmp_path: Path, domain: Domain) -> None:
    numeric = parse(
        Domain,
        {**read_yaml(tmp_path / "domain.yaml"), "columns": {"seen": {"kind": "numeric", "lower": 0, "upper": 1}}},
        "x",
    )
    with pytest.raises(
        DataError, match=r"'seen' is date32\[day\], but the Domain says numeric; say kind: date, with dates"
    ):
        daskrado.fit(table(pa.date32()), numeric, dataset="d", private=False)
    days = table(pa.date32())
    with pytest.raises(DataError, match="'seen' is int32, but the Domain says date"):
        daskrado.fit(days.set_column(0, "seen", days["seen"].cast(pa.int32())), domain, dataset="d", private=False)
    with pytest.raises(UsageError, match="lower"):
        parse(
            Domain,
            {
                **read_yaml(tmp_path / "domain.yaml"),
                "columns": {"seen": {"kind": "date", "lower": "soon", "upper": 3}},
            },
            "x",
        )


def test_ingest_gives_dates_their_type_and_a_draft_their_kind(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        "day,at,us,y\n2026-11-17,2026-11-17 10:30:00,11/17/2026,1\n2026-11-18,2026-11-18 09:00:00,1/1/2026,0\n"
    )
    manifest = ingest([str(tmp_path / "t.csv")], str(tmp_path / "lake"))
    assert manifest["columns"] == {"day": "date32[day]", "at": "timestamp[us]", "us": "date32[day]", "y": "int64"}
    columns = propose(draft_schema(str(tmp_path / "lake")), "y").columns
    assert [columns[name]["kind"] for name in ("day", "at", "us")] == ["date", "date", "date"]


def test_no_moment_is_too_fine_or_too_far() -> None:
    """A private run must not stop because of one row's value."""
    odd = [1234567890123456789, -(2**63) + 1, 2**63 - 1, 0]
    for unit, second in (("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)):
        found = in_days(pa.array(odd, pa.timestamp(unit)))
        assert found.to_pylist() == pytest.approx([value / second / 86400 for value in odd], rel=1e-12)
    assert in_days(pa.array([2**62], pa.int64()).cast(pa.date64(), safe=False)).to_pylist()[0] > 0
