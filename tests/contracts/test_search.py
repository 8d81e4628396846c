"""Searches on private rows: what they are charged, what is refused, and that nothing is drawn for free."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from joblib import parallel_config
from published_text import numbers_in
from sklearn.calibration import CalibratedClassifierCV
from sklearn.feature_selection import RFECV
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    KFold,
    cross_val_predict,
    cross_val_score,
    cross_validate,
    learning_curve,
)

import daskrado
from daskrado.errors import BudgetError, UsageError
from daskrado.learners.base import Learned
from daskrado.learners.on_release.moments import MomentsLearner
from daskrado.ledger.ledger import Ledger
from daskrado.privacy.accountant import PureEvent
from daskrado.privacy.filter import filter_for
from daskrado.privacy.relations import Relation
from daskrado.sklearn import PrivateClassifier, PrivateKFold, PrivateRegressor, PrivateSearchCV

DOMAIN = {
    "label": {"column": "sick", "positive": "yes", "negative": "no"},
    "columns": {
        "age": {"kind": "numeric", "lower": 0, "upper": 100},
        "sex": {"kind": "categorical", "values": ["f", "m"], "other": False},
    },
}


def people(rows: int = 4000, seed: int = 3) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    frame = pd.DataFrame({"age": draw.uniform(0, 100, rows), "sex": draw.choice(["f", "m"], rows)})
    sick = frame["age"] / 25 - 2 + (frame["sex"] == "m") + draw.logistic(size=rows) > 0
    return frame.assign(sick=np.where(sick, "yes", "no"), id=np.arange(rows))


def private(**changes: Any) -> PrivateClassifier:
    facts = {
        "domain": DOMAIN | {"id": "id"},
        "dataset": "clinic",
        "epsilon": 0.5,
        "delta": 1e-6,
        "first_limit": (20, 1e-4),
    }
    return PrivateClassifier(**facts | {"learner": "moments"} | changes)


def entries(path: Path) -> int:
    if not path.exists():
        return 0
    with Ledger.open(path) as ledger:
        return len(list(ledger.entries()))


@pytest.mark.parametrize("threads", [1, 2])
def test_a_grid_search_over_folds_is_charged_what_each_unit_was_read_for(own_ledger: Path, threads: int) -> None:
    """2 settings, 3 folds and a last fit on all rows: of 7 fits a unit pays 2 x 2 + 1, of 6 scores 2.

    The sum of mu^2 is enumerated over folds from the events in the ledger, and compared with the block's own share.
    """
    frame, model = people(), private()
    grid = {"learner": ["moments", {"kind": "moments", "regularisation": 100.0}]}
    with daskrado.budget("clinic", epsilon=5.0, delta=1e-5) as spending:
        scorer = daskrado.private_scorer("auc", epsilon=0.5)
        with parallel_config("threading", n_jobs=threads):  # processes see no block, and are refused
            search = GridSearchCV(model, grid, cv=model.folds(3), scoring=scorer, error_score="raise").fit(frame)
        share = spending.share
    assert search.best_score_ > 0.6
    assert search.predict(people(seed=4)).shape == (4000,)
    rule = filter_for(5.0, 1e-5)
    with Ledger.open(own_ledger) as ledger:
        charged = [(entry.part, rule.cost(entry.event)) for entry in ledger.entries()]
        (balance,) = [
            one for one in ledger.balances("clinic") if one.relation is Relation.ADD_REMOVE and not one.whose.column
        ]
    assert len(charged) == 13
    each = []
    for fold in range(3):
        mine = [cost for part, cost in charged if not part or f"fold {fold}" in part.rpartition("/")[2].split(" + ")]
        assert len(mine) == 7
        each.append(sum((cost.mu2 for cost in mine), Fraction(0)))
    everything = sum((cost.mu2 for _, cost in charged), Fraction(0))
    assert share == pytest.approx(float(max(each) / rule.mu**2), rel=1e-12)
    assert balance.total.mu2 == max(each) < 0.6 * everything


def test_taking_anybody_away_changes_the_sums_of_those_folds_alone_that_she_pays_for(
    own_ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the charge rests on: the rows that each fit and each score sums, with and without a person."""
    from daskrado.ledger import draws

    frame = people(60)
    frame["who"] = frame["id"] // 3
    model = private(unit="who", epsilon=1.0, first_limit=(50, 1e-3))
    seen: list[np.ndarray] = []
    genuine = draws.Draws.draw

    def spy(self: Any, role: str, grant: Any, gather: Any, perturb: Any, **how: Any) -> Any:
        def gathered() -> Any:
            found = gather()
            seen.append(found.vector.copy())
            return found

        return genuine(self, role, grant, gathered, perturb, **how)

    monkeypatch.setattr(draws.Draws, "draw", spy)
    monkeypatch.setattr(MomentsLearner, "fit_columns", lambda *_: Learned(np.array([1.0, 0.2, -0.1, 0.0]), {}))

    def sums(rows: pd.DataFrame) -> list[list[np.ndarray]]:
        seen.clear()
        with daskrado.budget("clinic", epsilon=45.0, delta=1e-4):
            scorer = daskrado.private_scorer("accuracy", epsilon=1.0)
            cross_val_score(model, rows, cv=model.folds(4), scoring=scorer, error_score="raise")
        each = len(seen) // 4
        return [seen[each * fold : each * (fold + 1)][:2] for fold in range(4)]  # bins of scores follow from noise

    before, folds = sums(frame), model.folds(4)
    (own_ledger.parent / own_ledger.name).unlink()
    held = [set(frame["who"].iloc[test]) for _, test in folds.split(frame)]
    assert sorted(who for fold in held for who in fold) == list(range(20))
    for person in (0, 7, 13):
        after = sums(frame[frame["who"] != person])
        own_ledger.unlink()
        for fold in range(4):
            fit, score = (not np.array_equal(a, b) for a, b in zip(before[fold], after[fold], strict=True))
            assert (fit, score) == (person not in held[fold], person in held[fold])


