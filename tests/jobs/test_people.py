"""Kinds that treat rows one by one, for people who own many: a person is in one part, one shard, one report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from scipy.stats import chisquare

import daskrado
from daskrado.errors import DataError, UsageError
from daskrado.jobs.load import load_job
from daskrado.jobs.show import plan_lines
from daskrado.lake.collect import Share, collect, open_passes
from daskrado.lake.ensemble import train
from daskrado.lake.scan import open_lake
from daskrado.lake.seeds import SignatureKey
from daskrado.lake.teachers import Course
from daskrado.lake.units import units_of
from daskrado.learners.on_passes.iterative import Guarantee, Learned, Session
from daskrado.learners.on_passes.tuning import Tuning
from daskrado.ledger.ledger import Ledger
from daskrado.parties.coordinator import combine, open_study
from daskrado.parties.site import contribute, join
from daskrado.privacy.accountant import PureEvent
from daskrado.privacy.groups import ProtectedUnit
from daskrado.privacy.perturbation import PublicFacts
from daskrado.privacy.protect import Protect
from daskrado.privacy.relations import Relation
from daskrado.statistics import Moments
from daskrado.statistics.bounded import bounded
from daskrado.statistics.edge_noise import EdgeNoise
from daskrado.statistics.protected_rados import NoisyEdgeRados
from daskrado.statistics.rados import UniformRados
from daskrado.statistics.risk import Mistakes
from daskrado.table.domain import Domain
from daskrado.table.lattice import Lattice
from daskrado.table.yaml_file import parse

DOMAIN = parse(
    Domain,
    {
        "id": "visit",
        "label": {"column": "y", "positive": 1, "negative": 0},
        "norm_bound": 2.0,
        "columns": {"a": {"kind": "numeric", "lower": -2, "upper": 2}, "smoker": {"kind": "boolean"}},
    },
    "here",
)
KEY = bytes(range(32))
UNIT = {"column": "patient", "name": "one patient"}
BUDGET = {"epsilon": 1.0, "delta": 1e-6}


def people(rows: int = 600, seed: int = 3) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    a = draw.normal(size=rows)
    return pd.DataFrame(
        {
            "visit": np.arange(rows),
            "patient": (draw.pareto(1.2, rows) * 20).astype(np.int64) % 97,
            "a": a,
            "smoker": draw.integers(0, 2, rows).astype(bool),
            "y": (a + draw.normal(size=rows) > 0).astype(int),
        }
    )


def protecting(relation: str = "add_remove", **unit: Any) -> Protect:
    return Protect.model_validate({"relation": relation, "unit": UNIT | unit})


def job_of(frame: Any, tmp_path: Path, **keys: Any) -> Any:
    limit = {"first_limit": {"epsilon": 50, "delta": 1e-2}}
    common = {"dataset": "visits", "lake": frame, "domain": DOMAIN, "output": str(tmp_path / "out"), "ledger": limit}
    return load_job({**common, "budget": BUDGET, **keys})


class Fixed:
    """A learner that returns what it was given."""

    name, seeded = "fixed", False

    def __init__(self, *weights: float) -> None:
        self.weights = np.array(weights)

    def guarantee(self, facts: PublicFacts) -> Guarantee:
        return Guarantee(PureEvent(facts.epsilon), 0.0, "fixed", "none needed")

    def learn(self, session: Session, facts: PublicFacts) -> Learned:
        return Learned(self.weights, {})


def opened(frame: pd.DataFrame, protect: Protect) -> Any:
    lake = open_lake(frame, DOMAIN)
    units = units_of(lake, protect, KEY, DOMAIN.id)
    return open_passes(
        lake, DOMAIN, Lattice(2.0), seeded=True, by_record=False, by_unit=True,
        key=SignatureKey.from_seed(0), units=units,
    )  # fmt: skip


@pytest.mark.parametrize(
    "protect", [protecting(bound=2), protecting(bound=2, how="sample")], ids=["spread", "sample"]
)
def test_a_person_is_in_one_part_of_a_grid_and_moves_mistakes_by_what_it_counts_for(protect: Protect) -> None:
    frame, models = people(), np.array([[0.0, 1.0, -1.0], [0.0, 0.4, 0.2], [1.0, 0.0, -0.3]])
    models = np.vstack([models, np.zeros((DOMAIN.width - 3, 3))])

    def counts(rows: pd.DataFrame) -> np.ndarray:
        with opened(rows, protect) as passes:
            return np.array([passes.sum(Mistakes(DOMAIN.width, models), share=Share(i, 4)).vector for i in range(4)])

    before = counts(frame)
    owned = Counter(frame.patient)
    assert before[:, -1].sum() == pytest.approx(sum(min(2, n) for n in owned.values()), abs=0.01 * len(owned))
    for patient, _ in owned.most_common(12):
        after = counts(frame[frame.patient != patient])
        assert (np.abs(before - after) > 0).any(axis=1).sum() == 1  # one part alone
        assert 1.9 < np.abs(before - after)[:, -1].max() <= 2
        assert np.abs(before - after).max() <= 2


@pytest.mark.slow
def test_the_choice_of_a_grid_weighs_mistakes_of_people_by_their_bound() -> None:
    """P(i) proportional to exp(-epsilon mistakes_i / (2 k)), with the mistakes of the last part's people."""
    frame, protect = people(), protecting(bound=3)
    grid = (Fixed(0.2, 0.1, 1.0), Fixed(1.0, 0.0, 0.0), Fixed(0.0, 1.0, 0.0))
    width = DOMAIN.width
    grid = tuple(Fixed(*np.pad(one.weights, (0, width - 3))) for one in grid)
    facts = PublicFacts(97, width, 2.0, Relation.ADD_REMOVE, 0.8, rows_per_unit=3, spread=True, by_unit=True)
    with opened(frame, protect) as passes:
        models = np.column_stack([one.weights for one in grid])
        wrong = passes.sum(Mistakes(width, models), share=Share(3, 4)).vector[:-1]
        runs = 1500
        tuned = [Tuning(grid).learn(Session(passes, lambda: None), facts) for _ in range(runs)]
    counted = np.bincount([one.details["place_in_grid"] for one in tuned], minlength=3)
    law, other = np.exp(-0.8 * wrong / 6), np.exp(-0.8 * wrong / 2)  # the second forgets the bound
    assert chisquare(counted, law / law.sum() * runs).pvalue > 1e-4
    assert chisquare(counted, other / other.sum() * runs).pvalue < 1e-4


