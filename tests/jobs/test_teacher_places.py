"""A teacher for each value of a public column, each folder or each file: one row reaches one teacher alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

import daskrado
from daskrado.errors import DataError, UsageError
from daskrado.jobs.load import load_kind
from daskrado.jobs.teachers import TeachersJob
from daskrado.lake.ensemble import train
from daskrado.lake.scan import open_lake
from daskrado.lake.teachers import Course, _predict
from daskrado.ledger.ledger import Ledger
from daskrado.table.domain import Domain
from daskrado.table.yaml_file import parse

WARDS = tuple(f"w{number:02d}" for number in range(40))
DOMAIN: dict[str, Any] = {
    "label": {"column": "y", "positive": "yes", "negative": "no"},
    "norm_bound": 2.0,
    "columns": {
        **{f"x{i}": {"kind": "numeric", "lower": -3, "upper": 3} for i in range(2)},
        "kind": {"kind": "categorical", "values": [f"k{i}" for i in range(5)]},
        "new": {"kind": "boolean"},
    },
}
COLUMN, KIND = {"column": "ward"}, {"column": "kind"}


def draw_rows(rows: int, seed: int = 1) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(rows, 2))
    y = np.where(x @ np.array([1.5, -2.0]) + draw.normal(size=rows) > 0, "yes", "no")
    own = {"ward": draw.choice(WARDS, rows), "kind": draw.choice([f"k{i}" for i in range(5)], rows)}
    return pd.DataFrame({"x0": x[:, 0], "x1": x[:, 1], **own, "new": draw.random(rows) < 0.5, "y": y})


def written(place: Path, frame: pd.DataFrame, files: int = 1) -> Path:
    """A tree of folders ward=..., each with so many files."""
    for ward, rows in frame.groupby("ward"):
        folder = place / f"ward={ward}"
        folder.mkdir(parents=True)
        for number, part in enumerate(np.array_split(np.arange(len(rows)), files)):
            table = pa.Table.from_pandas(rows.iloc[part].drop(columns="ward"), preserve_index=False)
            pq.write_table(table, folder / f"{number}.parquet", row_group_size=7)
    return place


def job_of(lake: Any, tmp_path: Path, by: Any, **changes: Any) -> TeachersJob:
    wanted: dict[str, Any] = {
        "kind": "teachers",
        "dataset": "clinic",
        "lake": str(lake) if isinstance(lake, Path) else lake,
        "domain": DOMAIN,
        "queries": str(tmp_path / "q.parquet"),
        "output": str(tmp_path / "out"),
        "protect": {"relation": "add_remove", "unit": "one patient"},
        "budget": {"epsilon": 8.0, "delta": 1e-5},
        "ledger": {"path": str(tmp_path / "ledger.sqlite"), "first_limit": {"epsilon": 20.0, "delta": 1e-3}},
        "teachers": {"shard_by": by, "learner": {"kind": "logistic", "ridge": 0.01}},
        "answers": {"mechanism": "gaussian", "queries": 20},
    }
    return load_kind(TeachersJob, {**wanted, **changes})


QUERIES = np.random.default_rng(5).normal(size=(200, parse(Domain, DOMAIN, "domain").width)) / 3


def answers(job: TeachersJob) -> NDArray[np.int64]:
    """What each teacher says to each query: a row for a teacher."""
    course = Course(job.domain, job.all_classes, job.sharding, job.teachers.learner)
    lake = open_lake(job.source, job.domain, empty=True)
    with train(course, lake) as ensemble:
        pairs = [
            (number, teacher)
            for group, part in ensemble._pairs()
            for number, teacher in zip(group, part.teachers, strict=True)
        ]
        found = np.array([_predict(teacher, number, QUERIES, 2) for number, teacher in pairs])
    assert ((found.mean(axis=1) > 0) & (found.mean(axis=1) < 1)).any()  # they were trained, and asked what they know
    return found


ROW = {"x0": 3.0, "x1": 3.0, "ward": "w07", "kind": "k3", "new": True, "y": "yes"}


@pytest.mark.parametrize(
    ("by", "files", "reached"),
    [(COLUMN, 2, 7), ("partition", 2, 7), ("file", 1, 7), (KIND, 1, 3)],
    ids=["folder column", "partition", "file", "domain column"],
)
def test_a_row_reaches_the_teacher_of_its_place_alone(tmp_path: Path, by: Any, files: int, reached: int) -> None:
    """Thirty rows at the front of a place, so that every row of the lake after them is somewhere else."""
    frame = draw_rows(3000)
    more = pd.concat([pd.DataFrame([ROW] * 30), frame], ignore_index=True)
    before = answers(job_of(written(tmp_path / "a", frame, files), tmp_path, by))
    after = answers(job_of(written(tmp_path / "b", more, files), tmp_path, by))
    changed = np.flatnonzero((before != after).any(axis=1))
    assert changed.tolist() == [reached]


def test_positions_would_reach_many_teachers(tmp_path: Path) -> None:
    """A control: the same rows, dealt out by position, move nearly all teachers."""
    frame = draw_rows(3000)
    more = pd.concat([pd.DataFrame([ROW]), frame], ignore_index=True)
    found = []
    for rows in (frame, more):
        job = job_of(
            rows,
            tmp_path,
            "position",
            protect={"relation": "replace_one", "unit": "one patient"},
            teachers={"count": 40, "shard_by": "position"},
            budget={"epsilon": 16.0, "delta": 1e-5},
        )
        found.append(answers(job))
    assert (found[0] != found[1]).any(axis=1).sum() > 30


def test_a_place_without_rows_has_a_teacher_that_votes_by_the_public_rule(tmp_path: Path) -> None:
    """The last row of a ward goes: as many teachers, and one of them changes."""
    frame = draw_rows(2000)
    lone = pd.concat([frame[frame["kind"] != "k2"], frame[frame["kind"] == "k2"].iloc[:1]], ignore_index=True)
    none = frame[frame["kind"] != "k2"].reset_index(drop=True)
    lone.loc[lone["kind"] == "k2", "y"] = "yes"  # the rule votes for class 2 mod 2
    before, after = (answers(job_of(rows, tmp_path, KIND)) for rows in (lone, none))
    assert len(before) == len(after) == 5
    assert np.flatnonzero((before != after).any(axis=1)).tolist() == [2]
    assert (after[2] == 0).all()


@pytest.mark.parametrize("by", [COLUMN, KIND, "partition"])
def test_the_same_teachers_for_any_layout_of_files(tmp_path: Path, by: Any) -> None:
    frame = draw_rows(2000)
    found = [answers(job_of(written(tmp_path / str(n), frame, n), tmp_path, by)) for n in (1, 2, 7)]
    assert all(np.array_equal(found[0], other) for other in found[1:])


@pytest.mark.cluster
@pytest.mark.parametrize("by", [COLUMN, KIND, "partition"])
def test_two_workers_train_the_same_teachers(tmp_path: Path, by: Any, two_workers: Any) -> None:
    job = job_of(written(tmp_path / "lake", draw_rows(2000), 2), tmp_path, by)
    course = Course(job.domain, job.all_classes, job.sharding, job.teachers.learner)
    with train(course, job.scan()) as here, train(course, job.scan(), client=two_workers) as there:
        assert np.array_equal(here.votes(QUERIES).counts, there.votes(QUERIES).counts)


@pytest.mark.parametrize(("by", "words"), [(COLUMN, "its ward, which is public"), ("file", "its folder, which pub")])
def test_a_student_of_a_teacher_for_each_ward(tmp_path: Path, by: Any, words: str) -> None:
    lake = written(tmp_path / "lake", draw_rows(4000))
    draw_rows(20, 2).drop(columns=["y", "ward"]).to_parquet(tmp_path / "q.parquet")
    job = job_of(lake, tmp_path, by)
    assert (job.count, job.changed) == (40, 1)
    found = daskrado.run_teachers(job)
    assert found.value.counts["answered"] == 20
    assert any(f"a row is in the shard of {words}" in text for text in found.statement.assumptions)
    assert any("which of them there are does not depend on rows" in text for text in found.statement.assumptions)
    assert found.statement.sentence().startswith("Differentially private")
    assert len(Ledger.open(tmp_path / "ledger.sqlite").entries()) == 1


def test_a_unit_with_three_rows_may_reach_three_teachers(tmp_path: Path) -> None:
    lake = written(tmp_path / "lake", draw_rows(500))
    protect = {"relation": "add_remove", "unit": "one patient", "rows_per_unit": 3}
    assert job_of(lake, tmp_path, COLUMN, protect=protect).changed == 3


PATIENT = {"unit": "one patient"}
BAD: list[tuple[Any, dict[str, Any], str]] = [
    (COLUMN, {"protect": {"relation": "replace_one", **PATIENT}}, "come to another place and reach two teachers"),
    ("file", {"protect": {"relation": "replace_one", **PATIENT}}, "come to another place and reach two teachers"),
    ({"column": "y"}, {}, "'y' is the label: a teacher would see one class"),
    ({"column": "new"}, {"protect": {"relation": "feature_flip", "feature": "new", **PATIENT}}, "'new' is protected"),
    ({"column": "x0"}, {}, "no folders x0=VALUE, and the domain no categorical or boolean column 'x0'"),
    ({"columns": "ward"}, {}, r"shard_by"),
    ("wards", {}, r"shard_by"),
    (None, {}, "count is missing"),
    (COLUMN, {"teachers": {"shard_by": COLUMN, "count": 7}}, "teachers.count is 7, but 40 places have a teacher"),
    (COLUMN, {"protect": {"relation": "add_remove", "unit": {"column": "kind"}}}, "drop shard_by"),
]


@pytest.mark.parametrize(("by", "changes", "message"), BAD)
def test_what_would_reach_two_teachers_is_refused_before_anything_is_paid(
    tmp_path: Path, by: Any, changes: dict[str, Any], message: str
) -> None:
    lake = written(tmp_path / "lake", draw_rows(500))
    with pytest.raises(UsageError, match=message):
        job_of(lake, tmp_path, by, **changes).charges()


def test_places_that_no_public_column_names_are_refused(tmp_path: Path) -> None:
    frame = draw_rows(500)
    (tmp_path / "flat").mkdir()
    for number in range(3):
        frame.to_parquet(tmp_path / "flat" / f"{number}.parquet")
    for by in ("file", "partition"):
        with pytest.raises(DataError, match="nothing else says to which file a row belongs"):
            job_of(tmp_path / "flat", tmp_path, by).charges()
        with pytest.raises(UsageError, match="a frame has no folders"):
            job_of(frame, tmp_path, by).charges()
    with pytest.raises(DataError, match=r"ward=w00: teachers\.shard_by: file needs one file in each folder"):
        job_of(written(tmp_path / "two", frame, 2), tmp_path, "file").charges()
    with pytest.raises(UsageError, match="one such place"):
        job_of(written(tmp_path / "one", frame[frame["ward"] == "w00"]), tmp_path, "partition").charges()
    labels = tmp_path / "labels"
    pq.write_to_dataset(pa.Table.from_pandas(frame, preserve_index=False), labels, partition_cols=["y"])
    with pytest.raises(UsageError, match="'y' is the label"):
        job_of(labels, tmp_path, "partition").charges()


def test_four_hospitals_are_too_few_at_a_usual_budget(tmp_path: Path) -> None:
    """The plan says so; nothing is paid."""
    frame = draw_rows(1000)
    frame = frame[frame["ward"].isin(WARDS[:4])]
    job = job_of(written(tmp_path / "lake", frame), tmp_path, COLUMN, budget={"epsilon": 1.0, "delta": 1e-5})
    with pytest.raises(UsageError, match="hopeless plan: 4 teachers"):
        job.charges()
