"""A model every night of all days so far: one charge, each day read once, nothing drawn twice, whatever happens."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from functools import partial, partialmethod
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import daskrado
import daskrado.jobs.run
from daskrado.engines.nights import Nights
from daskrado.errors import BudgetError, DataError, LedgerError, UsageError
from daskrado.jobs.continual import ContinualJob
from daskrado.jobs.load import load_job
from daskrado.jobs.show import plan_lines
from daskrado.lake.collect import collect
from daskrado.lake.ingest import Layout, ingest
from daskrado.lake.scan import open_lake
from daskrado.lake.unit_counts import Counting, PlacedWeights
from daskrado.lake.units import Units, units_of
from daskrado.learners.on_release.moments import MomentsLearner
from daskrado.ledger.history import check_all
from daskrado.ledger.journal import Journal
from daskrado.ledger.ledger import EACH, Grant, Ledger
from daskrado.ledger.moving import moved
from daskrado.ledger.show import block_lines
from daskrado.privacy import continual as noise_module
from daskrado.privacy.accountant import PureEvent
from daskrado.privacy.relations import Relation
from daskrado.table.domain import Domain
from daskrado.table.yaml_file import parse

DOMAIN = {
    "label": {"column": "y", "positive": 1, "negative": 0},
    "norm_bound": 1.5,
    "columns": {
        "a": {"kind": "numeric", "lower": -2, "upper": 2},
        "b": {"kind": "numeric", "lower": 0, "upper": 9, "nulls": {"fill": 0}},
    },
}


def add(folder: Path, day: int, rows: int = 40) -> str:
    """A day's rows, appended to the lake."""
    draw, lake = np.random.default_rng(day), folder / "lake"
    frame = pd.DataFrame(
        {"a": draw.normal(size=rows), "b": draw.integers(0, 10, rows), "y": draw.integers(0, 2, rows)}
    )
    path = folder / f"{day}.csv"
    frame.assign(day=f"2026-11-{day:02d}").to_csv(path, index=False)
    ingest([str(path)], str(lake), layout=Layout(by="day"), append=lake.exists())
    return str(lake)


def keys(lake: Any, **changes: Any) -> dict[str, Any]:
    return {
        "dataset": "visits",
        "lake": lake,
        "domain": DOMAIN,
        "output": "unused",
        "protect": {"relation": "add_remove", "unit": "one visit"},
        "budget": {"epsilon": 1.0, "delta": 1e-6},
        "blocks": {"column": "day"},
        "continual": {"horizon": 4},
        "ledger": {"first_limit": {"epsilon": 10, "delta": 1e-5}},
        **changes,
    }


def night(lake: Any, **changes: Any) -> daskrado.Result:
    return daskrado.run(keys(lake, **changes), write=False)


def check_sums(found: daskrado.Result, folder: Path, days: Iterable[int]) -> None:
    """What was released is the sum over all rows of some days, where there is no noise."""
    rows = pd.concat([pd.read_csv(folder / f"{day}.csv") for day in days], ignore_index=True)
    bits = load_job(keys(rows)).lattice.bits
    given = keys(rows, private=False, blocks=None, protect=None, budget=None, ledger={}, lattice_bits=bits)
    del given["continual"]
    truth = daskrado.run(given, write=False).release.values
    assert found.release.values.keys() == truth.keys()
    for name, values in truth.items():
        assert found.release.values[name] == pytest.approx(values, rel=1e-9, abs=1e-9)


def draws(ledger: Path) -> list[str]:
    opened = Ledger.open(ledger)
    return sorted(name for entry in opened.entries() for name in opened.draws(entry.id))


def journal_of(ledger: Path) -> Path:
    return ledger.with_name(ledger.name + ".engines") / "visits~continual.add_remove"


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise_module, "keyed_gaussian", lambda key, name, scale, count: np.zeros(count, np.int64))


