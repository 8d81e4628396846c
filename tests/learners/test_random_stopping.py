"""Random stopping as a learner: the law of its choice, the budget of its runs, and what it hides."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
from scipy.stats import chisquare

import daskrado
from daskrado.errors import UsageError
from daskrado.jobs.load import load_job
from daskrado.lake.collect import Share, open_passes
from daskrado.lake.scan import open_lake
from daskrado.lake.seeds import SignatureKey
from daskrado.learners.on_passes import random_stopping
from daskrado.learners.on_passes.erm import OutputPerturbation
from daskrado.learners.on_passes.gradient import PrivateGradient
from daskrado.learners.on_passes.iterative import Guarantee, Learned, Session
from daskrado.learners.on_passes.random_stopping import PARTS, RandomStopping
from daskrado.ledger.chain import COLUMNS
from daskrado.ledger.history import exported
from daskrado.ledger.ledger import Ledger
from daskrado.privacy.accountant import ApproximateEvent, GaussianEvent, PureEvent
from daskrado.privacy.perturbation import PublicFacts
from daskrado.privacy.relations import Relation
from daskrado.privacy.stopping import largest_rho, stopped_epsilon
from daskrado.statistics.risk import Mistakes
from daskrado.table.domain import Domain
from daskrado.table.lattice import Lattice

Clinic = Callable[..., tuple[Path, Domain]]
SIDES = {
    "label": {"column": "y", "positive": 1, "negative": 0},
    "norm_bound": 1.5,
    "columns": {"x": {"kind": "numeric", "lower": -1, "upper": 1}},
}
NUMBERS = SIDES | {"label": {"column": "t", "bounds": [-1, 3]}}


@dataclass(frozen=True)
class Fixed:
    """A learner that returns what it was given; ``given`` keeps what it was told."""

    weights: tuple[float, ...]
    event: type = PureEvent
    given: list[tuple[Share | None, PublicFacts]] = field(default_factory=list, compare=False)

    name: ClassVar[str] = "fixed"
    seeded: ClassVar[bool] = False

    def guarantee(self, facts: PublicFacts) -> Guarantee:
        delta = 1e-7 if self.event is ApproximateEvent else 0.0
        event = ApproximateEvent(facts.epsilon, delta) if delta else PureEvent(facts.epsilon)
        return Guarantee(event, delta, "fixed", "none needed")

    def forecast(self, facts: PublicFacts) -> Iterator[tuple[str, str]]:
        yield "fixed", "weights"

    def excess(self, facts: PublicFacts) -> float:
        return 0.0

    def learn(self, session: Session, facts: PublicFacts) -> Learned:
        self.given.append((session.share, facts))
        return Learned(np.array(self.weights), {})


def line(rows: int) -> pd.DataFrame:
    x = np.random.default_rng(1).uniform(-1, 1, size=rows)
    return pd.DataFrame({"x": x, "y": (x > 0).astype(int), "t": 1 + x})


def opened(frame: pd.DataFrame, keys: dict[str, Any]) -> Any:
    domain = Domain.model_validate(keys)
    return open_passes(open_lake(frame, domain), domain, Lattice(1.5), seeded=True, key=SignatureKey.from_seed(0))


def test_the_choice_follows_the_law_of_the_best_of_a_geometric_number_of_noisy_scores() -> None:
    """The law is enumerated: a run is (setting, mistakes + discrete Laplace noise), the best of K has the fewest."""
    cuts, runs, epsilon = (0.0, 0.15, -0.4), 6, 1.5
    grid = tuple(Fixed((1.0, cut)) for cut in cuts)
    facts = PublicFacts(40, 2, 1.5, Relation.REPLACE_ONE, epsilon)
    with opened(line(40), SIDES) as passes:
        models = np.column_stack([one.weights for one in grid])
        wrong = passes.sum(Mistakes(2, models), share=Share(PARTS - 1, PARTS)).vector[:-1]
        assert np.ptp(wrong) > 0
        draws = 3000
        learner = RandomStopping(grid, runs=runs)
        chosen = [learner.learn(Session(passes, lambda: None), facts).details["place_in_grid"] for _ in range(draws)]
    noise = np.arange(-400, 401)
    shape = np.exp(-np.abs(noise) * (epsilon / 3))  # a third of the budget, a row moves a count by one
    shape /= shape.sum()
    scores = np.arange(-500, 501)
    base = np.zeros((3, len(scores)))
    for place, count in enumerate(wrong):
        base[place, np.searchsorted(scores, count + noise)] = shape / 3
    above = np.concatenate([[0.0], np.cumsum(base.sum(axis=0))])  # the chance of a better score
    rest = 1 / runs + (1 - 1 / runs) * above
    law = (base / runs / (rest[:-1] * rest[1:])).sum(axis=1)
    assert law.sum() == pytest.approx(1)
    counts = np.bincount(chosen, minlength=3)
    assert chisquare(counts, law * draws).pvalue > 1e-4
    one_run = np.full(3, draws / 3)  # as if the first run were kept
    assert chisquare(counts, one_run).pvalue < 1e-6


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_each_run_has_the_budget_by_which_the_best_of_them_stays_within_what_was_asked(delta: float) -> None:
    learner = RandomStopping((Fixed((1.0, 0.0)), Fixed((1.0, 0.1))))
    facts = PublicFacts(1000, 2, 1.5, Relation.ADD_REMOVE, 0.9, delta)
    assert learner.mean == 6
    own = learner.own(learner.grid[0], facts)
    assert (own.rows, own.delta) == (800, 0.0)
    assert own.epsilon == pytest.approx(0.3)
    assert own.epsilon <= 0.3
    found = learner.guarantee(facts)
    assert found.event == (ApproximateEvent(0.9, delta) if delta else PureEvent(0.9))
    steep = RandomStopping((PrivateGradient(), PrivateGradient(steps=5)))
    many = PublicFacts(100_000, 10, 1.5, Relation.ADD_REMOVE, 1.0, 1e-6, lattice_bits=11)
    event = PrivateGradient().guarantee(steep.own(steep.grid[0], many)).event
    assert isinstance(event, GaussianEvent)
    rho = largest_rho(1.0, 1e-6, 6)
    assert 0.999 * rho < event.mu**2 / 2 <= rho
    assert stopped_epsilon(event.mu**2 / 2, 6, 1e-6) <= 1.0
    with pytest.raises(UsageError, match="what the best of several runs of fixed costs is unknown"):
        RandomStopping((Fixed((1.0, 0.0), ApproximateEvent),) * 2).guarantee(facts)
    with pytest.raises(UsageError, match="a unit of 3 rows would be in several parts"):
        learner.guarantee(PublicFacts(1000, 2, 1.5, Relation.ADD_REMOVE, 0.9, delta, 3))


def test_fits_and_scores_read_disjoint_rows_that_are_all_there_are() -> None:
    frame = line(500)
    learner = RandomStopping((Fixed((1.0, 0.0)), Fixed((1.0, 0.1))), runs=4)
    facts = PublicFacts(500, 2, 1.5, Relation.REPLACE_ONE, 3.0)
    with opened(frame, SIDES) as passes:
        scored: list[Share | None] = []
        genuine = passes.sum
        passes.sum = lambda statistic, share=None: (scored.append(share), genuine(statistic, share=share))[1]
        learner.learn(Session(passes, lambda: None), facts)
        given = [one for fixed in learner.grid for one in fixed.given]  # type: ignore[attr-defined]
        assert {share for share, _ in given} == {Share(PARTS - 1, PARTS, rest=True)}
        assert Share(PARTS - 1, PARTS) in scored
        sizes = [
            int(genuine(Mistakes(2, np.eye(2)), share=Share(4, 5, rest=rest)).vector[-1]) for rest in (True, False)
        ]
    assert sum(sizes) == 500
    assert {facts.rows for _, facts in given} == {sizes[0]}  # public here, and exact


def test_of_numbers_a_score_is_how_far_predictions_are_off_and_a_row_moves_it_by_the_width_of_the_bounds() -> None:
    frame = line(300)
    weights = np.array([[0.5, 9.0], [0.0, 9.0]])  # of t scaled to [-1, 1]: t = 1 + x is 0.5 x; and far too much
    with opened(frame, NUMBERS) as passes:
        mistakes = Mistakes.of(passes, weights)
        off = passes.sum(mistakes).vector
    assert mistakes.unit == 4096
    steps = 2048 * np.abs(np.clip(9 * frame["x"] + 9, -1, 1) - 0.5 * frame["x"])
    assert off[0] <= 300 * 3  # quantised rows and labels
    assert off[1] == pytest.approx(steps.sum(), rel=0.01)
    assert off[2] == 300
    worst = 0
    for low, high in ((-1.0, 3.0), (3.0, -1.0)):
        with (
            opened(frame.assign(t=low), NUMBERS) as one,
            opened(frame.assign(t=[high, *[low] * 299]), NUMBERS) as other,
        ):
            moved = one.sum(mistakes).vector - other.sum(mistakes).vector
        worst = max(worst, int(np.abs(moved).max()))
    assert 2000 < worst <= mistakes.unit


@pytest.mark.parametrize("budget", [{"epsilon": 12.0}, {"epsilon": 6.0, "delta": 1e-6}])
def test_a_whole_run_is_one_charge_and_publishes_neither_runs_nor_scores(
    clinic: Clinic, tmp_path: Path, own_ledger: Path, budget: dict[str, float]
) -> None:
    lake, domain = clinic(4000, 2)
    kind = "gradient" if "delta" in budget else "output_perturbation"
    options = [{"steps": 5}, {"steps": 40}] if "delta" in budget else [{"regularisation": r} for r in (0.01, 1.0)]
    keys = {
        "dataset": "clinic",
        "lake": str(lake),
        "domain": domain,
        "output": str(tmp_path / "out"),
        "protect": {"relation": "add_remove", "unit": "one patient"},
        "budget": budget,
        "learner": {"kind": "random_stopping", "grid": [{"kind": kind} | one for one in options]},
        "rows": 4000,
        "ledger": {"first_limit": {"epsilon": 30, "delta": 1e-4 if "delta" in budget else 0}},
    }
    result = daskrado.run(keys)
    (entry,) = Ledger.open(own_ledger).entries()
    delta = budget.get("delta")
    assert entry.event == (ApproximateEvent(6.0, 1e-6) if delta else PureEvent(12))
    assert math.isclose(result.statement.epsilon or 0, budget["epsilon"])
    assert {"chosen", "place_in_grid", "grid"} <= {*result.model.details}
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["job"]["learner"]["grid"]
    told = json.dumps(manifest) + (tmp_path / "out" / "model.json").read_text()
    assert "mistakes" not in told
    assert "release#" not in told
    assert "best of a geometric number of runs, 6 in the mean" in entry.theorem
    lines = dict(load_job(keys | {"output": "elsewhere"}).plan())
    assert "2 learners on about 3,200 rows, 6 times in the mean" in lines["tunes"]


def leaves(content: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Everything that a document says, with the keys that lead to it."""
    pairs = (
        content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else None
    )
    if pairs is None:
        yield at, content
        return
    for key, value in pairs:
        yield from leaves(value, f"{at}/{key}")


