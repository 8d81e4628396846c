"""One contract over all kinds: a unit that owns k rows gets k times the noise, or pays for a group of k.

Every example runs twice on one lake, for units of one row and of three. What is drawn is recorded where noise is
made: its law, its scale, and the size of what it is added to. With the same budget all noise must be three times as
strong beside what it hides; noise that each row gets for itself sqrt(3) times, for it is independent from row to row.
Where the noise is what the pipeline says, the charge must be three times as large.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from every_kind import make_days, write_draft

import daskrado
from daskrado.engines.queries import PrivateQueries, WeightsPlan
from daskrado.errors import DataError
from daskrado.jobs import rados
from daskrado.jobs.base import Job
from daskrado.jobs.discover import DiscoverJob
from daskrado.jobs.load import load_job
from daskrado.jobs.local import LocalJob
from daskrado.jobs.queries import QueriesJob
from daskrado.jobs.rado_set_kinds import RandomisedSet
from daskrado.jobs.teachers import TeachersJob
from daskrado.lake.make import make_lake
from daskrado.learners.on_passes import erm, gradient
from daskrado.learners.supervision import RandomisedLabels
from daskrado.models.linear import LinearModel
from daskrado.parties.study import load_study
from daskrado.privacy import continual, noise, perturbation
from daskrado.privacy.accountant import compose
from daskrado.privacy.mechanisms import l2_gamma as gamma_mechanism
from daskrado.privacy.perturbation import PublicFacts
from daskrado.privacy.protect import Protect
from daskrado.privacy.relations import Relation, Sensitivity
from daskrado.privacy.statement import PrivacyStatement
from daskrado.registry import kinds
from daskrado.statistics import protected_rados
from daskrado.statistics.edge_noise import EdgeNoise
from daskrado.table.domain import Domain

ROWS = 3
BOTH, PURE = {"epsilon": 1.0, "delta": 1e-6}, {"epsilon": 1.0}
PLENTY = {"epsilon": 6.0, "delta": 1e-6}  # so that one row and three give the same, least share to where numbers lie
WARDS = ["cardiology", "maternity", "medicine", "oncology", "surgery"]
Draw = tuple[str, float]  # a law, and the strength of the signal beside the noise


def whose(relation: str, rows: int) -> dict[str, Any]:
    return {"relation": relation, "unit": "one patient", "rows_per_unit": rows}


def one_set(rows: int, **keys: Any) -> dict[str, Any]:
    return {"sets": [{"name": "s", "count": 16, "protect": whose("replace_one", rows), "budget": BOTH, **keys}]}


def column_set(rows: int, kind: str, budget: dict[str, float]) -> dict[str, Any]:
    own = {"features": ["smoker"], "unit": "one patient", "rows_per_unit": rows, "budget": budget}
    return {"sets": [{"name": "s", "kind": kind, "count": 16, **own}]}


def teachers(rows: int, **answers: Any) -> dict[str, Any]:
    return {
        "protect": whose("add_remove", rows),
        "budget": {"epsilon": 12.0, "delta": 1e-6},
        "teachers": {"count": 200, "learner": {"kind": "moments"}},
        "answers": {"queries": 10, "agreement": 1.0, **answers},
        "student": {"learner": {"kind": "moments"}},
        "queries": "queries",
    }


def learned(relation: str, budget: dict[str, float], learner: dict[str, Any], rows: int) -> dict[str, Any]:
    return {"protect": whose(relation, rows), "budget": budget, "learner": learner}


def reported(reports: dict[str, Any], relation: str, rows: int) -> dict[str, Any]:
    return {"protect": whose(relation, rows), "budget": {"epsilon": 20.0, "delta": 1e-6}, "reports": reports}


Keys = Callable[[int], dict[str, Any]]
EXAMPLES: dict[str, tuple[str, Keys]] = {
    "moments": ("learn", partial(learned, "add_remove", BOTH, {"kind": "moments"})),
    "mean": ("learn", partial(learned, "replace_one", PURE, {"kind": "mean"})),
    "gradient": ("learn", partial(learned, "replace_one", PLENTY, {"kind": "gradient", "steps": 5})),
    "output": (
        "learn",
        partial(learned, "replace_one", PURE, {"kind": "output_perturbation", "regularisation": 0.1}),
    ),
    "objective": (
        "learn",
        partial(learned, "replace_one", PURE, {"kind": "objective_perturbation", "regularisation": 0.1}),
    ),
    "continual": (
        "continual",
        lambda rows: {
            "protect": whose("add_remove", rows),
            "budget": BOTH,
            "blocks": {"column": "day"},
            "continual": {"horizon": 5},
        },
    ),
    "describe": ("describe", lambda rows: {"protect": whose("add_remove", rows), "budget": BOTH}),
    "discover": ("discover", lambda rows: {"protect": whose("add_remove", rows), "budget": BOTH}),
    "hadamard": ("rados", lambda rows: one_set(rows, kind="hadamard")),
    "choice": (
        "rados",
        lambda rows: one_set(rows, kind="balanced", learn={"kind": "radoboost", "rounds": 5}, keep_epsilon=0.2),
    ),
    "noisy edges": (
        "rados",
        lambda rows: one_set(rows, kind="noisy_edges", budget={"epsilon": 2.0, "delta": 1e-6}) | {"lattice_bits": 8},
    ),
    "noisy column": ("rados", lambda rows: column_set(rows, "noisy_column", BOTH)),
    "randomised": ("rados", lambda rows: column_set(rows, "randomised_response", PURE)),
    "labels": ("labels", lambda rows: {"protect": {"unit": "one", "rows_per_unit": rows}, "budget": PURE}),
    "gaussian labels": (
        "labels",
        lambda rows: {
            "protect": {"unit": "one", "rows_per_unit": rows},
            "budget": BOTH,
            "mechanism": "gaussian",
        },
    ),
    "bags": (
        "bags",
        lambda rows: {
            "protect": {"unit": "one", "rows_per_unit": rows},
            "budget": PURE,
            "bags": "ward",
            "values": WARDS,
        },
    ),
    "margins": (
        "margins",
        lambda rows: {"protect": whose("add_remove", rows), "budget": BOTH, "models": ["model.json"], "bins": 20},
    ),
    "evaluate": (
        "evaluate",
        lambda rows: {"protect": whose("add_remove", rows), "budget": BOTH, "model": "model.json", "by": ["sex"]},
    ),
    "queries": (
        "queries",
        lambda rows: {
            "protect": whose("add_remove", rows),
            "budget": BOTH,
            "universe": ["sex", "smoker"],
            "updates": 3,
            "threshold": 1,
            "queries": [{"sex": "F"}, {"smoker": True}],
        },
    ),
    "stability": ("teachers", lambda rows: teachers(rows, mechanism="stability")),
    "sparse vector": ("teachers", lambda rows: teachers(rows, mechanism="sparse_vector", refusals=3)),
    "gaussian votes": ("teachers", lambda rows: teachers(rows, mechanism="gaussian")),
    "local labels": ("local", partial(reported, {"kind": "labels", "epsilon": 1.0}, "label_flip")),
    "local edges": ("local", partial(reported, {"kind": "edges", "epsilon": 1.0, "delta": 1e-8}, "replace_one")),
    "local columns": (
        "local",
        partial(
            reported, {"kind": "columns", "columns": {"smoker": {"kind": "binary", "epsilon": 1.0}}}, "replace_one"
        ),
    ),
}
NOT_PRIVATE = {"adaboost"}
SOLVER = {("objective", "weights")}  # noise that covers the solver's distance, which rows do not change
SMALLER_SIGNALS = {"stability", "sparse vector"}  # a distance is divided by k, the noise on it stays
FOR_EACH_ROW = {"row noise"}  # laws whose draws are independent from row to row: sqrt(k)
every_example = pytest.mark.parametrize("name", list(EXAMPLES))


@pytest.fixture(scope="module")
def ward(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a lake, its domain, a model and public queries."""
    folder = tmp_path_factory.mktemp("ward")
    domain = Domain.load(make_lake(folder / "lake", rows=2000, features=12, partitions=2, seed=7))
    write_draft(folder / "lake.yaml")
    weights = np.linspace(-1, 1, domain.width)
    LinearModel(domain, weights, PrivacyStatement.none(), "test", {}).save(folder / "model.json")
    make_lake(folder / "queries", rows=10, features=12, partitions=1, seed=9)
    make_days(folder)
    return folder


