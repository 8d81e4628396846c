"""Pipelines of kind rados: every kind of set, what each says and costs, files that learn elsewhere, and refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner
from damaged_files import damaged_copy
from published_text import numbers_in

import daskrado
from daskrado.audit.rados import audit_file
from daskrado.audit.reconstruction import solve_signatures
from daskrado.cli.main import cli
from daskrado.errors import BudgetError, DataError, UsageError
from daskrado.jobs.base import perform
from daskrado.jobs.load import load_job
from daskrado.jobs.outcome import Result
from daskrado.jobs.rado_file import learn_rados
from daskrado.jobs.rado_sets import SetPlan
from daskrado.jobs.rados import RadosJob
from daskrado.jobs.show import plan_lines
from daskrado.lake.audit_rows import read_rows
from daskrado.lake.make import make_lake
from daskrado.lake.seeds import SignatureKey
from daskrado.ledger.ledger import Ledger
from daskrado.models.linear import LinearModel
from daskrado.models.rados import RadoSet
from daskrado.privacy.accountant import zcdp_epsilon
from daskrado.privacy.relations import Relation
from daskrado.privacy.statement import PrivacyStatement
from daskrado.statistics import NoisyEdgeRados, UniformRados
from daskrado.statistics.row_noise import MOST_SCALE, TABLE_ERROR
from daskrado.table.domain import Domain
from daskrado.table.lattice import Lattice
from daskrado.table.yaml_file import parse

Clinic = Callable[..., tuple[Path, Domain]]
AR = {"relation": "add_remove", "unit": "one patient"}
RO = {"relation": "replace_one", "unit": "one patient"}
BUDGET = {"epsilon": 1.0, "delta": 1e-6}
PRIVATE = PrivacyStatement(
    private=True,
    relation=Relation.REPLACE_ONE,
    unit="u",
    epsilon=1.0,
    delta=0.0,
    mechanism="m",
    theorem="t",
    accountant="a",
)
PLAIN = {"name": "plain", "kind": "uniform", "count": 32, "private": False}
EDGES = {"name": "edges", "kind": "noisy_edges", "count": 32, "protect": RO, "budget": BUDGET}
SETS: list[dict[str, Any]] = [
    {
        "name": "had",
        "kind": "hadamard",
        "count": 64,
        "protect": RO,
        "budget": BUDGET,
        "learn": {"kind": "rado_moments"},
    },
    {
        "name": "bal",
        "kind": "balanced",
        "count": 32,
        "protect": RO,
        "budget": BUDGET,
        "learn": {"kind": "radoboost", "rounds": 20},
        "keep_epsilon": 0.1,
    },
    {**EDGES, "base": "fixed_support", "support": 500, "learn": {"kind": "radoboost", "rounds": 20}},
    {"name": "rr", "kind": "randomised_response", "features": ["smoker", "diabetic"], "unit": "one patient"}
    | {"count": 32, "budget": {"epsilon": 2.0}},
    {
        "name": "col",
        "kind": "noisy_column",
        "features": ["smoker"],
        "unit": "one patient",
        "count": 32,
        "budget": BUDGET,
    },
    {**PLAIN, "seed": 5},
    {"name": "fix", "kind": "fixed_support", "support": 400, "count": 32, "learn": {"kind": "rado_newton"}},
    {"name": "feat", "kind": "dp_feat", "feature": "smoker", "epsilon": 2.0, "count": 32},
]


def pipeline(lake: Any, domain: Domain, sets: list[dict[str, Any]], **more: Any) -> RadosJob:
    content = {"dataset": "clinic", "lake": str(lake), "domain": domain, "output": "unused", "sets": sets}
    content["ledger"] = {"first_limit": {"epsilon": 20.0, "delta": 1e-5}}
    content["cluster"] = {"kind": "in_process"}
    return parse(RadosJob, {**content, **more}, "test")


def by_name(result: Result) -> dict[str, Any]:
    return {made.name: made for made in result.value.sets}


def planned(job: RadosJob) -> SetPlan:
    return job.plans()[0]


def states(ledger: Path) -> list[tuple[str, str]]:
    with Ledger.open(ledger, create=False) as opened:
        return [(str(entry.relation), str(entry.state)) for entry in opened.entries()]


def unplotted(figure: Any, to: Any, **options: Any) -> None:
    """Plots are drawn by the command line's test; elsewhere they would take most of the time."""
    del figure, options
    to.write("<svg></svg>")