@pytest.mark.parametrize(
    "label",
    [{"column": "y", "kind": "number", "bounds": [0, 4]}, {"column": "c", "classes": ["u", "v", "w"]}],
    ids=str,
)
def test_numbers_and_classes_are_learned_every_night(
    quiet: None, tmp_path: Path, own_ledger: Path, label: dict[str, Any]
) -> None:
    """Without noise the sums are those of all rows so far; weights are in the units of the label."""
    draw, frames, domain = np.random.default_rng(4), [], {**DOMAIN, "label": label}
    for day in (1, 2):
        frame = pd.DataFrame({"a": draw.normal(size=60), "b": draw.integers(0, 10, 60), "y": draw.uniform(0, 4, 60)})
        frames.append(frame.assign(c=draw.choice(["u", "v", "w"], 60)))
        frames[-1].assign(day=f"2026-11-{day:02d}").to_csv(tmp_path / f"{day}.csv", index=False)
        ingest([str(tmp_path / f"{day}.csv")], str(tmp_path / "lake"), layout=Layout(by="day"), append=day > 1)
        found = night(str(tmp_path / "lake"), domain=domain)
    rows = pd.concat(frames, ignore_index=True)
    given = keys(rows, domain=domain, private=False, blocks=None, protect=None, budget=None, ledger={})
    del given["continual"]
    truth = daskrado.run(given | {"lattice_bits": load_job(keys(rows, domain=domain)).lattice.bits}, write=False)
    for name, values in truth.release.values.items():
        assert found.release.values[name] == pytest.approx(values, rel=1e-9, abs=1e-9)
    plain = MomentsLearner().fit_columns(found.release, parse(Domain, domain, "here"))
    assert found.model is not None
    np.testing.assert_array_equal(found.model.weights, plain.weights * (2.0 if label["column"] == "y" else 1.0))
    assert list(found.model.coefficients.columns) == ["weight", "low", "high", "p", "mark"]


def test_each_night_is_a_model_of_all_days_and_reads_the_new_ones_alone(
    quiet: None, tmp_path: Path, own_ledger: Path
) -> None:
    """Files of earlier days are damaged after they were read: nobody opens them again."""
    for day in range(1, 5):
        lake = add(tmp_path, day)
        found = night(lake)
        assert found.facts["continual"] == {"night": day, "horizon": 4, "blocks": day, "lost": []}
        assert found.facts["blocks"]["read"] == [f"2026-11-{day:02d}"]
        check_sums(found, tmp_path, range(1, day + 1))
        for file in Path(lake).rglob("*.parquet"):
            file.write_bytes(b"PAR1")
    (entry,) = Ledger.open(own_ledger).entries()
    assert entry.blocks == (EACH,)
    assert len(draws(own_ledger)) == 4
    check_all(Ledger.open(own_ledger))


def test_several_new_days_are_one_night_and_a_night_without_any_says_so(tmp_path: Path, own_ledger: Path) -> None:
    for day in (1, 2, 3):
        lake = add(tmp_path, day)
    first = night(lake)
    assert first.facts["continual"]["blocks"] == 3
    again = night(lake)
    assert again.model.weights.tolist() == first.model.weights.tolist()
    assert "no block is new since night 1 of 4: the same sums, nothing was read or drawn" in again.notes
    assert "this run: nothing was debited, an earlier one had paid" in again.lines
    assert again.facts["blocks"]["read"] == []
    assert len(draws(own_ledger)) == 1


def test_nights_go_on_where_their_ledger_was_moved_to(quiet: None, tmp_path: Path, own_ledger: Path) -> None:
    night(add(tmp_path, 1))
    new = tmp_path / "elsewhere.sqlite"
    moved(Ledger.open(own_ledger), new)
    second = night(add(tmp_path, 2), ledger={"path": str(new)})
    assert second.facts["continual"]["night"] == 2
    check_sums(second, tmp_path, (1, 2))
    assert len(Ledger.open(new).entries()) == 1
    check_all(Ledger.open(new))