def job_of(name: str, ward: Path, rows: int, output: Path) -> Job:
    kind, keys = EXAMPLES[name]
    lake, domain = str(ward / "lake"), str(ward / "lake.yaml")
    common = {"kind": kind, "dataset": "ward", "lake": lake, "domain": domain, "output": str(output)}
    content = common | {"ledger": {"first_limit": {"epsilon": 50, "delta": 1e-2}}} | keys(rows)
    content |= {"domain": str(ward / "draft.yaml")} if kind == "discover" else {}
    content |= {"lake": str(ward / "days")} if kind == "continual" else {}
    content |= {"models": [str(ward / "model.json")]} if kind == "margins" else {}
    content |= {"model": str(ward / "model.json")} if kind == "evaluate" else {}
    content |= {"queries": str(ward / "queries")} if kind == "teachers" else {}
    return load_job(content)


class Recorder:
    """Everything that is drawn, by law, with the size of what it is added to beside the noise."""

    def __init__(self, patch: pytest.MonkeyPatch, *, signals: bool) -> None:
        self.draws: list[Draw] = []
        self._signals = signals
        for law in ("_laplace", "_gaussian"):
            patch.setattr(noise, law, self._sampler(law[1:], getattr(noise, law)))
        patch.setattr(noise, "_chooser", self._chooser(noise._chooser))
        for module, law in ((erm, "l2_gamma"), (erm, "normal_vector")):
            patch.setattr(module, law, self._sized(law, getattr(module, law)))
        patch.setattr(continual, "keyed_gaussian", self._keyed(continual.keyed_gaussian))
        patch.setattr(gamma_mechanism, "integer_l2_gamma", self._added(gamma_mechanism.integer_l2_gamma))
        patch.setattr(erm, "_noisy", self._on_weights(erm._noisy))
        patch.setattr(protected_rados, "gaussian_noise", self._rows("row noise", protected_rados.gaussian_noise))
        patch.setattr(protected_rados, "flips", self._flips(protected_rados.flips))

    def _keep(self, law: str, strength: float) -> None:
        self.draws.append((law, strength))

    def _sampler(self, law: str, make: Callable[[float], Any]) -> Callable[[float], Any]:
        def made(scale: float) -> Any:
            def draw(values: list[int]) -> Any:
                signal = float(np.abs(values).max(initial=0)) if self._signals else 1.0
                self._keep(law, signal / scale)
                return make(scale)(values)

            return draw

        return made

    def _chooser(self, make: Callable[[float], Any]) -> Callable[[float], Any]:
        def made(scale: float) -> Any:
            self._keep("choice", 1 / scale)
            return make(scale)

        return made

    def _sized(self, law: str, draw: Any) -> Any:
        def drawn(dimension: int, scale: float) -> Any:
            self._keep(law, 1 / scale)
            return draw(dimension, scale)

        return drawn

    def _keyed(self, draw: Any) -> Any:
        def drawn(key: bytes, name: str, scale: float, count: int) -> Any:
            self._keep("keyed", 1 / scale)
            return draw(key, name, scale, count)

        return drawn

    def _added(self, draw: Any) -> Any:
        def drawn(values: Any, scale: float) -> Any:
            self._keep("gamma", 1 / scale)
            return draw(values, scale)

        return drawn

    def _on_weights(self, draw: Any) -> Any:
        def drawn(weights: Any, step: float, scale: float) -> Any:
            self._keep("weights", 1 / scale)
            return draw(weights, step, scale)

        return drawn

    def _rows(self, law: str, draw: Any) -> Any:
        def drawn(place: Any, rows: int, width: int, scale: float) -> Any:
            self._keep(law, 1 / scale)
            return draw(place, rows, width, scale)

        return drawn

    def _flips(self, draw: Any) -> Any:
        def drawn(place: Any, rows: int, width: int, epsilon: float) -> Any:
            self._keep("response", epsilon)
            return draw(place, rows, width, epsilon)

        return drawn

    def strengths(self) -> dict[str, list[float]]:
        """What signals are beside the noise under each law: all that differ, or the strongest where data decide."""
        found: dict[str, set[float]] = {}
        for law, strength in self.draws:
            found.setdefault(law, set()).add(float(f"{strength:.9g}"))
        return {law: [max(each)] if self._signals else sorted(each) for law, each in found.items()}


