"""``lake check``: the owner sees every mistake with its exact count, and the ledger remembers that."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
from click.testing import CliRunner
from damaged_files import damaged_copy

from daskrado.cli.main import cli
from daskrado.lake.check import check_lake
from daskrado.ledger.ledger import Ledger
from daskrado.table.domain import Domain

Clinic = Callable[..., tuple[Path, Domain]]


def spoilt(lake: Path, folder: Path) -> Path:
    """Three files: one as it was, one with odd values, one without a column."""
    folder.mkdir()
    frames = [pd.read_parquet(path) for path in sorted(lake.glob("*.parquet"))]
    frames[1] = frames[1].astype({"bmi": "float64"}).reset_index(drop=True)
    frames[1].loc[[1, 5], "bmi"] = [float("inf"), float("-inf")]
    frames[1].loc[[2, 3, 4], "readmitted"] = ["perhaps", None, "never"]
    frames[2] = frames[2].drop(columns="age")
    for number, frame in enumerate(frames):
        frame.to_parquet(folder / f"part-{number}.parquet")
    return folder


def test_every_mistake_is_named_and_counted(clinic: Clinic, tmp_path: Path) -> None:
    path, domain = clinic(3000, 3)
    assert list(check_lake(path, domain)) == []
    lake = spoilt(path, tmp_path / "lake")
    found = [str(finding) for finding in check_lake(lake, domain)]
    odd, short = lake / "part-1.parquet", lake / "part-2.parquet"
    assert found[:2] == [
        f"{odd}: column 'bmi': NaN or infinite (2 rows)",
        f"{odd}: column 'readmitted': label outside ['yes', 'no'] (3 rows)",
    ]
    assert found[2].startswith(f"{short}: column 'age' is missing")
    assert len(found) == 3
    frame = pd.concat([pd.read_parquet(lake / f"part-{n}.parquet") for n in (0, 1)], ignore_index=True)
    assert [finding.rows for finding in check_lake(frame, domain)] == [2, 3]


def test_damaged_pages_are_found(clinic: Clinic, tmp_path: Path) -> None:
    path, domain = clinic(3000, 3)
    (found,) = check_lake(damaged_copy(path, tmp_path / "bad"), domain)
    assert found.where.endswith("part-00002.parquet")
    assert found.what.startswith("cannot be read as Parquet")
    assert found.rows is None


def test_without_a_domain_files_are_checked_alone(clinic: Clinic, tmp_path: Path) -> None:
    path, domain = clinic(3000, 3)
    good = CliRunner().invoke(cli, ["lake", "check", str(path)])
    said = "every file can be read, their columns agree, and none is a copy"
    assert (good.exit_code, good.output) == (0, f"{path}: {said}\n")
    lake = damaged_copy(path, tmp_path / "bad")
    shutil.copy(lake / "part-00000.parquet", lake / "part-00009.parquet")
    frame = pd.read_parquet(path / "part-00001.parquet")
    frame.assign(age=frame.age.astype(str)).drop(columns="bmi").to_parquet(lake / "part-00001.parquet")
    bad = CliRunner().invoke(cli, ["lake", "check", str(lake)])
    assert bad.exit_code == 1
    found = [line.removeprefix(f"{lake}/") for line in bad.output.splitlines()]
    first = lake / "part-00000.parquet"
    assert found[0].startswith("part-00001.parquet: column 'age' is")
    assert found[0].endswith(f", and int16 in {first}")
    assert found[1].startswith("part-00002.parquet: cannot be read as Parquet")
    assert found[2] == f"part-00001.parquet: column 'bmi' is missing, which {first} has"
    assert found[3] == f"part-00009.parquet: has the same bytes as {first}, so its rows would count twice"
    assert len(found) == 4
    assert f"{lake}/part-00009.parquet: has the same bytes as {first}" in "\n".join(
        str(finding) for finding in check_lake(lake, domain)
    )


def test_the_command_lists_marks_and_fails(clinic: Clinic, tmp_path: Path, own_ledger: Path) -> None:
    path, _ = clinic(3000, 3)
    good = CliRunner().invoke(cli, ["lake", "check", str(path), "--domain", f"{path}.yaml"])
    assert (good.exit_code, good.output) == (0, f"{path}: every row fits {path}.yaml\n")
    assert not own_ledger.exists()  # nothing was named that could be marked
    lake = spoilt(path, tmp_path / "lake")
    words = ["lake", "check", str(lake), "--domain", f"{path}.yaml", "--dataset", "clinic"]
    bad = CliRunner().invoke(cli, words)
    assert bad.exit_code == 1
    assert bad.output.count("\n") == 3
    with Ledger.open(own_ledger) as ledger:
        assert [(marked.mark, marked.run) for marked in ledger.marks("clinic")] == [("exact counts", "lake check")]
