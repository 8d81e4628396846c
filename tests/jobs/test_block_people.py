"""People and blocks: a patient's rows of one day are a unit of that day; a patient as a whole pays in every run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import daskrado
from daskrado.errors import BudgetError, DataError, UsageError
from daskrado.lake.collect import collect
from daskrado.lake.scan import open_lake
from daskrado.lake.units import units_of
from daskrado.ledger.ledger import EACH, Ledger
from daskrado.ledger.show import block_lines
from daskrado.privacy.groups import ProtectedUnit, steps
from daskrado.privacy.protect import Protect
from daskrado.privacy.relations import Relation
from daskrado.statistics import MeanOperator
from daskrado.statistics.bounded import bounded
from daskrado.table.domain import Domain
from daskrado.table.lattice import Lattice
from daskrado.table.yaml_file import parse

DOMAIN = parse(
    Domain,
    {
        "label": {"column": "y", "positive": 1, "negative": 0},
        "norm_bound": 1.0,
        "columns": {"a": {"kind": "numeric", "lower": -1, "upper": 1}},
    },
    "here",
)
KEY = b"k" * 32
LATTICE = Lattice(1.0, 12)
DAY = {"relation": "add_remove", "unit": {"column": "p", "within": "day", "name": "one patient's day"}}
WHOLE = {"relation": "add_remove", "unit": {"column": "p", "name": "one patient"}}


def rows(*owned: tuple[Any, Any, int], a: float = 1.0) -> pd.DataFrame:
    """So many rows of a patient on a day, all alike."""
    found = [{"p": p, "day": day, "a": a, "y": 1} for p, day, count in owned for _ in range(count)]
    return pd.DataFrame(found)


def weights(frame: Any, protect: dict[str, Any]) -> np.ndarray:
    """The weight of each row, as a share of 1."""
    lake = open_lake(frame, DOMAIN)
    units = units_of(lake, Protect.model_validate(protect), KEY, None)
    assert units is not None
    return np.concatenate([own for _, own in units.of_lake(lake)]) / 2**14


def test_rows_are_counted_by_patient_and_day() -> None:
    frame = rows(("1", "x", 3), ("1", "y", 2), ("2", "x", 1), (None, "x", 1), ("3", None, 1))
    expected = [1 / 3] * 3 + [1 / 2] * 2 + [1, 0, 0]  # nobody's row, and one of no day, count as nothing
    assert weights(frame, DAY) == pytest.approx(expected, abs=2**-14)
    assert weights(frame, WHOLE) == pytest.approx([1 / 5] * 5 + [1, 0, 1], abs=2**-14)


@pytest.mark.parametrize("day", ["20261101", 7, pd.Timestamp("2026-11-01").date(), "2026-11-01"])
def test_days_of_any_type_are_the_same_pairs(day: Any) -> None:
    assert weights(rows((1, day, 4), (2, day, 2)), DAY) == pytest.approx([1 / 4] * 4 + [1 / 2] * 2, abs=2**-14)


def test_a_pair_is_never_another_pair() -> None:
    """5 on day 7 is not 7 on day 5, and no pair of two equal numbers is another such pair."""
    frame = rows(*[(p, day, 1) for p in range(30) for day in range(30)])
    assert np.array_equal(weights(frame, DAY), np.ones(900))


def test_a_day_that_is_taken_away_moves_the_sum_by_no_more_than_its_unit() -> None:
    """Counted over the run instead, the other day's rows would get more weight: up to twice as much in all."""
    other_day = rows((1, "x", 1))
    for protect in (DAY, WHOLE):
        whose = Protect.model_validate(protect)
        statistic = bounded(MeanOperator(DOMAIN.width), whose.bound, LATTICE)
        moved = []
        for sign in (1.0, -1.0):  # the day's rows agree with the other day's, or not
            with_day = pd.concat([other_day, rows((1, "y", 99), a=sign)])
            sums = []
            for frame in (with_day, other_day):
                lake = open_lake(frame, DOMAIN)
                units = units_of(lake, whose, KEY, None)
                sums.append(collect(MeanOperator(DOMAIN.width), lake, DOMAIN, LATTICE, units=units).vector)
            steps_of = np.concatenate([np.full(b.size, b.normalised_step(LATTICE)) for b in statistic.blocks])
            moved.append(float(np.linalg.norm((sums[0] - sums[1]) * steps_of)))
        limit = statistic.sensitivity(Relation.ADD_REMOVE).l2
        assert (max(moved) <= limit) is (protect is DAY)
        assert max(moved) <= 2 * limit


