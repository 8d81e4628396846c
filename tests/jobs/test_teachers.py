"""Teachers end to end: run, ask, adaptive sessions, label-private learning, estimated refusals, bad input."""

import copy
import hashlib
import json
import pickle
import struct
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner, Result
from damaged_files import damaged_copy
from published_text import numbers_in

import daskrado
from daskrado.cli.main import cli
from daskrado.engines.answers import answering
from daskrado.errors import DaskradoError, DataError, UsageError
from daskrado.jobs.load import load_job, load_kind
from daskrado.jobs.show import plan_lines
from daskrado.jobs.student import load_student, train_student
from daskrado.jobs.teachers import TeachersJob
from daskrado.lake.shards import KEPT_PLACE, encode_queries
from daskrado.learners.black_box import PythonObject
from daskrado.ledger.ledger import Ledger, State
from daskrado.models.linear import LinearModel

ROWS = 6000
LOGISTIC = {"kind": "sklearn", "estimator": "sklearn.linear_model.LogisticRegression"}
DOMAIN = {
    "label": {"column": "y", "positive": "yes", "negative": "no"},
    "id": "record",
    "norm_bound": 2.0,
    "columns": {f"x{i}": {"kind": "numeric", "lower": -3, "upper": 3} for i in range(3)},
}


