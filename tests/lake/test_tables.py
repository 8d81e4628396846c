"""Delta and Iceberg tables: a lake is one version of a table, never the files that its folder happens to hold."""

from __future__ import annotations

import base64
import json
import os
import struct
import subprocess
import sys
from datetime import date, datetime, time
from pathlib import Path
from typing import Any

import deltalake
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyiceberg.manifest as iceberg_manifest
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog
from pyiceberg.transforms import DayTransform
from pyiceberg.typedef import Record
from pyiceberg.utils.config import Config

import daskrado
from daskrado.errors import DataError, UsageError
from daskrado.lake.block_facts import public_name
from daskrado.lake.blocks import PartOfLake, block_names
from daskrado.lake.collect import collect
from daskrado.lake.files import find_files
from daskrado.lake.scan import open_lake
from daskrado.ledger.ledger import Ledger
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
            "site": {"kind": "categorical", "values": ["north", "far south"], "nulls": {"fill": "other"}},
        },
    },
    "here",
)


def rows(count: int, seed: int) -> pa.Table:
    draw = np.random.default_rng(seed)
    return pa.table(
        {
            "a": draw.normal(size=count),
            "b": draw.integers(0, 10, count),
            "site": pa.array(draw.choice(["north", "far south"], count).tolist()),
            "y": draw.integers(0, 2, count),
        }
    )


def vector(source: Any, domain: Domain = DOMAIN) -> np.ndarray:
    lattice = Lattice(domain.norm_bound, 16)
    return collect(Moments(domain.width), open_lake(source, domain), domain, lattice).vector


def same(source: Any, truth: pa.Table, domain: Domain = DOMAIN) -> bool:
    """Whether a table gives the exact sums of its rows, as the table's own library reads them."""
    return np.array_equal(vector(source, domain), vector(truth.to_pandas(), domain))


# ---------------------------------------------------------------------------------------------------- Delta


@pytest.fixture
def delta(tmp_path: Path) -> str:
    """Five versions: written, appended, rows deleted, one merged, all partitioned by site."""
    place = str(tmp_path / "visits")
    write_deltalake(place, rows(60, 1), partition_by=["site"])
    write_deltalake(place, rows(40, 2), mode="append")
    DeltaTable(place).delete("b >= 5")
    changed = rows(10, 3)
    DeltaTable(place).merge(changed, "t.b = s.b and t.a = s.a", "s", "t").when_not_matched_insert_all().execute()
    write_deltalake(place, rows(30, 4), mode="overwrite")
    return place


def test_a_delta_table_is_its_newest_version_or_the_one_that_is_named(delta: str) -> None:
    assert len(list(Path(delta).rglob("*.parquet"))) > len(DeltaTable(delta).file_uris())  # removed files lie there
    assert same(delta, DeltaTable(delta).to_pyarrow_table())
    for version in range(5):
        truth = DeltaTable(delta, version=version).to_pyarrow_table()
        assert same({"delta": delta, "version": version}, truth), version
        assert open_lake({"delta": delta, "version": version}, DOMAIN).table.version == version


def test_deleted_patients_are_not_learned_from(tmp_path: Path, own_ledger: Path) -> None:
    place = tmp_path / "visits"
    write_deltalake(str(place), rows(50, 1))
    DeltaTable(str(place)).delete("b < 8")
    alive = DeltaTable(str(place)).to_pyarrow_table()
    assert alive.num_rows < 50
    assert open_lake(str(place), DOMAIN).rows == alive.num_rows
    pipeline = {
        "dataset": "visits",
        "lake": {"delta": str(place)},
        "domain": DOMAIN,
        "output": str(tmp_path / "out"),
        "private": False,
    }
    result = daskrado.run(pipeline)
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert result.facts["rows"] == alive.num_rows
    table = {"format": "delta", "version": 1, "table": public_name(DeltaTable(str(place)).metadata().id)}
    assert manifest["facts"]["table"] == table


def test_a_column_that_came_later_is_null_in_older_files(tmp_path: Path) -> None:
    place = str(tmp_path / "grown")
    write_deltalake(place, rows(20, 1).drop_columns(["b"]))
    write_deltalake(place, rows(20, 2), mode="append", schema_mode="merge")
    truth = DeltaTable(place).to_pyarrow_table()
    assert truth["b"].null_count == 20
    assert same(place, truth)


