"""Published models: margins by hand, JSON round trip, and the same margins in SQL."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import dask.dataframe
import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from daskrado.errors import DataError, UsageError
from daskrado.models.error_bars import NOISE, SIGNAL, UNKNOWN, UNSEEN, ErrorBars
from daskrado.models.linear import LinearModel
from daskrado.privacy.statement import PrivacyStatement
from daskrado.table.domain import Domain
from daskrado.table.yaml_file import parse, write_text

NONE = PrivacyStatement.none()
PLAIN = parse(
    Domain,
    {
        "label": {"column": "y", "positive": "yes", "negative": "no"},
        "norm_bound": 1.0,
        "intercept": 0.5,
        "columns": {"a": {"kind": "numeric", "lower": 0, "upper": 10}, "b": {"kind": "boolean"}},
    },
    "here",
)


def test_margins_by_hand() -> None:
    model = LinearModel(PLAIN, np.array([2.0, 1.0, -4.0]), NONE, "by hand")
    frame = pd.DataFrame({"a": [5.0, 10.0], "b": [True, False]}, index=[7, 9])
    # Rows (0, 1, .5) and (1, -1, .5), of norm sqrt(1.25) and 1.5, are clipped to norm 1.
    expected = [(1 - 2) / 1.25**0.5, (2 - 1 - 2) / 1.5]
    assert model.margins(frame) == pytest.approx(expected, rel=1e-14)
    assert model.predict(frame).to_dict() == {7: "no", 9: "no"}
    assert model.predict(frame.assign(a=[10.0, 10.0], b=[True, True])).tolist() == ["yes", "yes"]


@pytest.fixture(scope="module")
def clinic_model(clinic: Callable[..., tuple[Path, Domain]]) -> tuple[pd.DataFrame, LinearModel]:
    path, domain = clinic(3000, 3, 14)
    frame = pd.concat([pd.read_parquet(p) for p in sorted(path.glob("*.parquet"))], ignore_index=True)
    weights = np.random.default_rng(0).normal(size=domain.width)
    return frame, LinearModel(domain, weights, NONE, "random")


def test_sql_gives_the_same_margins_in_duckdb(clinic_model: tuple[pd.DataFrame, LinearModel]) -> None:
    frame, model = clinic_model
    with duckdb.connect() as connection:
        connection.register("the lake", frame)
        got = connection.execute(model.sql("the lake", keep=("patient_id",)) + " ORDER BY patient_id").fetchnumpy()
    assert got["margin"] == pytest.approx(model.margins(frame), abs=1e-12)


def test_sql_gives_the_same_margins_in_sqlite(clinic_model: tuple[pd.DataFrame, LinearModel]) -> None:
    frame, model = clinic_model
    with sqlite3.connect(":memory:") as connection:
        try:
            connection.execute("SELECT SQRT(2.0), LN(2.0)")
        except sqlite3.OperationalError:
            pytest.skip("this SQLite was built without mathematical functions")
        frame.to_sql("lake", connection, index=False)
        got = [row[1] for row in connection.execute(model.sql(keep=("patient_id",)) + " ORDER BY patient_id")]
    connection.close()
    assert got == pytest.approx(model.margins(frame).tolist(), abs=1e-12)


def small_model(columns: dict[str, object], seed: int = 0, **more: object) -> LinearModel:
    label = {"column": "y", "positive": 1, "negative": 0}
    domain = parse(Domain, {"label": label, "norm_bound": 2.0, "columns": columns, **more}, "here")
    return LinearModel(domain, np.random.default_rng(seed).normal(size=domain.width), NONE, "random")


def both_engines(model: LinearModel, table: pa.Table) -> list[list[float | None]]:
    with duckdb.connect() as connection:
        connection.register("lake", table)
        duck = [row[0] for row in connection.execute(model.sql()).fetchall()]
    connection = sqlite3.connect(":memory:")
    try:
        connection.execute(f"CREATE TABLE lake ({', '.join(table.column_names)})")
        marks, rows = ", ".join("?" * table.num_columns), zip(*table.to_pydict().values(), strict=True)
        connection.executemany(f"INSERT INTO lake VALUES ({marks})", rows)
        return [duck, [row[0] for row in connection.execute(model.sql())]]
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("column", "values", "refused"),
    [
        ({"kind": "categorical", "values": ["a", "b"], "other": False}, ["a", "b"], ["z", None]),
        ({"kind": "categorical", "values": ["a", "b"]}, ["a", "b", "z"], [None]),
        ({"kind": "categorical", "values": [0.0, 1.0], "other": False}, [0.0, -0.0, 1.0], [2.0]),
        ({"kind": "categorical", "values": [0.0, 0.1], "nulls": {"fill": 1}}, [-0.0, 0.1, 7.0, None], []),
        ({"kind": "numeric", "lower": -1, "upper": 3}, [-9.0, 0.2, 1e300], [np.inf, -np.inf, np.nan]),
        ({"kind": "numeric", "lower": 0, "upper": 3, "bins": [1, 2]}, [-9, 1, 1.5, 2, 9], [np.inf, -np.inf, np.nan]),
        (
            {"kind": "numeric", "lower": 0, "upper": 9, "transform": "log1p"},
            [-4, 0.0, 1e-9, 2, 99],
            [-np.inf, np.inf],
        ),
        (
            {"kind": "numeric", "lower": 0, "upper": 1, "transform": "log1p"},
            [-4, 0.0, 1e-9, 0.9, 2],
            [np.inf, np.nan],
        ),
        ({"kind": "numeric", "lower": 0, "upper": 1e-10, "transform": "log1p"}, [1e-12, 9e-11, 3e-10], [np.nan]),
        ({"kind": "numeric", "lower": 1e-18, "upper": 1e-17, "transform": "log1p"}, [0, 2e-18, 9e-18], [None]),
        ({"kind": "numeric", "lower": 0, "upper": 1, "nulls": {"fill": 0.1}}, [0.3, None, np.inf, np.nan], []),
    ],
)
def test_sql_scores_what_predict_scores_and_gives_null_where_it_refuses(
    column: dict[str, object], values: list, refused: list
) -> None:
    model = small_model({"v": column, "w": {"kind": "boolean"}})
    kind = pa.string() if "a" in values else pa.float64()
    table = pa.table({"v": pa.array(values, kind), "w": [True] * len(values)})
    expected = model.margins(table).tolist()
    for margins in both_engines(model, table):
        assert margins == pytest.approx(expected, abs=1e-12)
    for value in refused:
        row = pa.table({"v": pa.array([value], kind), "w": [True]})
        with pytest.raises(DataError):
            model.margins(row)
        assert both_engines(model, row) == [[None], [None]]


@pytest.mark.slow
def test_sql_has_room_for_thousands_of_features() -> None:
    flags = {f"b{i}": {"kind": "boolean"} for i in range(1100)}
    model = small_model({"c": {"kind": "categorical", "values": list(range(3000))}, **flags})
    table = pa.table({"c": [0, 2999, 7777], **{name: [True, False, i % 3 > 0] for i, name in enumerate(flags)}})
    expected = model.margins(table).tolist()
    for margins in both_engines(model, table):
        assert margins == pytest.approx(expected, abs=1e-12)


def test_a_huge_intercept_is_written_as_numbers() -> None:
    model = small_model({"b": {"kind": "boolean"}}, intercept=1e9, norm_bound=1e9)
    assert " inf" not in LinearModel(model.domain, np.array([0.0, 1e305]), NONE, "huge").sql()


def test_names_that_sql_would_mix_up_are_refused() -> None:
    number = {"kind": "numeric", "lower": 0, "upper": 1}
    with pytest.raises(UsageError, match="'Age' and 'age' are one name in SQL"):
        small_model({"Age": number, "age": number}).sql()
    with pytest.raises(UsageError, match="'AGE' and 'age' are one name in SQL"):
        small_model({"age": number}).sql(keep=("AGE",))
    with pytest.raises(UsageError, match="--keep Margin: the SELECT gives"):
        small_model({"age": number}).sql(keep=("Margin",))
    assert small_model({"age": number}).sql(keep=("age", "age")).startswith('SELECT "age", (')


def test_names_and_values_are_quoted_in_sql() -> None:
    domain = parse(
        Domain,
        {
            "label": {"column": "y", "positive": 1, "negative": 0},
            "norm_bound": 3.0,
            "columns": {
                'odd "name"; --': {"kind": "categorical", "values": ["it's", "b"]},
                "n": {"kind": "categorical", "values": [1, 2], "nulls": {"fill": 2}},
                "t": {"kind": "boolean", "nulls": {"fill": True}},
            },
        },
        "here",
    )
    model = LinearModel(domain, np.arange(1.0, domain.width + 1), NONE, "by hand")
    frame = pd.DataFrame(
        {
            'odd "name"; --': ["it's", "b", "x", "it's"],
            "n": [1, 2, 7, None],
            "t": [True, None, False, None],
        }
    ).astype({"n": "Int64", "t": "boolean"})
    with duckdb.connect() as connection:
        connection.register("lake", frame)
        got = connection.execute(model.sql()).fetchnumpy()["margin"]
    assert got == pytest.approx(model.margins(frame), abs=1e-12)


def test_json_round_trip_keeps_every_bit(tmp_path: Path, clinic_model: tuple[pd.DataFrame, LinearModel]) -> None:
    frame, model = clinic_model
    model.save(tmp_path / "m.json")
    again = LinearModel.load(tmp_path / "m.json")
    assert np.array_equal(again.weights, model.weights)
    assert (again.domain, again.statement, again.learner) == (model.domain, model.statement, model.learner)
    assert np.array_equal(again.margins(frame), model.margins(frame))
    assert "NOT PRIVATE" in (tmp_path / "m.json").read_text()
    assert [p.name for p in tmp_path.iterdir()] == ["m.json"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(schema="daskrado.model/9"), "schema is 'daskrado.model/9'"),
        (lambda c: c.pop("weights"), "key 'weights' is missing"),
        (lambda c: c["weights"].update(extra=1.0), "do not name the Domain's features in order"),
        *(
            (lambda c, w=w: c["weights"].update(a=w), "that of 'a' is not")
            for w in ("x", True, 10**400, np.inf, np.nan)
        ),
        (lambda c: c.update(details=[1]), "details must be a mapping of keys, got list"),
        (lambda c: c.update(learner=None), "learner must be a text"),
        (lambda c: c.update(privacy_in_words="Private."), "privacy_in_words is not what privacy says: NOT PRIVATE"),
        (lambda c: c["domain"].pop("norm_bound"), "domain: norm_bound: missing"),
        (lambda c: c["privacy"].update(private=True), "a private statement needs relation"),
    ],
)
def test_a_spoilt_model_file_is_refused_by_key(
    tmp_path: Path, change: Callable[[dict], object], message: str
) -> None:
    content = json.loads(LinearModel(PLAIN, np.zeros(3), NONE, "zero").to_json())
    change(content)
    path = tmp_path / "m.json"
    path.write_text(json.dumps(content))
    with pytest.raises(UsageError) as caught:
        LinearModel.load(path)
    assert message in str(caught.value)
    assert "m.json" in str(caught.value)


def test_unusable_models_and_rows_are_refused(tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text("{")
    with pytest.raises(UsageError, match="is no model"):
        LinearModel.load(tmp_path / "m.json")
    (tmp_path / "m.json").write_text("[" * 100_000)
    with pytest.raises(UsageError, match=r"m.json: is no model \(its brackets"):
        LinearModel.load(tmp_path / "m.json")
    (tmp_path / "m.json").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="is not UTF-8 text"):
        LinearModel.load(tmp_path / "m.json")
    with pytest.raises(UsageError, match="cannot be read"):
        LinearModel.load(tmp_path / "none.json")
    with pytest.raises(UsageError, match="finite"):
        LinearModel(PLAIN, np.array([1.0, np.nan, 0.0]), NONE, "x")
    with pytest.raises(UsageError, match="Domain of 3 features"):
        LinearModel(PLAIN, np.zeros(4), NONE, "x")
    model = LinearModel(PLAIN, np.zeros(3), NONE, "zero")
    with pytest.raises(DataError, match="column 'b' is missing"):
        model.margins(pd.DataFrame({"a": [1.0]}))
    with pytest.raises(DataError, match=r"column 'a' is (large_)?string"):
        model.margins(pd.DataFrame({"a": ["x"], "b": [True]}))
    with pytest.raises(DataError, match="column 'a' holds values of several types") as caught:
        model.predict(pd.DataFrame({"a": [1.0, "secretvalue"], "b": [True, False]}))
    assert caught.value.__cause__ is None
    for twice in (
        pa.table([[1.0], [1.0], [True]], names=["a", "a", "b"]),
        pd.DataFrame([[1, 1, True]], columns=[*"aab"]),
    ):
        with pytest.raises(DataError, match="column 'a' is there twice"):
            model.margins(twice)
    with pytest.raises(UsageError, match=r"not a dask DataFrame: compute\(\) or collect\(\) it"):
        model.margins(dask.dataframe.from_pandas(pd.DataFrame({"a": [1.0], "b": [True]}), npartitions=1))
    with pytest.raises(DataError, match="column 'a': NaN or infinite"):
        model.margins(pd.DataFrame({"a": [np.inf, 1.0], "b": [True, True]}))


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "f.txt"
    write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "new \ud800")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["f.txt"]


def test_sql_aliases_never_meet_kept_columns_and_forbidden_nulls_have_no_margin() -> None:
    domain = parse(
        Domain,
        {
            "label": {"column": "y", "positive": 1, "negative": 0},
            "norm_bound": 9.0,
            "intercept": 0,
            "columns": {
                "f0": {"kind": "numeric", "lower": -1, "upper": 1},
                "c": {"kind": "categorical", "values": ["a"]},
                "n": {"kind": "numeric", "lower": 0, "upper": 9, "bins": [3, 6]},
                "t": {"kind": "boolean"},
            },
        },
        "here",
    )
    model = LinearModel(domain, np.arange(1.0, domain.width + 1), NONE, "by hand")
    frame = pd.DataFrame({"f0": [0.5, -0.5], "c": ["a", "z"], "n": [1.0, 6.0], "t": [True, False], "F1": [7, 8]})
    with duckdb.connect() as connection:
        connection.register("lake", frame)
        got = connection.execute(model.sql(keep=("f0", "F1"))).fetchnumpy()
        assert got["margin"] == pytest.approx(model.margins(frame), abs=1e-12)
        for column in ("c", "n", "t", "f0"):
            connection.register("holes", frame.astype({column: object}).assign(**{column: None}))
            margins = connection.execute(model.sql("holes")).fetchall()
            assert margins == [(None,), (None,)]


@pytest.mark.parametrize("kind", ["float32", "float16", "int16"])
def test_narrow_numbers_score_alike_in_sql(kind: str) -> None:
    model = LinearModel(PLAIN, np.array([2.0, 1.0, -4.0]), NONE, "by hand")
    values = np.array([0.1, 3.3, 9.9]).astype(kind)
    frame = pd.DataFrame({"a": values, "b": [True, False, True]})
    wide = frame.assign(a=values.astype("float64"))
    assert np.array_equal(model.margins(frame), model.margins(wide))


def test_error_bars_are_written_read_and_refused_where_they_do_not_fit(tmp_path: Path) -> None:
    bars = ErrorBars(
        np.array([1.0, -1.0, np.nan]), np.array([3.0, 2.0, np.nan]), np.array([True, True, False]), "by hand"
    )
    model = LinearModel(PLAIN, np.array([2.0, 1.0, 0.0]), NONE, "by hand", bars=bars)
    model.save(tmp_path / "model.json")
    again = LinearModel.load(tmp_path / "model.json")
    assert again.to_json() == model.to_json()
    assert again.coefficients["mark"].tolist() == [SIGNAL, NOISE, UNSEEN]
    assert again.coefficients.loc[PLAIN.feature_names[0], ["low", "high"]].tolist() == [1.0, 3.0]
    content = json.loads(model.to_json())
    first = content["error_bars"]["weights"][PLAIN.feature_names[0]]
    for key, value in (("low", 4.0), ("low", "x"), ("mark", "noise"), ("high", float("inf"))):
        wrong = json.loads(json.dumps(content))
        wrong["error_bars"]["weights"][PLAIN.feature_names[0]] = first | {key: value}
        with pytest.raises(UsageError, match="error_bars are not intervals of the Domain's features in order"):
            LinearModel.from_json(json.dumps(wrong))
    del content["error_bars"]
    with pytest.raises(UsageError, match="key 'error_bars' is missing"):
        LinearModel.from_json(json.dumps(content))
    older = LinearModel.from_json(json.dumps(content | {"schema": "daskrado.model/1"}))
    assert set(older.coefficients["mark"]) == {UNKNOWN}
    assert older.error_bars.about.startswith("no intervals: ")


def test_intervals_without_length_have_p_values_too() -> None:
    """An estimate of 0 that is known for sure, one that is not 0, one that is unknown, and two deviations from 0."""
    low, high = np.array([0.0, 2.0, np.nan, 0.04 * 1.959963984540054]), np.array([0.0, 2.0, np.nan, 7.92 / 2])
    bars = ErrorBars(low, high, np.ones(4, dtype=bool), "by hand")
    found = bars.p_values
    assert found[:2].tolist() == [1.0, 0.0]
    assert np.isnan(found[2])
    assert 0 < found[3] < 0.06
    text = json.dumps(bars.to_json(["a", "b", "c", "d"]), allow_nan=False)
    assert ErrorBars.from_json(json.loads(text), ["a", "b", "c", "d"], "here").marks == bars.marks