def draw_rows(rows: int, seed: int, classes: tuple[str, ...] = ("no", "yes")) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(rows, 3))
    y = (x @ np.array([1.5, -2.0, 0.5]) > 0).astype(int) if len(classes) == 2 else np.argmax(x, axis=1)
    return pd.DataFrame(
        {"record": np.arange(rows), **{f"x{i}": x[:, i] for i in range(3)}, "y": np.array(classes)[y]}
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("teachers")
    (base / "lake").mkdir()
    frame = draw_rows(ROWS, 1)
    for number, rows in enumerate(np.array_split(np.arange(ROWS), 4)):
        pq.write_table(
            pa.Table.from_pandas(frame.iloc[rows], preserve_index=False), base / "lake" / f"{number}.parquet"
        )
    public = draw_rows(300, 2)
    pq.write_table(
        pa.Table.from_pandas(public.drop(columns=["record", "y"]), preserve_index=False), base / "q.parquet"
    )
    return base


def content(folder: Path, tmp_path: Path, **changes: Any) -> dict[str, Any]:
    wanted: dict[str, Any] = {
        "kind": "teachers",
        "dataset": "clinic",
        "lake": str(folder / "lake"),
        "domain": DOMAIN,
        "queries": str(folder / "q.parquet"),
        "output": str(tmp_path / "out"),
        "protect": {"relation": "add_remove", "unit": "one patient"},
        "budget": {"epsilon": 3.0, "delta": 1e-5},
        "ledger": {"path": str(tmp_path / "ledger.sqlite"), "first_limit": {"epsilon": 20.0, "delta": 1e-3}},
        "teachers": {"count": 300, "learner": {"kind": "logistic", "ridge": 0.01}},
        "answers": {"mechanism": "gaussian", "queries": 300},
    }
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(wanted.get(key), dict):
            wanted[key] = {**wanted[key], **value}
        elif value is None:
            wanted.pop(key)
        else:
            wanted[key] = value
    return wanted


def save(tmp_path: Path, wanted: dict[str, Any]) -> str:
    path = tmp_path / "teachers.yaml"
    path.write_text(yaml.safe_dump(wanted), encoding="utf-8")
    return str(path)


def load(wanted: dict[str, Any]) -> TeachersJob:
    return load_kind(TeachersJob, wanted)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


def accuracy(model: LinearModel) -> float:
    fresh = draw_rows(2000, 3)
    return float((model.predict(fresh) == fresh["y"]).mean())


# --- the command line --------------------


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_run_publishes_a_student_of_private_answers(folder: Path, tmp_path: Path, workers: int) -> None:
    path = save(tmp_path, content(folder, tmp_path))
    planned = call("plan", path)
    assert planned.exit_code == 0, planned.output
    assert "gaussian: " in planned.output
    assert not (tmp_path / "ledger.sqlite").exists()
    done = call("run", path, "--workers", str(workers))
    assert done.exit_code == 0, done.output
    assert "300 of 300 queries asked: 300 answered, 0 refused" in done.output
    model = LinearModel.load(tmp_path / "out" / "model.json")
    assert model.statement.epsilon == pytest.approx(3.0, rel=1e-9)  # what the charged event costs
    assert model.statement.epsilon <= 3.0
    assert accuracy(model) > 0.93
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["facts"]["counts"] == {"asked": 300, "answered": 300, "refused": 0}
    (charge,) = manifest["charges"]
    assert (charge["role"], charge["event"]["kind"]) == ("answers", "zcdp")
    answers = pq.read_table(tmp_path / "out" / "answers.parquet").to_pandas()
    assert (answers["answer"] == draw_rows(300, 2)["y"]).mean() > 0.93
    report = (tmp_path / "out" / "report.html").read_text()
    assert "Votes are never published" in report
    assert "private answer" in report
    assert [entry.state for entry in Ledger.open(tmp_path / "ledger.sqlite").entries("clinic")] == [State.PUBLISHED]


def test_ask_answers_a_file_and_repeats_itself(folder: Path, tmp_path: Path) -> None:
    path = save(tmp_path, content(folder, tmp_path))
    out = str(tmp_path / "answers.parquet")
    done = call("teachers", "ask", path, str(folder / "q.parquet"), "--out", out)
    assert done.exit_code == 0, done.output
    assert "300 answered, 0 refused, 0 not reached; the engine takes 0 more queries" in done.output
    first = pq.read_table(out)
    with pytest.raises(UsageError, match=r"answers.parquet: exists"):
        cli(["teachers", "ask", path, str(folder / "q.parquet"), "--out", out], standalone_mode=False)
    again = call("teachers", "ask", path, str(folder / "q.parquet"), "--out", out, "--overwrite")
    assert again.exit_code == 0
    assert pq.read_table(out).equals(first)
    assert len(Ledger.open(tmp_path / "ledger.sqlite").entries("clinic")) == 1


def test_refused_queries_are_null(folder: Path, tmp_path: Path) -> None:
    # 300 teachers are too few for most queries: some are answered, the engine stops at the second refusal.
    wanted = content(
        folder,
        tmp_path,
        budget={"epsilon": 8.0, "delta": 1e-3},
        ledger={"path": str(tmp_path / "ledger.sqlite"), "first_limit": {"epsilon": 50.0, "delta": 0.05}},
        answers={"mechanism": "sparse_vector", "queries": 300, "refusals": 3},
    )
    path, out = save(tmp_path, wanted), str(tmp_path / "answers.parquet")
    done = call("teachers", "ask", path, str(folder / "q.parquet"), "--out", out)
    assert done.exit_code == 0, done.output
    frame = pq.read_table(out).to_pandas()
    refused = frame["state"] == "refused"
    assert refused.sum() <= 3
    assert frame.loc[frame["state"] != "answered", "answer"].isna().all()
    assert frame.loc[frame["state"] == "answered", "answer"].notna().all()
    if (frame["state"] == "stopped").any():
        assert refused.sum() == 3


def test_plan_command_compares_mechanisms() -> None:
    done = call(
        *("teachers", "plan", "--teachers", "1000", "--queries", "1000", "--refusals", "50", "--epsilon", "1"),
        *("--delta", "1e-6", "--rows", "200000", "--features", "20"),
    )
    assert done.exit_code == 0, done.output
    assert "200.0 rows per teacher for 20 features" in done.output
    assert "the paper's constants prescribe 190,635 teachers" in done.output
    assert done.output.strip().splitlines()[-1].startswith("best        gaussian")
    for epsilon, why in (("1", "hopeless plan"), ("1e-300", "epsilon must be from 1e-09 to 50, got 1e-300")):
        with pytest.raises(UsageError, match=why):
            cli(
                ["teachers", "plan", "--teachers", "5", "--queries", "1000", "--epsilon", epsilon, "--delta", "1e-6"],
                standalone_mode=False,
            )


def test_the_shipped_pipeline_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).parents[2]
    monkeypatch.chdir(root)
    assert any("<- chosen" in line for line in plan_lines(load_job(root / "pipelines" / "teachers.yaml"), None))