@pytest.fixture
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", unplotted)


@pytest.fixture(scope="module")
def everything(clinic: Clinic, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result, Path]:
    folder = tmp_path_factory.mktemp("rados")
    job = pipeline(*clinic(), SETS, output=str(folder / "out"))
    ledger = folder / "ledger.sqlite"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("matplotlib.figure.Figure.savefig", unplotted)
        return folder / "out", perform(job, ledger=ledger), ledger


def test_public_signatures_by_position_need_rows_that_stay_in_their_place(
    clinic: Clinic, tmp_path: Path, own_ledger: Path
) -> None:
    """In a tree of folders a replaced record may move, and all rows behind it get other signatures."""
    path, domain = clinic()
    table = pa.concat_tables([pq.read_table(file) for file in sorted(path.glob("*.parquet"))])
    pq.write_to_dataset(table, tmp_path / "tree", partition_cols=["ward"])
    nameless = domain.model_copy(update={"id": None})
    item = {**SETS[1], "seed": 5}
    with pytest.raises(DataError, match=r"signatures by position, but the lake's folders go by ward.* drop the seed"):
        perform(pipeline(tmp_path / "tree", nameless, [item]), write=False)
    statistic = {"kind": "balanced_rados", "count": 8, "seed": 5}
    options = {"dataset": "clinic", "learner": "radoboost", "statistic": statistic, "relation": "replace_one"}
    with pytest.raises(DataError, match="drop the seed, or name an id column"):
        daskrado.fit(tmp_path / "tree", nameless, epsilon=1.0, delta=1e-6, first_limit=(10, 1e-5), **options)
    assert states(own_ledger) == []
    perform(pipeline(tmp_path / "tree", nameless, [SETS[1]]), write=False)
    perform(pipeline(tmp_path / "tree", domain, [item], dataset="clinic"), write=False)


def test_every_set_carries_a_statement_of_its_kind(everything: tuple[Path, Result, Path]) -> None:
    out, result, ledger = everything
    made = by_name(result)
    relations = {name: made[name].rados.statement.relation for name in ("had", "bal", "edges", "rr", "col")}
    assert all(made[name].rados.statement.private for name in relations)
    assert set(relations.values()) == {Relation.REPLACE_ONE, Relation.FEATURE_FLIP}
    assert made["rr"].rados.statement.unit == "smoker, diabetic of one patient"
    assert "for one row (one declared feature" in made["rr"].rados.statement.sentence()  # no column bounds a patient
    for name in ("plain", "fix"):
        assert "not differentially private" in made[name].rados.statement.sentence()
    facts = made["feat"].rados.statement.marginal
    assert (facts.rows, facts.rados) == (3000, 32)
    assert "marginal of one coordinate only" in made["feat"].rados.statement.sentence()
    assert made["bal"].rados.rows == 3000
    charged = [("replace_one", 4), ("feature_flip", 2)]
    found = states(ledger)
    assert [(r, sum(relation == r for relation, _ in found)) for r, _ in charged] == charged
    assert {state for _, state in found} == {"published"}
    manifest = json.loads((out / "manifest.json").read_text())
    assert len(manifest["facts"]["sets"]) == len(SETS)
    assert "NOT PRIVATE" in (out / "report.html").read_text()


def test_a_charged_choice_shows_in_the_models_statement(everything: tuple[Path, Result, Path]) -> None:
    made = by_name(everything[1])["bal"]
    assert made.model.statement.epsilon > made.rados.statement.epsilon
    assert "McSherry" in made.model.statement.theorem
    assert 0 <= made.model.details["kept_round"] <= 20