def test_splitters_that_go_by_place_or_class_are_refused_since_one_row_moves_others(own_ledger: Path) -> None:
    """Taking one row away from 40 changes more than one row of a fit: no number of full charges would cover that."""
    frame = people(40)
    moved = 0
    for rows, after in ((frame, frame.drop(index=5)),):
        for (train, _), (less, _) in zip(KFold(4).split(rows), KFold(4).split(after), strict=True):
            moved = max(moved, len({*rows["id"].iloc[train]} ^ {*after["id"].iloc[less]}))
    assert moved > 1
    scorer = daskrado.private_scorer("auc", epsilon=0.5)
    with daskrado.budget("clinic", epsilon=5.0, delta=1e-5):
        groups = list(GroupKFold(3).split(frame, groups=frame["id"]))
        for cv in (3, KFold(3), groups, private(dataset="other").folds(3), private(unit="sex").folds(3)):
            with pytest.raises(UsageError, match=r"needs folds that a hash of ids decides, cv=model.folds\(5\)"):
                cross_val_score(private(), frame, cv=cv, scoring=scorer, error_score="raise")
        with pytest.raises(UsageError, match="name the column of ids"):
            cross_val_score(private(domain=DOMAIN), frame, cv=3, scoring=scorer, error_score="raise")
        with pytest.raises(UsageError, match="which the rows must hold"):
            cross_val_score(private(), frame[["age", "sex"]], frame["sick"], cv=private().folds(3), scoring=scorer)
        model = private()
        with pytest.raises(UsageError, match="needs folds that a hash"):  # a part of the rows of a fit, by place
            learning_curve(
                model,
                frame.drop(columns="sick"),
                frame["sick"],
                cv=model.folds(3),
                scoring=scorer,
                error_score="raise",
            )
    assert entries(own_ledger) == 0


