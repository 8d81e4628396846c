"""Who owns which rows: exact over the whole lake, whatever the types, files and partitions."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import seeded_noise

import daskrado
from daskrado.errors import BudgetError, DataError, UsageError
from daskrado.jobs.load import load_job
from daskrado.lake import unit_counts
from daskrado.lake.collect import collect
from daskrado.lake.fingerprint import ColumnFacts
from daskrado.lake.scan import Lake, open_lake
from daskrado.lake.unit_ids import unit_hashes
from daskrado.lake.units import check_units, units_of
from daskrado.ledger.ledger import Ledger
from daskrado.privacy.protect import Protect
from daskrado.statistics import Moments
from daskrado.statistics.bounded import unit_weights
from daskrado.table.domain import Domain
from daskrado.table.lattice import Lattice
from daskrado.table.yaml_file import parse

KEY = bytes(range(32))
DOMAIN = parse(
    Domain,
    {
        "id": "visit",
        "label": {"column": "y", "positive": 1, "negative": 0},
        "norm_bound": 1.5,
        "columns": {"a": {"kind": "numeric", "lower": -2, "upper": 2}},
    },
    "here",
)
SPREAD = Protect.model_validate({"relation": "add_remove", "unit": {"column": "patient", "name": "one patient"}})
SAMPLE = Protect.model_validate(
    {"relation": "add_remove", "unit": {"column": "patient", "name": "one patient", "bound": 2, "how": "sample"}}
)


def people(rows: int, seed: int = 0) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    patient = (draw.pareto(1.2, rows) * 20).astype(np.int64) % 97
    rest = {"a": draw.normal(size=rows), "y": draw.integers(0, 2, rows)}
    return pd.DataFrame({"visit": np.arange(rows), "patient": patient, **rest})


def written(folder: Path, frame: pd.DataFrame, parts: int) -> str:
    folder.mkdir()
    for i, part in enumerate(np.array_split(np.arange(len(frame)), parts)):
        pq.write_table(pa.Table.from_pandas(frame.iloc[part], preserve_index=False), folder / f"{i}.parquet")
    return str(folder)


def summed(source: Any, protect: Protect, **options: Any) -> list[int]:
    lake, lattice = open_lake(source, DOMAIN), Lattice(DOMAIN.norm_bound, 11)
    units = units_of(lake, protect, KEY, DOMAIN.id, client=options.get("client"))
    return collect(Moments(DOMAIN.width), lake, DOMAIN, lattice, units=units, **options).vector.tolist()


@pytest.mark.parametrize("protect", [SPREAD, SAMPLE], ids=["spread", "sample"])
def test_the_same_bits_over_partitions_orders_frames_and_workers(
    tmp_path: Path, protect: Protect, two_workers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = people(700)
    expected = summed(frame, protect)
    lakes = [written(tmp_path / f"{parts}", frame, parts) for parts in (1, 2, 7)]
    lakes.append(written(tmp_path / "sorted", frame.sort_values("patient", kind="stable"), 5))
    lakes.append(written(tmp_path / "mixed", frame.sample(frac=1, random_state=1), 3))
    for lake in lakes:
        assert summed(lake, protect) == expected
    assert summed(lakes[2], protect, client=two_workers) == expected
    monkeypatch.setattr(unit_counts, "STRETCH_ROWS", 70)
    monkeypatch.setattr(unit_counts, "BUCKET_ROWS", 100)  # several buckets, in scratch files
    monkeypatch.setattr(unit_counts, "_IN_MEMORY", 0)
    for lake in lakes:
        assert summed(lake, protect) == expected
        assert summed(lake, protect, client=two_workers) == expected


def test_a_lake_clustered_by_unit_is_counted_by_its_tasks(tmp_path: Path) -> None:
    frame = people(600)
    groups = [frame[frame.patient % 97 < 40], frame[frame.patient % 97 >= 40]]
    folder = tmp_path / "clustered"
    folder.mkdir()
    for i, group in enumerate(groups):
        pq.write_table(pa.Table.from_pandas(group, preserve_index=False), folder / f"{i}.parquet")
    lake = open_lake(str(folder), DOMAIN)
    assert lake.spans("patient") is not None
    assert lake.spans("a") is None
    units = units_of(lake, SPREAD, KEY, None)
    assert units is not None
    assert units.weights is None
    assert summed(str(folder), SPREAD) == summed(frame, SPREAD)


def test_counts_are_exact_and_ids_are_one_value_in_any_type() -> None:
    ids = ["7", "7.0", " 7 ", "07", "x", "x", None, "", "-3", "18446744073709551615"]
    hashes = [tuple(row) for row in unit_hashes(pa.chunked_array([ids]), KEY).tolist()]
    assert hashes[0] == hashes[1] == hashes[2] == hashes[3]  # 07 is the number 7, as in a file of whole numbers
    assert hashes[4] == hashes[5] != hashes[0]
    assert hashes[6] == hashes[7] == (0, 0)
    numbers = [tuple(row) for row in unit_hashes(pa.chunked_array([pa.array([7, -3, None])]), KEY).tolist()]
    assert numbers == [hashes[0], hashes[8], (0, 0)]
    coded = pa.chunked_array([pa.array(["x", "7"]).dictionary_encode()])
    assert [tuple(row) for row in unit_hashes(coded, KEY).tolist()] == [hashes[4], hashes[0]]
    assert hashes[0] != tuple(unit_hashes(pa.chunked_array([["7"]]), bytes(32)).tolist()[0])  # by the key
    for number, kind in ((1234567890123456789, pa.int64()), (-(2**63), pa.int64()), (2**64 - 1, pa.uint64())):
        stored = unit_hashes(pa.chunked_array([pa.array([number], kind)]), KEY).tolist()
        for text in (str(number), f"{number}.0", f"  {number}"):
            assert unit_hashes(pa.chunked_array([[text]]), KEY).tolist() == stored
    odd = pa.array([b"\xff\xfe", b"a"]).cast(pa.string(), safe=False)
    assert len({tuple(row) for row in unit_hashes(pa.chunked_array([odd]), KEY).tolist()}) == 2


def test_every_file_must_have_the_unit_column_before_anything_is_debited(tmp_path: Path, own_ledger: Path) -> None:
    frame = people(60)
    for number, other in enumerate((frame.drop(columns="patient"), frame.assign(patient=frame.patient * 1.5))):
        folder = tmp_path / str(number)
        folder.mkdir()
        pq.write_table(pa.Table.from_pandas(frame[:30], preserve_index=False), folder / "a.parquet")
        pq.write_table(pa.Table.from_pandas(other[30:], preserve_index=False), folder / "b.parquet")
        with pytest.raises(DataError, match=r"b\.parquet: protect\.unit\.column 'patient'"):
            daskrado.fit(
                str(folder), DOMAIN, dataset="d", epsilon=1.0, delta=1e-6, first_limit=(10, 1e-5),
                unit={"column": "patient", "name": "one patient"},
            )  # fmt: skip
    assert not own_ledger.exists() or not Ledger.open(own_ledger).entries()


def test_footers_of_which_a_part_is_unknown_show_no_clusters() -> None:
    known = ColumnFacts(0, 1, 3)
    parts = tuple(SimpleNamespace(identity=name) for name in "ab")
    lake = Lake(parts, 2, 2, "", pa.schema([]), facts=({"p": known}, {"p": ColumnFacts(0, 5, 9)}))
    assert lake.spans("p") == {"a": (1, 3), "b": (5, 9)}
    part = replace(lake, facts=({"p": ColumnFacts.from_statistics(None, 5) + known}, {"p": ColumnFacts(0, 5, 9)}))
    assert part.spans("p") is None


def test_weights_are_those_of_the_exact_counts(tmp_path: Path) -> None:
    frame = people(500)
    lake = open_lake(written(tmp_path / "lake", frame, 4), DOMAIN)
    found = units_of(lake, SPREAD, KEY, None)
    assert found is not None
    weights = np.concatenate([weights for _, weights in found.of_lake(lake)])
    owned = Counter(frame.patient)
    assert weights.tolist() == unit_weights(np.array([owned[p] for p in frame.patient]), 1).tolist()


def test_rows_without_a_unit_count_as_nothing_and_say_nothing(tmp_path: Path) -> None:
    frame = people(300)
    lost = frame.assign(patient=frame.patient.where(frame.patient > 3).astype("Int64"))
    assert summed(lost, SPREAD) == summed(frame[frame.patient > 3], SPREAD)


def test_unit_columns_that_cannot_be_are_refused_by_their_schema(tmp_path: Path) -> None:
    frame = people(50)
    options = {"dataset": "d", "epsilon": 1.0, "delta": 1e-6, "relation": "add_remove", "first_limit": (10, 1e-5)}
    for column, said in (("nobody", "the lake has no such column"), ("a", "is double, but a unit is named by whole")):
        with pytest.raises(DataError, match=said):
            daskrado.fit(frame, DOMAIN, unit={"column": column, "name": "one patient"}, **options)
    for unit, said in (
        ({"column": "patient", "name": "p", "bound": 10_001}, "unit.bound: input should be less"),
        ({"column": "patient", "name": 7}, "name"),
        ({"column": "patient", "name": "p", "how": "often"}, "spread"),
    ):
        with pytest.raises(UsageError, match=said):
            daskrado.fit(frame, DOMAIN, unit=unit, **options)


def test_shares_of_a_description_count_people(tmp_path: Path, own_ledger: Path) -> None:
    """One patient with forty rows of missing values is one fortieth of forty patients' rows, not half of all."""
    frame = pd.DataFrame(
        {
            "visit": np.arange(80),
            "patient": [0] * 40 + list(range(1, 41)),
            "a": [None] * 40 + [1.0] * 40,
            "y": [0, 1] * 40,
        }
    )
    job = {"kind": "describe", "dataset": "d", "lake": frame, "domain": DOMAIN, "output": str(tmp_path / "out")}
    budget = {"epsilon": 50.0, "delta": 1e-6}
    private = {"protect": SPREAD, "budget": budget, "ledger": {"first_limit": {"epsilon": 50.0, "delta": 1e-4}}}
    found = daskrado.run({**job, **private}, write=False)
    shares = {share.cell: share.value for share in found.value.by_column()["a"]}
    assert shares["null"] == pytest.approx(1 / 41, abs=0.03)