# --- Python --------------------


def test_an_adaptive_session_on_a_frame(folder: Path, tmp_path: Path) -> None:
    wanted = content(folder, tmp_path, lake=draw_rows(ROWS, 1), queries=None)
    asked = draw_rows(40, 5)
    with daskrado.open_teachers(wanted) as teachers:
        first = teachers.ask(asked.iloc[:20])
        assert first.index.equals(asked.index[:20])
        surest = asked.iloc[20:] if (first == "yes").any() else asked.iloc[20:30]
        second = teachers.ask(surest)
        assert teachers.engine.left == 300 - 20 - len(surest)
    assert (first == asked["y"].iloc[:20]).mean() > 0.7
    assert (second == surest["y"]).mean() > 0.7


def test_a_session_answers_public_rows_of_a_lake_too(folder: Path, tmp_path: Path) -> None:
    asked = draw_rows(40, 5)
    asked.to_parquet(tmp_path / "public.parquet")
    with daskrado.open_teachers(content(folder, tmp_path, queries=None)) as teachers:
        here = teachers.ask(str(tmp_path / "public.parquet"))
        assert here.tolist() == teachers.ask(asked).tolist()
        with pytest.raises(UsageError, match=r"^queries are public rows: give a frame or an address, not int$"):
            teachers.ask(7)
        with pytest.raises(UsageError, match="queries: these rows are private"):
            teachers.ask(content(folder, tmp_path)["lake"])


class Nearest:
    """The class of the nearer centre: a learner that this library has never heard of."""

    def fit(self, x: np.ndarray, y: np.ndarray) -> None:
        self.centres = np.array([x[y == c].mean(axis=0) for c in (0, 1)])

    def predict(self, x: np.ndarray) -> np.ndarray:
        return np.argmin(((x[:, None, :] - self.centres[None]) ** 2).sum(axis=2), axis=1)


def test_any_object_with_fit_and_predict_teaches(folder: Path, tmp_path: Path) -> None:
    asked = draw_rows(100, 6)
    with daskrado.open_teachers(content(folder, tmp_path), learner=Nearest()) as teachers:
        assert (teachers.ask(asked) == asked["y"]).mean() > 0.85
    with pytest.raises(UsageError, match="another learner"), daskrado.open_teachers(content(folder, tmp_path)):
        raise AssertionError  # an engine with other teachers is another engine
    with (
        pytest.raises(UsageError, match="int has no fit"),
        daskrado.open_teachers(content(folder, tmp_path), learner=3),
    ):
        raise AssertionError


@pytest.mark.slow
def test_three_classes_by_plurality(folder: Path, tmp_path: Path) -> None:
    classes = ("a", "b", "c")
    wanted = content(
        folder,
        tmp_path,
        lake=draw_rows(9000, 1, classes),
        domain={**DOMAIN, "label": {"column": "y", "positive": "a", "negative": "b"}},
        classes=list(classes),
        student={"learner": {"kind": "logistic"}},
    )
    result = daskrado.run_teachers(wanted, write=True)
    student = result.value.student
    assert result.model is None
    assert student.model is None
    public = draw_rows(300, 2)
    truth = np.argmax(public[["x0", "x1", "x2"]].to_numpy(), axis=1)
    assert (result.value.labels == truth).mean() > 0.9
    again = load_student(tmp_path / "out")
    x = encode_queries(load(wanted).domain, pq.read_table(folder / "q.parquet"))
    assert (again.predict(x) == student.predict(x)).all()
    pickled, manifest = tmp_path / "out" / "student.pickle", tmp_path / "out" / "manifest.json"
    digest = hashlib.sha256(pickled.read_bytes()).hexdigest()
    manifest.write_text(json.dumps({"student": "student.pickle", "student_sha256": digest}))  # as version 1 wrote it
    assert (load_student(tmp_path / "out").predict(x) == student.predict(x)).all()
    pickled.write_bytes(pickled.read_bytes() + b"x")
    with pytest.raises(UsageError, match="not the one that manifest"):
        load_student(tmp_path / "out")