def test_files_hold_what_another_party_needs(everything: tuple[Path, Result, Path], clinic: Clinic) -> None:
    out, result, _ = everything
    kinds = {item["name"]: item["kind"] for item in SETS}
    for name, made in by_name(result).items():
        loaded = RadoSet.load(out / f"{name}.rados.parquet", clinic()[1])
        assert np.array_equal(loaded.rados, made.rados.rados)
        assert loaded.statement == made.rados.statement
        assert loaded.domain == clinic()[1]
        header = json.loads(pq.read_schema(out / f"{name}.rados.parquet").metadata[b"daskrado"])
        assert header["domain_sha256"] == clinic()[1].digest()
        assert header["kind"] == kinds[name]


def test_plain_rados_learn_as_well_as_they_should(everything: tuple[Path, Result, Path], clinic: Clinic) -> None:
    """From the file alone, better than the majority class."""
    frame = pd.concat([pd.read_parquet(p) for p in sorted(clinic()[0].glob("*.parquet"))])
    truth = frame["readmitted"]
    majority = min((truth == "yes").mean(), (truth == "no").mean())
    many = perform(pipeline(*clinic(), [{**PLAIN, "count": 1024}]), write=False).value.sets[0].rados
    path = everything[0].parent / "many.parquet"
    many.save(path)
    learned = learn_rados(path, "rado_moments", out=everything[0].parent / "learned")
    assert (learned.model.predict(frame) != truth).mean() < majority - 0.05
    saved = LinearModel.load(everything[0].parent / "learned" / "model.json")
    assert not saved.statement.private
    assert (everything[0].parent / "learned" / "report.html").exists()


def test_noise_on_edges_is_calibrated_from_the_budget(clinic: Clinic) -> None:
    job = pipeline(*clinic(), [{**EDGES, "protect": {**RO, "rows_per_unit": 4}}])
    plan = planned(job)
    assert isinstance(plan.statistic, NoisyEdgeRados)
    moved = 2 * 2 * 2**plan.lattice.bits  # 2 for each of 4 rows: 2 sqrt(4) together, in grid steps
    rho = moved**2 / (2 * plan.statistic.scale**2)
    lost = (1 + np.e) * job.domain.width * 4 * TABLE_ERROR
    assert 0.99 < zcdp_epsilon(rho, 1e-6 - lost) <= 1.0


def test_signatures_of_noisy_rows_may_be_anyones_but_their_noise_may_not(clinic: Clinic) -> None:
    from daskrado.lake.collect import collect
    from daskrado.lake.scan import open_lake

    path, domain = clinic()
    job = pipeline(path, domain, [EDGES])
    plan = planned(job)
    with pytest.raises(UsageError, match="its key must be secret, drop the seed"):
        collect(plan.statistic, open_lake(path, domain), domain, plan.lattice, key=SignatureKey.from_seed(1))


