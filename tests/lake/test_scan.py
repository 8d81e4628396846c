"""Finding lakes and refusing what footers show to be unusable, before anything is spent."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from daskrado.errors import DataError, UsageError
from daskrado.lake.collect import collect
from daskrado.lake.files import find_files
from daskrado.lake.scan import open_lake
from daskrado.statistics import MeanOperator, Moments
from daskrado.table.domain import Domain, NumericColumn
from daskrado.table.lattice import Lattice
from daskrado.table.yaml_file import parse

DOMAIN = parse(
    Domain,
    {
        "label": {"column": "y", "positive": 1, "negative": 0},
        "norm_bound": 1.5,
        "columns": {
            "a": {"kind": "numeric", "lower": -2, "upper": 2},
            "site": {"kind": "categorical", "values": ["north", "south"], "nulls": {"fill": "other"}},
        },
    },
    "here",
)


def frame(rows: int, seed: int = 0) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    return pd.DataFrame(
        {"a": draw.normal(size=rows), "site": draw.choice(["north", "south"], rows), "y": draw.integers(0, 2, rows)}
    )


def write(path: Path, content: pd.DataFrame, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pandas(content, preserve_index=False), path, **options)
    return path


def vector(source: Any, domain: Domain = DOMAIN) -> np.ndarray:
    lattice = Lattice(domain.norm_bound, 16)
    return collect(Moments(domain.width), open_lake(source, domain), domain, lattice).vector


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    content = frame(300)
    folder = tmp_path / "lake"
    for i, piece in enumerate(np.array_split(np.arange(300), 4)):
        path = write(folder / f"part-{i}.parquet", content.iloc[piece], row_group_size=40)
        os.utime(path, (10**9, 10**9))  # written long ago, so that any clock of a file system shows a change
    (folder / "_SUCCESS").write_text("")
    (folder / ".hidden.parquet").write_text("junk")
    (folder / "_temporary").mkdir()
    (folder / "_temporary" / "x.parquet").write_text("junk")
    return folder


def test_every_way_to_name_a_lake_reads_the_same_rows(lake: Path, tmp_path: Path) -> None:
    expected = vector(frame(300))
    files = sorted(str(p) for p in lake.glob("part-*.parquet"))
    one = write(tmp_path / "one.parquet", frame(300))
    assert open_lake(lake, DOMAIN).rows == 300
    for source in (
        lake,
        str(lake),
        f"{lake}/*.parquet",
        f"{lake}/part-?.parquet",
        files,
        files[::-1],
        f"file://{lake}",
        one,
    ):
        assert np.array_equal(vector(source), expected)
    import dask.dataframe as dd

    assert np.array_equal(vector(dd.from_pandas(frame(300), npartitions=3)), expected)


def test_hive_folders_become_columns(tmp_path: Path) -> None:
    content = frame(120)
    for site, piece in content.groupby("site"):
        write(tmp_path / "hive" / f"site={site}" / "year=2020" / "p.parquet", piece.drop(columns="site"))
    assert np.array_equal(vector(tmp_path / "hive"), vector(content))
    assert np.array_equal(vector(f"{tmp_path}/hive/**/*.parquet"), vector(content))
    missing = content.assign(site=None)
    write(tmp_path / "null" / "site=__HIVE_DEFAULT_PARTITION__" / "p.parquet", missing.drop(columns="site"))
    assert np.array_equal(vector(tmp_path / "null"), vector(missing))


def test_fsspec_addresses_work() -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    with memory.open("/bucket/lake/p0.parquet", "wb") as file:
        pq.write_table(pa.Table.from_pandas(frame(50), preserve_index=False), file)
    assert np.array_equal(vector("memory://bucket/lake"), vector(frame(50)))
    memory.rm("/bucket", recursive=True)


def test_a_lake_is_known_by_its_files_and_by_no_value_in_them(lake: Path, tmp_path: Path) -> None:
    for number, path in enumerate(sorted(lake.glob("part-*.parquet"))):
        os.utime(path, ns=(10**18 + 1 + number, 10**18 + 1 + number))
    mark = open_lake(lake, DOMAIN).fingerprint
    shutil.copytree(lake, tmp_path / "copy")  # which keeps times
    assert open_lake(tmp_path / "copy", DOMAIN).fingerprint == mark
    assert open_lake(write(tmp_path / "one.parquet", frame(300)), DOMAIN).fingerprint != mark
    first = tmp_path / "copy" / "part-0.parquet"
    write(first, frame(7, seed=3))  # other rows, another number of them, other extremes
    os.utime(first, ns=(10**18 + 1, 10**18 + 1))
    assert open_lake(tmp_path / "copy", DOMAIN).fingerprint == mark
    os.utime(first, ns=(10**18 + 1, 10**18 + 9))
    assert open_lake(tmp_path / "copy", DOMAIN).fingerprint != mark
    assert open_lake(frame(300), DOMAIN).fingerprint is None  # frames are known by the name of their data set


def test_files_of_an_archive_are_known_by_their_place(tmp_path: Path) -> None:
    """All of them may have the same name and the same time, in whole seconds."""
    marks = set()
    for folder in ("a", "b"):
        path = write(tmp_path / folder / "p.parquet", frame(20))
        os.utime(path, ns=(10**18, 10**18))
        marks.add(open_lake(tmp_path / folder, DOMAIN).fingerprint)
    assert len(marks) == 2


def hive(folder: Path, content: pd.DataFrame, column: str, name: Callable[[Any], str] = str) -> Path:
    for value, piece in content.groupby(column):
        write(folder / f"{column}={name(value)}" / "p.parquet", piece.drop(columns=column))
    return folder


def test_folders_above_a_lake_are_no_columns(tmp_path: Path) -> None:
    lake = hive(tmp_path / "copy=2" / "lake", frame(20), "site")
    expected = ["a", "y", "site"]
    for source in (lake, [str(lake)], [str(p) for p in lake.iterdir()], f"{lake}/*/*.parquet", lake.as_uri()):
        assert open_lake(source, DOMAIN).schema.names == expected
    with pytest.raises(DataError, match="column 'site' is missing"):
        open_lake(f"{lake}/site=north/*.parquet", DOMAIN)


def test_rows_are_never_left_out_in_silence(lake: Path) -> None:
    (lake / "README.txt").write_text("PAR1")
    (lake / "part-3.parquet").rename(lake / "part-3.PARQUET")
    assert open_lake(lake, DOMAIN).rows == 300
    shutil.copy(lake / "part-0.parquet", lake / "part-4")
    with pytest.raises(DataError, match=r"part-4: is Parquet, but its name does not end in \.parquet"):
        open_lake(lake, DOMAIN)
    (lake / "part-4").unlink()
    (lake / "part-4.parquet").symlink_to(lake / "gone")
    for source in (lake, f"{lake}/*.parquet"):
        with pytest.raises(DataError, match=r"part-4\.parquet: is a link to what is not there"):
            open_lake(source, DOMAIN)


def test_file_addresses_are_taken_whole(lake: Path) -> None:
    assert open_lake(f"file://{lake}/part-?.parquet", DOMAIN).rows == 300
    with pytest.raises(DataError, match=r"part-\?\.pq: no Parquet file found"):
        open_lake(f"file://{lake}/part-?.pq", DOMAIN)
    with pytest.raises(UsageError, match="file://: names no folder"):
        open_lake("file://", DOMAIN)


def change_last(change: Callable[[pd.DataFrame], pd.DataFrame]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / "part-3.parquet"
        write(path, change(pd.read_parquet(path)))

    return apply


def truncate(folder: Path) -> None:
    path = folder / "part-3.parquet"
    path.write_bytes(path.read_bytes()[:-40])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (change_last(lambda f: f.drop(columns="a")), "column 'a' is missing (the file has site, y)"),
        (change_last(lambda f: f.assign(a="text")), "but the Domain says numeric"),
        (change_last(lambda f: f.assign(y=f["y"].astype(str))), "but the Domain's label values are [1, 0]"),
        (
            change_last(lambda f: f.assign(a=f["a"].mask(f.index < 3))),
            "column 'a' holds nulls, and its null policy is error",
        ),
        (change_last(lambda f: f.assign(y=f["y"].astype("Int64").mask(f.index == 0))), "column 'y' holds nulls"),
        (truncate, "is not a readable Parquet file"),
        (lambda d: (d / "part-3.parquet").write_bytes(b""), "is not a readable Parquet file"),
        (lambda d: (d / "part-3.parquet").write_bytes(b"PAR1" + bytes(99)), "is not a readable Parquet file"),
    ],
)
def test_footers_refuse_a_spoilt_file_by_name(lake: Path, spoil: Callable[[Path], None], message: str) -> None:
    spoil(lake)
    with pytest.raises(DataError) as caught:
        open_lake(lake, DOMAIN, strict=True)
    assert str(lake / "part-3.parquet") in str(caught.value)
    assert message in str(caught.value)


def test_zero_rows_and_missing_places_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="zero rows"):
        open_lake(write(tmp_path / "e" / "p.parquet", frame(10).iloc[:0]).parent, DOMAIN)
    with pytest.raises(DataError, match="zero rows"):
        open_lake(frame(3).iloc[:0], DOMAIN)
    with pytest.raises(DataError, match="no such file or directory"):
        open_lake(tmp_path / "nowhere", DOMAIN)
    (tmp_path / "void").mkdir()
    with pytest.raises(DataError, match="no Parquet file found"):
        open_lake(tmp_path / "void", DOMAIN)
    with pytest.raises(DataError, match="no Parquet file found"):
        open_lake(f"{tmp_path}/void/*.parquet", DOMAIN)
    path = str(write(tmp_path / "p.parquet", frame(5)))
    with pytest.raises(UsageError, match="twice"):
        open_lake([path, path], DOMAIN)
    with pytest.raises(UsageError, match="list of lake files is empty"):
        open_lake([], DOMAIN)
    with pytest.raises(UsageError, match="not set"):
        open_lake({1, 2}, DOMAIN)
    with pytest.raises(DataError, match="column 'site' is missing"):
        open_lake(frame(5).drop(columns="site"), DOMAIN)
    with pytest.raises(UsageError, match="no filesystem for this address"):
        open_lake("nosuchscheme://bucket/x", DOMAIN)


def test_empty_files_among_full_ones_do_no_harm(lake: Path) -> None:
    expected = vector(lake)
    write(lake / "part-9.parquet", frame(10).iloc[:0])
    assert np.array_equal(vector(lake), expected)


def test_rows_found_unusable_while_reading_are_refused_with_the_file(lake: Path) -> None:
    bad = frame(20).assign(y=[7] * 3 + [0] * 17, a=[np.inf] + [0.0] * 19)
    write(lake / "part-8.parquet", bad)
    scanned = open_lake(lake, DOMAIN, strict=True)
    with pytest.raises(DataError) as caught:
        collect(MeanOperator(DOMAIN.width), scanned, DOMAIN, Lattice(1.5, 16), strict=True)
    assert f"{lake}/part-8.parquet: column 'y': label outside [1, 0]" in str(caught.value)
    assert str(caught.value).endswith("[1, 0]")  # neither the value nor how many


def test_a_file_that_changes_after_the_scan_is_refused(lake: Path) -> None:
    scanned = open_lake(lake, DOMAIN)
    write(lake / "part-2.parquet", frame(75, seed=5))
    with pytest.raises(DataError, match=r"part-2\.parquet: changed or vanished while the run was reading"):
        collect(Moments(DOMAIN.width), scanned, DOMAIN, Lattice(1.5, 16))
    (lake / "part-1.parquet").unlink()
    with pytest.raises(DataError, match="changed or vanished"):
        collect(Moments(DOMAIN.width), scanned, DOMAIN, Lattice(1.5, 16))


def test_large_files_are_split_by_row_group(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from daskrado.lake import parquet_files

    whole = vector(lake)
    monkeypatch.setattr(parquet_files, "_SPLIT_BYTES", 1000)
    assert len(open_lake(lake, DOMAIN).partitions) > 4
    assert np.array_equal(vector(lake), whole)


def test_identity_changes_when_a_file_is_overwritten(lake: Path) -> None:
    before = [p.identity for p in open_lake(lake, DOMAIN).partitions]
    write(lake / "part-1.parquet", frame(75, seed=9))
    after = [p.identity for p in open_lake(lake, DOMAIN).partitions]
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, False, True, True]


def test_files_of_a_list_keep_their_own_signature_names(tmp_path: Path) -> None:
    one, two = write(tmp_path / "a" / "p.parquet", frame(5)), write(tmp_path / "b" / "p.parquet", frame(5))
    assert len({file.name for file in find_files([str(one), str(two)])}) == 2


def test_a_file_that_is_reached_twice_is_refused(lake: Path) -> None:
    (lake / "latest.parquet").symlink_to(lake / "part-0.parquet")
    with pytest.raises(UsageError, match="twice"):
        open_lake(lake, DOMAIN)
    (lake / "latest.parquet").unlink()
    (lake / "latest.parquet").hardlink_to(lake / "part-0.parquet")
    with pytest.raises(UsageError, match="twice"):
        open_lake(lake, DOMAIN)
    (lake / "latest.parquet").unlink()
    with pytest.raises(UsageError, match="twice"):
        open_lake([str(lake / "part-0.parquet"), str(lake / ".." / lake.name / "part-0.parquet")], DOMAIN)
    (lake / "again").symlink_to(lake)
    with pytest.raises(UsageError, match="twice"):
        open_lake(lake, DOMAIN)


def test_hive_files_as_a_list_and_numeric_folders(tmp_path: Path) -> None:
    content = frame(120)
    for site, piece in content.groupby("site"):
        write(tmp_path / "hive" / f"site={site}" / "p.parquet", piece.drop(columns="site"))
    files = [str(p) for p in sorted((tmp_path / "hive").glob("*/*.parquet"))]
    assert np.array_equal(vector(files), vector(content))
    numeric = DOMAIN.model_copy(
        update={"columns": {"a": DOMAIN.columns["a"], "year": NumericColumn(kind="numeric", lower=2000, upper=2030)}}
    )
    years = content.assign(year=np.where(content["a"] > 0, 2010, 2020)).drop(columns="site")
    for year, piece in years.groupby("year"):
        write(tmp_path / "years" / f"year={year}" / "p.parquet", piece.drop(columns="year"))
    assert np.array_equal(vector(tmp_path / "years", numeric), vector(years, numeric))


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ({"kind": "boolean"}, [True, False]),
        ({"kind": "categorical", "values": [1.5, 2.5]}, [1.5, 2.5]),
        ({"kind": "categorical", "values": [1, 2]}, [1, 2]),
        ({"kind": "categorical", "values": [True, False]}, [True, False]),
        ({"kind": "categorical", "values": [1]}, [1, 7]),
        (None, [1, 0]),
        (None, [True, False]),
        (None, [0.5, 1.5]),
    ],
)
def test_folders_carry_whatever_the_domain_allows(tmp_path: Path, column: Any, values: list[Any]) -> None:
    name = "y" if column is None else "k"
    label = {"positive": values[0], "negative": values[1]} if column is None else {"positive": 1, "negative": 0}
    columns = {"a": {"kind": "numeric", "lower": -2, "upper": 2}} | ({} if column is None else {"k": column})
    domain = parse(Domain, {"label": {"column": "y", **label}, "norm_bound": 1.5, "columns": columns}, "here")
    content = frame(40).drop(columns="site").assign(**{name: values * 20})
    tree = hive(tmp_path / "tree", content, name)
    assert np.array_equal(vector(tree, domain), vector(content, domain))


def test_folders_that_mean_nothing_are_refused_by_path_at_the_scan(tmp_path: Path) -> None:
    columns = {
        "a": {"kind": "numeric", "lower": -2, "upper": 2},
        "smoker": {"kind": "boolean"},
        "ward": {"kind": "categorical", "values": [1, 2], "other": False},
    }
    domain = parse(Domain, {"label": DOMAIN.label, "norm_bound": 1.5, "columns": columns}, "here")
    for column, value in (("a", "x"), ("a", "nan"), ("smoker", "perhaps"), ("y", "7"), ("ward", "x")):
        content = frame(6).drop(columns="site").assign(smoker=True, ward=1)
        path = write(tmp_path / column / value / f"{column}={value}" / "p.parquet", content.drop(columns=column))
        with pytest.raises(
            DataError, match=f"{path}: the folder {column}={value} is no value that the Domain allows"
        ):
            open_lake(path.parent.parent, domain, strict=True)
        assert not vector(path.parent.parent, domain).any()  # where somebody is protected, the rows count as nothing


def test_a_folder_that_is_no_declared_number_is_other(tmp_path: Path) -> None:
    wards = {"kind": "categorical", "values": [1, 2]}
    domain = parse(Domain, {"label": DOMAIN.label, "norm_bound": 1.5, "columns": {"ward": wards}}, "here")
    content = frame(40).assign(ward=[1, 7] * 20)
    tree = hive(tmp_path / "tree", content, "ward", lambda ward: "x" if ward == 7 else str(ward))
    assert np.array_equal(vector(tree, domain), vector(content, domain))


def test_a_folder_with_brackets_in_its_name_is_a_folder(tmp_path: Path) -> None:
    write(tmp_path / "la[k]e" / "p.parquet", frame(20))
    assert open_lake(tmp_path / "la[k]e", DOMAIN).rows == 20


def test_frames_show_nothing_and_mixed_columns_are_named(tmp_path: Path) -> None:
    odd = frame(5).assign(note=[1, "x", 2.5, None, "SECRET"])
    assert open_lake(odd, DOMAIN).rows == 5  # the odd column is not needed
    assert "SECRET" not in repr(open_lake(odd, DOMAIN).partitions[0])
    with pytest.raises(DataError, match="column 'site' holds values of several types") as caught:
        open_lake(odd.assign(site=[1, "SECRET", 2.5, None, "x"]), DOMAIN, strict=True)
    assert "SECRET" not in str(caught.value)
    twice = pd.concat([frame(3), frame(3)[["a"]]], axis=1)
    with pytest.raises(DataError, match="column 'a' is there twice"):
        open_lake(twice, DOMAIN)
    with pytest.raises(UsageError, match="must be text, got DataFrame"):
        open_lake([odd], DOMAIN)
    with pytest.raises(UsageError, match="must not hold a zero byte"):
        open_lake("a\0b", DOMAIN)


def test_a_column_that_is_there_twice_in_a_file_is_named(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([1.0]), pa.array([2.0]), pa.array([1])], names=["a", "a", "y"])
    pq.write_table(table, tmp_path / "p.parquet")
    with pytest.raises(DataError, match=r"p\.parquet: column 'a' is there twice"):
        open_lake(tmp_path / "p.parquet", DOMAIN)


def test_damaged_pages_are_noticed_where_the_writer_left_checksums(tmp_path: Path) -> None:
    path = write(
        tmp_path / "p.parquet", frame(4000), write_page_checksum=True, compression="none", use_dictionary=False
    )
    content = bytearray(path.read_bytes())
    content[5000:5064] = bytes(64)
    path.write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"p\.parquet: cannot be read as Parquet"):
        vector(path)