def shards(frame: pd.DataFrame, protect: Protect, tmp_path: Path) -> list[Any]:
    """The vote of each teacher on some queries: what the rows of one person may reach."""
    job = job_of(
        frame, tmp_path, kind="teachers", protect=protect, teachers={"count": 30},
        answers={"queries": 10, "agreement": 0.99}, budget={"epsilon": 8.0, "delta": 1e-6},
    )  # fmt: skip
    course = Course(job.domain, job.all_classes, job.sharding, job.teachers.learner)
    queries = np.random.default_rng(0).uniform(-1, 1, (15, DOMAIN.width))
    with train(course, job.scan()) as ensemble:
        trained = [teacher for part in ensemble._trained for teacher in part.teachers]
    return [np.asarray(teacher.predict(queries)).tolist() for teacher in trained]


@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
def test_a_person_reaches_one_teacher_however_many_rows_it_owns(relation: str, tmp_path: Path) -> None:
    frame = people()
    before = shards(frame, protecting(relation), tmp_path)
    reached = []
    for patient, _ in Counter(frame.patient).most_common(8):
        rest = frame[frame.patient != patient]
        other = frame.assign(y=np.where(frame.patient == patient, 1 - frame.y, frame.y))
        for changed in (rest, other):
            after = shards(changed, protecting(relation), tmp_path)
            reached.append(sum(a != b for a, b in zip(before, after, strict=True)))
    assert max(reached) == 1
    nobody = frame.assign(patient=frame.patient.where(frame.patient > 20).astype("Int64"))
    assert shards(nobody, protecting(relation), tmp_path) == shards(
        frame[frame.patient > 20], protecting(relation), tmp_path
    )


