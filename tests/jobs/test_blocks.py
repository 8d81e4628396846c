"""Blocks of a lake that grows: each pays for every run that reads it, is closed at the first, never overspends."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import dask.dataframe
import duckdb
import jsonschema
import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pytest

import daskrado
from daskrado.cli.main import main
from daskrado.errors import BudgetError, DataError, UsageError
from daskrado.jobs.load import load_job
from daskrado.jobs.manifest import manifest_schema
from daskrado.jobs.show import plan_lines
from daskrado.lake.growing import compact_lake
from daskrado.lake.ingest import Layout, ingest
from daskrado.ledger.config import default_ledger
from daskrado.ledger.history import check_all
from daskrado.ledger.ledger import EACH, Ledger
from daskrado.privacy.accountant import PureEvent
from daskrado.privacy.relations import Relation

DOMAIN = {
    "label": {"column": "y", "positive": 1, "negative": 0},
    "norm_bound": 1.5,
    "columns": {
        "a": {"kind": "numeric", "lower": -2, "upper": 2},
        "b": {"kind": "numeric", "lower": 0, "upper": 9, "nulls": {"fill": 0}},
    },
}
Shell = Callable[..., tuple[Any, str]]
DAYS = [f"2026-11-{number:02d}" for number in range(1, 7)]


def text(folder: Path, day: str | None, rows: int = 40, seed: int | None = None) -> str:
    """A day's rows, as a text table."""
    draw = np.random.default_rng(DAYS.index(day) if seed is None and day else seed or 0)
    frame = pd.DataFrame(
        {"a": draw.normal(size=rows), "b": draw.integers(0, 10, rows), "y": draw.integers(0, 2, rows)}
    )
    path = folder / f"{day}-{seed}.csv"
    frame.assign(day=day).to_csv(path, index=False)
    return str(path)


@pytest.fixture
def lake(tmp_path: Path) -> str:
    """Six days, each of them an append."""
    out = str(tmp_path / "lake")
    for number, day in enumerate(DAYS):
        ingest([text(tmp_path, day)], out, layout=Layout(by="day"), append=number > 0)
    return out


def keys(lake: Any, **changes: Any) -> dict[str, Any]:
    return {
        "dataset": "visits",
        "lake": lake,
        "domain": DOMAIN,
        "output": "unused",
        "protect": {"relation": "add_remove", "unit": "one visit"},
        "budget": {"epsilon": 0.5},
        "blocks": {"column": "day", "last": 3},
        **changes,
    }


def run(lake: Any, **changes: Any) -> daskrado.Result:
    return daskrado.run(keys(lake, **changes), write=False)


def spent(dataset: str = "visits") -> dict[str, Fraction]:
    """What each block has lost under add_remove, by plain sums."""
    found = Ledger.open(default_ledger()).block_balances(dataset)
    return {block: b.total.epsilon for block, own in found.items() for b in own if b.relation is Relation.ADD_REMOVE}


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """The command line, in this process: exit code and what it printed."""

    def call(*words: str) -> tuple[Any, str]:
        monkeypatch.setattr(sys, "argv", ["daskrado", *words])
        with pytest.raises(SystemExit) as stop:
            main()
        return stop.value.code or 0, "".join(capsys.readouterr())

    return call


@pytest.fixture
def ledger(own_ledger: Path) -> Ledger:
    opened = Ledger.open(own_ledger)
    opened.set_limit("visits", Relation.ADD_REMOVE, 1, 0, block=EACH)
    return opened


def test_only_the_chosen_blocks_are_read_and_each_pays_in_full(lake: str, ledger: Ledger) -> None:
    result = run(lake)
    assert result.facts["blocks"] == {"column": "day", "read": DAYS[3:], "left_out": []}
    assert spent() == dict.fromkeys(DAYS[3:], Fraction(1, 2))
    (entry,) = ledger.entries("visits")
    assert entry.blocks == tuple(DAYS[3:])
    assert entry.table is not None
    assert entry.table["version"] == 6