def test_renamed_columns_are_found_by_their_physical_names(tmp_path: Path) -> None:
    place = tmp_path / "renamed"
    write_deltalake(str(place), rows(20, 1).rename_columns(["old", "b", "site", "y"]))
    log = place / "_delta_log/00000000000000000000.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "protocol" in action:
            action["protocol"] = {"minReaderVersion": 2, "minWriterVersion": 5}
        if "metaData" in action:
            schema = json.loads(action["metaData"]["schemaString"])
            for number, field in enumerate(schema["fields"], start=1):
                physical = {"id": number, "physicalName": field["name"]}
                field["metadata"] = {f"delta.columnMapping.{key}": value for key, value in physical.items()}
            schema["fields"][0]["name"] = "a"
            action["metaData"]["schemaString"] = json.dumps(schema)
            action["metaData"]["configuration"] = {"delta.columnMapping.mode": "name"}
    log.write_text("\n".join(map(json.dumps, actions)))
    assert same(str(place), rows(20, 1))


def deletion_vector(positions: list[int]) -> dict[str, Any]:
    """An inline deletion vector: a portable 64-bit Roaring bitmap with one array container, in Z85."""
    values = struct.pack(f"<{len(positions)}H", *positions)
    bitmap = struct.pack("<IIHHI", 12346, 1, 0, len(positions) - 1, 16) + values
    content = struct.pack("<IQI", 1681511377, 1, 0) + bitmap
    size = len(content)
    rfc1924 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
    z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    text = base64.b85encode(content, pad=True).translate(bytes.maketrans(rfc1924, z85)).decode()
    return {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": size, "cardinality": len(positions)}


def test_rows_of_a_deletion_vector_are_left_out(tmp_path: Path) -> None:
    place = tmp_path / "marked"
    write_deltalake(str(place), rows(50, 1))
    log = place / "_delta_log/00000000000000000000.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    feature = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    for action in actions:
        if "protocol" in action:
            action["protocol"] = {"minReaderVersion": 3, "minWriterVersion": 7, **feature}
        if "add" in action:
            action["add"]["deletionVector"] = deletion_vector([0, 7, 49])
    log.write_text("\n".join(map(json.dumps, actions)))
    kept = np.setdiff1d(np.arange(50), [0, 7, 49])
    assert open_lake(str(place), DOMAIN).rows == 47
    assert same(str(place), rows(50, 1).take(pa.array(kept)))
    (file,) = place.glob("*.parquet")
    views = rows(50, 1)  # as other writers store texts
    pq.write_table(views.set_column(2, "site", views["site"].cast(pa.string_view())), file)
    assert pq.read_schema(file).field("site").type == pa.string_view()
    assert same(str(place), rows(50, 1).take(pa.array(kept)))


def test_a_version_that_was_vacuumed_or_never_was_is_refused_in_one_line(delta: str) -> None:
    DeltaTable(delta).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    assert same(delta, DeltaTable(delta).to_pyarrow_table())
    with pytest.raises(
        DataError, match=r"version 0 needs .*, which is gone \(vacuumed or expired\?\); choose a newer"
    ):
        open_lake({"delta": delta, "version": 0}, DOMAIN)
    with pytest.raises(DataError, match=r"visits: the Delta table has no version 99; its newest is \d+$"):
        open_lake({"delta": delta, "version": 99}, DOMAIN)


def test_a_damaged_log_is_refused_in_one_line(delta: str) -> None:
    log = Path(delta, "_delta_log/00000000000000000002.json")
    log.write_text(log.read_text()[:40])
    with pytest.raises(DataError, match=r"visits: the Delta table cannot be read \([^\n]*\)$"):
        open_lake(delta, DOMAIN)


@pytest.mark.parametrize("part", ["*/*.parquet", "site=north", "file", "list"])
def test_a_part_of_a_tables_folder_is_refused(delta: str, part: str) -> None:
    file = next(Path(delta).rglob("*.parquet"))
    source: Any = {"file": str(file), "list": [str(file)]}.get(part, f"{delta}/{part}")
    with pytest.raises(UsageError, match=r"reads a part of the Delta table .*; name the table: \{delta: "):
        find_files(source)


def test_no_glob_above_a_table_and_no_link_into_it_reads_removed_files(delta: str, tmp_path: Path) -> None:
    inside = next(Path(delta).glob("site=*"))
    (tmp_path / "link").symlink_to(inside)
    for source in (f"{tmp_path}/visit[s]/*/*.parquet", f"{tmp_path}/*/site=*/*.parquet", str(tmp_path / "link")):
        with pytest.raises(UsageError, match="reads a part of the Delta table"):
            find_files(source)


def test_a_table_inside_a_lakes_folder_is_refused(delta: str) -> None:
    with pytest.raises(UsageError, match="reads a part of the Delta table"):
        find_files(Path(delta).parent)
    hudi = Path(delta).parent / "other"
    (hudi / ".hoodie").mkdir(parents=True)
    (hudi / ".hoodie/hoodie.properties").write_text("x")
    pq.write_table(rows(3, 1), hudi / "x.parquet")
    with pytest.raises(UsageError, match=r"other is a Hudi table, which is not read here; export it as Parquet"):
        find_files(hudi)


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        (".hoodie/", r"is a Hudi table, which is not read here; export it as Parquet"),
        (".hoodie/archived/", r"is a Hudi table, which is not read here; export it as Parquet"),
        ("site=a/.hoodie_partition_metadata", r"is a Hudi table, which is not read here; export it as Parquet"),
        ("_spark_metadata/0", r"is the output of a Spark stream, which is not read here; export it as Parquet"),
        ("_delta_log/", r"the Delta table cannot be read \([^\n]*\)$"),
        ("_delta_log/_last_checkpoint", r"the Delta table cannot be read \([^\n]*\)$"),
        (
            "metadata/",
            r"no metadata.json of an Iceberg table in its folder metadata, so nothing says which files count",
        ),
        ("metadata/snap-1.avro", r"no metadata.json of an Iceberg table in its folder metadata"),
        ("metadata/version-hint.text", r"no metadata.json of an Iceberg table in its folder metadata"),
    ],
)
def test_a_table_that_lost_its_log_is_no_plain_folder(tmp_path: Path, mark: str, said: str) -> None:
    """Its files may be of any version: they are refused whole, nested, and in part."""
    table = tmp_path / "lakes" / "visits"
    (table / "site=a").mkdir(parents=True)
    pq.write_table(rows(3, 1).drop(["site"]), table / "site=a" / "x.parquet")
    assert len(find_files(table)) == 1
    place = table / mark
    if mark.endswith("/"):
        place.mkdir(parents=True)
    else:
        place.parent.mkdir(exist_ok=True)
        place.write_text("x")
    with pytest.raises((UsageError, DataError), match=said):
        find_files(table)
    with pytest.raises((UsageError, DataError), match=r"lakes/visits"):
        find_files(table.parent)
    if mark != "metadata/":  # of that name may be any empty folder above a lake
        for part in (table / "site=a", table / "site=a" / "x.parquet", f"{table}/*/*.parquet"):
            with pytest.raises((UsageError, DataError), match=r"visits"):
                find_files(part)