def test_a_statement_is_for_a_person_only_where_that_is_enforced(tmp_path: Path) -> None:
    frame = people(400)
    ledgers = [tmp_path / f"{number}.sqlite" for number in range(3)]
    options = {"dataset": "d", "epsilon": 1.0, "delta": 1e-6, "relation": "add_remove", "first_limit": (20, 1e-5)}
    enforced = daskrado.fit(
        frame, DOMAIN, unit={"column": "patient", "name": "one patient"}, ledger=ledgers[0], **options
    )
    assert enforced.statement.sentence().startswith(
        "Differentially private for one patient (all records with one patient added to or removed from the lake; "
    )
    assert any("weighted by min(1, 1 / their number)" in text for text in enforced.statement.assumptions)
    named = daskrado.fit(frame, DOMAIN, unit="one patient", ledger=ledgers[1], **options)
    assert named.statement.sentence().startswith("Differentially private for one row (one record added")
    declared = daskrado.fit(frame, DOMAIN, unit="one patient", rows_per_unit=4, ledger=ledgers[2], **options)
    assert declared.statement.sentence().startswith("Differentially private for any 4 rows (up to 4 records added")
    one, row, four = (found.release.noise_std["mean"] for found in (enforced, named, declared))
    assert one == pytest.approx(row, rel=3e-3)
    assert four == pytest.approx(4 * row, rel=1e-2)