def test_noise_of_a_later_night_is_correlated_with_that_of_the_one_before(tmp_path: Path, own_ledger: Path) -> None:
    """Published twice, the second day's sum would have fresh noise; here the noise before is in it, by its weight."""
    night(add(tmp_path, 1))
    second = night(add(tmp_path, 2))
    with Journal.take(journal_of(own_ledger)) as journal:
        nights = Nights(journal, draws(own_ledger))
        kept, key = nights.kept, nights.key()
    job = load_job(keys(str(tmp_path / "lake")))
    weights = job.sums.weights([1, 2])
    noise = sum(weight * job.noise().noise_of(key, kept[n].name) for n, weight in zip((1, 2), weights, strict=True))
    exact_sums = job.noise().exact(key, kept)
    block = job.chosen_statistic.blocks[0]
    truth = (exact_sums[1] + exact_sums[2] + noise)[: block.size] * block.step(job.lattice)
    assert second.release.values[block.name] == pytest.approx(truth, rel=1e-9)


def test_the_next_horizon_is_charged_for_itself_and_reads_all_days(
    quiet: None, tmp_path: Path, own_ledger: Path
) -> None:
    for day in (1, 2):
        night(add(tmp_path, day), continual={"horizon": 2})
    assert night(str(tmp_path / "lake"), continual={"horizon": 2}).facts["continual"]["night"] == 2  # nothing new
    found = night(add(tmp_path, 3), continual={"horizon": 2})
    assert found.facts["continual"] == {"night": 1, "horizon": 2, "blocks": 3, "lost": []}
    check_sums(found, tmp_path, (1, 2, 3))
    assert len(Ledger.open(own_ledger).entries()) == 2


def test_a_finished_horizon_stays_until_the_next_one_is_paid_for(
    quiet: None, tmp_path: Path, own_ledger: Path
) -> None:
    """What was published last can be published again for as long as nothing new is read."""
    Ledger.open(own_ledger).set_limit("visits", Relation.ADD_REMOVE, 1.2, 1e-5, block=EACH)
    for day in (1, 2):
        night(add(tmp_path, day), continual={"horizon": 2})
    before = {path.name: path.read_bytes() for path in journal_of(own_ledger).iterdir() if path.is_file()}
    lake = add(tmp_path, 3)
    with pytest.raises(BudgetError):
        night(lake, continual={"horizon": 2})
    assert {path.name: path.read_bytes() for path in journal_of(own_ledger).iterdir() if path.is_file()} == before
    assert len(Ledger.open(own_ledger).entries()) == 1
    Ledger.open(own_ledger).set_limit("visits", Relation.ADD_REMOVE, 3, 1e-5, block=EACH)
    found = night(lake, continual={"horizon": 2})
    assert found.facts["continual"] == {"night": 1, "horizon": 2, "blocks": 3, "lost": []}
    check_sums(found, tmp_path, (1, 2, 3))
    check_all(Ledger.open(own_ledger))


def test_the_journal_holds_a_key_and_releases_but_no_noise(tmp_path: Path, own_ledger: Path) -> None:
    """With the key and what was released, and with nothing less, the exact sums are known."""
    lake = add(tmp_path, 1)
    night(lake)
    folder = journal_of(own_ledger)
    (key,), (kept,) = folder.glob("*.key"), folder.glob("*.npz")
    assert key.stat().st_mode & 0o777 == 0o600
    with np.load(kept) as arrays:
        assert [name for name in arrays if arrays[name].size > 1] == ["released"]
    job = load_job(keys(lake))
    truth = collect(job.chosen_statistic, open_lake(lake, job.domain), job.domain, job.lattice).vector
    for content, known in ((key.read_text(), True), (bytes(32).hex(), False)):
        key.write_text(content)
        with Journal.take(folder) as journal:
            nights = Nights(journal, draws(own_ledger))
            found = job.noise().exact(nights.key(), nights.kept)[1]
        assert np.array_equal(found, truth) is known


def test_a_night_that_was_cut_off_is_lost_and_its_days_are_never_read_again(
    quiet: None, tmp_path: Path, own_ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Cut(BaseException):
        pass

    def cut(*_: Any, **__: Any) -> None:
        raise Cut

    night(add(tmp_path, 1))
    lake = add(tmp_path, 2)
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "keep", cut)
        with pytest.raises(Cut):
            night(lake)
    assert len(draws(own_ledger)) == 2
    again = night(lake)  # nothing new: the day that was lost is not read again
    assert len(draws(own_ledger)) == 2
    check_sums(again, tmp_path, [1])
    assert any("night 2 (2026-11-02) was cut off as its noise was drawn" in note for note in again.notes)
    third = night(add(tmp_path, 3))
    assert third.facts["continual"] == {"night": 3, "horizon": 4, "blocks": 2, "lost": [2]}
    check_sums(third, tmp_path, [1, 3])


