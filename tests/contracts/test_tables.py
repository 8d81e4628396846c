"""No kind of job reads what a table has removed: not by the table's keys, nor by its folder (E36)."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow.dataset as pads
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake
from every_kind import ENGINES, KINDS, OTHERS, make_ward, pipeline

from daskrado.jobs.load import load_job


@pytest.fixture(scope="module")
def ward(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The ward's lakes as Delta tables whose folders hold every row three times, in files of older versions too."""
    folder = tmp_path_factory.mktemp("ward")
    found = make_ward(folder)
    for name, by in (("lake", None), ("days", ["day"])):
        rows = pads.dataset(folder / name, partitioning="hive").to_table()
        shutil.rmtree(folder / name)
        write_deltalake(str(folder / name), rows, partition_by=by)
        write_deltalake(str(folder / name), rows, partition_by=by, mode="overwrite")
        DeltaTable(str(folder / name)).delete("age < 30")
    return found


@pytest.mark.parametrize("address", ["folder", "keys"])
@pytest.mark.parametrize("name", [*KINDS, *ENGINES, *OTHERS])
def test_every_kind_reads_the_files_of_one_version(ward: tuple[Path, Path], name: str, address: str) -> None:
    folder = ward[0].parent
    content: dict[str, Any] = pipeline(name, ward, folder / "out")
    place = folder / content["lake"]
    if address == "keys":
        content["lake"] = {"delta": content["lake"]}
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(content))
    read = {os.path.realpath(part.path) for part in load_job(path).scan().partitions}
    live = {os.path.realpath(unquote(urlsplit(uri).path)) for uri in DeltaTable(str(place)).file_uris()}
    assert read == live
    assert len(live) < len([*place.rglob("*.parquet")])