def test_a_folder_of_notes_called_metadata_makes_no_table(tmp_path: Path) -> None:
    (tmp_path / "metadata").mkdir()
    (tmp_path / "metadata" / "readme.json").write_text("{}")
    pq.write_table(rows(3, 1), tmp_path / "x.parquet")
    assert len(find_files(tmp_path)) == 1


def test_without_its_library_a_table_is_refused(delta: str) -> None:
    code = (
        "import sys; sys.modules['deltalake'] = None\n"
        "from daskrado.lake.files import find_files\n"
        f"find_files({delta!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].endswith(f"{delta}: is a Delta table; to read it, install daskrado[delta]"), (
        done.stderr
    )


def test_keys_of_a_table_that_make_no_sense(tmp_path: Path) -> None:
    for keys, said in (
        ({"delta": "x", "snapshot": 3}, "a table is {delta: ADDRESS, version: NUMBER}"),
        ({"delta": "x", "iceberg": "y"}, "a table is"),
        ({"delta": "x", "version": "new"}, "lake.version: must be a whole number of 0 or more, got 'new'"),
        ({"delta": 3}, "lake.delta: must be an address, got int"),
        ({"iceberg": "alone"}, "lake.iceberg: must be CATALOG.TABLE or the table's folder, got 'alone'"),
    ):
        with pytest.raises(UsageError, match=said.replace("{", r"\{").replace("}", r"\}")):
            find_files(keys)


