"""Text tables become lakes: types, layout, all or nothing, and no row in any message."""

from __future__ import annotations

import csv
import gzip
import json
import subprocess
import sys
import zipfile
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from daskrado.errors import DaskradoError, DataError, UsageError
from daskrado.lake.files import find_files
from daskrado.lake.ingest import Layout, ingest
from daskrado.lake.text_tables import TextFormat

CSV = "id,code,score,flag,name\n1, 007,1.5,true,Ann\n2,012, ?,FALSE, Bob\n3,100,-2e3,True,\n"
TYPES = {"id": "int64", "code": "string", "score": "double", "flag": "bool", "name": "string"}


def read(lake: Path) -> pa.Table:
    return pq.read_table(lake)


def test_columns_get_the_narrowest_type_that_holds_them(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(CSV)
    manifest = ingest([str(tmp_path / "t.csv")], str(tmp_path / "lake"))
    assert manifest["columns"] == TYPES
    assert read(tmp_path / "lake").to_pylist() == [
        {"id": 1, "code": "007", "score": 1.5, "flag": True, "name": "Ann"},
        {"id": 2, "code": "012", "score": None, "flag": False, "name": "Bob"},
        {"id": 3, "code": "100", "score": -2000.0, "flag": True, "name": None},
    ]
    assert json.loads((tmp_path / "lake" / "_manifest.json").read_text()) == manifest
    assert manifest["rows"] == 3
    assert [f.name for f in find_files(tmp_path / "lake")] == ["part-00000.parquet"]


def test_a_late_value_widens_a_type_and_every_file_has_the_same_schema(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n" + "1,2\n" * 1000)
    (tmp_path / "b.csv").write_text("x,y\n1.5,2\n3,high\n")
    manifest = ingest(
        [str(tmp_path / n) for n in ("a.csv", "b.csv")],
        str(tmp_path / "lake"),
        layout=Layout(group_rows=100, file_rows=300),
    )
    assert manifest["columns"] == {"x": "double", "y": "string"}
    files = find_files(tmp_path / "lake")
    assert [pq.ParquetFile(f.path).metadata.num_rows for f in files] == [300, 300, 300, 102]
    assert {pq.ParquetFile(f.path).schema_arrow.field("x").type for f in files} == {pa.float64()}
    assert pq.ParquetFile(files[0].path).metadata.num_row_groups == 3
    assert [f["rows"] for f in manifest["files"]] == [300, 300, 300, 102]


@pytest.mark.parametrize("form", ["gz", "zip", "bom", "tab", "crlf"])
def test_forms_of_the_same_table_give_the_same_lake(tmp_path: Path, form: str) -> None:
    (tmp_path / "t.csv").write_text(CSV)
    ingest([str(tmp_path / "t.csv")], str(tmp_path / "plain"))
    source, options = tmp_path / f"t.{form}", TextFormat()
    if form == "gz":
        source = tmp_path / "t.csv.gz"
        source.write_bytes(gzip.compress(CSV.encode()))
    elif form == "zip":
        with zipfile.ZipFile(source, "w") as archive:
            archive.writestr("in/t.csv", CSV)
            archive.writestr("in/other.csv", "x\n1\n")
        options = TextFormat(member="t.csv")
    elif form == "bom":
        source.write_bytes(CSV.encode("utf-8-sig"))
    elif form == "tab":
        source.write_text(CSV.replace(",", "\t"))
        options = TextFormat(delimiter="\t")
    else:
        source.write_bytes(CSV.replace("\n", "\r\n").encode())
    ingest([str(source)], str(tmp_path / "lake"), form=options)
    assert read(tmp_path / "lake").equals(read(tmp_path / "plain"))


def test_arff_names_quotes_comments_and_missing_values(tmp_path: Path) -> None:
    (tmp_path / "t.arff").write_text(
        "% a comment\n@RELATION 'r'\n@attribute 'body mass' NUMERIC\n@attribute kind {a,'b c'}\n@attribute n real\n"
        "@DATA\n1.5,a,1\n% another\n?,'b c',2\n"
    )
    manifest = ingest([str(tmp_path / "t.arff")], str(tmp_path / "lake"))
    assert manifest["columns"] == {"body mass": "double", "kind": "string", "n": "int64"}
    assert read(tmp_path / "lake").to_pylist() == [
        {"body mass": 1.5, "kind": "a", "n": 1},
        {"body mass": None, "kind": "b c", "n": 2},
    ]


def test_no_header_names_drop_text_and_folders(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("1,north,x\n2,south/east,y\n3,?,z\n4,north,w\n")
    source = [str(tmp_path / "t.csv")]
    assert list(ingest(source, str(tmp_path / "a"), form=TextFormat(header=False))["columns"]) == [
        "c00",
        "c01",
        "c02",
    ]
    manifest = ingest(
        source,
        str(tmp_path / "b"),
        form=TextFormat(header=False, names=("n", "site", "junk")),
        layout=Layout(by="site", drop=("junk",), text=("n",)),
    )
    assert manifest["columns"] == {"n": "string", "site": "string"}
    found = {f.hive: pq.ParquetFile(f.path).read().to_pydict()["n"] for f in find_files(tmp_path / "b")}
    assert found == {(("site", "north"),): ["1", "4"], (("site", "south/east"),): ["2"], (("site", None),): ["3"]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\nSECRET,2,3\n", "has 3 fields, expected 2"),
        ("a,a\n1,2\n", "'a' occurs twice"),
        ("", "is empty"),
        ("a,b\n", "has no rows"),
    ],
)
def test_bad_tables_are_named_without_their_rows(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        ingest([str(tmp_path / "t.csv")], str(tmp_path / "lake"))
    assert "t.csv" in str(caught.value)
    assert "SECRET" not in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["t.csv"]


def test_damage_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(CSV.encode() * 200)[:-20])
    (tmp_path / "latin.csv").write_bytes("name\nJosé\n".encode("latin-1"))
    (tmp_path / "t.arff").write_text("@relation x\n1,2\n")
    for name, message in (("t.csv.gz", "t.csv.gz: "), ("latin.csv", "--encoding"), ("t.arff", "no @data")):
        with pytest.raises(DataError, match=message) as caught:
            ingest([str(tmp_path / name)], str(tmp_path / "lake"))
        assert "Jos" not in str(caught.value)
        assert not [p for p in tmp_path.iterdir() if "lake" in p.name]
    ingest([str(tmp_path / "latin.csv")], str(tmp_path / "lake"), form=TextFormat(encoding="latin-1", header=True))
    assert read(tmp_path / "lake").to_pydict() == {"name": ["José"]}


def test_what_is_asked_wrongly_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(CSV)
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "mine").write_text("x")
    source = [str(tmp_path / "t.csv")]
    with pytest.raises(UsageError, match="--overwrite"):
        ingest(source, str(tmp_path / "lake"))
    with pytest.raises(UsageError, match="--by colour: there is no such column"):
        ingest(source, str(tmp_path / "x"), layout=Layout(by="colour"))
    with pytest.raises(UsageError, match="--group-rows"):
        Layout(group_rows=0)
    with pytest.raises(DataError, match=r"none\.csv: cannot be read"):
        ingest([str(tmp_path / "none.csv")], str(tmp_path / "x"))
    (tmp_path / "u.csv").write_text("z\n1\n")
    with pytest.raises(DataError, match="other columns"):
        ingest([*source, str(tmp_path / "u.csv")], str(tmp_path / "x"))
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
def test_ingestion_from_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("1;north;NA\n2;south;\n3;north;4\n")
    options = ["--no-header", "--names", "n,site,x", "--delimiter", ";", "--missing", "NA", "--by", "site"]
    words = ["ingest", str(tmp_path / "t.csv"), *options, "--out", str(tmp_path / "lake")]
    command = [sys.executable, "-c", "from daskrado.cli.main import main; main()", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "3 rows in 2 files; n int64, site string, x int64" in done.stdout
    found = {f.hive: pq.ParquetFile(f.path).read().to_pydict() for f in find_files(tmp_path / "lake")}
    assert found == {
        (("site", "north"),): {"n": [1, 3], "x": [None, 4]},
        (("site", "south"),): {"n": [2], "x": [None]},
    }
    again = subprocess.run(command, capture_output=True, text=True)
    assert again.returncode == 2
    assert again.stderr.startswith("daskrado: error: ")
    assert "--overwrite" in again.stderr


def test_a_lake_that_is_being_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(CSV)
    ingest([str(tmp_path / "t.csv")], str(tmp_path / "lake"))
    (tmp_path / "lake" / "_incomplete").write_text("")
    with pytest.raises(DataError, match="is being written, or its writer was cut off"):
        find_files(tmp_path / "lake")


@pytest.mark.slow
def test_the_shared_data_sets_come_out_as_described(shared_data: Path, tmp_path: Path) -> None:
    """Rows, columns and class counts as their publishers give them."""
    eeg = ingest([str(shared_data / "eeg_eye_state" / "EEG_Eye_State.arff")], str(tmp_path / "eeg"))
    assert (eeg["rows"], len(eeg["columns"])) == (14_980, 15)
    assert sum(read(tmp_path / "eeg").column(14).to_pylist()) == 6723
    hospitals = sorted(str(p) for p in (shared_data / "heart_disease").glob("processed.*.data"))
    heart = ingest(hospitals, str(tmp_path / "heart"), form=TextFormat(header=False))
    assert (heart["rows"], len(heart["columns"])) == (303 + 294 + 123 + 200, 14)
    adult = ingest(
        [str(shared_data / "adult" / "adult.data")], str(tmp_path / "adult"), form=TextFormat(header=False)
    )
    assert adult["rows"] == 32_561
    frame = pd.read_csv(
        shared_data / "adult" / "adult.data", header=None, skipinitialspace=True, na_values="?", keep_default_na=False
    )
    ours = read(tmp_path / "adult").to_pandas()
    for position, name in enumerate(ours.columns):
        expected = frame[position].astype(object).where(frame[position].notna(), None)
        assert ours[name].astype(object).where(ours[name].notna(), None).tolist() == expected.tolist()


def table_of(mark: str, *, header: bool, rows: int = 30, missing: str = "") -> str:
    first = [mark.join(("name", "ward", "age"))] if header else []
    body = [mark.join((f"p{n}", f"w{n % 3}", missing if n == 4 else str(20 + n))) for n in range(rows)]
    return "\n".join([*first, *body]) + "\n"


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("missing", ["", "?", "NA", "-", "null"])
def test_what_a_table_looks_like_is_seen_and_said(tmp_path: Path, mark: str, header: bool, missing: str) -> None:
    (tmp_path / "t.csv").write_text(table_of(mark, header=header, missing=missing))
    manifest = ingest([str(tmp_path / "t.csv")], str(tmp_path / "lake"))
    names = ["name", "ward", "age"] if header else ["c00", "c01", "c02"]
    assert manifest["columns"] == dict(zip(names, ("string", "string", "int64"), strict=True))
    assert manifest["rows"] == 30
    assert pq.read_table(tmp_path / "lake")[names[2]].null_count == 1
    spoken = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a bar"}[mark]
    assert f"{spoken} between fields" in manifest["read_as"]
    assert ("names in the first line" if header else "no names in the first line") in manifest["read_as"]


@pytest.mark.parametrize(
    ("written", "order"),
    [("%d.%m.%Y", "day, month, year"), ("%d/%m/%Y", "day, month, year"), ("%m/%d/%Y", "month, day, year")],
)
@pytest.mark.parametrize("padded", [True, False])
def test_dates_are_read_in_the_order_that_is_seen_and_said(
    tmp_path: Path, written: str, order: str, padded: bool
) -> None:
    days = [date(2026, 11, 1) + timedelta(n) for n in range(40)]
    texts = [day.strftime(written if padded else written.replace("%d", "%-d").replace("%m", "%-m")) for day in days]
    lines = [f"{text};{n}" for n, text in enumerate(texts)]
    (tmp_path / "t.csv").write_text("\n".join(["day;n", *lines[:20], ";20", *lines[20:]]) + "\n")
    manifest = ingest([str(tmp_path / "t.csv")], str(tmp_path / "lake"))
    assert manifest["columns"] == {"day": "date32[day]", "n": "int64"}
    assert manifest["read_as"].endswith(f", dates of day as {order}")
    assert [day for day in pq.read_table(tmp_path / "lake")["day"].to_pylist() if day] == days


def test_dates_that_may_be_either_are_refused_and_the_option_decides(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("day,n\n" + "".join(f"0{1 + n % 9}/0{1 + n % 7}/2026,{n}\n" for n in range(20)))
    with pytest.raises(UsageError, match="are the dates of column 'day' day, month, year or month") as refused:
        ingest([str(path)], str(tmp_path / "lake"))
    assert "2026" not in str(refused.value)
    assert not (tmp_path / "lake").exists()
    for order, second in (("dmy", date(2026, 2, 2)), ("mdy", date(2026, 2, 2)), ("text", "02/02/2026")):
        ingest([str(path)], str(tmp_path / order), form=TextFormat(dates=order))
        assert pq.read_table(tmp_path / order)["day"][1].as_py() == second
    assert pq.read_table(tmp_path / "dmy")["day"][8].as_py() == date(2026, 2, 9)
    assert pq.read_table(tmp_path / "mdy")["day"][8].as_py() == date(2026, 9, 2)


def test_dates_in_both_orders_and_a_late_odd_one_stay_texts(tmp_path: Path) -> None:
    both = ["13/01/2026", "01/13/2026"] * 10
    late = [f"{1 + n % 28}.11.2026" for n in range(9000)] + ["unknown"]
    for name, cells in (("both", both), ("late", late)):
        (tmp_path / f"{name}.csv").write_text("day,n\n" + "".join(f"{cell},{n}\n" for n, cell in enumerate(cells)))
        ingest([str(tmp_path / f"{name}.csv")], str(tmp_path / name))
        assert pa.types.is_string(pq.read_schema(next((tmp_path / name).glob("*.parquet"))).field("day").type)


def test_texts_only_are_a_header_where_they_never_come_again(tmp_path: Path) -> None:
    rows = [f"{'ab'[i % 2]},{'xyz'[i % 3]}" for i in range(20)]
    (tmp_path / "t.csv").write_text("\n".join(["kind,site", *rows]) + "\n")
    assert list(ingest([str(tmp_path / "t.csv")], str(tmp_path / "one"))["columns"]) == ["kind", "site"]
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    assert ingest([str(tmp_path / "t.csv")], str(tmp_path / "two"))["rows"] == 20


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"anna,north\nbert,south\n", "is its first line names or a row\\? .* say --header or --no-header"),
        (b"1,5;2,5\n3,5;4,5\n5,5;6,5\n", "its lines may have 3 by a comma or 2 by a semicolon; say which with"),
        (b"a,b\nc\nd;e;f\n,,,,\n;\ng,h,i\n", "no delimiter cuts its lines into equally many fields"),
        (b"# export\na,b\n1,2\n3,4\n", "its first line has 1 fields and the others have 2; .* --skip-lines 1"),
        (b"\xff\xfea\x00,\x00b\x00", "is text in UTF-16; save it as UTF-8"),
        (b"name,age\nJos\xe9,3\n", "is not text in the encoding utf8; give --encoding, such as latin-1"),
    ],
)
def test_what_is_unclear_is_refused_with_the_option_that_decides(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(DaskradoError, match=said):
        ingest([str(tmp_path / "t.csv")], str(tmp_path / "lake"))
    assert not (tmp_path / "lake").exists()


def quoted_table(path: Path, rows: int) -> str:
    """Texts with newlines, doubled quotes and delimiters in quotes, of very different lengths."""
    draw = np.random.default_rng(5)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["n", "text", "x"])
        for n in range(rows):
            words = ['a "word"', "two\nlines", "1,2", "plain", "\n\n", '"']
            writer.writerow([n, " ".join(draw.choice(words, draw.integers(0, 40))), n / 7 if n % 5 else ""])
    return str(path)