def test_teachers_of_people_say_so_and_take_no_other_shards(tmp_path: Path) -> None:
    keys = {"kind": "teachers", "protect": protecting(), "answers": {"queries": 10, "agreement": 0.99}}
    keys["budget"] = {"epsilon": 8.0, "delta": 1e-6}
    job = job_of(people(), tmp_path, **keys, teachers={"count": 30})
    assert job.changed == 1
    assert "all rows with one patient belong to one patient and are in one shard" in job.assumptions
    with pytest.raises(UsageError, match=r"shards go by protect\.unit\.column 'patient'"):
        job_of(people(), tmp_path, **keys, teachers={"count": 30, "shard_by": "record"})
    floats = Protect.model_validate({"relation": "add_remove", "unit": {"column": "a", "name": "one"}})
    job = job_of(people(), tmp_path, **{**keys, "protect": floats}, teachers={"count": 30})
    with pytest.raises(DataError, match=r"unit\.column 'a' is double"):
        job.scan()


def written(folder: Path, frame: pd.DataFrame, parts: int) -> str:
    folder.mkdir()
    for i, part in enumerate(np.array_split(np.arange(len(frame)), parts)):
        pq.write_table(pa.Table.from_pandas(frame.iloc[part], preserve_index=False), folder / f"{i}.parquet")
    return str(folder)


SMOKER = {"kind": "columns", "columns": {"smoker": {"kind": "binary", "epsilon": 1.0}}}


def test_a_person_reports_once_and_where_its_rows_lie_does_not_show(tmp_path: Path, own_ledger: Path) -> None:
    """One file, as many reports as people: also where a person's rows are replaced by others in another file."""
    frame = people()
    moved = frame.copy()
    mine = frame.patient == frame.patient.mode()[0]
    moved = pd.concat([moved[~mine], moved[mine]])  # all rows of a person at the end, in the last files
    keys = {"kind": "local", "protect": protecting("replace_one", how="sample"), "reports": SMOKER}
    found = []
    for name, rows in (("one", frame), ("two", moved)):
        job = job_of(written(tmp_path / name, rows, 5), tmp_path, **keys).with_changes(
            output=str(tmp_path / f"{name} out")
        )
        result = daskrado.run(job, ledger=tmp_path / f"{name}.sqlite")
        files = sorted((tmp_path / f"{name} out" / "reports").glob("*.parquet"))
        found.append([pq.read_metadata(path).num_rows for path in files])
        assert "for one patient" in result.statement.sentence()
    assert found[0] == found[1] == [frame.patient.nunique()]


def test_reports_of_labels_keep_so_many_of_a_person_and_cost_so_often(tmp_path: Path) -> None:
    frame = people()
    protect = protecting("label_flip", bound=3, how="sample")
    keys = {"kind": "local", "protect": protect, "reports": {"kind": "labels", "epsilon": 0.3}}
    job = job_of(written(tmp_path / "lake", frame, 4), tmp_path, **keys)
    assert job.charges()[0].statement.epsilon == pytest.approx(0.9)
    assert "at most 3 for one patient" in dict(job.plan())["reports"]
    result = daskrado.run(job, write=False)
    assert result.value.reports == sum(min(3, n) for n in Counter(frame.patient).values())
    for wrong, said in (
        (protecting("label_flip"), "how: sample"),
        (protecting("replace_one", bound=2, how="sample"), "bound: 1, got 2"),
    ):
        reports = SMOKER if "replace" in wrong.relation else keys["reports"]
        with pytest.raises(UsageError, match=said):
            job_of(frame, tmp_path, **{**keys, "protect": wrong, "reports": reports})