def test_where_rows_are_replaced_and_keep_their_places_folds_by_place_pay_in_full(own_ledger: Path) -> None:
    frame, model = people(400), private(domain=DOMAIN, relation="replace_one")
    folds = model.folds(2)
    assert folds.by is None
    assert [len(test) for _, test in folds.split(frame)] == [200, 200]
    with daskrado.budget("clinic", epsilon=5.0, delta=1e-5):
        scorer = daskrado.private_scorer("accuracy", epsilon=0.5)
        cross_val_score(model, frame, cv=folds, scoring=scorer, error_score="raise")
        places = PrivateKFold(2, dataset="clinic", by=None)
        with pytest.raises(UsageError, match="needs folds that a hash"):
            cross_val_score(private(domain=DOMAIN), frame, cv=places, scoring=scorer, error_score="raise")
    with Ledger.open(own_ledger) as ledger:
        assert [entry.part for entry in ledger.entries()] == [""] * 4


def test_scores_of_the_rows_of_a_fit_are_charged_to_everybody(own_ledger: Path) -> None:
    frame, model = people(400), private()
    with daskrado.budget("clinic", epsilon=9.0, delta=1e-5):
        scorer = daskrado.private_scorer("accuracy", epsilon=0.5)
        cross_validate(model, frame, cv=model.folds(2), scoring=scorer, return_train_score=True, error_score="raise")
    with Ledger.open(own_ledger) as ledger:
        parts = [entry.part.rpartition("/")[2] for entry in ledger.entries()]
    assert sorted(parts) == ["", "", "fold 0", "fold 0", "fold 1", "fold 1"]  # 2 fits, 2 scores, 2 of training rows


def test_one_search_inside_another_is_sound_and_pays_in_full(own_ledger: Path) -> None:
    frame, model = people(2000), private()
    scorer = daskrado.private_scorer("accuracy", epsilon=0.2)
    inner = GridSearchCV(model, {"epsilon": [0.1, 0.2]}, cv=model.folds(3), scoring=scorer, error_score="raise")
    with daskrado.budget("clinic", epsilon=20.0, delta=1e-5):
        cross_validate(inner, frame, cv=model.folds(2), scoring=scorer, error_score="raise")
    with Ledger.open(own_ledger) as ledger:
        parts = [entry.part.rpartition("/")[2] for entry in ledger.entries()]
    # Of each outer fit 6 fits and 6 scores of the inner search in full, its last fit and its score by outer folds.
    assert sorted(parts) == [""] * 24 + ["fold 0"] * 2 + ["fold 1"] * 2


def test_outside_a_budget_with_other_scorers_and_in_other_ways_a_search_is_refused_and_free(own_ledger: Path) -> None:
    frame = people(400)
    X, y = frame[["age", "sex"]], frame["sick"]
    scorer = daskrado.private_scorer("accuracy", epsilon=0.1)
    with pytest.raises(UsageError, match="cross-validation on private rows"):
        cross_val_score(private(), X, y, scoring=scorer, error_score="raise")
    with daskrado.budget("other", epsilon=5.0, delta=1e-5), pytest.raises(UsageError, match="cross-validation"):
        cross_val_score(private(), X, y, scoring=scorer, error_score="raise")
    with daskrado.budget("clinic", epsilon=5.0, delta=1e-5):
        for scoring in (None, "accuracy", "roc_auc"):
            with pytest.raises(UsageError, match="other scorers are exact"):
                cross_val_score(private(), X, y, scoring=scoring, error_score="raise")
        with pytest.raises(UsageError, match="other scorers are exact"):
            cross_val_predict(private(), X, y)
        X, folds = frame[["age", "sex", "id"]], private().folds(2)
        inner = GridSearchCV(private(), {"epsilon": [0.1]}, cv=folds, scoring=scorer, error_score="raise")
        with pytest.raises(UsageError, match="other scorers are exact"):  # one search in another
            cross_validate(inner, X, y, cv=2, scoring="accuracy", return_train_score=True, error_score="raise")
        with pytest.raises(UsageError, match="other scorers are exact"):
            CalibratedClassifierCV(private(), cv=2).fit(X[["age"]].to_numpy(), y)
    with pytest.raises(UsageError, match="cross-validation on private rows"):
        CalibratedClassifierCV(private(), cv=2).fit(X[["age"]].to_numpy(), y)
    with pytest.raises(UsageError, match="cross-validation on private rows"):
        RFECV(private(bounds=(0, 100), domain=None, classes=("no", "yes")), cv=2).fit(
            frame[["age", "age"]].to_numpy(), y
        )
    assert entries(own_ledger) == 0