def strengths(name: str, ward: Path, rows: int, output: Path) -> dict[str, list[float]]:
    with pytest.MonkeyPatch.context() as patch:
        recorder = Recorder(patch, signals=name in SMALLER_SIGNALS)
        with contextlib.suppress(DataError):  # answers that a student cannot learn from: they were drawn
            daskrado.run(job_of(name, ward, rows, output), ledger=output.parent / f"{output.name}.sqlite")
    return recorder.strengths()


def cost(name: str, ward: Path, rows: int, output: Path) -> float:
    """What a unit of so many rows is charged, at a delta of 1e-6."""
    charges = job_of(name, ward, rows, output).charges()
    return float(compose([charge.event for charge in charges], 1e-6).epsilon)


def check(name: str, ward: Path, tmp_path: Path) -> None:
    """The contract."""
    one, three = (strengths(name, ward, rows, tmp_path / str(rows)) for rows in (1, ROWS))
    if EXAMPLES[name][0] == "local":
        assert one == three
        assert cost(name, ward, ROWS, tmp_path) >= 1.5 * cost(
            name, ward, 1, tmp_path
        )  # sqrt(3) where noise is Gaussian
        return
    assert one.keys() == three.keys() != set()
    for law in (law for law in one if (name, law) not in SOLVER):
        factor = math.sqrt(ROWS) if law in FOR_EACH_ROW else ROWS
        assert len(one[law]) == len(three[law])
        assert all(c * factor <= a * (1 + 1e-2) for a, c in zip(one[law], three[law], strict=True)), law
    assert cost(name, ward, ROWS, tmp_path) >= cost(name, ward, 1, tmp_path) * (1 - 1e-3)


