"""Lakes that grow: an append is seen whole or not at all, by whoever reads at whatever moment."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from filelock import FileLock

from daskrado.errors import DataError, UsageError
from daskrado.lake.collect import collect
from daskrado.lake.growing import compact_lake
from daskrado.lake.ingest import Layout, ingest
from daskrado.lake.scan import open_lake
from daskrado.statistics import Moments
from daskrado.table.domain import Domain
from daskrado.table.lattice import Lattice
from daskrado.table.yaml_file import parse

DOMAIN = parse(
    Domain,
    {
        "label": {"column": "y", "positive": 1, "negative": 0},
        "norm_bound": 1.5,
        "columns": {
            "a": {"kind": "numeric", "lower": -2, "upper": 2},
            "b": {"kind": "numeric", "lower": 0, "upper": 9, "nulls": {"fill": 0}},
        },
    },
    "here",
)


def day(path: Path, rows: int, seed: int, *, b: bool = True) -> str:
    draw = np.random.default_rng(seed)
    frame = pd.DataFrame({"a": draw.normal(size=rows), "y": draw.integers(0, 2, rows)})
    if b:
        frame["b"] = draw.integers(0, 10, rows)
    frame["day"] = f"2026-11-{seed:02d}"
    frame.to_csv(path / f"{seed}.csv", index=False)
    return str(path / f"{seed}.csv")


def vector(source: Any) -> list[int]:
    lattice = Lattice(DOMAIN.norm_bound, 16)
    return collect(Moments(DOMAIN.width), open_lake(source, DOMAIN), DOMAIN, lattice).vector.tolist()


def rows_of(*files: str) -> pd.DataFrame:
    return pd.concat([pd.read_csv(file) for file in files], ignore_index=True).astype({"b": "Float64"})


@pytest.mark.parametrize("by", [None, "day"])
def test_appended_rows_count_and_every_version_can_be_named(tmp_path: Path, by: str | None) -> None:
    days = [day(tmp_path, 30, 1, b=False), day(tmp_path, 20, 2), day(tmp_path, 10, 3)]
    out = str(tmp_path / "lake")
    ingest(days[:1], out, layout=Layout(by=by))
    ingest(days[1:2], out, append=True)
    manifest = ingest(days[2:], out, layout=Layout(by=by), append=True)
    assert manifest == json.loads((tmp_path / "lake/_manifest.json").read_text())
    assert (manifest["rows"], manifest["version"], manifest["columns"]["b"]) == (60, 3, "int64")
    first = pd.read_csv(days[0]).assign(b=pd.array([None] * 30, dtype="Float64"))
    for version, files in ((1, []), (2, days[1:2]), (3, days[1:])):
        truth = pd.concat([first, *(rows_of(file) for file in files)], ignore_index=True)
        if version > 1:  # the column came with the second day
            assert vector({"folder": out, "version": version}) == vector(truth)
    assert open_lake(out, DOMAIN).rows == 60
    assert open_lake({"folder": out, "version": 2}, DOMAIN).rows == 50
    with pytest.raises(DataError, match="has no version 4; it has the versions 1 to 3"):
        open_lake({"folder": out, "version": 4}, DOMAIN)


def test_an_append_that_dies_half_way_is_not_seen_and_is_cleared_by_the_next(
    tmp_path: Path, forge: Callable[[str], int]
) -> None:
    days, out = [day(tmp_path, 50, 1), day(tmp_path, 40, 2)], str(tmp_path / "lake")
    ingest(days[:1], out)
    before = vector(out)
    for moment in ("daskrado.lake.ingest._Shelf.close", "daskrado.lake.growing._commit"):
        code = (
            "import os, signal, daskrado.lake.ingest, daskrado.lake.growing\n"
            f"{moment} = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)\n"
            f"daskrado.lake.ingest.ingest([{days[1]!r}], {out!r}, append=True)"
        )
        assert forge(code) == -signal.SIGKILL
        assert vector(out) == before
    assert len(list(Path(out).glob("*.parquet"))) > 1  # left over
    ingest(days[1:], out, append=True)
    assert vector(out) == vector(rows_of(*days))
    assert len(list(Path(out).glob("*.parquet"))) == 2


def test_an_append_that_fails_leaves_nothing(tmp_path: Path) -> None:
    days, out = [day(tmp_path, 50, 1), day(tmp_path, 40, 2)], str(tmp_path / "lake")
    ingest(days[:1], out)
    names = sorted(os.listdir(out))
    bad = tmp_path / "bad.csv"
    bad.write_text(Path(days[1]).read_text().replace("a,y,b,day", "a,y,b,day") + "high,1,3,2026-11-09\n")
    with pytest.raises(DataError, match=r"bad\.csv: column 'a' is double in the lake and holds other values here"):
        ingest([str(bad)], out, append=True)
    assert [name for name in sorted(os.listdir(out)) if not name.startswith(".")] == names
    for said, options in (
        ("is laid out without folders", {"layout": Layout(by="day"), "append": True}),
        ("give one of them", {"append": True, "overwrite": True}),
    ):
        with pytest.raises(UsageError, match=said):
            ingest(days[1:], out, **options)
    with pytest.raises(UsageError, match=r"is no lake that daskrado ingest wrote.*make one without --append"):
        ingest(days[1:], str(tmp_path / "new"), append=True)
    assert not (tmp_path / "new").exists()


def test_two_appends_at_once(tmp_path: Path) -> None:
    days, out = [day(tmp_path, 50, 1), day(tmp_path, 40, 2)], str(tmp_path / "lake")
    ingest(days[:1], out)
    with (
        FileLock(f"{out}/._manifest.json.lock"),
        pytest.raises(UsageError, match="another process is adding to this lake; wait for it"),
    ):
        ingest(days[1:], out, append=True)


def test_files_that_the_manifest_does_not_list_are_never_left_out_in_silence(tmp_path: Path) -> None:
    out = tmp_path / "lake"
    ingest([day(tmp_path, 50, 1)], str(out))
    pq.write_table(pa.table({"a": [1.0]}), out / "mine.parquet")
    with pytest.raises(DataError, match=r"mine\.parquet: is not listed in _manifest\.json"):
        open_lake(str(out), DOMAIN)
    (out / "mine.parquet").unlink()
    next(out.glob("*.parquet")).unlink()
    with pytest.raises(DataError, match=r"part-00000\.parquet: is listed in _manifest\.json and is gone"):
        open_lake(str(out), DOMAIN)
    (out / "_manifest.json").write_text('{"schema": "daskrado.lake/1"')
    with pytest.raises(DataError, match=r"_manifest\.json is damaged"):
        open_lake(str(out), DOMAIN)


def test_a_glob_over_an_ingested_lake_reads_what_counts(tmp_path: Path) -> None:
    out = tmp_path / "lake"
    ingest([day(tmp_path, 50, 1)], str(out), layout=Layout(by="day"))
    left = next(out.rglob("*.parquet")).parent / "part-0123abcd-00000.parquet"
    pq.write_table(pa.table({"a": [1.0], "b": [1], "y": [1]}), left)
    assert open_lake(f"{out}/*/*.parquet", DOMAIN).rows == 50


@pytest.mark.parametrize("by", [None, "day"])
def test_compaction_changes_no_sum_and_no_fingerprint(tmp_path: Path, by: str | None) -> None:
    days = [day(tmp_path, 30 + seed, seed, b=seed > 1) for seed in range(1, 7)]
    out = str(tmp_path / "lake")
    ingest(days[:1], out, layout=Layout(by=by, file_rows=10, group_rows=5))
    for file in days[1:]:
        ingest([file], out, layout=Layout(file_rows=10, group_rows=5), append=True)
    sums, fingerprint = vector(out), open_lake(out, DOMAIN).fingerprint
    before, after = compact_lake(out)
    assert (before, after) == (24, 1 if by is None else 6)
    assert len(list(Path(out).rglob("*.parquet"))) == after
    assert (vector(out), open_lake(out, DOMAIN).fingerprint) == (sums, fingerprint)
    assert compact_lake(out) == (after, after)
    with pytest.raises(DataError, match="has no version 3; it has the versions 7 to 7"):
        open_lake({"folder": out, "version": 3}, DOMAIN)


def test_a_compaction_that_dies_is_seen_whole_or_not_at_all(tmp_path: Path, forge: Callable[[str], int]) -> None:
    out = str(tmp_path / "lake")
    ingest([day(tmp_path, 40, 1)], out, layout=Layout(file_rows=10, group_rows=5))
    sums = vector(out)
    for moment, when in (("_commit", "always"), ("_remove_unlisted", "last")):
        code = (
            "import os, signal, daskrado.lake.growing as g\n"
            f"whole, calls = g.{moment}, []\n"
            "def die(*a, **k):\n"
            "    calls.append(1)\n"
            f"    if {when!r} == 'always' or len(calls) == 2: os.kill(os.getpid(), signal.SIGKILL)\n"
            "    return whole(*a, **k)\n"
            f"g.{moment} = die\n"
            f"g.compact_lake({out!r})"
        )
        assert forge(code) == -signal.SIGKILL
        assert vector(out) == sums
    ingest([day(tmp_path, 5, 2)], out, append=True)
    assert len(list(Path(out).glob("*.parquet"))) == 2
    assert open_lake(out, DOMAIN).rows == 45
