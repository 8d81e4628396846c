"""Synthetic clinic lakes: the committed sample, tests and benchmarks all come from here.

Rows are drawn in fixed blocks from a public seed, so the same seed gives the same rows however they are partitioned.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from daskrado.errors import UsageError
from daskrado.lake.ownership import by_columns
from daskrado.lake.publish import check_free_text, new_folder
from daskrado.table.yaml_file import write_text

_BLOCK = 8192
_ROW_GROUP = 1 << 17
NAMED = 12
_MOST = {"rows": 10**12, "features": 10**4, "partitions": 10**5}
_by_making = by_columns(("patient_id", "site"), ("readmitted",))

_COLUMNS: dict[str, dict[str, Any]] = {
    "age": {"kind": "numeric", "lower": 18, "upper": 95},
    "sex": {"kind": "categorical", "values": ["F", "M"]},
    "smoker": {"kind": "boolean"},
    "bmi": {"kind": "numeric", "lower": 12, "upper": 60},
    "systolic": {"kind": "numeric", "lower": 70, "upper": 230},
    "creatinine": {"kind": "numeric", "lower": 0.2, "upper": 15, "transform": "log1p"},
    "ward": {"kind": "categorical", "values": ["cardiology", "maternity", "medicine", "oncology", "surgery"]},
    "prior_visits": {"kind": "numeric", "lower": 0, "upper": 30, "bins": [1, 3, 6]},
    "diabetic": {"kind": "boolean"},
    "haemoglobin": {"kind": "numeric", "lower": 4, "upper": 20},
    "length_of_stay": {"kind": "numeric", "lower": 0, "upper": 90, "transform": "log1p"},
    "insurance": {"kind": "categorical", "values": ["private", "public"], "nulls": {"fill": "public"}},
}
_WARDS = np.array(_COLUMNS["ward"]["values"])


def domain_content(features: int) -> dict[str, Any]:
    """The public Domain of a clinic lake, as YAML content."""
    columns = {name: dict(column) for name, column in list(_COLUMNS.items())[:features]}
    for extra in range(NAMED, features):
        columns[_extra_name(extra)] = {"kind": "numeric", "lower": -4, "upper": 4}
    return {
        "label": {"column": "readmitted", "positive": "yes", "negative": "no"},
        "id": "patient_id",
        "norm_bound": round(float(np.sqrt(len(columns) + 1.0)) * 0.75, 2),
        "intercept": 1.0,
        "columns": columns,
    }


def make_lake(
    path: str | Path, *, rows: int, features: int, partitions: int, seed: int, overwrite: bool = False
) -> Path:
    """Write ``partitions`` Parquet files under ``path`` and the Domain beside it; returns the Domain's path."""
    given = {"rows": rows, "features": features, "partitions": partitions}
    for name, value in given.items():
        most = _MOST[name]
        if not 1 <= value <= most:
            raise UsageError(f"--{name} must be between 1 and {most:,}, got {value}")
    if partitions > rows:
        raise UsageError(f"--partitions {partitions} is more than --rows {rows}")
    domain_path = Path(f"{os.fspath(path).rstrip('/')}.yaml")
    if os.path.lexists(domain_path):
        check_free_text(domain_path, overwrite=overwrite)
    with new_folder(path, overwrite=overwrite, own=_by_making) as folder:
        edges = np.linspace(0, rows, partitions + 1).astype(int)
        for number in range(partitions):
            _write_part(
                folder / f"part-{number:05d}.parquet", int(edges[number]), int(edges[number + 1]), features, seed
            )
        write_text(domain_path, yaml.safe_dump(domain_content(features), sort_keys=False))
    return domain_path


def _write_part(path: Path, start: int, stop: int, features: int, seed: int) -> None:
    writer: pq.ParquetWriter | None = None
    held: list[pa.Table] = []
    try:
        at = start
        while at < stop:
            block = at // _BLOCK
            end = min((block + 1) * _BLOCK, stop)
            held.append(_block(block, features, seed).slice(at - block * _BLOCK, end - at))
            at = end
            if at == stop or sum(table.num_rows for table in held) >= _ROW_GROUP:
                table = pa.concat_tables(held)
                if writer is None:
                    writer = pq.ParquetWriter(path, table.schema, compression="zstd", write_page_checksum=True)
                writer.write_table(table, row_group_size=_ROW_GROUP)
                held = []
    finally:
        if writer is not None:
            writer.close()


def _block(number: int, features: int, seed: int) -> pa.Table:
    """Rows number*_BLOCK .. (number+1)*_BLOCK of the endless lake of this seed: public, synthetic."""
    draw = np.random.Generator(np.random.Philox(key=[seed, number]))
    n = _BLOCK
    severity = draw.normal(size=n)
    age = np.clip(np.round(58 + 16 * draw.normal(size=n) + 4 * severity), 18, 95).astype(np.int16)
    smoker = draw.random(n) < 0.25
    diabetic = draw.random(n) < 0.12 + 0.002 * (age - 18)
    creatinine = np.round(np.exp(0.1 + 0.35 * draw.normal(size=n) + 0.2 * severity), 2)
    stay = np.clip(np.round(np.exp(1.2 + 0.6 * draw.normal(size=n) + 0.4 * severity)), 0, 90).astype(np.int16)
    visits = np.minimum(draw.poisson(np.exp(0.3 + 0.5 * severity)), 40).astype(np.int16)
    haemoglobin = np.round(13.5 - 0.8 * severity + 1.3 * draw.normal(size=n), 1)
    ward = draw.choice(5, size=n, p=[0.2, 0.1, 0.35, 0.15, 0.2])
    columns: dict[str, Any] = {
        "age": age,
        "sex": np.where(draw.random(n) < 0.52, "F", "M"),
        "smoker": smoker,
        "bmi": np.round(np.clip(27 + 5 * draw.normal(size=n), 12, 70), 1),
        "systolic": np.clip(np.round(128 + 17 * draw.normal(size=n) + 0.2 * (age - 58)), 60, 240).astype(np.int16),
        "creatinine": creatinine,
        "ward": pa.array(_WARDS[ward]),
        "prior_visits": visits,
        "diabetic": diabetic,
        "haemoglobin": haemoglobin,
        "length_of_stay": stay,
        "insurance": pa.array(np.where(draw.random(n) < 0.3, "private", "public"), mask=draw.random(n) < 0.04),
    }
    score = (
        -1.6
        + 0.035 * (age - 58)
        + 0.7 * smoker
        + 0.9 * diabetic
        + 1.1 * np.log1p(creatinine)
        + 0.35 * np.minimum(visits, 8)
        - 0.25 * (haemoglobin - 13.5)
        + 0.3 * np.log1p(stay)
        + np.array([0.6, -1.5, 0.2, 0.9, -0.4])[ward]
    )
    columns = dict(list(columns.items())[:features])
    for extra in range(NAMED, features):
        values = draw.normal(size=n)
        columns[_extra_name(extra)] = values
        score += 0.6 * np.cos(extra) * values / np.sqrt(features - NAMED)
    risk = 1.0 / (1.0 + np.exp(-1.6 * (score - 1.0)))
    first = number * n
    ids = np.arange(first, first + n, dtype=np.int64)
    return pa.table(
        {
            "patient_id": ids,
            "site": np.where(draw.random(n) < 0.6, "north", "south"),
            **columns,
            "readmitted": np.where(draw.random(n) < risk, "yes", "no"),
        }
    )


def _extra_name(number: int) -> str:
    return f"lab_{number + 1:02d}"