@pytest.mark.parametrize("where", ["X", "y"])
def test_what_is_said_of_a_type_quotes_no_row(where: str) -> None:
    """One complex number makes all of an array complex; a list with one is taken, as test_odd_cells.py shows."""
    rows, labels = [[0.123456, 0.5], [0.654321, 0.25]], [0.987654, 1.0]
    (rows[1] if where == "X" else labels)[0] = 1j  # type: ignore[call-overload]
    model = PrivateClassifier(bounds=(0, 1), classes=(0, 1), dataset="clinic", epsilon=1.0, delta=1e-6)
    with pytest.raises(ValueError) as refused:
        model.fit(np.array(rows), np.array(labels))
    told = "".join(traceback.format_exception(refused.value))
    assert not {0.123456, 0.654321, 0.987654} & {*numbers_in(told)}


def test_a_block_refuses_what_it_cannot_pay_before_the_ledger_is_charged(own_ledger: Path) -> None:
    frame = people()
    with daskrado.budget("clinic", epsilon=0.8, delta=1e-5) as spending:
        private().fit(frame)
        with pytest.raises(BudgetError, match="% are left; nothing was charged for it"):
            private(epsilon=0.79).fit(frame)
        assert spending.runs == 1
    assert entries(own_ledger) == 1
    private(epsilon=0.79).fit(frame)  # outside only the owner's limit counts
    assert entries(own_ledger) == 2


def test_runs_of_every_kind_count_and_those_for_others_are_refused() -> None:
    frame = people()
    with daskrado.budget("clinic", epsilon=5.0, delta=1e-5) as spending:
        model = private().fit(frame)
        how = {"dataset": "clinic", "epsilon": 0.2, "delta": 1e-6}
        daskrado.evaluate(model.model_, frame, **how, protect={"relation": "add_remove", "unit": "one record"})
        assert spending.runs == 2
        with pytest.raises(UsageError, match="all runs of a block protect the same"):
            private(relation="replace_one").fit(frame)
        with pytest.raises(UsageError, match="budgets do not nest"), daskrado.budget("clinic", epsilon=1.0):
            pass
    with daskrado.budget("clinic", epsilon=1.0) as again:
        assert again.share == 0.0