def test_what_one_charge_proves_about_another_limit() -> None:
    day = ProtectedUnit("add_remove", "d", "p", 1, within="day")
    patient = ProtectedUnit("add_remove", "p", "p", 1)
    assert steps(day, day) == steps(patient, patient) == 1
    assert steps(patient, day) == 2  # a day is changed inside the patient
    assert steps(day, patient) is None  # who may have any number of days
    assert steps(day, ProtectedUnit("add_remove")) == 2
    assert steps(day, ProtectedUnit("add_remove", "d", "p", 1, within="ward")) is None
    assert steps(day, ProtectedUnit("add_remove", "d", "q", 1, within="day")) is None


@pytest.fixture
def lake(tmp_path: Path) -> str:
    draw = np.random.default_rng(1)
    for day in range(3):
        folder = tmp_path / f"lake/day=2026-11-0{day + 1}"
        folder.mkdir(parents=True)
        frame = pd.DataFrame(
            {"p": draw.integers(0, 20, 60), "a": draw.uniform(-1, 1, 60), "y": draw.integers(0, 2, 60)}
        )
        frame.to_parquet(folder / "part.parquet")
    return str(tmp_path / "lake")


def keys(lake: Any, **changes: Any) -> dict[str, Any]:
    return {
        "dataset": "visits",
        "lake": lake,
        "domain": DOMAIN,
        "output": "unused",
        "protect": DAY,
        "budget": {"epsilon": 0.5},
        "blocks": {"column": "day"},
        **changes,
    }


def test_a_patients_day_pays_from_the_budget_of_its_block(lake: str, own_ledger: Path) -> None:
    ledger = Ledger.open(own_ledger)
    whose = ProtectedUnit("add_remove", "one patient's day", "p", within="day")
    ledger.set_limit("visits", whose, 1, 0, block=EACH)
    found = daskrado.run(keys(lake), write=False)
    assert found.statement.sentence().startswith(
        "Differentially private for one patient's day (all records with one p and one day added to or removed"
    )
    known = ledger.block_balances("visits")
    assert {block: float(own[0].total.epsilon) for block, own in known.items()} == dict.fromkeys(known, 0.5)
    assert len(known) == 3
    with pytest.raises(UsageError, match=r"one patient may have rows in several blocks; .* --within COLUMN"):
        ledger.set_limit("visits", ProtectedUnit("add_remove", "one patient", "p"), 1, 0, block=EACH)


def test_a_patient_as_a_whole_pays_in_every_run_that_reads_a_block(lake: str, own_ledger: Path) -> None:
    ledger = Ledger.open(own_ledger)
    ledger.set_limit("visits", ProtectedUnit("add_remove", "one patient", "p"), 1, 0)
    for day in ("2026-11-01", "2026-11-02"):
        found = daskrado.run(keys(lake, protect=WHOLE, blocks={"column": "day", "values": [day]}), write=False)
    assert any(
        "loses what all runs that read any of them cost together" in line for line in found.statement.assumptions
    )
    assert "pays from the whole data set's budget; see protect.unit.within" in [*block_lines(ledger, "visits")][-1]
    with pytest.raises(BudgetError, match="nothing was debited"):
        daskrado.run(keys(lake, protect=WHOLE, blocks={"column": "day", "values": ["2026-11-03"]}), write=False)
    with pytest.raises(BudgetError, match="proves nothing about the limit under add_remove for one patient"):
        daskrado.run(keys(lake, blocks={"column": "day", "values": ["2026-11-03"]}), write=False)


@pytest.mark.parametrize(("protect", "each"), [(DAY, True), (WHOLE, False)])
def test_a_first_limit_is_for_each_block_only_where_a_unit_lies_in_one(
    lake: str, own_ledger: Path, protect: dict[str, Any], each: bool
) -> None:
    daskrado.run(keys(lake, protect=protect, ledger={"first_limit": {"epsilon": 2}}), write=False)
    blocks = {balance.block for balance in Ledger.open(own_ledger).balances("visits")}
    assert (EACH in blocks) is each
    assert ("" in blocks) is not each