def test_the_sum_is_that_of_the_chosen_rows_alone(lake: str) -> None:
    """Without noise, the model of three days is that of a lake that has only them."""
    others = {"private": False, "protect": None, "budget": None}
    rows = pd.concat([pd.read_csv(Path(lake).parent / f"{day}-None.csv") for day in DAYS[3:]], ignore_index=True)
    part, whole = run(lake, **others), run(rows, blocks=None, **others)
    assert np.allclose(part.model.weights, whole.model.weights, rtol=1e-12)
    assert part.facts["rows"] == 120


@pytest.mark.parametrize(
    ("blocks", "read"),
    [
        ({"column": "day"}, DAYS),
        ({"column": "day", "last": 99}, DAYS),
        ({"column": "day", "from": DAYS[2]}, DAYS[2:]),
        ({"column": "day", "to": DAYS[2], "last": 2}, DAYS[1:3]),
        ({"column": "day", "values": [DAYS[4], DAYS[0]]}, [DAYS[0], DAYS[4]]),
    ],
)
def test_blocks_are_chosen_by_their_names(lake: str, ledger: Ledger, blocks: dict[str, Any], read: list[str]) -> None:
    assert run(lake, blocks=blocks).facts["blocks"]["read"] == read


def test_a_date_of_yaml_and_numbers_are_names_of_blocks(tmp_path: Path) -> None:
    for week in (9, 10, 11):
        rows = pd.read_csv(text(tmp_path, None, seed=week)).drop(columns="day")
        (tmp_path / f"lake/week={week}").mkdir(parents=True)
        rows.to_parquet(tmp_path / f"lake/week={week}/part.parquet")
    source = str(tmp_path / "lake")
    (tmp_path / "job.yaml").write_text(json.dumps(keys(source, blocks={"column": "week", "last": 2})))
    job = load_job(tmp_path / "job.yaml", {"blocks.last": None, "blocks.from": 10})
    assert job.blocks is not None
    assert job.blocks.chosen(source) == ("10", "11")
    assert run(source, blocks={"column": "week", "last": 2}, ledger={"first_limit": {"epsilon": 1}}).facts["blocks"][
        "read"
    ] == ["10", "11"]


def test_blocks_that_cannot_pay_are_left_out_and_named(lake: str, ledger: Ledger) -> None:
    run(lake, blocks={"column": "day", "values": DAYS[4:5]})
    run(lake, blocks={"column": "day", "values": DAYS[4:5]})
    planned = [*plan_lines(load_job(keys(lake)), ledger)]
    assert f"blocks      day: {', '.join(DAYS[3:])}" in planned
    assert f"left out    {DAYS[4]}: its budget does not cover this run" in planned
    result = run(lake)
    assert result.facts["blocks"] == {"column": "day", "read": [DAYS[3], DAYS[5]], "left_out": [DAYS[4]]}
    assert any(line.endswith(f"does not cover this run: {DAYS[4]}") for line in result.lines)
    assert spent() == {DAYS[3]: Fraction(1, 2), DAYS[4]: 1, DAYS[5]: Fraction(1, 2)}
    with pytest.raises(BudgetError, match=r"no block of data set 'visits' has budget left .*nothing was debited"):
        run(lake, blocks={"column": "day", "values": DAYS[4:5]})
    assert len(ledger.entries("visits")) == 3


def test_a_block_is_closed_by_its_first_run(lake: str, ledger: Ledger, tmp_path: Path, shell: Shell) -> None:
    run(lake)
    late = [text(tmp_path, DAYS[5], seed=77)]
    code, said = shell("ingest", *late, "--out", lake, "--append", "--by", "day", "--workers", "0")
    assert code == 2
    assert f"--append: block day={DAYS[5]} is closed, since runs on data set 'visits' have read it" in said
    before = json.loads((tmp_path / "lake/_manifest.json").read_text())
    assert before["version"] == 6
    ingest(late, lake, append=True)  # somebody without the ledger
    with pytest.raises(
        DataError, match=f"block day={DAYS[5]} of data set 'visits' was closed .* nothing was debited"
    ):
        run(lake)
    assert len(ledger.entries("visits")) == 1
    run({"folder": lake, "version": 6})
    assert spent() == dict.fromkeys(DAYS[3:], 1)