@pytest.mark.parametrize("kind", ["output_perturbation", "objective_perturbation", "gradient"])
def test_neither_the_ledger_nor_what_is_published_tells_how_many_fits_there_were(
    clinic: Clinic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    lake, domain = clinic(2000, 2)
    delta = {"delta": 1e-6} if kind == "gradient" else {}
    grid = [{"kind": kind} | ({"steps": int(30 * one)} if delta else {"regularisation": one}) for one in (0.1, 1.0)]
    monkeypatch.setattr(random_stopping, "which_runs", lambda kinds, runs: np.zeros(runs, dtype=np.int64))
    genuine, fits = RandomStopping._fit, list[int]()
    monkeypatch.setattr(RandomStopping, "_fit", lambda *given: (fits.append(1), genuine(*given))[1])
    told, numbers, lines = [], [], []
    for runs in (1, 4):
        monkeypatch.setattr(random_stopping, "number_of_runs", lambda mean, runs=runs: runs)
        fits.clear()
        place = tmp_path / str(runs)
        daskrado.run(
            {
                "dataset": "clinic",
                "lake": str(lake),
                "domain": domain,
                "output": str(place / "out"),
                "protect": {"relation": "add_remove", "unit": "one patient"},
                "budget": {"epsilon": 12.0} | delta,
                "learner": {"kind": "random_stopping", "grid": grid},
                "rows": 2000,
                "ledger": {"path": str(place / "ledger.sqlite"), "first_limit": {"epsilon": 30, "delta": 1e-4}},
            }
        )
        numbers.append(len(fits))
        told.append(dict(leaves(json.loads((place / "out" / "manifest.json").read_text()))))
        with Ledger.open(place / "ledger.sqlite") as ledger:
            (entry,) = ledger.entries()
            assert len(ledger.draws(entry.id)) == 2
            kinds, names = (COLUMNS.index(one) for one in ("kind", "name"))
            lines.append([(record[kinds], record[names]) for record in exported(ledger)["records"]])
    assert numbers == [2, 5]  # the fits, and the best once more from what it drew
    assert lines[0] == lines[1]
    one, four = told
    assert [*one] == [*four]
    heads = [one.pop("/budget/0/ledger_head").partition(":")[0] for one in told]
    assert heads[0] == heads[1]
    released = {"/run", "/files/0/sha256", "/files/0/bytes"}  # of model.json
    assert {key for key in one if one[key] != four[key]} <= released
    models = [dict(leaves(json.loads((tmp_path / runs / "out" / "model.json").read_text()))) for runs in "14"]
    assert {key.split("/")[1] for key in models[0].keys() ^ models[1].keys()} <= {"error_bars"}
    differ = {key for key in models[0].keys() & models[1].keys() if models[0][key] != models[1][key]}
    assert {key.split("/")[1] for key in differ} <= {"error_bars", "weights"}


def test_a_search_that_was_cut_off_makes_as_many_fits_and_one_that_was_kept_makes_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The number of fits is drawn once for a grant: whoever begins again does not get another one."""
    learner = RandomStopping(
        (OutputPerturbation(regularisation=0.1), OutputPerturbation(regularisation=1.0)), runs=50
    )
    facts = PublicFacts(500, 2, 1.5, Relation.REPLACE_ONE, 30.0)
    kept: list[Any] = []
    scores: list[int] = []
    die_at = 2
    genuine = RandomStopping._score

    def scored(self: RandomStopping, *given: Any) -> int:
        scores.append(1)
        if len(scores) == die_at:
            raise KeyboardInterrupt
        return genuine(self, *given)

    def session(passes: Any) -> Session:
        place = itertools.count()

        def draw(paid: bool, gather: Callable[[], Any], perturb: Callable[[Any], Any]) -> Any:
            if (here := next(place)) == len(kept):
                kept.append(perturb(gather()))
            return kept[here]

        return Session(passes, lambda: None, journal=draw)

    monkeypatch.setattr(RandomStopping, "_score", scored)
    monkeypatch.setattr(random_stopping, "number_of_runs", lambda mean: 5)
    with opened(line(500), SIDES) as passes:
        with pytest.raises(KeyboardInterrupt):
            learner.learn(session(passes), facts)
        (first,) = kept
        monkeypatch.setattr(random_stopping, "number_of_runs", lambda mean: 99)
        scores, die_at = [], 0
        found = learner.learn(session(passes), facts)
        assert (len(scores), len(kept), kept[0] is first) == (5, 2, True)
        again = learner.learn(session(passes), facts)
    assert len(scores) == 5
    assert again.weights.tobytes() == found.weights.tobytes()
    assert again.details == found.details