def test_a_night_of_a_continual_release_protects_a_patients_day(lake: str, own_ledger: Path) -> None:
    given = keys(lake, budget={"epsilon": 1, "delta": 1e-6}, continual={"horizon": 5})
    found = daskrado.run({**given, "ledger": {"first_limit": {"epsilon": 9, "delta": 1e-5}}}, write=False)
    assert found.statement.whom == "one patient's day"
    with pytest.raises(UsageError, match="has a continual release with another protect"):
        daskrado.run({**given, "protect": WHOLE}, write=False)


@pytest.mark.parametrize(
    ("unit", "kind", "message"),
    [
        ({"column": "p", "within": "ward", "name": "x"}, UsageError, "'ward' is not blocks.column 'day'"),
        ({"column": "p", "within": "p", "name": "x"}, UsageError, "within is unit.column, p; name another column"),
        ({"column": "q", "within": "day", "name": "x"}, DataError, "protect.unit.column 'q': the lake has no such"),
    ],
)
def test_units_that_cannot_be_are_refused_in_one_line(
    lake: str, own_ledger: Path, unit: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message) as refused:
        daskrado.run(keys(lake, protect={"relation": "add_remove", "unit": unit}), write=False)
    assert "\n" not in str(refused.value)
    assert Ledger.open(own_ledger).entries() == []


def test_a_within_column_of_numbers_with_fractions_is_refused_where_a_schema_says_so(
    tmp_path: Path, own_ledger: Path
) -> None:
    """Types of files, and of every frame but pandas', do not depend on values: whole floats are refused with them."""
    for value in (0.5, 1.0):
        table = pa.Table.from_pandas(rows((1, value, 4)))
        pq.write_table(table, tmp_path / "part.parquet")
        for lake in (table, str(tmp_path)):
            with pytest.raises(DataError, match=r"protect\.unit\.within 'day' is double; it must hold texts"):
                daskrado.run(keys(lake, blocks=None), write=False)


def test_days_of_a_pandas_frame_are_refused_by_their_dtype_alone() -> None:
    """A null makes floats of whole days: floats are days where they are whole, whatever else the column holds."""
    whole, gap, fraction = [7, 7, 8], [7, 7, 8, None], [7.0, 7.0, 8.0, 8.5]
    for days in (whole, gap, fraction):
        frame = pd.DataFrame({"p": 1, "day": days, "a": 0.5, "y": 1})
        assert weights(frame, DAY) == pytest.approx([1 / 2, 1 / 2, 1, 0][: len(days)], abs=2**-14)
    assert weights(pd.DataFrame({"p": 1, "day": [0.5, 1.5], "a": 0.5, "y": 1}), DAY).tolist() == [0, 0]


def test_pairs_are_counted_alike_here_and_on_workers(lake: str, two_workers: Any) -> None:
    """Days are folders here, and a patient's rows of one day may lie in several files."""
    for file in sorted(Path(lake).rglob("*.parquet")):
        rows = pd.read_parquet(file)
        rows.head(25).to_parquet(file.with_name("first.parquet"))
        rows.tail(35).to_parquet(file)
    opened = open_lake(lake, DOMAIN)
    whose = Protect.model_validate(DAY)
    found = []
    for client in (None, two_workers):
        units = units_of(opened, whose, KEY, None, client=client)
        found.append(
            collect(MeanOperator(DOMAIN.width), opened, DOMAIN, LATTICE, client=client, units=units).vector.tolist()
        )
    table = pd.concat([pd.read_parquet(file).assign(day=file.parent.name) for file in Path(lake).rglob("*.parquet")])
    alone = open_lake(table, DOMAIN)
    found.append(
        collect(
            MeanOperator(DOMAIN.width), alone, DOMAIN, LATTICE, units=units_of(alone, whose, KEY, None)
        ).vector.tolist()
    )
    assert found[0] == found[1] == found[2]


def test_files_that_are_sorted_by_patient_are_counted_by_day_all_the_same(tmp_path: Path) -> None:
    """Their footers say that a patient's rows lie in one file or at its edge: days are counted nevertheless."""
    table = rows(*[(p, day, 1 + (p + day) % 3) for p in range(12) for day in range(4)])
    for n, places in enumerate(np.array_split(np.arange(len(table)), 5)):
        table.iloc[places].to_parquet(tmp_path / f"{n}.parquet")
    assert np.array_equal(weights(str(tmp_path), DAY), weights(table, DAY))
    owned = table.groupby(["p", "day"])["a"].transform("size")
    assert weights(str(tmp_path), DAY) == pytest.approx(1 / owned, abs=2**-14)