def test_noise_on_rows_is_drawn_for_those_that_are_kept_of_a_person() -> None:
    """The sums of noisy edges are those of the lake of the kept rows alone, up to the noise of their places."""
    frame, protect = people(), protecting("label_flip", bound=2, how="sample")
    lake, lattice = open_lake(frame, DOMAIN), Lattice(2.0, 8)
    units = units_of(lake, protect, KEY, DOMAIN.id)
    assert units is not None
    kept = frame[np.concatenate([weights for _, weights in units.of_lake(lake)]) > 0]
    assert Counter(kept.patient) == {p: min(2, n) for p, n in Counter(frame.patient).items()}
    key = SignatureKey(KEY, public=False)

    def noise(rows: pd.DataFrame, scale: float, units: Any) -> np.ndarray:
        edges = NoisyEdgeRados(DOMAIN.width, UniformRados(DOMAIN.width, 8), scale)
        return collect(edges, open_lake(rows, DOMAIN), DOMAIN, lattice, key=key, units=units).vector

    assert np.array_equal(noise(frame, 1e-3, units), noise(kept, 1e-3, None))  # so little noise that all of it is 0
    one, two = (EdgeNoise.for_budget(1.0, 1e-6, DOMAIN.width, k, 6).scale for k in (1, 2))
    assert two / one == pytest.approx(np.sqrt(2), rel=1e-6)  # k edges move by root k in all