def test_rows_may_be_added_to_blocks_that_nobody_read(
    lake: str, ledger: Ledger, tmp_path: Path, shell: Shell
) -> None:
    run(lake)
    early = [text(tmp_path, DAYS[0], seed=78)]
    assert shell("ingest", *early, "--out", lake, "--append", "--by", "day", "--workers", "0")[0] == 0
    run(lake)


def test_a_block_stays_closed_and_known_as_the_lake_grows_and_is_compacted(lake: str, ledger: Ledger) -> None:
    """A new column and fewer, larger files change nothing that was read."""
    run(lake)
    folder = Path(lake).parent
    grown = pd.read_csv(text(folder, None, seed=5)).assign(day="2026-11-07", c="new")
    grown.to_csv(folder / "grown.csv", index=False)
    ingest([str(folder / "grown.csv")], lake, append=True)
    ingest([text(folder, DAYS[0], seed=9)], lake, append=True)
    compact_lake(lake)
    run(lake, blocks={"column": "day", "values": DAYS[3:]})
    assert spent() == dict.fromkeys(DAYS[3:], 1)


def test_a_block_whose_runs_were_all_void_is_open_again(ledger: Ledger) -> None:
    from daskrado.lake.block_facts import Reading, public_name

    first, other = (Reading({"table": public_name("t")}, "day", {"monday": mark}) for mark in ("one", "two"))
    known: dict[str, Any] = {"theorem": "t", "run": "1", "blocks": ("monday",)}
    grant = ledger.reserve("visits", Relation.ADD_REMOVE, PureEvent("0.5"), **known, reading=first)
    with pytest.raises(DataError, match="was closed when it was first charged"):
        ledger.reserve("visits", Relation.ADD_REMOVE, PureEvent("0.5"), **known, reading=other)
    assert ledger.closed_blocks("t", "day") == {"monday": "visits"}
    ledger.void(grant)
    assert ledger.closed_blocks("t", "day") == {}
    ledger.reserve("visits", Relation.ADD_REMOVE, PureEvent("0.5"), **known, reading=other)
    check_all(ledger)


@pytest.mark.parametrize("second", ["zone", "copy"])
def test_a_second_column_gives_no_row_a_second_budget(ledger: Ledger, second: str) -> None:
    """A row of one day lies in one zone too, and in a copy of its day under another name."""
    frame = pd.DataFrame({"a": [0.5, -1.0] * 20, "b": 1, "y": [0, 1] * 20, "day": ["d1"] * 20 + ["d2"] * 20})
    frame = frame.assign(zone=["north", "south"] * 20, copy=frame["day"].map({"d1": "d2", "d2": "d1"}))
    run(frame, blocks={"column": "day", "values": ["d1"]})
    values = {"zone": ["north"], "copy": ["d2"]}[second]
    with pytest.raises(BudgetError, match=f"'visits' has budgets for the values of 'day'; those of '{second}' would"):
        run(frame, blocks={"column": second, "values": values})
    assert spent() == {"d1": Fraction(1, 2)}
    planned = [*plan_lines(load_job(keys(frame, blocks={"column": second, "values": values})), ledger)]
    assert any(
        line.startswith("refused     data set 'visits' has budgets for the values of 'day'") for line in planned
    )
    run(frame, blocks={"column": "day", "values": ["d1"]})