def test_every_private_kind_has_an_example() -> None:
    ours = {name for name, job in kinds(Job, "daskrado.jobs").items() if job.__module__.startswith("daskrado.jobs.")}
    assert {name for name in ours if " " not in name} - NOT_PRIVATE == {kind for kind, _ in EXAMPLES.values()}


@pytest.mark.slow
@every_example
def test_k_rows_a_unit_mean_k_times_the_noise_or_the_charge(name: str, ward: Path, tmp_path: Path) -> None:
    check(name, ward, tmp_path)


# What must not happen: each place that knows of k rows forgets it.


def forget(method: Callable[..., Any]) -> Callable[..., Any]:
    """A function of public facts that thinks of one row a unit."""

    def forgetful(*given: Any, **named: Any) -> Any:
        return method(
            *(replace(fact, rows_per_unit=1) if isinstance(fact, PublicFacts) else fact for fact in given), **named
        )

    return forgetful


def plan_of_one(planned: Callable[..., WeightsPlan]) -> Callable[..., WeightsPlan]:
    return lambda job: replace(planned(job), rows_per_unit=1)


def count_of_one(draw: Callable[..., int]) -> Callable[..., int]:
    def drawn(engine: PrivateQueries, rows: int) -> int:
        whole = engine.calibration
        engine.calibration = replace(whole, plan=replace(whole.plan, rows_per_unit=1))
        try:
            return draw(engine, rows)
        finally:
            engine.calibration = whole

    return drawn