@pytest.mark.slow
def test_classes_that_the_domain_names_give_a_linear_student(folder: Path, tmp_path: Path) -> None:
    classes = ["a", "b", "c"]
    wanted = content(
        folder,
        tmp_path,
        lake=draw_rows(9000, 1, tuple(classes)),
        domain={**DOMAIN, "label": {"column": "y", "classes": classes}},
        student={"learner": {"kind": "logistic"}},
    )
    result = daskrado.run_teachers(wanted, write=True)
    assert result.model is not None
    assert result.model.weights.shape == (3, result.model.domain.width)
    public = draw_rows(300, 2)
    truth = np.array(classes)[np.argmax(public[["x0", "x1", "x2"]].to_numpy(), axis=1)]
    assert (result.model.predict(public).to_numpy() == truth).mean() > 0.8
    with pytest.raises(UsageError, match="classes are named in the domain's label: drop classes here"):
        load({**wanted, "classes": ["a", "b"]})


def test_label_private_learning_asks_about_rows_of_the_lake_itself(folder: Path, tmp_path: Path) -> None:
    wanted = content(
        folder,
        tmp_path,
        queries={"aside": 0.2},
        protect={"relation": "label_flip", "unit": "one patient"},
    )
    result = daskrado.run_teachers(wanted)
    assert len(result.value.labels) == 300
    assert result.statement.relation == daskrado.Relation.LABEL_FLIP
    # Answers can be joined to the lake's rows, in the order of its files.
    assert result.value.answers.column_names == ["row", "answer", "state"]
    truth = draw_rows(ROWS, 1)["y"].iloc[result.value.answers["row"].to_numpy()].to_numpy()
    assert len(set(result.value.answers["row"].to_pylist())) == 300
    assert (result.value.answers["answer"].to_pandas().to_numpy() == truth).mean() > 0.9
    assert result.model is not None
    assert accuracy(result.model) > 0.93
    with pytest.raises(UsageError, match="only under relation label_flip"):
        load({**wanted, "protect": {"relation": "add_remove", "unit": "x"}})


def test_a_label_private_result_holds_no_row_of_the_lake(folder: Path, tmp_path: Path) -> None:
    """The rows kept aside are features of the lake: only their places and their private answers leave."""
    frame = draw_rows(ROWS, 1)
    protect = {"relation": "label_flip", "unit": "one patient"}
    wanted = content(folder, tmp_path, lake=frame, queries={"aside": 0.2}, protect=protect)
    result = daskrado.run_teachers(wanted)
    stored = pickle.dumps(result)
    again = pickle.loads(stored)
    assert (again.value.labels == copy.deepcopy(result).value.labels).all()
    assert repr(again) == repr(result)
    x = encode_queries(load(wanted).domain, pa.Table.from_pandas(frame, preserve_index=False))
    for values in (frame["x0"].to_numpy(), x[:, 0]):
        assert not [value for value in values if struct.pack("<d", value) in stored]
    assert result.facts["aside"] == 0.2
    assert "array" not in repr(result.value)


@pytest.mark.slow
def test_refusals_from_a_private_error_estimate(folder: Path, tmp_path: Path) -> None:
    wanted = content(
        folder,
        tmp_path,
        budget={"epsilon": 10.0, "delta": 1e-3},
        ledger={"path": str(tmp_path / "ledger.sqlite"), "first_limit": {"epsilon": 50.0, "delta": 0.05}},
        teachers={"count": 600},
        answers={"mechanism": "sparse_vector", "queries": 300, "refusals": {"share": 0.2}},
    )
    result = daskrado.run_teachers(wanted, write=True)
    assert result.value.error_rate is not None
    assert 0 < result.value.error_rate < 0.4
    assert 1 <= result.value.refusals < 300
    entries = Ledger.open(tmp_path / "ledger.sqlite").entries("clinic")
    assert [entry.state.used for entry in entries] == [True, True]
    assert entries[1].published == f"error_rate {result.value.error_rate!r}"
    total = sum(entry.event.epsilon for entry in entries)  # type: ignore[union-attr]
    assert total == 10
    # What is published is what was done, not the plan for a single refusal.
    sparse = answering("sparse_vector", load(wanted).terms(result.value.refusals))
    assert result.value.refusals > 1
    statement = result.statement
    assert statement.accountant.startswith(
        f"optimal composition of {result.value.refusals} sparse-vector instances, plus"
    )
    assert result.value.forecast.margin == sparse.needed_margin(0.99)
    assert f"by {result.value.forecast.margin:,} votes of 600" in (tmp_path / "out" / "report.html").read_text()
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert [charge["role"] for charge in manifest["charges"]] == ["answers", "error_rate"]
    assert manifest["statement"]["epsilon"] == statement.epsilon == 10.0
    assert [charge["statement"]["epsilon"] for charge in manifest["charges"]] == [8.0, 2.0]
    assert manifest["facts"]["refusals"] == result.value.refusals
    assert manifest["facts"]["released_error_rate"] == result.value.error_rate
    planned = "\n".join(plan_lines(load(wanted), None))
    assert "together    Differentially private for one row" in planned
    assert "composition of 1 " not in planned
    assert "<- chosen" in planned
    # A second run finds the estimate and all answers in the journal: the same student, at no cost.
    again = daskrado.run_teachers(wanted)
    assert again.value.error_rate == result.value.error_rate
    assert (again.value.labels == result.value.labels).all()
    assert len(Ledger.open(tmp_path / "ledger.sqlite").entries("clinic")) == 2