def test_a_block_is_known_again_under_another_name(lake: str, ledger: Ledger, tmp_path: Path) -> None:
    """A copy of the table, of which some days were charged, under a second name; also days that were not."""
    run(lake)
    shutil.copytree(lake, tmp_path / "copy")
    ledger.set_limit("copy", Relation.ADD_REMOVE, 1, 0, block=EACH)
    for days in (DAYS[2:4], DAYS[:1]):
        with pytest.raises(BudgetError, match=r"is already in the ledger .* as 'visits'"):
            run(str(tmp_path / "copy"), dataset="copy", blocks={"column": "day", "values": days})
    assert spent("copy") == {}


@pytest.mark.parametrize("seed", [3, 9])
def test_a_made_up_table_is_refused_whatever_it_holds(lake: str, ledger: Ledger, tmp_path: Path, seed: int) -> None:
    """E31: not "right" and "wrong", which would tell the number of rows of a closed block, or its extremes.

    Its maker knows all that was published of the table, also its name; one of the two has the very rows.
    """
    run(lake)
    (known,) = {entry.table["table"] for entry in ledger.entries("visits") if entry.table}
    made = tmp_path / "made"
    ingest([text(tmp_path, DAYS[3], seed=seed)], str(made), layout=Layout(by="day"))
    manifest = json.loads((made / "_manifest.json").read_text())
    (made / "_manifest.json").write_text(json.dumps(manifest | {"lake": known}))
    with pytest.raises(DataError, match=f"block day={DAYS[3]} of data set 'visits' was closed"):
        run(str(made), blocks={"column": "day", "values": [DAYS[3]]})
    assert spent() == dict.fromkeys(DAYS[3:], Fraction(1, 2))


def test_a_block_of_plain_files_is_closed_by_its_files(tmp_path: Path, ledger: Ledger, lake: str) -> None:
    plain = tmp_path / "plain"
    shutil.copytree(lake, plain)
    (plain / "_manifest.json").unlink()
    run(str(plain))
    run(str(plain), blocks={"column": "day", "values": [DAYS[3]]})
    late = next((plain / f"day={DAYS[4]}").glob("*.parquet"))
    shutil.copyfile(next((plain / f"day={DAYS[0]}").glob("*.parquet")), late.with_name("late.parquet"))
    with pytest.raises(DataError, match=f"block day={DAYS[4]} of data set 'visits' was closed"):
        run(str(plain), blocks={"column": "day", "values": [DAYS[4]]})


def test_rows_without_a_block_count_as_nothing(lake: str, ledger: Ledger, tmp_path: Path) -> None:
    ingest([text(tmp_path, None, seed=3)], lake, append=True)
    others = {"private": False, "protect": None, "budget": None, "blocks": {"column": "day"}}
    assert run(lake, **others).facts["rows"] == 240


def test_a_first_limit_is_for_each_block(lake: str, own_ledger: Path) -> None:
    once = {"ledger": {"first_limit": {"epsilon": 1.0}}, "blocks": {"column": "day", "last": 2}}
    planned = [*plan_lines(load_job(keys(lake, **once)), None)]
    assert any("50 % of the budget of each of 2 blocks of visits (1, 0)" in line for line in planned)
    result = run(lake, **once)
    assert any("each of 2 blocks of visits (1, 0)" in line for line in result.lines)
    run(lake, **once)
    with pytest.raises(BudgetError, match="no block"):
        run(lake, **once)
    assert spent() == dict.fromkeys(DAYS[4:], 1)


def test_a_limit_for_each_block_is_replaced_for_all_of_them(lake: str, ledger: Ledger) -> None:
    run(lake)
    ledger.set_limit("visits", Relation.ADD_REMOVE, 2, 0, block=EACH)
    for _ in range(3):
        run(lake)
    with pytest.raises(BudgetError, match="no block"):
        run(lake)
    assert spent() == dict.fromkeys(DAYS[3:], 2)
    check_all(ledger)