def set_of_one(planned: Callable[..., Any]) -> Callable[..., Any]:
    return lambda item, *facts: planned(item.model_copy(update={"rows_per_unit": 1}), *facts)


def edges_of_one(for_budget: Any) -> Any:
    def found(cls: type[EdgeNoise], epsilon: float, delta: float, width: int, rows: int, *wanted: Any) -> EdgeNoise:
        return for_budget.__func__(cls, epsilon, delta, width, 1, *wanted)

    return classmethod(found)


def values_of_one(law: Callable[..., Any]) -> Callable[..., Any]:
    return lambda job, mu: replace(law(job, mu), bound=1)


def choice_of_one(choose: Callable[..., int]) -> Callable[..., int]:
    return lambda counts, spend, epsilon, rows: choose(counts, spend, epsilon, 1)


BUGS: dict[str, tuple[Any, str, Callable[[Any], Any], tuple[str, ...]]] = {
    "sensitivities": (
        Sensitivity,
        "times",
        lambda _: lambda self, rows_per_unit: self,
        (
            "moments",
            "mean",
            "continual",
            "describe",
            "discover",
            "hadamard",
            "noisy column",
            "labels",
            "gaussian labels",
            "bags",
            "margins",
            "evaluate",
        ),
    ),
    "unknown values": (DiscoverJob, "values_of", values_of_one, ("discover",)),
    "gradient": (gradient, "_reach", forget, ("gradient",)),
    "perturbation": (perturbation, "reach", forget, ("output", "objective")),
    "queries": (QueriesJob, "weights_plan", plan_of_one, ("queries",)),
    "row count": (PrivateQueries, "_release_row_count", count_of_one, ("queries",)),
    "choice": (rados, "choose_by_mistakes", choice_of_one, ("choice",)),
    "teachers": (
        TeachersJob,
        "changed",
        lambda _: property(lambda job: 1),
        ("stability", "sparse vector", "gaussian votes"),
    ),
    "randomised": (RandomisedSet, "planned", set_of_one, ("randomised",)),
    "edges": (EdgeNoise, "for_budget", edges_of_one, ("noisy edges",)),
    "local": (
        LocalJob,
        "events",
        lambda _: lambda job: job.reports.events(job.domain),
        ("local labels", "local edges", "local columns"),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("bug", "name"), [(bug, name) for bug, planted in BUGS.items() for name in planted[3]])
def test_each_planted_bug_is_caught(
    bug: str, name: str, ward: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, attribute, plant, _ = BUGS[bug]
    monkeypatch.setattr(owner, attribute, plant(vars(owner)[attribute]))
    with pytest.raises(AssertionError):
        check(name, ward, tmp_path)


def test_every_example_has_a_bug_that_it_catches() -> None:
    assert {name for *_, names in BUGS.values() for name in names} == set(EXAMPLES)


def test_labels_that_were_randomised_at_the_source_are_stated_for_all_rows_of_a_unit() -> None:
    protect = Protect(relation=Relation.LABEL_FLIP, unit="one patient", rows_per_unit=ROWS)
    assert RandomisedLabels(epsilon=0.5).statement(protect).epsilon == 0.5 * ROWS


@pytest.mark.parametrize("noise", [{"kind": "distributed", "honest": 2}, {"kind": "central"}])
def test_shares_of_a_study_grow_with_the_rows_of_a_unit(noise: dict[str, Any]) -> None:
    folder = Path(__file__).parents[2] / "pipelines" / "studies"
    content = yaml.safe_load((folder / "heart.yaml").read_text()) | {"noise": noise}
    content["domain"] = str(folder / "heart_domain.yaml")
    scales = []
    for rows in (1, ROWS):
        plan = load_study(content | {"protect": whose("add_remove", rows)}).terms.plan(4)
        assert plan.mechanism is not None
        scales.append(plan.mechanism.scale)
    assert scales[1] == pytest.approx(ROWS * scales[0], rel=1e-6)