def test_a_killed_run_goes_on_with_the_version_that_it_began_with(
    tmp_path: Path, own_ledger: Path, forge: Any
) -> None:
    place, out = tmp_path / "visits", tmp_path / "out"
    write_deltalake(str(place), rows(200, 1))
    job = {
        "dataset": "visits",
        "lake": str(place),
        "domain": DOMAIN.model_dump(mode="json", by_alias=True),
        "output": str(out),
        "protect": {"relation": "add_remove", "unit": "one row"},
        "budget": {"epsilon": 1.0, "delta": 1e-6},
        "ledger": {"first_limit": {"epsilon": 10.0, "delta": 1e-5}},
    }
    code = (
        "import os, signal, json\n"
        "import daskrado\n"
        "import daskrado.lake.collect as c\n"
        "def die(*a, **k): os.kill(os.getpid(), signal.SIGKILL)\n"
        "c.Passes.sum = die\n"
        f"daskrado.run(json.loads({json.dumps(job)!r}))\n"
    )
    assert forge(code) == -9
    write_deltalake(str(place), rows(50, 2), mode="append")
    run = next(path.name for path in own_ledger.with_name(own_ledger.name + ".runs").iterdir())
    daskrado.resume(run)
    assert json.loads((out / "manifest.json").read_text())["facts"]["table"]["version"] == 0


# -------------------------------------------------------------------------------------------------- Iceberg


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    place = tmp_path / "warehouse"
    place.mkdir()
    options = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{place}"}
    for key, value in options.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__HOUSE__{key.upper()}", value)
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # which was read when it was imported
    made = load_catalog("house", **options)
    made.create_namespace("clinic")
    yield made
    made.engine.dispose()


@pytest.fixture
def iceberg(catalog: Any) -> Any:
    """Written, appended, rows deleted, a column added and one renamed, appended again."""
    table = catalog.create_table("clinic.visits", schema=rows(1, 1).schema.set(0, pa.field("old", pa.float64())))
    table.append(rows(60, 1).rename_columns(["old", "b", "site", "y"]))
    table.append(rows(40, 2).rename_columns(["old", "b", "site", "y"]))
    table.delete("b >= 5")
    with table.update_schema() as change:
        change.rename_column("old", "a")
    table.append(rows(30, 3))
    return table


def test_an_iceberg_table_by_catalog_by_folder_and_by_snapshot(iceberg: Any, tmp_path: Path) -> None:
    truth = iceberg.scan().to_arrow()
    folder = tmp_path / "warehouse/clinic/visits"
    assert len(list(folder.rglob("*.parquet"))) > len(list(iceberg.scan().plan_files()))
    for source in ({"iceberg": "house.clinic.visits"}, str(folder), {"iceberg": str(folder)}):
        assert same(source, truth), source
    last = iceberg.current_snapshot().snapshot_id
    assert open_lake(str(folder), DOMAIN).table.facts == {
        "format": "iceberg",
        "version": last,
        "table": public_name(str(iceberg.metadata.table_uuid)),
    }
    renamed = parse(
        Domain,
        json.loads(json.dumps(DOMAIN.model_dump(mode="json", by_alias=True)).replace('"a":', '"old":')),
        "here",
    )
    for snapshot in iceberg.snapshots()[:-1]:
        found = {"iceberg": str(folder), "snapshot": snapshot.snapshot_id}
        then = iceberg.scan(snapshot_id=snapshot.snapshot_id).to_arrow()
        assert same(found, then, renamed), snapshot


def test_a_dropped_column_does_not_come_back_under_its_name(catalog: Any, tmp_path: Path) -> None:
    table = catalog.create_table("clinic.visits", schema=rows(1, 1).schema)
    table.append(rows(20, 1))
    with table.update_schema() as change:
        change.delete_column("b")
    with table.update_schema() as change:
        change.add_column("b", table.schema().find_type("y"))
    table.append(rows(20, 2).select(["a", "site", "y", "b"]))
    truth = table.scan().to_arrow()
    assert truth["b"].null_count == 20
    assert same({"iceberg": "house.clinic.visits"}, truth)