@pytest.mark.parametrize(("epsilon", "share"), [(1.1, 0.1), (2.0, 1 / 3), (0.7, 0.3), (10.0, 0.2), (3.3, 0.7)])
def test_the_two_charges_of_estimated_refusals_are_exactly_the_stated_epsilon_at_most(
    folder: Path, tmp_path: Path, epsilon: float, share: float
) -> None:
    chosen = {"mechanism": "sparse_vector", "refusals": {"share": share}}
    job = load(content(folder, tmp_path, budget={"epsilon": epsilon}, answers=chosen))
    assert job.estimate_epsilon is not None
    total = Fraction(repr(job.answer_epsilon)) + Fraction(repr(job.estimate_epsilon))
    assert Fraction(repr(epsilon)) * (1 - Fraction(1, 10**15)) <= total <= Fraction(repr(epsilon))


def test_a_plan_with_millions_of_queries(folder: Path, tmp_path: Path) -> None:
    wanted = content(
        folder,
        tmp_path,
        teachers={"count": 100_000},
        answers={"queries": 4_000_000, "agreement": 0.9},
    )
    said = "\n".join(plan_lines(load_job(save(tmp_path, wanted)), None))
    assert "sparse_vector is compared up to 10,000 refusals" in said
    assert "<- chosen" in said
    done = call(
        *("teachers", "plan", "--teachers", "100000", "--queries", "4000000", "--epsilon", "3", "--delta", "1e-5")
    )
    assert done.exit_code == 0, done.output


class Broken(Nearest):
    """Fails on a few rows."""

    def fit(self, x: np.ndarray, y: np.ndarray) -> None:
        if len(x) < 100:
            raise RuntimeError("too\nfew")


def test_a_student_that_fails_on_the_answers_leaves_them_for_another(folder: Path, tmp_path: Path) -> None:
    job = load(content(folder, tmp_path))
    statement = job.statement_of(job.answering())
    x, labels = np.zeros((10, job.domain.width)), np.array([0, 1] * 5)
    with pytest.raises(DataError, match=r"student.learner .*Broken fails .*RuntimeError: too few.*at no cost"):
        train_student(PythonObject(Broken()), job.domain, ("no", "yes"), statement, x, labels, "drop")


@pytest.mark.slow
def test_answers_of_one_class_end_the_run_and_are_kept_for_the_next(folder: Path, tmp_path: Path) -> None:
    rows = pq.read_table(folder / "q.parquet").to_pandas()
    clear = rows[rows.to_numpy() @ np.array([1.5, -2.0, 0.5]) > 2]
    pq.write_table(pa.Table.from_pandas(clear, preserve_index=False), tmp_path / "clear.parquet")
    first = content(folder, tmp_path, queries=str(tmp_path / "clear.parquet"))
    for failing in (lambda: daskrado.run_teachers(first), lambda: daskrado.run(save(tmp_path, first))):
        with pytest.raises(DataError, match="one class only") as failed:
            failing()
        assert failed.value.__notes__ == [
            f"answers are kept; {300 - len(clear)} further ones may be asked on the same charge"
        ]
    ledger = ("ledger", "show", "--ledger", first["ledger"]["path"])
    before = call(*ledger).output
    assert "--resume" not in before
    more = pd.concat([clear, rows[:100]])
    pq.write_table(pa.Table.from_pandas(more, preserve_index=False), tmp_path / "more.parquet")
    done = call("run", save(tmp_path, content(folder, tmp_path, queries=str(tmp_path / "more.parquet"))))
    assert done.exit_code == 0, done.output
    assert call(*ledger).output == before  # one charge, for all queries of the engine