def test_a_release_of_the_whole_lake_counts_in_every_block_also_later_ones(lake: str, ledger: Ledger) -> None:
    with pytest.raises(BudgetError, match="has no limit under add_remove; nothing was debited"):
        run(lake, blocks=None)
    ledger.set_limit("visits", Relation.ADD_REMOVE, 9, 0)
    run(lake, blocks=None)
    run(lake, blocks={"column": "day", "last": 1})
    assert spent() == {DAYS[5]: 1}
    with pytest.raises(BudgetError, match="no block"):
        run(lake, blocks={"column": "day", "last": 1})
    check_all(ledger)


def test_a_void_run_gives_back_what_each_block_paid(ledger: Ledger) -> None:
    def read(*blocks: str) -> Any:
        return ledger.reserve("visits", Relation.ADD_REMOVE, PureEvent("0.5"), theorem="t", run="1", blocks=blocks)

    grant = read("a", "b")
    read("b", "c")
    ledger.set_limit("visits", Relation.ADD_REMOVE, 2, 0, block=EACH)
    ledger.void(grant)
    assert spent() == {"a": 0, "b": Fraction(1, 2), "c": Fraction(1, 2)}
    check_all(ledger)


def test_people_have_no_budget_for_each_block(shell: Shell) -> None:
    code, said = shell("ledger", "limit", "visits", "--per-block", "--column", "patient", "--epsilon", "1")
    assert code == 2
    assert "a budget of a block is for its rows: one patient may have rows in several blocks" in said


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ({"column": "ward"}, r"blocks.column 'ward': the lake has no folders ward=VALUE \(.* after day\)"),
        ({"column": "day", "values": ["2020-01-01"]}, "the lake has no block day=2020-01-01; it has 6 blocks"),
        ({"column": "day", "from": "2030-01-01"}, "the lake has none of day: all from 2030-01-01; it has 6 blocks"),
        ({"column": "day", "last": 0}, "blocks.last: .*greater than or equal to 1"),
        ({"column": "day", "last": 2, "values": [DAYS[0]]}, "blocks: names its values, or gives last, from and to"),
        ({"column": "day", "values": []}, "blocks.values"),
        ({"last": 2}, "blocks.column"),
    ],
)
def test_wrong_blocks_are_refused_in_one_line(
    lake: str, ledger: Ledger, blocks: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        run(lake, blocks=blocks)
    assert "\n" not in str(refused.value)
    assert ledger.entries() == []


def frames(rows: pd.DataFrame) -> dict[str, Any]:
    """The same rows under every library, days as texts or as dates."""
    table = pa.Table.from_pandas(rows, preserve_index=False)
    dates = table.set_column(table.column_names.index("day"), "day", table["day"].cast(pa.date32()))
    return {
        "pandas": rows,
        "arrow, dates": dates,
        "arrow, dictionary": table.set_column(3, "day", table["day"].dictionary_encode()),
        "polars": polars.from_arrow(dates),
        "duckdb": duckdb.connect().from_arrow(table),
        "dask": dask.dataframe.from_pandas(rows, npartitions=4),
    }


@pytest.mark.parametrize("kind", ["pandas", "arrow, dates", "arrow, dictionary", "polars", "duckdb", "dask"])
def test_a_frame_has_the_blocks_of_its_files(lake: str, ledger: Ledger, kind: str) -> None:
    """The same blocks pay, and are known as those that the lake of the same rows has under another name."""
    rows = pd.concat([pd.read_csv(Path(lake).parent / f"{day}-None.csv") for day in DAYS], ignore_index=True)
    rows = pd.concat([rows.sample(frac=1, random_state=1), rows.head(5).assign(day=None)], ignore_index=True)
    frame = frames(rows)[kind]
    exact = {"private": False, "protect": None, "budget": None}
    assert np.array_equal(run(frame, **exact).model.weights, run(lake, **exact).model.weights)
    assert run(frame).facts["blocks"] == {"column": "day", "read": DAYS[3:], "left_out": []}
    assert spent() == dict.fromkeys(DAYS[3:], Fraction(1, 2))
    with pytest.raises(DataError, match=f"block day={DAYS[3]} of data set 'visits' was closed"):
        run(lake)  # whatever it holds
    run(frame)
    assert spent() == dict.fromkeys(DAYS[3:], Fraction(1))


def test_a_frames_blocks_need_a_column_of_names(ledger: Ledger, tmp_path: Path) -> None:
    rows = pd.read_csv(text(tmp_path, DAYS[0]))
    with pytest.raises(UsageError, match=r"blocks\.column 'ward': the frame has no such column; it has a, b, y, day"):
        run(rows, blocks={"column": "ward"})
    with pytest.raises(UsageError, match=r"blocks\.column 'a' is double; it must hold texts"):
        run(rows, blocks={"column": "a"})
    assert ledger.entries() == []


def test_a_block_of_a_frame_tells_nothing_to_who_makes_up_its_rows(ledger: Ledger, tmp_path: Path) -> None:
    """E31: neither the right number of rows nor the right extremes are refused, or accepted, in another way."""
    rows = pd.read_csv(text(tmp_path, DAYS[0]))
    run(rows, budget={"epsilon": 0.1})
    for guess in (rows, rows.assign(a=0.5), rows.head(7)):
        run(guess, budget={"epsilon": 0.1})
    assert spent() == {DAYS[0]: Fraction("0.4")}


def test_the_commands_show_each_block(lake: str, ledger: Ledger, tmp_path: Path, shell: Shell) -> None:
    out = str(tmp_path / "out")
    result = daskrado.fit(
        lake, DOMAIN, dataset="visits", epsilon=0.25, blocks={"column": "day", "last": 3}, output=out
    )
    assert "<svg" in (tmp_path / "out/report.html").read_text().partition("Budget by block")[2]
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    jsonschema.validate(manifest, manifest_schema())
    assert [charge["blocks"] for charge in manifest["charges"]] == [DAYS[3:]]
    assert {price["block"] for price in manifest["budget"]} == {*DAYS[3:]}
    assert manifest["facts"]["blocks"] == result.facts["blocks"]
    _, shown = shell("ledger", "show", "visits", "--blocks")
    assert [line.split()[0] for line in shown.splitlines()[1:]] == DAYS[3:]
    assert all("25 % spent, 75 % left, 1 run, under add_remove" in line for line in shown.splitlines()[1:])
    assert "3 blocks with a budget" in shell("ledger", "show", "visits")[1]


def test_a_resumed_run_reads_the_blocks_that_it_paid_for(
    lake: str, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lake grew and the blocks were spent meanwhile; the run that was cut off reads what it had debited."""
    from daskrado.ledger.draws import Draws

    class Cut(BaseException):
        pass

    def cut(*_: Any, **__: Any) -> Any:
        raise Cut

    content = keys(lake, output=str(tmp_path / "out"), budget={"epsilon": 1.0})
    with monkeypatch.context() as patch:
        patch.setattr(Draws, "release", cut)
        patch.setattr("daskrado.ledger.account.Account.void_unspent", lambda *_: None)
        with pytest.raises(Cut):
            daskrado.run(content)
    (entry,) = ledger.entries("visits")
    ingest([text(tmp_path, None, seed=4)], lake, append=True)
    result = daskrado.resume(entry.run)
    assert result.facts["blocks"]["read"] == DAYS[3:]
    assert spent() == dict.fromkeys(DAYS[3:], 1)


def test_every_entry_of_the_ledger_keeps_its_shape(lake: str, ledger: Ledger) -> None:
    """An exported ledger says which version of the table was read."""
    run(lake)
    (entry,) = ledger.to_json()["entries"]
    assert entry["table"]["format"] == "folder"
    assert entry["table"] == dataclasses.asdict(ledger.entries()[0])["table"]