def test_rows_cannot_be_charged_to_a_persons_limit(own_ledger: Path) -> None:
    """What protects a row proves nothing for a person who may own forty of them."""
    frame = people(400)
    options = {"dataset": "d", "epsilon": 1.0, "delta": 1e-6, "relation": "add_remove", "first_limit": (20, 1e-5)}
    daskrado.fit(frame, DOMAIN, unit={"column": "patient", "name": "one patient"}, **options)
    with pytest.raises(BudgetError, match="proves nothing about the limit under add_remove for one patient"):
        daskrado.fit(frame, DOMAIN, unit="one patient", **options)


def test_every_learner_on_passes_counts_people(tmp_path: Path) -> None:
    """Rows that are copies of each other, n for a person, teach what one row of each person teaches."""
    draw = np.random.default_rng(4)
    once = pd.DataFrame({"patient": np.arange(300), "a": draw.normal(size=300)})
    once["y"] = (once.a + draw.normal(size=300) > 0).astype(int)
    copies = once.loc[np.repeat(np.arange(300), 2 ** draw.integers(0, 5, 300))].reset_index(drop=True)
    unit = {"column": "patient", "name": "one patient"}
    for number, learner in enumerate(
        (
            {"kind": "output_perturbation", "regularisation": 0.01},
            {"kind": "objective_perturbation", "regularisation": 0.01},
            {"kind": "gradient", "steps": 30},
        )
    ):
        found = []
        for which, frame in (("once", once), ("copies", copies)):
            seeded_noise.reseed()
            found.append(
                daskrado.fit(
                    frame.assign(visit=np.arange(len(frame))),
                    DOMAIN,
                    dataset="d",
                    epsilon=1.0,
                    delta=1e-6,
                    unit=unit,
                    rows=300,
                    learner=learner,
                    ledger=tmp_path / f"{number}{which}.sqlite",
                    first_limit=(20, 1e-5),
                ).model.weights
            )
        assert found[0] == pytest.approx(found[1], rel=1e-6, abs=1e-6), learner  # 2^-n weights are exact


def test_a_null_among_the_ids_of_a_frame_shows_nowhere() -> None:
    """pandas makes floats of whole numbers with a null among them: the same units, and the row counts as nothing."""
    label = {"column": "y", "positive": 1, "negative": 0}
    domain = {"label": label, "columns": {"a": {"kind": "numeric", "lower": 0, "upper": 1}}}
    whole = pd.DataFrame({"patient": [7, 7, 8, 2**40], "a": [0.1, 0.2, 0.3, 0.4], "y": [0, 1, 1, 0]})
    gap = pd.concat([whole, pd.DataFrame({"patient": [np.nan], "a": [0.9], "y": [1]})], ignore_index=True)
    assert gap["patient"].dtype == np.float64
    unit = {"column": "patient", "name": "one patient"}
    exact = []
    for frame in (whole, gap):
        job = load_job(
            {
                "dataset": "d",
                "lake": frame,
                "domain": domain,
                "output": "o",
                "protect": {"relation": "add_remove", "unit": unit},
                "budget": {"epsilon": 1.0, "delta": 1e-6},
            }
        )
        lake = job.scan()
        check_units(lake, job.protect, None)
        units = units_of(lake, job.protect, bytes(32), None)
        exact.append(collect(job.chosen_statistic, lake, job.domain, job.lattice, units=units).vector)
    assert np.array_equal(*exact)