def test_a_resumed_run_keeps_the_same_rows_of_each_person(
    tmp_path: Path, killed: Callable[[str], None], own_ledger: Path
) -> None:
    """Noise on rows is repeated after a crash; on other rows it would be another release, and is refused."""
    item = {"name": "s", "kind": "noisy_edges", "count": 8, "budget": {"epsilon": 8.0, "delta": 1e-6}}
    item["protect"] = {"relation": "replace_one", "unit": UNIT | {"how": "sample"}}
    job = {
        "kind": "rados", "dataset": "visits", "lake": written(tmp_path / "lake", people(), 3), "sets": [item],
        "domain": DOMAIN.model_dump(mode="json"), "output": str(tmp_path / "out"),
        "ledger": {"first_limit": {"epsilon": 50, "delta": 1e-2}},
    }  # fmt: skip
    pipeline = tmp_path / "job.yaml"
    pipeline.write_text(yaml.safe_dump(job))
    death = "lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)"
    killed(f"import daskrado, daskrado.jobs.publish as p\np.publish = {death}\ndaskrado.run({str(pipeline)!r})")
    (run,) = {entry.run for entry in Ledger.open(own_ledger).entries()}
    result = daskrado.resume(run)
    assert (tmp_path / "out" / "s.rados.parquet").exists()
    (made,) = result.value.sets
    assert made.rados.rows is None  # public is the number of people, not of rows
    people_std = made.rados.noise_std[0] / np.sqrt(people().patient.nunique() / 2)
    rows_std = made.rados.noise_std[0] / np.sqrt(len(people()) / 2)
    (planned,) = [
        float(text.split("deviation ")[1].split(",")[0]) for _, text in load_job(job).plan() if "deviation" in text
    ]
    assert people_std == pytest.approx(planned, rel=1e-3)
    assert rows_std != pytest.approx(planned, rel=1e-3)


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ({"kind": "noisy_edges", "protect": {"relation": "label_flip", "unit": UNIT}}, "how: sample"),
        (
            {
                "kind": "noisy_edges",
                "protect": {"relation": "replace_one", "unit": UNIT | {"bound": 2, "how": "sample"}},
            },
            "bound: 1, got 2",
        ),
        (
            {
                "kind": "noisy_edges",
                "base": "fixed_support",
                "support": 5,
                "protect": {"relation": "label_flip", "unit": UNIT | {"how": "sample"}},
            },
            "counts rows, not units",
        ),
        (
            {"kind": "randomised_response", "features": ["smoker"], "unit": UNIT, "budget": {"epsilon": 1}},
            "how: sample",
        ),
    ],
)
def test_sets_with_noise_on_rows_refuse_what_bounds_no_person(item: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        job_of(
            people(), tmp_path, kind="rados", sets=[{"name": "s", "count": 8, "budget": BUDGET, **item}], budget=None
        )


NOISES = [{"kind": "central"}, {"kind": "distributed", "honest": 2}]


@pytest.mark.parametrize("noise", NOISES, ids=["central", "distributed"])
def test_each_site_of_a_study_bounds_its_own_people(noise: dict[str, Any], tmp_path: Path) -> None:
    sites, frame = ("east", "west"), people()
    halves = {"east": frame[:350], "west": frame[350:]}
    box = tmp_path / "box"
    for name in sites:
        join(box, site=name, keys=tmp_path / name)
    terms = {"study": "people", "domain": DOMAIN, "minimum": 2, "sites": dict.fromkeys(sites), "noise": noise}
    limit = {"protect": protecting(), "budget": {"epsilon": 5.0, "delta": 1e-6}}
    mark = open_study({**terms, **limit}, box, keys=tmp_path / "boss").roster_fingerprint
    for name in sites:
        with Ledger.open(tmp_path / f"{name}.sqlite") as ledger:
            ledger.set_limit("visits", ProtectedUnit(Relation.ADD_REMOVE, "one patient", "patient"), 50.0, 1e-2)
        lake = written(tmp_path / f"{name} lake", halves[name], 3)
        own = {"keys": tmp_path / name, "ledger": tmp_path / f"{name}.sqlite"}
        contribute(box, site=name, dataset="visits", lake=lake, roster=mark, **own)
        with Ledger.open(tmp_path / f"{name}.sqlite") as ledger:
            assert {entry.whose.column for entry in ledger.entries()} == {"patient"}
    done = combine(box, keys=tmp_path / "boss", ledger=tmp_path / "boss.sqlite")
    said = done.statement
    assert said.sentence().startswith("Differentially private for one patient")
    assert any("one patient known to several sites is a unit of each" in text for text in said.assumptions)
    lattice = done.release.lattice
    summed = bounded(Moments(DOMAIN.width), 1, lattice)
    exact = np.zeros(summed.size)
    for half in halves.values():
        lake = open_lake(half, DOMAIN)
        units = units_of(lake, protecting(), KEY, DOMAIN.id)
        exact = exact + collect(Moments(DOMAIN.width), lake, DOMAIN, lattice, units=units).vector
    for block, (name, values) in zip(summed.blocks, summed.split(exact.astype(np.int64)).items(), strict=True):
        far = np.abs(done.release.values[name] - values * block.step(lattice))
        assert (far < 8 * done.release.noise_std[name]).all()


def test_a_plan_says_what_the_bound_costs_and_saves(tmp_path: Path) -> None:
    told = "\n".join(plan_lines(job_of(people(), tmp_path, protect=protecting(bound=2)), None))
    assert "people      one patient is known by patient and counts as 2 rows at most: all rows are used" in told
    assert "the noise is that of 2 rows, whatever one patient owns; rows_per_unit: 80 would need 40 times" in told
    floats = protecting(column="a")
    with pytest.raises(DataError, match=r"protect\.unit\.column 'a' is double, but a unit is named by whole numbers"):
        list(plan_lines(job_of(people(), tmp_path, protect=floats), None))
    rows = Protect(relation=Relation.ADD_REMOVE, unit="one patient")
    assert "people " not in "\n".join(plan_lines(job_of(people(), tmp_path, protect=rows), None))
    two, many = (
        next(iter(job_of(people(), tmp_path, protect=p).calibrated().noise_std().values()))
        for p in (protecting(bound=2), Protect(relation=Relation.ADD_REMOVE, unit="one", rows_per_unit=80))
    )
    assert many / two == pytest.approx(40, rel=0.01)