def test_a_used_up_engine_offers_no_further_queries(folder: Path, tmp_path: Path) -> None:
    rows = pq.read_table(folder / "q.parquet").to_pandas()
    clear = rows[rows.to_numpy() @ np.array([1.5, -2.0, 0.5]) > 2]
    pq.write_table(pa.Table.from_pandas(clear, preserve_index=False), tmp_path / "clear.parquet")
    wanted = content(
        folder,
        tmp_path,
        queries=str(tmp_path / "clear.parquet"),
        answers={"mechanism": "gaussian", "queries": len(clear)},
    )
    with pytest.raises(DataError, match="one class only") as failed:
        daskrado.run_teachers(wanted)
    assert failed.value.__notes__ == [
        "answers are kept; for other queries open the next engine (answers.engine), charged anew"
    ]


@pytest.mark.parametrize("refused", ["drop", "coin"])
def test_the_student_drops_refusals_or_tosses_a_coin(folder: Path, tmp_path: Path, refused: str) -> None:
    wanted = content(
        folder,
        tmp_path,
        budget={"epsilon": 12.0, "delta": 1e-2},
        ledger={"first_limit": {"epsilon": 50.0, "delta": 0.1}},
        answers={"mechanism": "stability", "queries": 300},
        student={"refused": refused},
    )
    result = daskrado.run_teachers(wanted)
    answered = result.value.counts["answered"]
    assert 0 < answered < 300
    assert result.value.student.trained_on == (answered if refused == "drop" else 300)