def test_a_night_that_was_cut_off_before_its_draw_is_made_by_the_next_run(
    quiet: None, tmp_path: Path, own_ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Cut(BaseException):
        pass

    def cut(*_: Any, **__: Any) -> None:
        raise Cut

    night(add(tmp_path, 1))
    lake = add(tmp_path, 2)
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "count_draw", cut)
        with pytest.raises(Cut):
            night(lake)
    found = night(add(tmp_path, 3))
    assert found.facts["continual"] == {"night": 2, "horizon": 4, "blocks": 3, "lost": []}
    check_sums(found, tmp_path, [1, 2, 3])


@pytest.mark.parametrize("put_back", ["the night before", "nothing"])
def test_an_older_journal_draws_nothing(tmp_path: Path, own_ledger: Path, put_back: str) -> None:
    """Else the noise of a night would be drawn twice, or a day be in two nights."""
    night(add(tmp_path, 1))
    folder = journal_of(own_ledger)
    shutil.copytree(folder, tmp_path / "older")
    night(add(tmp_path, 2))
    shutil.rmtree(folder)
    if put_back == "the night before":
        shutil.copytree(tmp_path / "older", folder)
        with pytest.raises(LedgerError, match=r"is older than the ledger.* lacks 1 of the draws .* the charge stays"):
            night(add(tmp_path, 3))
        assert len(Ledger.open(own_ledger).entries()) == 1
    else:  # a new horizon, which pays for itself
        assert night(add(tmp_path, 3)).facts["continual"]["night"] == 1
        assert len(Ledger.open(own_ledger).entries()) == 2


