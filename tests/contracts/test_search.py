"""Searches on private rows: what they are charged, what is refused, and that nothing is drawn for free."""

from __future__ import annotations

import threading
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from published_text import numbers_in
from sklearn.calibration import CalibratedClassifierCV
from sklearn.feature_selection import RFECV
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score, cross_validate

import daskrado
from daskrado.errors import BudgetError, UsageError
from daskrado.ledger.ledger import Ledger
from daskrado.sklearn import PrivateClassifier, PrivateRegressor, PrivateSearchCV

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
    facts = {"domain": DOMAIN, "dataset": "clinic", "epsilon": 0.5, "delta": 1e-6, "first_limit": (20, 1e-4)}
    return PrivateClassifier(**facts | {"learner": "moments"} | changes)


def entries(path: Path) -> int:
    if not path.exists():
        return 0
    with Ledger.open(path) as ledger:
        return len(list(ledger.entries()))


def test_a_grid_search_inside_a_budget_is_charged_fit_by_fit_and_score_by_score(own_ledger: Path) -> None:
    """2 settings, 3 folds: 6 fits, 6 evaluations and the last fit on all rows."""
    frame = people()
    grid = {"learner": ["moments", {"kind": "moments", "regularisation": 100.0}]}
    with daskrado.budget("clinic", epsilon=5.0, delta=1e-5) as spending:
        scorer = daskrado.private_scorer("auc", epsilon=0.5)
        search = GridSearchCV(private(), grid, cv=3, scoring=scorer, error_score="raise").fit(frame)
        assert spending.runs == 13
        assert 0 < spending.share <= 1
    assert entries(own_ledger) == 13
    assert search.best_score_ > 0.6
    assert search.predict(people(seed=4)).shape == (4000,)


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
        inner = GridSearchCV(private(), {"epsilon": [0.1]}, cv=2, scoring=scorer, error_score="raise")
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
def test_what_is_said_of_an_odd_cell_quotes_no_row(where: str) -> None:
    rows, labels = [[0.123456, 0.5], [0.654321, 0.25]], [0.987654, 1.0]
    (rows[1] if where == "X" else labels)[0] = 1j  # type: ignore[call-overload]
    model = PrivateClassifier(bounds=(0, 1), classes=(0, 1), dataset="clinic", epsilon=1.0, delta=1e-6)
    with pytest.raises(ValueError) as refused:
        model.fit(rows, labels)
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


def test_a_search_of_its_own_costs_what_one_fit_costs(own_ledger: Path) -> None:
    frame = people(12_000)
    model = private(
        domain=DOMAIN | {"id": "id"}, learner="objective_perturbation", epsilon=2.0, delta=0.0, rows=12_000,
        first_limit=(20, 0),
    )  # fmt: skip
    search = PrivateSearchCV(model, {"regularisation": [1e-3, 1e-2, 10.0]})
    assert search.announced.startswith("3 settings on disjoint rows and a private choice among them: epsilon 2")
    search.fit(frame)
    assert entries(own_ledger) == 1
    assert search.statement_.epsilon == pytest.approx(2.0)
    assert search.best_params_["regularisation"] in (1e-3, 1e-2, 10.0)
    assert (search.predict(frame) == search.best_estimator_.predict(frame)).all()
    assert search.score(people(seed=9)) > 0.5
    with pytest.raises(UsageError, match="these rows are private"):
        search.score(frame)
    with pytest.raises(UsageError, match="at least 2 settings"):
        PrivateSearchCV(model, {"regularisation": [1e-3]}).fit(frame)
    with pytest.raises(UsageError, match="takes a private PrivateClassifier"):
        PrivateSearchCV(PrivateClassifier(private=False), {"regularisation": [1e-3, 1]}).fit(frame)


def test_scores_of_regressions_are_paid_for_too() -> None:
    frame = people(4000).assign(days=lambda one: 3 + one["age"] / 20)
    domain = DOMAIN | {"label": {"column": "days", "bounds": [0, 12]}}
    model = PrivateRegressor(
        domain, dataset="ward", epsilon=1.0, delta=1e-6, learner="moments", first_limit=(20, 1e-4)
    )
    with daskrado.budget("ward", epsilon=8.0, delta=1e-5) as spending:
        for figure in ("r2", "mean_absolute_error"):
            scores = cross_val_score(
                model, frame, cv=2, scoring=daskrado.private_scorer(figure, epsilon=1.0), error_score="raise"
            )
            assert np.isfinite(scores).all()
        assert spending.runs == 8
    with pytest.raises(UsageError, match="is not one of auc, accuracy"):
        daskrado.private_scorer("f1", epsilon=1.0)