class _DeleteManifest(iceberg_manifest.ManifestWriterV2):
    def content(self) -> Any:
        return iceberg_manifest.ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def delete_by_position(table: Any, folder: Path, positions: list[int], content: Any) -> None:
    """Commit a snapshot whose delete file names rows of the table's first file, as other engines write it."""
    data = min(table.scan().plan_files(), key=lambda task: task.file.file_path).file
    path = folder / "data/deleted.parquet"
    named = {"file_path": [data.file_path] * len(positions), "pos": pa.array(positions, pa.int64())}
    pq.write_table(pa.table(named), path)
    before = table.current_snapshot()
    number = before.snapshot_id + 1
    file = iceberg_manifest.DataFile.from_args(
        content=content,
        file_path=f"file://{path}",
        file_format=iceberg_manifest.FileFormat.PARQUET,
        partition=Record(),
        record_count=len(positions),
        file_size_in_bytes=path.stat().st_size,
        equality_ids=[1] if content is iceberg_manifest.DataFileContent.EQUALITY_DELETES else None,
    )
    file.spec_id = 0
    made = table.io.new_output(f"file://{folder}/metadata/deletes.avro")
    writer = _DeleteManifest(table.spec(), table.schema(), made, number, "deflate")
    with writer:
        writer.add_entry(
            iceberg_manifest.ManifestEntry.from_args(
                status=iceberg_manifest.ManifestEntryStatus.ADDED,
                snapshot_id=number,
                sequence_number=before.sequence_number + 1,
                file_sequence_number=before.sequence_number + 1,
                data_file=file,
            )
        )
    listed = f"file://{folder}/metadata/snap-{number}.avro"
    with iceberg_manifest.write_manifest_list(
        2, table.io.new_output(listed), number, before.snapshot_id, before.sequence_number + 1, "deflate"
    ) as writer_of_list:
        writer_of_list.add_manifests([writer.to_manifest_file(), *before.manifests(table.io)])
    metadata = json.loads(Path(table.metadata_location.removeprefix("file://")).read_text())
    last = {
        **metadata["snapshots"][-1],
        "snapshot-id": number,
        "parent-snapshot-id": before.snapshot_id,
        "sequence-number": before.sequence_number + 1,
        "manifest-list": listed,
        "timestamp-ms": metadata["last-updated-ms"] + 1,
    }
    metadata["snapshots"].append(last)
    metadata["refs"]["main"]["snapshot-id"] = metadata["current-snapshot-id"] = number
    metadata["last-sequence-number"] = before.sequence_number + 1
    metadata["last-updated-ms"] += 1
    (folder / "metadata/00099-deletes.metadata.json").write_text(json.dumps(metadata))


def test_positional_deletes_are_left_out(catalog: Any, tmp_path: Path) -> None:
    from pyiceberg.table import StaticTable

    table = catalog.create_table("clinic.visits", schema=rows(1, 1).schema, properties={"format-version": "2"})
    table.append(rows(50, 1))
    folder = tmp_path / "warehouse/clinic/visits"
    delete_by_position(table, folder, [1, 3, 49], iceberg_manifest.DataFileContent.POSITION_DELETES)
    truth = StaticTable.from_metadata(str(folder / "metadata/00099-deletes.metadata.json")).scan().to_arrow()
    assert truth.num_rows == 47
    assert same(str(folder), truth)


def test_equality_deletes_and_unclear_metadata_are_refused(catalog: Any, tmp_path: Path) -> None:
    table = catalog.create_table("clinic.visits", schema=rows(1, 1).schema, properties={"format-version": "2"})
    table.append(rows(50, 1))
    folder = tmp_path / "warehouse/clinic/visits"
    newest = Path(table.metadata_location.removeprefix("file://"))
    twin = newest.with_name(newest.name.partition("-")[0] + "-0.metadata.json")
    twin.write_text(newest.read_text())
    with pytest.raises(DataError, match=r"2 metadata files with number 1; only its catalog knows which counts"):
        open_lake(str(folder), DOMAIN)
    os.unlink(twin)
    delete_by_position(table, folder, [1], iceberg_manifest.DataFileContent.EQUALITY_DELETES)
    with pytest.raises(
        DataError, match=r"equality deletes or deletion vectors.*rewrite its data files|cannot be read"
    ):
        open_lake(str(folder), DOMAIN)
    with pytest.raises(DataError, match=r"has no snapshot 5; its newest are \d+"):
        open_lake({"iceberg": "house.clinic.visits", "snapshot": 5}, DOMAIN)
    with pytest.raises(DataError, match=r"house\.clinic\.other: the Iceberg table cannot be read"):
        open_lake({"iceberg": "house.clinic.other"}, DOMAIN)