@pytest.mark.cluster
def test_workers_give_the_same_plain_rados(clinic: Clinic, two_workers: Any) -> None:
    address = two_workers.scheduler.address
    sets = [{**PLAIN, "seed": 5}, {**SETS[6], "seed": 5}]
    here = perform(pipeline(*clinic(), sets), write=False).value.sets
    for partitions in (1, 7):
        where = {"kind": "scheduler", "address": address}
        there = perform(pipeline(*clinic(3000, partitions), sets, cluster=where), write=False).value.sets
        for a, b in zip(here, there, strict=True):
            assert np.array_equal(a.rados.rados, b.rados.rados)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({**PLAIN, "count": 3000}, "set 'plain' is refused: 3000 rados of 3000 examples"),
        ({**PLAIN, "kind": "hadamard", "count": 1024}, "alone in their bucket; accept_no_privacy: true"),
        ({**SETS[6], "support": 1}, "a rado of support 1 out of 3000"),
        ({**SETS[6], "support": 3001}, "support 3001 is larger than the lake, which has 3000 rows"),
        ({**SETS[7], "epsilon": 0.001}, "leaves no rado in its window; the smallest that works is 0.00133"),
    ],
)
def test_sets_that_the_lake_rules_out(clinic: Clinic, item: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        perform(pipeline(*clinic(), [item]), write=False)


@pytest.mark.usefixtures("no_plots")
def test_accepting_no_privacy_publishes_a_recoverable_set(clinic: Clinic, tmp_path: Path) -> None:
    """And the audit of its file recovers every example that the lake's owner can check it against."""
    path, domain = clinic(200, 2)
    sets = [{**PLAIN, "count": 256, "seed": 3}, {**PLAIN, "name": "had", "kind": "hadamard", "count": 512}]
    made = perform(pipeline(path, domain, sets, accept_no_privacy=True, output=str(tmp_path / "o")))
    assert len(made.value.sets) == 2
    dense = audit_file(tmp_path / "o" / "plain.rados.parquet", lake=str(path), candidates=str(path), seed=3)
    assert dense.recoverable
    lemma = {attack.name: attack for attack in dense.attacks}["lemma 9"]
    assert (lemma.recovered, lemma.of) == (200, 200)
    assert not audit_file(tmp_path / "o" / "plain.rados.parquet", lake=str(path), seed=4).attacks[-1].applies
    hadamard = audit_file(tmp_path / "o" / "had.rados.parquet", lake=str(path))
    inverted = {attack.name: attack for attack in hadamard.attacks}["hadamard inversion"]
    assert inverted.recovered is not None
    assert 100 < inverted.recovered <= 200
    assert "RECOVERABLE" in list(hadamard.lines())[-1]


def test_noisy_rados_are_not_called_recoverable(everything: tuple[Path, Result, Path], clinic: Clinic) -> None:
    found = audit_file(everything[0] / "had.rados.parquet", lake=str(clinic()[0]))
    assert not found.recoverable
    assert {attack.name: attack.recovered for attack in found.attacks}["hadamard inversion"] == 0


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({**PLAIN, "kind": "hadamard", "count": 100}, "must be a power of two, 2 or more, got 100"),
        ({**PLAIN, "kind": "balanced", "count": 33}, "even count, got 33"),
        ({**PLAIN, "private": True}, "write private: false"),
        ({**SETS[7], "feature": "age"}, "feature 'age' is numeric, not boolean"),
        ({**SETS[7], "feature": "nobody"}, "feature 'nobody' is not a column of the domain"),
        ({**SETS[4], "features": ["ward"]}, "feature 'ward' is one-hot"),
        ({**SETS[4], "features": ["insurance"]}, "feature 'insurance' is one-hot"),
        ({**SETS[4], "features": ["age"]}, "norm_bound at least"),
        ({**SETS[3], "budget": BUDGET}, "randomised response is pure"),
        ({**EDGES, "protect": AR}, "noisy edges show how many rows there are"),
        ({**EDGES, "base": "fixed_support"}, "support goes with base: fixed_support"),
        ({**EDGES, "budget": {"epsilon": 1.0}}, "needs budget.delta above 0"),
        ({**SETS[6], "keep_epsilon": 0.1}, "keep_epsilon chooses among the rounds of radoboost"),
        ({**PLAIN, "learn": {"kind": "radoboost"}, "keep_epsilon": 0.1}, "this set protects nobody"),
    ],
)
def test_bad_sets_are_refused_before_anything_is_read(clinic: Clinic, item: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        pipeline("/nowhere", clinic()[1], [item])


def test_a_numeric_column_can_be_protected_where_nothing_is_clipped(clinic: Clinic, own_ledger: Path) -> None:
    path, domain = clinic()
    wide = domain.model_copy(update={"norm_bound": domain.largest_norm * 1.01})
    made = perform(pipeline(path, wide, [{**SETS[4], "features": ["age"]}]), write=False).value.sets[0]
    noise = dict(zip(wide.feature_names, made.rados.noise_std, strict=True))
    assert noise.pop("age") > 0
    assert not any(noise.values())
    assert states(own_ledger) == [("feature_flip", "published")]


def test_what_fails_before_the_draw_costs_nothing(clinic: Clinic, tmp_path: Path, own_ledger: Path) -> None:
    path, domain = clinic()
    damaged_copy(path, tmp_path / "bad")
    sets = [SETS[0], SETS[1]]
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        perform(pipeline(tmp_path / "bad", domain, sets, output=str(tmp_path / "o")))
    assert {state for _, state in states(own_ledger)} == {"void"}
    assert not (tmp_path / "o").exists()


def test_a_set_whose_noise_cannot_be_drawn_costs_the_others_nothing(clinic: Clinic, own_ledger: Path) -> None:
    drawn = {"name": "a", "kind": "uniform", "count": 8, "protect": RO, "budget": {"epsilon": 1.0}}
    huge = {**drawn, "name": "b", "count": 4096, "budget": {"epsilon": 1e-6}}
    for broken, message in (
        (huge, "uniform_rados, block rados: the noise scale must be above 0 and at most"),
        (
            {**SETS[3], "budget": {"epsilon": 1e-9}},
            "set 'rr': epsilon 5e-10 for each feature and row is too small",
        ),
        ({**SETS[1], "keep_epsilon": 1e-308}, "keep_epsilon: input should be greater than"),
    ):
        with pytest.raises(UsageError, match=message):
            perform(pipeline(*clinic(), [drawn, broken]), write=False)
    assert not own_ledger.exists()


def test_an_unreadable_file_costs_nothing_where_noise_is_on_rows(
    clinic: Clinic, tmp_path: Path, own_ledger: Path
) -> None:
    """All rows are read before the first charge is spent; nothing is left that could be resumed."""
    path, domain = clinic()
    damaged_copy(path, tmp_path / "bad")
    with pytest.raises(DataError, match="cannot be read as Parquet") as raised:
        perform(pipeline(tmp_path / "bad", domain, [SETS[3], EDGES], output=str(tmp_path / "o")))
    assert {state for _, state in states(own_ledger)} == {"void"}
    assert not getattr(raised.value, "__notes__", [])
    assert not list(own_ledger.parent.glob("*.runs/*"))


def test_a_boosting_path_without_a_round_leaves_a_choice_of_the_zero_model(clinic: Clinic, own_ledger: Path) -> None:
    """No feature's edge is as small as the oracle wants, which follows from the released rados: it is no failure."""
    learn = {"kind": "radoboost", "oracle": "prudential", "prudence": 1e-9}
    made = perform(pipeline(*clinic(), [{**SETS[1], "learn": learn}]), write=False).value.sets[0]
    assert made.model is not None
    assert not made.model.weights.any()
    assert (made.model.details["rounds"], made.model.details["kept_round"]) == (0, 0)
    assert states(own_ledger) == [("replace_one", "published")] * 2


@pytest.mark.usefixtures("no_plots")
def test_a_run_keeps_the_number_of_rows_secret_or_publishes_it(clinic: Clinic, tmp_path: Path) -> None:
    secret = [{**SETS[0], "protect": AR}, {**SETS[0], "name": "b", "kind": "balanced", "protect": AR}]
    for public in (SETS[1], PLAIN, SETS[3], SETS[7]):
        with pytest.raises(UsageError, match=f"'had' keeps the number of rows secret .*, and {public['name']!r}"):
            pipeline("/nowhere", clinic()[1], [*secret, public])
    perform(pipeline(*clinic(), secret, output=str(tmp_path / "o")))
    manifest = json.loads((tmp_path / "o" / "manifest.json").read_text())
    assert [item["rows"] for item in manifest["facts"]["sets"]] == [None, None]
    for name in ("manifest.json", "report.html"):
        assert "3000" not in numbers_in((tmp_path / "o" / name).read_text())


@pytest.mark.usefixtures("no_plots")
def test_sets_that_are_recoverable_together_are_refused_together(clinic: Clinic, tmp_path: Path) -> None:
    """Two plain sets of 190 rados with public seeds: 380 equations for 200 rows, and they do solve."""
    path, domain = clinic(200, 2)
    two = [{**PLAIN, "name": name, "count": 190, "seed": seed} for name, seed in (("p", 1), ("q", 2))]
    perform(pipeline(path, domain, two[:1]), write=False)
    with pytest.raises(UsageError, match="sets 'p', 'q' together are refused: 380 rados of 200 examples"):
        perform(pipeline(path, domain, two), write=False)
    perform(pipeline(path, domain, two, accept_no_privacy=True, output=str(tmp_path / "o")))
    rows = read_rows(str(path), domain, Lattice(domain.norm_bound, 20), most=200)
    seeds = [rows.seeds(SignatureKey.from_seed(seed).key_bytes()) for seed in (1, 2)]
    members = np.concatenate([UniformRados(domain.width, 190).memberships(s).T for s in seeds]).astype(float)
    rados = [RadoSet.load(tmp_path / "o" / f"{name}.rados.parquet").rados for name in ("p", "q")]
    found = solve_signatures(np.concatenate(rados), members)
    assert np.abs(found.edges - rows.edges(20)[found.indices]).max() < 1e-6
    assert len(found.indices) == 200
    noisy = {"name": "c", "kind": "noisy_column", "features": ["smoker"], "unit": "u", "count": 190, "budget": BUDGET}
    with pytest.raises(UsageError, match="sets 'p', 'c' together are refused"):  # its other columns are exact
        perform(pipeline(path, domain, [two[0], noisy]), write=False)


@pytest.mark.usefixtures("no_plots")
def test_columns_left_public_are_not_handed_out_by_record_without_consent(clinic: Clinic, tmp_path: Path) -> None:
    """Randomised response on one column, Hadamard buckets with one row: the audit reads the other columns off."""
    path, domain = clinic(200, 2)
    item = {**SETS[3], "features": ["smoker"], "base": "hadamard", "count": 512}
    with pytest.raises(UsageError, match="set 'rr' is refused: Hadamard rados invert publicly"):
        perform(pipeline(path, domain, [item]), write=False)
    perform(pipeline(path, domain, [item], accept_no_privacy=True, output=str(tmp_path / "o")))
    found = audit_file(tmp_path / "o" / "rr.rados.parquet", lake=str(path))
    inverted = {attack.name: attack for attack in found.attacks}["hadamard inversion"]
    assert inverted.recovered is not None
    assert inverted.recovered > 80
    assert found.recoverable
    assert "RECOVERABLE in every column but those that the statement names" in list(found.lines())[-1]


@pytest.mark.usefixtures("no_plots")
def test_an_audit_reads_rows_on_the_grid_of_the_file(clinic: Clinic, tmp_path: Path) -> None:
    path, domain = clinic(200, 2)
    sets = [{**PLAIN, "count": 256, "seed": 3}, {**PLAIN, "name": "had", "kind": "hadamard", "count": 512}]
    coarse = {"lattice_bits": 12, "accept_no_privacy": True, "output": str(tmp_path / "o")}
    perform(pipeline(path, domain, sets, **coarse))
    assert RadoSet.load(tmp_path / "o" / "plain.rados.parquet").lattice_bits == 12
    dense = audit_file(tmp_path / "o" / "plain.rados.parquet", lake=str(path), seed=3)
    assert (dense.attacks[-1].recovered, dense.attacks[-1].of) == (200, 200)
    inverted = audit_file(tmp_path / "o" / "had.rados.parquet", lake=str(path)).attacks[-1]
    assert inverted.recovered is not None
    assert inverted.recovered > 100


@pytest.mark.usefixtures("no_plots")
def test_the_span_of_one_hot_rows_is_no_alarm(clinic: Clinic, tmp_path: Path) -> None:
    """Their columns are tied (each group sums to the intercept), so rows that were never summed lie in it too."""
    domain = clinic()[1]
    make_lake(tmp_path / "strangers", rows=200, features=12, partitions=1, seed=99)
    perform(pipeline(clinic()[0], domain, [PLAIN], output=str(tmp_path / "o")))
    found = audit_file(tmp_path / "o" / "plain.rados.parquet", candidates=str(tmp_path / "strangers"))
    span = found.attacks[-1]
    assert (span.name, span.applies, span.recovered) == ("span", False, 0)
    assert not found.recoverable
    few, _ = clinic(12, 1)  # 12 rows cannot span it: now the test tells members from strangers
    perform(pipeline(few, domain, [PLAIN], accept_no_privacy=True, output=str(tmp_path / "few")))
    for candidates, inside in ((few, 12), (tmp_path / "strangers", 0)):
        span = audit_file(tmp_path / "few" / "plain.rados.parquet", candidates=str(candidates)).attacks[-1]
        assert (span.applies, span.recovered) == (True, inside)


def test_noisy_edges_use_the_finest_grid_or_the_one_that_is_given(clinic: Clinic) -> None:
    finest = planned(job := pipeline(*clinic(), [EDGES]))
    assert finest.statistic.scale <= MOST_SCALE < 2 * finest.statistic.scale
    assert finest.lattice.bits == 11
    given = planned(pipeline(*clinic(), [EDGES], lattice_bits=9))
    assert given.lattice.bits == 9
    assert given.edge_noise == pytest.approx(finest.edge_noise)
    with pytest.raises(UsageError, match=r"set 'edges': lattice_bits 20 is finer than .* at most 11"):
        planned(pipeline(*clinic(), [EDGES], lattice_bits=20))
    assert any("on a grid of 11 bits" in line for line in plan_lines(job, None))


def test_a_budget_that_covers_one_set_of_two_spends_neither(clinic: Clinic, own_ledger: Path) -> None:
    limit = {"first_limit": {"epsilon": 1.2, "delta": 1e-6}}
    two = [{**SETS[0], "name": "a"}, {**SETS[0], "name": "b"}]
    with pytest.raises(BudgetError, match="does not cover"):
        perform(pipeline(*clinic(), two, ledger=limit), write=False)
    assert states(own_ledger) == []  # both are weighed before the first is debited


@pytest.mark.slow
def test_from_the_command_line(clinic: Clinic, tmp_path: Path) -> None:
    path, domain = clinic()
    content = pipeline(path, domain, [PLAIN, SETS[0], SETS[7]]).model_dump(mode="json")
    content |= {"kind": "rados", "output": str(tmp_path / "out")}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(content))
    runner = CliRunner()

    def call(*arguments: str) -> str:
        done = runner.invoke(cli, list(arguments), catch_exceptions=False, standalone_mode=False)
        return str(done.output)

    plan = call("plan", str(tmp_path / "job.yaml"))
    assert "Gaussian mechanism" in plan
    assert "marginal of one coordinate only" in plan
    run = call("run", str(tmp_path / "job.yaml"))
    assert "columns are 0 in every rado and are dropped" in run
    assert "linearly separable" in run
    file = str(tmp_path / "out" / "plain.rados.parquet")
    learned = call("learn", file, "--learner", "radoboost", "--rounds", "30", "--out", str(tmp_path / "model"))
    assert "not differentially private" in learned
    other = domain.model_copy(update={"norm_bound": 9.0})
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(other.model_dump(mode="json")))
    with pytest.raises(UsageError, match="rados of another domain"):
        call("learn", file, "--domain", str(tmp_path / "other.yaml"), "--out", str(tmp_path / "model2"))
    assert not (tmp_path / "model2").exists()
    audit = json.loads(call("audit", "rados", file, "--json"))
    assert audit["private"] is False
    assert audit["recoverable"] is False
    assert json.loads(call("bench", "boost", "--rounds", "20", "--json"))["largest_difference"] < 1e-9