def test_one_night_is_drawn_once_though_two_copies_of_a_journal_read_other_days_for_it(
    tmp_path: Path, own_ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other copy, on another machine, draws its second night while this one reads rows for its own."""
    night(add(tmp_path, 1))
    genuine = daskrado.jobs.run.collect

    def overtaken(*given: Any, **named: Any) -> Any:
        with Ledger.open(own_ledger) as ledger:
            (entry,) = ledger.entries()
            grant = Grant(entry.id, entry.dataset, Relation.ADD_REMOVE, entry.event, ledger.path, entry.run)
            ledger.count_draw(grant, f"night@00002-{16 * '0'}")
        return genuine(*given, **named)

    monkeypatch.setattr(daskrado.jobs.run, "collect", overtaken)
    with pytest.raises(LedgerError, match=r"draw night@00002- of entry 1 .* was made before"):
        night(add(tmp_path, 2))
    assert len(draws(own_ledger)) == 2


def test_a_day_that_was_read_takes_no_more_rows_and_is_known_elsewhere(tmp_path: Path, own_ledger: Path) -> None:
    ledger = Ledger.open(own_ledger)
    lake = add(tmp_path, 1)
    night(lake)
    night(add(tmp_path, 2))

    def closed(table: str, column: str) -> Any:
        return ledger.closed_blocks(table, column)

    for day in (1, 2):
        with pytest.raises(UsageError, match=f"block day=2026-11-0{day} is closed"):
            ingest([str(tmp_path / f"{day}.csv")], lake, append=True, closed=closed)
    with pytest.raises(BudgetError, match=r"is already in the ledger .* as 'visits'"):
        daskrado.fit(
            lake, DOMAIN, dataset="other", epsilon=1, first_limit=(9, 1e-5), blocks={"column": "day", "last": 1}
        )


def test_one_charge_counts_in_every_block_also_in_those_to_come(tmp_path: Path, own_ledger: Path) -> None:
    ledger = Ledger.open(own_ledger)
    ledger.set_limit("visits", Relation.ADD_REMOVE, 1.2, 1e-5, block=EACH)
    night(add(tmp_path, 1))
    night(add(tmp_path, 2))
    with pytest.raises(BudgetError, match="no block of data set 'visits' has budget left"):
        daskrado.fit(
            str(tmp_path / "lake"), DOMAIN, dataset="visits", epsilon=1, delta=1e-6, blocks={"column": "day"}
        )


def test_the_ledger_shows_every_day_that_was_read(tmp_path: Path, own_ledger: Path) -> None:
    for day in (1, 2, 3):
        night(add(tmp_path, day))
    ledger = Ledger.open(own_ledger)
    assert [*ledger.block_balances("visits")] == ["2026-11-01", "2026-11-02", "2026-11-03"]
    lines = [*block_lines(ledger, "visits")]
    assert sum("1.4 % spent, 98.6 % left, 1 run, under add_remove" in line for line in lines) == 3


def test_a_void_charge_of_each_block_is_given_back_by_all_of_them(own_ledger: Path) -> None:
    ledger = Ledger.open(own_ledger)
    ledger.set_limit("visits", Relation.ADD_REMOVE, 2, 0, block=EACH)
    reserve = partial(ledger.reserve, "visits", Relation.ADD_REMOVE, PureEvent("0.5"), theorem="t", run="1")
    reserve(blocks=["a"])
    grant = reserve(blocks=[EACH])
    reserve(blocks=["b"])
    known = {block: own[0].total.epsilon for block, own in ledger.block_balances("visits").items()}
    assert known == {"a": 1, "b": 1}
    ledger.void(grant)
    known = {block: own[0].total.epsilon for block, own in ledger.block_balances("visits").items()}
    assert known == {"a": Fraction(1, 2), "b": Fraction(1, 2)}
    check_all(ledger)


def test_another_settings_another_process_and_no_budget_are_refused(tmp_path: Path, own_ledger: Path) -> None:
    lake = add(tmp_path, 1)
    with pytest.raises(BudgetError, match="nothing was debited"):
        night(lake, ledger={"first_limit": {"epsilon": 0.5, "delta": 1e-6}})
    assert not journal_of(own_ledger).exists()
    assert Ledger.open(own_ledger).entries() == []
    Ledger.open(own_ledger).set_limit("visits", None, 10, 1e-5, block=EACH)
    night(lake)
    with pytest.raises(UsageError, match="has a continual release with another horizon; go on with that one"):
        night(lake, continual={"horizon": 9})
    with Journal.take(journal_of(own_ledger)), pytest.raises(UsageError, match="another process is at work on this"):
        night(lake)
    assert len(draws(own_ledger)) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"continual": {"horizon": 1}}, r"continual\.horizon: .*greater than or equal to 2"),
        ({"continual": {"horizon": 5000}}, r"continual\.horizon: .*less than or equal to 3650"),
        ({"continual": {"horizont": 5}}, "horizon"),
        ({"blocks": None}, r"name their column, blocks: \{column: day\}"),
        ({"blocks": {"column": "day", "last": 3}}, r"drop blocks\.last and blocks\.to"),
        ({"budget": {"epsilon": 1.0}}, "give protect and budget with a delta above 0"),
        ({"mechanism": "laplace"}, "has Gaussian noise"),
        ({"evaluate": {"budget": {"epsilon": 1}}}, "evaluate is a key of kind learn"),
        ({"class_weight": {"positive": 1, "negative": 0.5}}, "class_weight is a key of kind learn"),
        ({"learner": {"kind": "gradient"}, "rows": 100}, "needs a learner on plain sums, such as moments"),
        ({"learner": {"kind": "radoboost", "rounds": 3}}, "needs a learner on plain sums, such as moments"),
        (
            {"protect": {"relation": "replace_one", "unit": {"column": "b", "name": "one patient"}}},
            "one patient may have rows on several nights: .* not under replace_one",
        ),
        (
            {"protect": {"relation": "add_remove", "unit": {"column": "b", "name": "one patient", "how": "sample"}}},
            "continual counts people by how: spread",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    changes: dict[str, Any], message: str, tmp_path: Path, own_ledger: Path
) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        night(add(tmp_path, 1), **changes)
    assert "\n" not in str(refused.value)
    assert Ledger.open(own_ledger).entries() == []


def test_a_plan_prints_the_error_against_the_other_ways(tmp_path: Path) -> None:
    lines = "\n".join(plan_lines(load_job(keys(add(tmp_path, 1), continual={"horizon": 365})), None))
    assert "365 nights on one charge; each reads the blocks that are new" in lines
    assert "2.94 times (a fresh run each night 19.10, a binary tree up to 8.49)" in lines


def test_the_same_sums_over_partitionings_and_on_workers(
    quiet: None, tmp_path: Path, own_ledger: Path, two_workers: Any
) -> None:
    table = pd.concat([pd.read_csv(Path(add(tmp_path, day)).parent / f"{day}.csv") for day in (1, 2)])
    found = []
    for parts in (1, 2, 7):
        for day, rows in table.groupby("day"):
            folder = tmp_path / f"lake{parts}" / f"day={day}"
            folder.mkdir(parents=True)
            for n, piece in enumerate(np.array_split(np.arange(len(rows)), parts)):
                rows.iloc[piece].drop(columns="day").to_parquet(folder / f"{n}.parquet")
        given = keys(str(tmp_path / f"lake{parts}"))
        ledger, cluster = tmp_path / f"{parts}.sqlite", two_workers if parts == 7 else None
        found.append(daskrado.run(given, write=False, ledger=ledger, cluster=cluster).model.weights.tolist())
    assert found[0] == found[1] == found[2]


def test_the_command_line_and_the_page(tmp_path: Path, own_ledger: Path) -> None:
    out = tmp_path / "out"
    for day in (1, 2):
        daskrado.run(keys(add(tmp_path, day), output=str(out)), overwrite=day > 1)
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["kind"] == "continual"
    assert manifest["facts"]["continual"]["night"] == 2
    assert "<svg" in (out / "report.html").read_text().partition("Continual release")[2]
    assert (journal_of(own_ledger).stat().st_mode & 0o777) == 0o700  # it holds the noise


def test_a_lake_whose_schema_does_not_fit_costs_no_night(tmp_path: Path, own_ledger: Path) -> None:
    lake = add(tmp_path, 1)
    night(lake)
    other = tmp_path / "3.csv"
    pd.DataFrame({"a": ["x"] * 20, "b": 1, "y": 0, "day": "2026-11-03"}).to_csv(other, index=False)
    with pytest.raises(DataError, match="column 'a' is double in the lake and holds other values"):
        ingest([str(other)], lake, append=True)
    assert night(lake).facts["continual"]["night"] == 1


PEOPLE = {"relation": "add_remove", "unit": {"column": "patient", "name": "one patient"}}


def with_people(folder: Path, day: int, without: int | None = None) -> tuple[str, pd.DataFrame]:
    """A day of patients who come back; patient 3 has 1, 6, 11 and 16 rows, as long as can be."""
    draw, lake = np.random.default_rng(day), folder / "lake"
    frame = pd.DataFrame(
        {"patient": draw.integers(0, 25, 40), "a": draw.normal(size=40), "b": draw.integers(0, 10, 40)}
    )
    frame = frame[frame.patient != 3].assign(y=1)
    often = pd.DataFrame({"patient": [3] * 5 * day, "a": 2.0, "b": 9, "y": 0})
    frame = pd.concat([frame, often], ignore_index=True).assign(day=f"2026-11-{day:02d}")
    frame = frame[frame.patient != without]
    folder.mkdir(exist_ok=True)
    frame.to_csv(folder / f"{day}.csv", index=False)
    ingest([str(folder / f"{day}.csv")], str(lake), layout=Layout(by="day"), append=lake.exists())
    return str(lake), frame


def protected(bound: int) -> dict[str, Any]:
    return {**PEOPLE, "unit": {**PEOPLE["unit"], "bound": bound}}  # type: ignore[dict-item]


def nights_of(folder: Path, bound: int, without: int | None = None, cluster: Any = None) -> dict[int, np.ndarray]:
    """The releases of four nights on a ledger of their own."""
    ledger = folder / "ledger.sqlite"
    for day in (1, 2, 3, 4):
        lake, _ = with_people(folder, day, without)
        daskrado.run(keys(lake, protect=protected(bound)), write=False, ledger=ledger, cluster=cluster)
    with Journal.take(journal_of(ledger)) as journal:
        return {night: kept.released for night, kept in Nights(journal, draws(ledger)).kept.items()}


@pytest.mark.parametrize("bound", [1, 3])
def test_people_count_over_all_nights_as_so_many_rows(
    bound: int, quiet: None, tmp_path: Path, two_workers: Any
) -> None:
    """On the first nights that have rows of theirs, all rows of a night alike: against a dictionary of them."""
    used: Counter[int] = Counter()
    exact, releases = {}, nights_of(tmp_path / "here", bound)
    for day in (1, 2, 3, 4):
        frame = pd.read_csv(tmp_path / "here" / f"{day}.csv")
        job = load_job(keys(frame, protect=protected(bound)))
        owned = Counter(frame.patient)
        shares = {p: min(n, bound - used[p]) / n for p, n in owned.items()}
        weights = np.array([int(2**14 * shares[p]) for p in frame.patient], dtype=np.uint16)
        used.update({p: min(n, bound - used[p]) for p, n in owned.items()})
        units = Units(Counting("patient", bound, None, bytes(32)), weights=PlacedWeights((0,), (weights,)))
        lake = open_lake(frame, job.domain)
        exact[day] = collect(job.chosen_statistic, lake, job.domain, job.lattice, units=units).vector
        assert np.array_equal(job.noise()._mixed(day, exact), releases[day])
    assert max(used.values()) == bound
    there = nights_of(tmp_path / "there", bound, cluster=two_workers)
    assert all(np.array_equal(there[n], releases[n]) for n in releases)


@pytest.mark.parametrize("bound", [1, 3])
@pytest.mark.parametrize("forgets", [False, True])
def test_all_rows_of_a_person_move_all_nights_by_no_more_than_is_paid_for(
    bound: int, forgets: bool, quiet: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``forgets``: each night counts people for itself, which nobody pays for."""
    if forgets:
        monkeypatch.setattr(ContinualJob, "_draw", partialmethod(forgetful, ContinualJob._draw))
    one, two = nights_of(tmp_path / "with", bound), nights_of(tmp_path / "without", bound, without=3)
    job = load_job(keys(str(tmp_path / "with" / "lake"), protect=protected(bound)))
    made = job.noise()
    scales = np.concatenate([np.full(b.size, made.grid_scale(b)) for b in made.target.statistic.blocks])
    moved = float(np.linalg.norm([(one[n] - two[n]) / scales for n in one]))
    assert (moved <= made.event.mu) is not forgets
    assert moved > 0.3 * made.event.mu


def forgetful(job: ContinualJob, draw: Any, run: Any, journal: Any, nights: Any, new: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("daskrado.jobs.run.units_of", lambda *a, earlier=None, **k: units_of(*a, **k))
        draw(job, run, journal, nights, new)


@pytest.mark.parametrize("harm", ["changed", "gone", "gone from plain files"])
def test_a_day_whose_ids_cannot_be_counted_again_costs_nothing(harm: str, tmp_path: Path, own_ledger: Path) -> None:
    lake, _ = with_people(tmp_path, 1)
    night(lake, protect=PEOPLE)
    with_people(tmp_path, 2)
    (file,) = (Path(lake) / "day=2026-11-01").glob("*.parquet")
    if "gone" in harm:
        shutil.rmtree(file.parent)
        for manifest in Path(lake).glob("_manifest.json") if "plain" in harm else ():
            manifest.unlink()
    else:
        pq.write_table(pq.read_table(file).slice(5), file)
    with pytest.raises((DataError, BudgetError), match=r"2026-11-01") as refused:
        night(lake, protect=PEOPLE)
    if "plain" in harm:
        assert "was read on night 1, and is gone" in str(refused.value)
        assert "blocks.values" not in str(refused.value)  # which nobody wrote
    assert len(draws(own_ledger)) == 1