def test_an_iceberg_table_that_lost_a_file_or_is_damaged_is_refused_in_one_line(iceberg: Any, tmp_path: Path) -> None:
    """A data file that was expired, a manifest and a metadata file that are not what they were."""
    folder = tmp_path / "warehouse/clinic/visits"
    data = Path(next(iter(iceberg.scan().plan_files())).file.file_path.removeprefix("file://"))
    kept = data.read_bytes()
    data.unlink()
    last = iceberg.current_snapshot().snapshot_id
    with pytest.raises(
        DataError, match=rf"snapshot {last} needs .*\.parquet, which is gone \(vacuumed or expired"
    ) as e:
        open_lake(str(folder), DOMAIN)
    assert "\n" not in str(e.value)
    data.write_bytes(kept)
    for pattern in ("metadata/*-m0.avro", "metadata/snap-*.avro", "metadata/*.metadata.json"):
        for path in folder.glob(pattern):
            whole = path.read_bytes()
            path.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(DataError, match="the Iceberg table cannot be read") as e:
            open_lake(str(folder), DOMAIN)
        assert "\n" not in str(e.value)


@pytest.fixture
def partitioned(catalog: Any, tmp_path: Path) -> Any:
    """Three nights of 20 visits each, by a column and by the day of a moment, as another program wrote them."""
    nights = [date(2026, 11, 1), date(2026, 11, 2), date(2026, 11, 3)]
    tables = [
        rows(20, n)
        .append_column("night", pa.array([night] * 20))
        .append_column("at", pa.array([datetime.combine(night, time(7, n))] * 20, pa.timestamp("us")))
        for n, night in enumerate(nights)
    ]
    table = catalog.create_table("clinic.nights", schema=tables[0].schema)
    with table.update_spec() as change:
        change.add_identity("night")
        change.add_field("at", DayTransform(), "at_day")
    for n, part in enumerate(tables):
        pq.write_table(part, tmp_path / f"{n}.parquet")
        table.add_files([f"file://{tmp_path}/{n}.parquet"])
    return table


@pytest.mark.parametrize("column", ["night", "at_day"])
def test_partitions_of_an_iceberg_table_are_blocks(
    partitioned: Any, tmp_path: Path, own_ledger: Path, column: str
) -> None:
    last = partitioned.scan(row_filter="night >= '2026-11-02'").to_arrow()
    folder = str(tmp_path / "warehouse/clinic/nights")
    assert block_names(folder, column) == ("2026-11-01", "2026-11-02", "2026-11-03")
    assert same(PartOfLake(folder, column, ("2026-11-02", "2026-11-03")), last)
    found = daskrado.fit(
        folder,
        DOMAIN,
        dataset="visits",
        epsilon=1.0,
        blocks={"column": column, "last": 2},
        first_limit=(2.0, 0.0),
    )
    assert found.facts["blocks"]["read"] == ["2026-11-02", "2026-11-03"]
    assert sorted(Ledger.open(own_ledger).block_balances("visits")) == ["2026-11-02", "2026-11-03"]


def test_a_file_from_before_the_partitions_is_not_left_out_in_silence(iceberg: Any, tmp_path: Path) -> None:
    with iceberg.update_spec() as change:
        change.add_identity("site")
    iceberg.append(rows(10, 4))
    with pytest.raises(UsageError, match=r"blocks.column 'site': .*\.parquet was written before the table was") as e:
        block_names(str(tmp_path / "warehouse/clinic/visits"), "site")
    assert "\n" not in str(e.value)


def test_the_library_of_delta_is_recent() -> None:
    assert hasattr(deltalake.DeltaTable, "deletion_vectors")