@pytest.mark.parametrize("size", [700, 5_000, 1 << 26])
def test_several_workers_parse_one_file_in_pieces(
    tmp_path: Path, two_workers: Any, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daskrado.lake.pieces.PIECE_BYTES", size)
    source = quoted_table(tmp_path / "t.csv", 300)
    alone = ingest([source], str(tmp_path / "alone"))
    several = ingest([source], str(tmp_path / "several"), client=two_workers)
    assert several["columns"] == alone["columns"] == {"n": "int64", "text": "string", "x": "double"}
    assert several["rows"] == 300
    assert len(several["files"]) > 3 or size == 1 << 26
    assert pq.read_table(tmp_path / "several").equals(pq.read_table(tmp_path / "alone"))
    appended = ingest([source], str(tmp_path / "several"), client=two_workers, append=True)
    assert appended["rows"] == 600


def test_an_odd_quote_is_read_in_one_piece(tmp_path: Path, two_workers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("daskrado.lake.pieces.PIECE_BYTES", 100)
    (tmp_path / "t.csv").write_text("height,n\n" + "".join(f"5 ft 11 {chr(34) * (n == 7)},{n}\n" for n in range(60)))
    alone = ingest([str(tmp_path / "t.csv")], str(tmp_path / "alone"))
    several = ingest([str(tmp_path / "t.csv")], str(tmp_path / "several"), client=two_workers)
    assert several["rows"] == alone["rows"] == 60
    assert len(several["files"]) == 1


def test_a_bad_line_is_named_whoever_parses_it(
    tmp_path: Path, two_workers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daskrado.lake.pieces.PIECE_BYTES", 100)
    (tmp_path / "t.csv").write_text("a,b\n" + "".join("1,2\n" if n != 150 else "1,2,3\n" for n in range(200)))
    with pytest.raises(DataError, match=r"t\.csv: line .* has 3 fields, expected 2"):
        ingest([str(tmp_path / "t.csv")], str(tmp_path / "lake"), client=two_workers)
    assert not (tmp_path / "lake").exists()


def test_a_newline_in_quotes_may_fall_on_the_end_of_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = quoted_table(tmp_path / "t.csv", 300)
    whole = ingest([source], str(tmp_path / "whole"))
    for size in (997, 1024, 2048):
        monkeypatch.setattr("daskrado.lake.text_tables._BLOCK_BYTES", size)
        assert ingest([source], str(tmp_path / f"at{size}"))["rows"] == whole["rows"]
        assert pq.read_table(tmp_path / f"at{size}").equals(pq.read_table(tmp_path / "whole"))


def test_random_ids_name_rows_and_are_never_repeated(tmp_path: Path) -> None:
    """They say nothing of a row's place: another run gives others, and appended rows get theirs."""
    (tmp_path / "t.csv").write_text("x\n" + "1\n" * 2000)
    out, layout = str(tmp_path / "lake"), Layout(record="row_id", group_rows=1000)
    manifest = ingest([str(tmp_path / "t.csv")], out, layout=layout)
    assert manifest["id"] == "row_id"
    assert manifest["columns"]["row_id"] == "int64"
    first = read(tmp_path / "lake").column("row_id").to_numpy()
    assert (first >= 0).all()
    assert len(np.unique(first)) == 2000
    assert abs(np.mean(first < 2**62) - 0.5) < 0.1  # 9 standard deviations
    ingest([str(tmp_path / "t.csv")], out, append=True)
    both = read(tmp_path / "lake").column("row_id")
    assert both.null_count == 0
    assert len(np.unique(both.to_numpy())) == 4000
    with pytest.raises(UsageError, match="--id other: the rows of the lake have no such ids"):
        ingest([str(tmp_path / "t.csv")], out, layout=Layout(record="other"), append=True)
    with pytest.raises(UsageError, match="--id x: there is such a column already"):
        ingest([str(tmp_path / "t.csv")], str(tmp_path / "other"), layout=Layout(record="x"))


@pytest.mark.parametrize(
    ("text", "told", "values"),
    [
        ("x;y\n1,5;a\n1.234,25;b\n-7;c\n;d\n", "numbers of x with a decimal comma", [1.5, 1234.25, -7.0, None]),
        ('x,y\n"1,234.5",a\n12.25,b\n"1,000,000",c\n,d\n', "commas between thousands", [1234.5, 12.25, 1e6, None]),
    ],
)
def test_commas_in_numbers_are_read_as_the_first_lines_show(
    tmp_path: Path, text: str, told: str, values: list[float | None]
) -> None:
    (tmp_path / "t.csv").write_text(text)
    manifest = ingest([str(tmp_path / "t.csv")], str(tmp_path / "lake"))
    assert told in manifest["read_as"]
    assert read(tmp_path / "lake").column("x").to_pylist() == values


def test_a_comma_before_three_digits_is_asked_about(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x;y\n1,234;2\n5,678;3\n")
    source = [str(tmp_path / "t.csv")]
    with pytest.raises(UsageError, match=r"column 'x' decimal, or between thousands\? Say --decimal comma or"):
        ingest(source, str(tmp_path / "lake"))
    for decimal, kind, first in (("comma", "double", 1.234), ("point", "int64", 1234)):
        manifest = ingest(source, str(tmp_path / decimal), form=TextFormat(decimal=decimal))
        assert manifest["columns"]["x"] == kind
        assert read(tmp_path / decimal).column("x")[0].as_py() == first
    manifest = ingest(source, str(tmp_path / "kept"), layout=Layout(text=("x",)))
    assert read(tmp_path / "kept").column("x").to_pylist() == ["1,234", "5,678"]


def test_texts_with_commas_stay_texts(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('x,y\n"1,5",2\n"Bonn, 3",4\n')
    manifest = ingest([str(tmp_path / "t.csv")], str(tmp_path / "lake"))
    assert manifest["columns"] == {"x": "string", "y": "int64"}


def test_row_numbers_without_a_name_are_called_index(tmp_path: Path) -> None:
    pd.DataFrame({"a": [3, 4], "b": ["x", "y"]}).to_csv(tmp_path / "t.csv")
    manifest = ingest([str(tmp_path / "t.csv")], str(tmp_path / "lake"))
    assert list(manifest["columns"]) == ["index", "a", "b"]


def test_signs_and_names_of_months_are_read_as_numbers_and_dates(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        'price,share,euro,day\n$12,12%,3 €,17-Nov-2026\n"$1,234.50",3.5 %,0,3 December 2025\n'
        '-$3,0,-1 €,"Sept 1, 2024"\n,,,\n'
    )
    manifest = ingest([str(tmp_path / "t.csv")], str(tmp_path / "lake"))
    told = manifest["read_as"]
    assert "numbers of price without their $" in told
    assert "numbers of share without their %" in told
    assert "dates of day by the names of months" in told
    found = read(tmp_path / "lake").to_pydict()
    assert found["price"] == [12.0, 1234.5, -3.0, None]
    assert found["share"] == [12.0, 3.5, 0.0, None]
    assert found["euro"] == [3, 0, -1, None]
    assert [None if day is None else str(day)[:10] for day in found["day"]] == [
        "2026-11-17",
        "2025-12-03",
        "2024-09-01",
        None,
    ]


def test_a_sign_that_comes_later_is_never_taken_for_another(tmp_path: Path) -> None:
    """Beyond the lines that decide, 3 € among dollars makes the column one of texts."""
    (tmp_path / "t.csv").write_text("price,n\n" + "$12,1\n" * 300 + "€3,2\n")
    manifest = ingest([str(tmp_path / "t.csv")], str(tmp_path / "lake"))
    assert manifest["columns"]["price"] == "string"
    assert read(tmp_path / "lake").column("price")[-1].as_py() == "€3"


@pytest.mark.parametrize(
    ("text", "said", "kept"),
    [
        ("x,n\n$12,1\n€3,2\n", r"column 'x' have different signs \('€' and '\$'\).*--text x", ["$12", "€3"]),
        ("x,n\n12%,1\n0.3,2\n", r"column 'x' have different signs \('%' and none\).*--text x", ["12%", "0.3"]),
        ("x,n\n17-Nov-26,1\n3-Dec-68,2\n", "in which century .* column 'x'.*--first-year 1950", None),
    ],
)
def test_signs_and_years_that_are_unclear_are_asked_about(
    tmp_path: Path, text: str, said: str, kept: list[str] | None
) -> None:
    (tmp_path / "t.csv").write_text(text)
    source = [str(tmp_path / "t.csv")]
    with pytest.raises(UsageError, match=said):
        ingest(source, str(tmp_path / "lake"))
    if kept is not None:
        ingest(source, str(tmp_path / "kept"), layout=Layout(text=("x",)))
        assert read(tmp_path / "kept").column("x").to_pylist() == kept
        return
    for first, years in ((1950, [2026, 1968]), (2000, [2026, 2068]), (1900, [1926, 1968])):
        ingest(source, str(tmp_path / f"from{first}"), form=TextFormat(first_year=first))
        assert [day.year for day in read(tmp_path / f"from{first}").column("x").to_pylist()] == years
    ingest(source, str(tmp_path / "text"), form=TextFormat(dates="text"))
    assert read(tmp_path / "text").column("x").to_pylist() == ["17-Nov-26", "3-Dec-68"]