def test_a_block_counts_the_runs_of_all_threads_and_never_more_than_it_has() -> None:
    """A block that holds three fits, ten threads that try: three succeed, whatever the order."""
    frame, done, refused = people(400), [], []

    def work() -> None:
        try:
            private(learner="moments", delta=0.0).fit(frame)
            done.append(1)
        except BudgetError:
            refused.append(1)

    private(delta=0.0, epsilon=0.1).fit(frame)  # the ledger and its first limit are there
    with daskrado.budget("clinic", epsilon=1.5) as spending:
        threads = [threading.Thread(target=work) for _ in range(10)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert (len(done), len(refused), spending.runs) == (3, 7, 3)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("tuning", "3 settings on disjoint rows and a private choice among them: epsilon 2 at delta 0 of 'clinic'"),
        ("random_stopping", "the best of a secret number of fits of 3 settings, 9 in the mean: epsilon 2 at delta 0"),
    ],
)
def test_a_search_of_its_own_costs_what_one_fit_costs(
    how: str, said: str, own_ledger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = people(12_000)
    model = private(
        domain=DOMAIN | {"id": "id"}, learner="objective_perturbation", epsilon=2.0, delta=0.0, rows=12_000,
        first_limit=(20, 0),
    )  # fmt: skip
    search = PrivateSearchCV(model, {"regularisation": [1e-3, 1e-2, 10.0]}, how=how)
    assert search.announced.startswith(said)
    search.fit(frame)
    assert capsys.readouterr().out == f"{search.announced}\n"
    assert entries(own_ledger) == 1
    assert search.statement_.epsilon == pytest.approx(2.0)
    assert search.best_params_["regularisation"] in (1e-3, 1e-2, 10.0)
    assert (search.predict(frame) == search.best_estimator_.predict(frame)).all()
    assert search.score(people(seed=9)) > 0.5
    with pytest.raises(UsageError, match="these rows are private"):
        search.score(frame)
    with pytest.raises(UsageError, match="at least 2 settings"):
        PrivateSearchCV(model, {"regularisation": [1e-3]}).fit(frame)
    with pytest.raises(UsageError, match="takes a private PrivateClassifier or"):
        PrivateSearchCV(PrivateClassifier(private=False), {"regularisation": [1e-3, 1]}).fit(frame)


def test_scores_of_regressions_are_paid_for_too() -> None:
    frame = people(4000).assign(days=lambda one: 3 + one["age"] / 20)
    domain = DOMAIN | {"id": "id", "label": {"column": "days", "bounds": [0, 12]}}
    model = PrivateRegressor(
        domain, dataset="ward", epsilon=1.0, delta=1e-6, learner="moments", first_limit=(20, 1e-4)
    )
    with daskrado.budget("ward", epsilon=8.0, delta=1e-5) as spending:
        for figure in ("r2", "mean_absolute_error"):
            scores = cross_val_score(
                model,
                frame,
                cv=model.folds(2),
                scoring=daskrado.private_scorer(figure, epsilon=1.0),
                error_score="raise",
            )
            assert np.isfinite(scores).all()
        assert spending.runs == 8
    with pytest.raises(UsageError, match="is not one of auc, accuracy"):
        daskrado.private_scorer("f1", epsilon=1.0)


def test_a_search_takes_the_way_whose_fits_have_less_noise(own_ledger: Path) -> None:
    """Pure: a third of epsilon on four fifths of the rows, or all of it on one of m + 1 parts: equal near m = 3."""
    facts = {"learner": "output_perturbation", "epsilon": 2.0, "delta": 0.0, "rows": 100_000}
    for ridges, way in (([1e-3, 1e-2], "tuning"), ([1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0], "random_stopping")):
        search = PrivateSearchCV(private(**facts), {"regularisation": ridges})
        forecasts = search.forecasts()
        assert min(forecasts, key=lambda one: forecasts[one]) == way
        assert ("secret number" in search.announced) == (way == "random_stopping")
    gaussian = private(learner={"kind": "objective_perturbation", "noise": "gaussian"}, rows=100_000, epsilon=2.0)
    only = PrivateSearchCV(gaussian, {"regularisation": [1e-3, 1e-2, 0.1, 1.0, 2.0, 3.0]})
    assert list(only.forecasts()) == ["tuning"]  # what the best of several of its runs costs is not known
    with pytest.raises(UsageError, match="of several runs of objective_perturbation costs is unknown"):
        PrivateSearchCV(gaussian, {"regularisation": [1e-3, 1e-2]}, how="random_stopping").fit(people(100))
    with pytest.raises(UsageError, match="how must be auto, random_stopping or tuning, got 'grid'"):
        PrivateSearchCV(gaussian, {"regularisation": [1e-3, 1e-2]}, how="grid").fit(people(100))
    assert entries(own_ledger) == 0


@pytest.mark.parametrize("how", ["tuning", "random_stopping"])
def test_a_regression_is_searched_in_the_same_way(how: str, own_ledger: Path) -> None:
    draw = np.random.default_rng(1)
    frame = people(6000).assign(days=lambda one: 3 + one["age"] / 20 + draw.normal(size=6000) / 4)
    domain = DOMAIN | {"id": "id", "label": {"column": "days", "bounds": [0, 12]}}
    model = PrivateRegressor(
        domain, dataset="ward", epsilon=4.0, delta=1e-6, learner="gradient", rows=6000, first_limit=(20, 1e-4)
    )
    search = PrivateSearchCV(model, {"steps": [2, 40]}, how=how, verbose=0).fit(frame)
    assert search.score(people(seed=5).assign(days=lambda one: 3 + one["age"] / 20)) > 0.5
    assert not hasattr(search, "classes_")
    assert entries(own_ledger) == 1


SEARCH = """
import pandas as pd
from daskrado.sklearn import PrivateClassifier, PrivateSearchCV
model = PrivateClassifier({domain!r}, dataset="clinic", epsilon=6.0, delta=0.0, rows=4000,
                          learner="output_perturbation", first_limit=(20, 0))
def search(**how):
    return PrivateSearchCV(model, {{"regularisation": [0.01, 0.1, 1.0]}}, output={output!r}, **how).fit({lake!r})
"""
DYING = """
import os, signal
import daskrado.ledger.journal as journal
keep, kept = journal.Journal.keep, []
def dying(self, name, arrays):
    keep(self, name, arrays)
    kept.append(name)
    if len(kept) == {after}:
        os.kill(os.getpid(), signal.SIGKILL)
journal.Journal.keep = dying
"""


@pytest.mark.cluster
@pytest.mark.parametrize(("how", "after"), [("random_stopping", 1), ("tuning", 1)])
def test_a_search_that_is_killed_and_begun_again_is_charged_once_and_draws_nothing_twice(
    how: str, after: int, killed: Callable[[str], None], tmp_path: Path, own_ledger: Path
) -> None:
    """Really killed after a draw was kept, then fitted again by the same lines with two worker processes."""
    (tmp_path / "lake").mkdir()
    frame = people(4000)
    for part in range(2):
        frame.iloc[part::2].to_parquet(tmp_path / "lake" / f"{part}.parquet")
    facts = {"domain": DOMAIN | {"id": "id"}, "output": str(tmp_path / "out"), "lake": str(tmp_path / "lake")}
    code = SEARCH.format(**facts)
    killed(f"{DYING.format(after=after)}\n{code}\nsearch(how={how!r}, verbose=0)")
    with Ledger.open(own_ledger) as ledger:
        (begun,) = ledger.entries()
        before = ledger.draws(begun.id)
    genuine, again = Ledger.count_draw, list[str]()

    def counting(self: Ledger, grant: Any, name: str, *rest: Any, **how: Any) -> None:
        again.append(name)
        genuine(self, grant, name, *rest, **how)

    there: dict[str, Any] = {}
    exec(code, there)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Ledger, "count_draw", counting)
        search = there["search"](how=how, verbose=0, n_jobs=2)
    assert again
    assert not before & {*again}
    with Ledger.open(own_ledger) as ledger:
        (entry,) = ledger.entries()
        assert ledger.draws(entry.id) == before | {*again}
    assert (entry.id, entry.run) == (begun.id, begun.run)
    assert entry.event == PureEvent(6.0)
    assert f"epsilon {float(entry.event.epsilon):g} at delta 0" in search.announced_
    assert search.statement_.epsilon == pytest.approx(6.0)
    assert search.best_index_ in range(3)
    assert (tmp_path / "out" / "manifest.json").exists()