@pytest.mark.slow
def test_a_scikit_learn_estimator_teaches_and_learns(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    wanted = content(
        folder,
        tmp_path,
        teachers={
            "count": 200,
            "learner": {"kind": "sklearn", "estimator": "sklearn.naive_bayes.GaussianNB", "parameters": {}},
        },
        student={"learner": {"kind": "sklearn", "estimator": "sklearn.linear_model.LogisticRegression"}},
    )
    result = daskrado.run_teachers(wanted)
    assert result.model is not None
    assert accuracy(result.model) > 0.9


def test_positions_under_replace_one_need_no_id(folder: Path, tmp_path: Path) -> None:
    domain = {key: value for key, value in DOMAIN.items() if key != "id"}
    wanted = content(folder, tmp_path, domain=domain, protect={"relation": "replace_one", "unit": "one patient"})
    assert load(wanted).shard_by == "position"
    result = daskrado.run_teachers(wanted)
    assert result.value.counts["answered"] == 300
    assert KEPT_PLACE in result.statement.assumptions


@pytest.mark.parametrize("relation", ["replace_one", "label_flip"])
def test_positions_are_refused_where_folders_go_by_what_a_record_holds(
    folder: Path, tmp_path: Path, relation: str
) -> None:
    frame = draw_rows(ROWS, 1).assign(site=lambda f: np.where(f["x0"] > 0, "a", "b"))
    pq.write_to_dataset(pa.Table.from_pandas(frame, preserve_index=False), tmp_path / "tree", partition_cols=["site"])
    protect, teachers = {"relation": relation, "unit": "one patient"}, {"shard_by": "position"}
    wanted = content(folder, tmp_path, lake=str(tmp_path / "tree"), protect=protect, teachers=teachers)
    with pytest.raises(DataError, match="folders go by site"):
        daskrado.run_teachers(wanted)
    assert not Ledger.open(tmp_path / "ledger.sqlite").entries("clinic")


def test_a_unit_with_several_rows_reaches_as_many_teachers_unless_the_id_names_it(
    folder: Path, tmp_path: Path
) -> None:
    protect = {"relation": "add_remove", "unit": "one patient", "rows_per_unit": 3}
    scattered = load(content(folder, tmp_path, protect=protect))
    together = load(content(folder, tmp_path, protect=protect, teachers={"shard_by": "unit"}))
    assert (scattered.changed, together.changed) == (3, 1)
    from daskrado.engines.answers import GaussianVotes

    assert GaussianVotes(scattered.terms()).scale == pytest.approx(3 * GaussianVotes(together.terms()).scale)


# --- bad input --------------------


BAD: list[tuple[dict[str, Any], str]] = [
    ({"teachers": {"count": 1}}, r"teachers.count"),
    ({"teachers": {"learner": {"kind": "sklearn", "estimator": "os.system"}}}, "not on the allow-list"),
    ({"teachers": {"learner": {**LOGISTIC, "parameters": {"C": -1}}}}, r"teachers.learner: .*The 'C' parameter"),
    ({"student": {"learner": {**LOGISTIC, "parameters": {"C": -1}}}}, r"student.learner: .*The 'C' parameter"),
    ({"teachers": {"shard_by": "position"}}, "shift when a row is added or removed"),
    ({"protect": {"relation": "replace_one"}, "teachers": {"shard_by": "record"}}, "reach two shards"),
    ({"domain": {k: v for k, v in DOMAIN.items() if k != "id"} | {"id": None}}, "need the domain's id column"),
    ({"budget": {"delta": 0.0}}, "budget.delta must be above 0"),
    ({"answers": {"mechanism": "sparse_vector"}}, "refusals is needed by sparse_vector"),
    ({"answers": {"mechanism": "gaussian", "refusals": 4}}, "refusals is needed by sparse_vector, and only by it"),
    ({"answers": {"constants": "as_published"}}, "as_published exist for sparse_vector only"),
    ({"answers": {"mechanism": "median"}}, "answers.mechanism"),
    ({"answers": {"queries": 0}}, "answers.queries"),
    ({"student": {"refused": "maybe"}}, "student.refused"),
    ({"private": False}, "private: input should be True"),
    ({"teachers": {"learner": {"kind": "mean", "ridge": 1}}}, r"teachers.learner.regularisation: unknown key"),
    ({"student": {"learner": {"kind": "moments", "ridge": -1}}}, r"student.learner.regularisation: .* or equal to 0"),
    ({"classes": ["no", "no"]}, "classes must be distinct"),
    ({"tutors": 3}, "tutors: unknown key"),
    ({"teachers": {"count": 20}}, "hopeless plan: 20 teachers"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_bad_pipelines_are_refused_before_anything_is_read(
    folder: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    wanted = content(folder, tmp_path, **change)
    with pytest.raises(UsageError, match=message):
        list(plan_lines(load_job(save(tmp_path, wanted)), None))
    assert not (tmp_path / "ledger.sqlite").exists()


LABELS = {"relation": "label_flip", "unit": "one label"}  # the number of rows is public
FORBIDDEN: list[tuple[dict[str, Any], type[DaskradoError], str]] = [
    (
        {"teachers": {"count": 4000}, "protect": LABELS},
        UsageError,
        "teachers.count 4,000 is more than the lake's rows allow",
    ),
    ({"queries": "nowhere.parquet"}, DataError, "nowhere.parquet"),
    ({"queries": None}, UsageError, "queries is missing"),
]


@pytest.mark.parametrize(("change", "kind", "message"), FORBIDDEN)
def test_what_the_lake_or_the_queries_forbid(
    folder: Path, tmp_path: Path, change: dict[str, Any], kind: type[DaskradoError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        daskrado.run_teachers(content(folder, tmp_path, **change), write=True)
    assert not (tmp_path / "out").exists()
    ledger = tmp_path / "ledger.sqlite"
    assert not ledger.exists() or not Ledger.open(ledger).entries("clinic")


def test_queries_that_do_not_fit_the_domain_cost_nothing(folder: Path, tmp_path: Path) -> None:
    path = save(tmp_path, content(folder, tmp_path))
    for number, (column, values) in enumerate([("x1", ["a"]), ("x1", [float("nan")]), ("other", [1.0])]):
        table = {"x0": [0.1], "x1": [0.1], "x2": [0.2]}
        if column == "other":
            del table["x1"]
        else:
            table[column] = values  # type: ignore[assignment]
        bad = tmp_path / f"bad{number}.parquet"
        pq.write_table(pa.table(table), bad)
        with pytest.raises(DataError, match="'x1'"):
            cli(["teachers", "ask", path, str(bad), "--out", str(tmp_path / "a.parquet")], standalone_mode=False)
    assert not (tmp_path / "ledger.sqlite").exists()
    assert not (tmp_path / "a.parquet").exists()


@pytest.mark.slow
def test_a_second_engine_is_refused_by_the_command(folder: Path, tmp_path: Path) -> None:
    path = save(tmp_path, content(folder, tmp_path, answers={"queries": 301}))
    assert call("run", path).exit_code == 0
    other = save(tmp_path, content(folder, tmp_path, answers={"queries": 400}))
    with pytest.raises(UsageError, match="already has an engine under add_remove with another mechanism"):
        cli(["run", other, "--output", str(tmp_path / "other")], standalone_mode=False)
    assert not (tmp_path / "other").exists()


def test_the_engine_of_one_data_set_does_not_answer_from_the_lake_of_another(folder: Path, tmp_path: Path) -> None:
    asked = draw_rows(5, 6)

    def ask(dataset: str, seed: int) -> int:
        lake = tmp_path / f"lake {seed}"
        if not lake.exists():
            lake.mkdir()
            draw_rows(900, seed).to_parquet(lake / "p.parquet")
        wanted = content(folder, tmp_path, dataset=dataset, lake=str(lake), queries=None)
        with daskrado.open_teachers({**wanted, "budget": {"epsilon": 9.0, "delta": 1e-5}}) as teachers:
            return int(teachers.ask(asked).notna().sum())

    assert ask("clinic", 1) == 5
    assert ask("hospital", 2) == 5
    with pytest.raises(DataError, match="the lake of data set 'clinic' is not the one whose engine was paid for"):
        ask("clinic", 2)
    assert len(Ledger.open(tmp_path / "ledger.sqlite").entries()) == 2


def test_an_unreadable_file_gives_the_grant_back(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    draw_rows(2000, 1).to_parquet(tmp_path / "whole" / "p.parquet")
    broken = damaged_copy(tmp_path / "whole", tmp_path / "broken")
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        daskrado.run_teachers(content(folder, tmp_path, lake=str(broken)))
    entries = Ledger.open(tmp_path / "ledger.sqlite").entries("clinic")
    assert [entry.state for entry in entries] == [State.VOID]


def test_ctrl_c_while_training_gives_the_grant_back(folder: Path, tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        daskrado.run_teachers(content(folder, tmp_path), progress=interrupt, write=True)
    entries = Ledger.open(tmp_path / "ledger.sqlite").entries("clinic")
    assert [entry.state for entry in entries] == [State.VOID]
    assert not (tmp_path / "out").exists()
    assert daskrado.run_teachers(content(folder, tmp_path)).value.counts["answered"] == 300


def test_nothing_private_in_what_is_written(folder: Path, tmp_path: Path) -> None:
    daskrado.run_teachers(content(folder, tmp_path), write=True)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert str(ROWS) not in numbers_in(json.dumps(manifest))  # secret under add/remove
    assert not {"votes", "margins", "rows", "seconds"} & {*manifest, *manifest["facts"]}
    columns = pq.read_table(tmp_path / "out" / "answers.parquet").column_names
    assert columns == ["x0", "x1", "x2", "answer", "state"]


def test_engine_settings_ignore_what_does_not_matter(folder: Path, tmp_path: Path) -> None:
    one = load(content(folder, tmp_path))
    two = one.model_copy(update={"output": "elsewhere"})
    old = load(content(folder, tmp_path, teachers={"learner": {"kind": "logistic", "ridge": 0.01}}))
    new = load(content(folder, tmp_path, teachers={"learner": {"kind": "logistic", "regularisation": 0.01}}))
    assert old.engine_settings() == new.engine_settings()
    assert one.engine_settings() == two.engine_settings()
