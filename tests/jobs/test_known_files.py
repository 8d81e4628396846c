"""E34 and second budgets: a file of a private lake is known under any address, alone or among others."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

import daskrado
from daskrado.errors import BudgetError, UsageError
from daskrado.jobs.load import load_kind
from daskrado.jobs.teacher_session import ask_file
from daskrado.jobs.teachers import TeachersJob
from daskrado.lake.files import find_files
from daskrado.lake.ingest import ingest
from daskrado.ledger.ledger import Ledger
from daskrado.table.domain import Domain

Clinic = Callable[..., tuple[Path, Domain]]
PRIVATE = {"relation": "replace_one", "unit": "one patient", "first_limit": (40, 1e-4)}
GRID = [{"kind": "output_perturbation", "regularisation": ridge} for ridge in (0.05, 0.5)]
FORMS = ("path", "glob", "list", "link", "hard link", "among others", "copy with its time")


def _forms(path: Path, where: Path) -> dict[str, Any]:
    """One file of a lake, named as somebody might who wants it to pass for another."""
    where.mkdir()
    (file, *_) = sorted(path.glob("*.parquet"))
    (where / "link.parquet").symlink_to(file)
    os.link(file, where / "hard.parquet")
    (where / "with").mkdir()
    (where / "with" / "more.parquet").symlink_to(file)
    spare = pq.read_table(file).slice(0, 3)
    pq.write_table(spare, where / "with" / "own.parquet")
    (where / "kept").mkdir()
    shutil.copy2(file, where / "kept" / file.name)
    return {
        "path": str(file),
        "glob": f"{path}/*0[0].parquet",
        "list": [str(file)],
        "link": str(where / "link.parquet"),
        "hard link": str(where / "hard.parquet"),
        "among others": str(where / "with"),
        "copy with its time": str(where / "kept"),
    }


@pytest.mark.parametrize("form", [*FORMS])
@pytest.mark.parametrize("whose", ["own", "another's"])
def test_one_file_of_a_private_lake_is_not_taken_for_public_rows(
    clinic: Clinic, tmp_path: Path, own_ledger: Path, form: str, whose: str
) -> None:
    """E34: the lake as a whole was compared, so any part of it, or it and more, passed for public."""
    path, spec = clinic(3000, 3)
    other, _ = clinic(2500, 2)
    public = _forms(path, tmp_path / "forms")[form]
    learner = {"kind": "tuning", "grid": GRID, "public_lake": public}
    keys = {"epsilon": 1.0, **PRIVATE}
    if whose == "another's":
        daskrado.fit(path, spec, dataset="a", delta=1e-6, **keys)
    lake, dataset = (path, "a") if whose == "own" else (other, "b")
    with pytest.raises(UsageError, match=r"learner.public_lake: these rows are private, as data set 'a'"):
        daskrado.fit(lake, spec, dataset=dataset, learner=learner, **keys)
    if own_ledger.exists():
        assert [entry.dataset for entry in Ledger.open(own_ledger).entries()] == ["a"] * (whose != "own")


@pytest.mark.parametrize("asked", ["run", "ask"])
def test_teachers_publish_no_row_of_their_own_lake(
    clinic: Clinic, tmp_path: Path, own_ledger: Path, asked: str
) -> None:
    """E34: queries lie beside their answers in what is published."""
    path, spec = clinic(3000, 3)
    other, _ = clinic(60, 1)
    mine = str(sorted(path.glob("*.parquet"))[1])
    keys = {
        "kind": "teachers",
        "dataset": "c",
        "lake": str(path),
        "domain": spec,
        "output": str(tmp_path / "out"),
        "teachers": {"count": 300, "learner": {"kind": "logistic", "ridge": 0.01}},
        "answers": {"mechanism": "gaussian", "queries": 1200},
        "queries": mine if asked == "run" else str(other),
        "protect": {"relation": "replace_one", "unit": "one patient"},
        "budget": {"epsilon": 4.0, "delta": 1e-6},
        "ledger": {"first_limit": {"epsilon": 20, "delta": 1e-4}},
    }
    job, out = load_kind(TeachersJob, keys), tmp_path / "answers.parquet"
    attack = partial(daskrado.run, keys) if asked == "run" else partial(ask_file, job, mine, out)
    with pytest.raises(UsageError, match=r"queries: these rows are private, as data set 'c'; give public rows"):
        attack()
    assert not out.exists()
    assert not (tmp_path / "out").exists()
    assert not Ledger.open(own_ledger).entries()


@pytest.mark.parametrize("form", [*FORMS])
def test_a_part_of_a_lake_or_more_than_it_has_no_second_budget(
    clinic: Clinic, tmp_path: Path, own_ledger: Path, form: str
) -> None:
    """Adding or dropping one file made another lake of it, and so another budget."""
    path, spec = clinic(3000, 3)
    keys = {"epsilon": 1.0, "delta": 1e-6, **PRIVATE}
    daskrado.fit(path, spec, dataset="a", **keys)
    lake = _forms(path, tmp_path / "forms")[form]
    with pytest.raises(
        BudgetError, match=r"parquet is already in the ledger .* as a file of 'a'; a second name, 'b'"
    ):
        daskrado.fit(lake, spec, dataset="b", **keys)
    daskrado.fit(lake, spec, dataset="a", **keys)
    assert [entry.dataset for entry in Ledger.open(own_ledger).entries()] == ["a", "a"]


@pytest.mark.parametrize("how", ["touched", "renamed", "touched and renamed", "copied"])
def test_a_new_time_or_a_new_name_hides_no_file_and_both_do(
    clinic: Clinic, tmp_path: Path, own_ledger: Path, how: str
) -> None:
    """Only what is no fact about rows is compared: so the last two are other files, and data/README.md says so."""
    path, spec = clinic(3000, 3)
    lake = Path(shutil.copytree(path, tmp_path / "lake"))
    keys = {"epsilon": 1.0, "delta": 1e-6, **PRIVATE}
    daskrado.fit(lake, spec, dataset="a", **keys)
    for file in sorted(lake.glob("*.parquet")):
        if "copied" in how:
            shutil.copy(file, tmp_path / "spare")
            file.unlink()
            file = file.with_name(f"b-{file.name}")
            shutil.move(tmp_path / "spare", file)
        if "touched" in how:
            os.utime(file, ns=(0, file.stat().st_mtime_ns + 1_234_567_891))
        if "renamed" in how:
            file.rename(file.with_name(f"b-{file.name}"))
    if how in ("touched", "renamed"):
        with pytest.raises(BudgetError, match=r"parquet is already in the ledger .* as a file of 'a'; a second name"):
            daskrado.fit(lake, spec, dataset="b", **keys)
        learner = {"kind": "tuning", "grid": GRID, "public_lake": str(lake)}
        with pytest.raises(UsageError, match=r"learner.public_lake: these rows are private, as data set 'a'"):
            daskrado.fit(clinic(2500, 2)[0], spec, dataset="b", learner=learner, epsilon=1.0, **PRIVATE)
    daskrado.fit(lake, spec, dataset="a" if how in ("touched", "renamed") else "b", **keys)


def test_a_file_that_an_ingested_lake_got_later_is_private_too(tmp_path: Path, own_ledger: Path) -> None:
    """A run on version 1 is told its own lake's newer files as public rows."""
    rows = pd.DataFrame({"age": range(20, 60), "sick": [0, 1] * 20})
    rows.to_csv(tmp_path / "1.csv", index=False)
    rows.iloc[:7].to_csv(tmp_path / "2.csv", index=False)
    out = str(tmp_path / "lake")
    ingest([str(tmp_path / "1.csv")], out)
    ingest([str(tmp_path / "2.csv")], out, append=True)
    spec = {
        "label": {"column": "sick", "positive": 1, "negative": 0},
        "norm_bound": 2.0,
        "columns": {"age": {"kind": "numeric", "lower": 20, "upper": 80}},
    }
    lake = {"folder": out, "version": 1}
    (late,) = {*map(str, Path(out).glob("*.parquet"))} - {file.path for file in find_files(lake)}
    learner = {"kind": "tuning", "grid": GRID, "public_lake": late}
    with pytest.raises(UsageError, match=r"learner.public_lake: these rows are private, as data set 'a'"):
        daskrado.fit(lake, spec, dataset="a", learner=learner, epsilon=1.0, **PRIVATE)
    assert not Ledger.open(own_ledger).entries()