def test_files_that_are_not_rados_are_refused(clinic: Clinic, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a rado file"):
        RadoSet.load(sorted(clinic()[0].glob("*.parquet"))[0])
    with pytest.raises(UsageError, match="no such file"):
        RadoSet.load(tmp_path / "nothing.parquet")
    (tmp_path / "text.parquet").write_text("hello")
    with pytest.raises(DataError, match="not a readable Parquet file"):
        RadoSet.load(tmp_path / "text.parquet")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"noise_std": "x"}, "noise_std"),
        ({"noise_std": None}, "noise_std"),
        ({"noise_std": [-1.0] * 26}, "noise_std.0"),
        ({"noise_std": [float("nan")] * 26}, "noise_std.0"),
        ({"noise_std": ["a"] * 26}, "noise_std.0"),
        ({"noise_std": [1.0] * 3}, "3 noise levels for"),
        ({"rows": "many"}, "rows"),
        ({"rows": -4}, "rows"),
        ({"facts": [1]}, "facts"),
        ({"facts": None}, "facts"),
        ({"facts": {"support": "x"}}, "facts: support"),
        ({"kind": "fixed_support", "facts": {}}, "need the support"),
        ({"statement": {}}, "statement: private: missing"),
        ({"statement": 7}, "statement"),
        ({"domain": {}}, "domain: label: missing"),
        ({"domain": 3}, "domain"),
        ({"domain_sha256": 3}, "domain_sha256"),
        ({"kind": "zzz"}, "kind"),
        ({"lattice_bits": 99}, "lattice_bits"),
        ({"statement": PRIVATE.model_dump(mode="json")}, "noise_std holds a 0, but the statement says"),
    ],
)
def test_a_malformed_header_is_named_with_its_file_and_key(
    everything: tuple[Path, Result, Path], tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    table = pq.read_table(everything[0] / "plain.rados.parquet")
    header = json.loads(table.schema.metadata[b"daskrado"]) | change
    pq.write_table(table.replace_schema_metadata({b"daskrado": json.dumps(header)}), tmp_path / "t.parquet")
    with pytest.raises((UsageError, DataError), match=rf"t\.parquet: .*{message}"):
        RadoSet.load(tmp_path / "t.parquet")


def test_a_malformed_table_is_named_with_its_file_and_column(
    everything: tuple[Path, Result, Path], tmp_path: Path
) -> None:
    table = pq.read_table(everything[0] / "plain.rados.parquet")
    count = table.num_rows
    for broken, message in (
        (table.slice(0, 0), "rados of shape"),
        (table.append_column("extra", pa.array([1.0] * count)), "columns are not its domain's features"),
        (table.set_column(0, "age", pa.array([None] + [1.0] * (count - 1))), "column 'age' must hold numbers"),
        (table.set_column(0, "age", pa.array([np.inf] + [1.0] * (count - 1))), "column 'age' must hold finite"),
        (table.set_column(0, "age", pa.array(["x"] * count)), "column 'age' must hold numbers"),
    ):
        pq.write_table(broken.replace_schema_metadata(table.schema.metadata), tmp_path / "t.parquet")
        with pytest.raises(DataError, match=rf"t\.parquet: {message}"):
            RadoSet.load(tmp_path / "t.parquet")
    with pytest.raises(UsageError, match="is a folder, not a rado file"):
        RadoSet.load(tmp_path)


def test_a_tampered_domain_does_not_match_its_hash(everything: tuple[Path, Result, Path], tmp_path: Path) -> None:
    table = pq.read_table(everything[0] / "plain.rados.parquet")
    header = json.loads(table.schema.metadata[b"daskrado"])
    header["domain"]["norm_bound"] = 77.0
    pq.write_table(table.replace_schema_metadata({b"daskrado": json.dumps(header)}), tmp_path / "t.parquet")
    with pytest.raises(DataError, match="its domain has the hash"):
        RadoSet.load(tmp_path / "t.parquet")


def test_the_adaboost_baseline_runs_and_says_what_it_is(clinic: Clinic, tmp_path: Path) -> None:
    path, domain = clinic()
    content = {"kind": "adaboost", "dataset": "clinic", "lake": str(path), "rounds": 15, "private": False}
    content |= {"domain": domain.model_dump(mode="json"), "output": str(tmp_path / "o"), "keep": "training_error"}
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(content))
    job = load_job(tmp_path / "a.yaml")
    assert "not differentially private" in perform(job).lines[0]
    model = LinearModel.load(tmp_path / "o" / "model.json")
    frame = pd.concat([pd.read_parquet(p) for p in sorted(path.glob("*.parquet"))])
    truth = frame["readmitted"]
    majority = min((truth == "yes").mean(), (truth == "no").mean())
    assert (model.predict(frame) != truth).mean() < majority - 0.05
    del content["private"]
    (tmp_path / "b.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(UsageError, match="private: missing"):
        load_job(tmp_path / "b.yaml")
