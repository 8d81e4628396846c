"""PrivateSearchCV: a choice among settings of a learner, charged as a whole and announced before."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, cast

from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from daskrado.api import run
from daskrado.errors import UsageError
from daskrado.jobs.learn import LearnJob
from daskrado.jobs.load import load_job, run_once
from daskrado.jobs.row_count import STAND_IN
from daskrado.learners.on_passes.iterative import worthwhile_guarantee
from daskrado.learners.on_passes.random_stopping import TRIES, RandomStopping
from daskrado.learners.on_passes.tuning import Tuning
from daskrado.sklearn.classifier import PrivateClassifier
from daskrado.sklearn.regressor import PrivateRegressor
from daskrado.sklearn.rows import read_domain
from daskrado.table.domain import Domain

WAYS = (RandomStopping.name, Tuning.name)


def _has(name: str) -> Any:
    return available_if(lambda search: hasattr(getattr(search, "best_estimator_", search.estimator), name))


def _least(forecasts: Mapping[str, float]) -> str:
    return min(forecasts, key=lambda way: forecasts[way])


class PrivateSearchCV(MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Choose among the settings of ``param_grid`` in private: one charge of ``estimator.epsilon`` for all of it.

    ``estimator`` is a private PrivateClassifier or PrivateRegressor with a learner that can be tuned (``gradient``,
    ``objective_perturbation``, ``output_perturbation``); ``param_grid`` maps the learner's options to lists.
    ``how`` is ``tuning`` (every setting on rows of its own: fewer rows, the whole budget), ``random_stopping`` (a
    secret number of fits, each on most of the rows with a part of the budget, of which the best is kept) or ``auto``:
    the one whose fits have the smaller forecast of excess loss at the same charge, by public facts. ``announced``
    says which and what it costs before a row is read; ``verbose=0`` does not print it.

    ``n_jobs`` is a number of worker processes that read rows; noise is drawn in this one. With ``output``, a folder,
    the search of a lake by its address is a run that is kept: ``fit`` again after a crash finishes that run, without
    a second charge and without a second draw of anything that was drawn.

    Sensitivity
        That of the learner ``tuning`` or ``random_stopping``.

    Reference
        Chaudhuri, Monteleoni and Sarwate (2011), algorithm 4; Papernot and Steinke (2022), Hyperparameter tuning with
        Renyi differential privacy; Liu and Talwar (2019), Private selection from private candidates.
    """

    def __init__(
        self,
        estimator: PrivateClassifier | PrivateRegressor,
        param_grid: Mapping[str, Sequence[Any]],
        *,
        how: str = "auto",
        n_jobs: int | None = None,
        output: str | Path | None = None,
        verbose: int = 1,
    ) -> None:
        self.estimator = estimator
        self.param_grid = param_grid
        self.how = how
        self.n_jobs = n_jobs
        self.output = output
        self.verbose = verbose

    def _check(self) -> None:
        if not (isinstance(self.estimator, PrivateClassifier | PrivateRegressor) and self.estimator.private):
            raise UsageError(
                "PrivateSearchCV takes a private PrivateClassifier or PrivateRegressor: elsewhere GridSearchCV works"
            )
        if self.how not in ("auto", *WAYS):
            raise UsageError(f"how must be auto, {' or '.join(WAYS)}, got {self.how!r}")

    @property
    def candidates(self) -> list[dict[str, Any]]:
        """The learners that are tried, as a pipeline writes them."""
        learner = self.estimator.learner
        base = {"kind": learner} if isinstance(learner, str) else dict(learner)
        names = list(self.param_grid)
        found = [
            base | dict(zip(names, values, strict=True)) for values in itertools.product(*self.param_grid.values())
        ]
        if len(found) < 2:
            raise UsageError(f"a search needs at least 2 settings, got {len(found)}: give lists of several values")
        return found

    def forecasts(self, domain: Domain | None = None) -> dict[str, float]:
        """The forecast of excess loss of each way that these settings can be searched, from public facts alone."""
        self._check()
        domain, grid = domain or read_domain(self.estimator.domain), self.candidates
        if domain is None:
            raise UsageError("without domain= the cost of a search is announced when it has the rows, by fit")
        found, refused = {}, []
        for way in WAYS if self.how == "auto" else (self.how,):
            chosen = clone(self.estimator).set_params(learner={"kind": way, "grid": grid})
            keys = {**chosen._job(domain), "dataset": chosen.dataset or "unnamed", "lake": ".", "output": "."}
            try:
                job = cast(LearnJob, load_job({**keys, "domain": domain}))
                facts = job.facts_of(job.guessed_rows or STAND_IN, job.asked)
                worthwhile_guarantee(job.trainer, facts)
                found[way] = job.trainer.excess(facts)
            except UsageError as error:
                refused.append(error)
        if not found:
            raise refused[0]
        return found

    @property
    def announced(self) -> str:
        """How the search is made and what it costs, whatever it finds."""
        return self._announced(self.forecasts())

    def _announced(self, forecasts: Mapping[str, float]) -> str:
        own, settings = self.estimator, len(self.candidates)
        done = (
            f"{settings} settings on disjoint rows and a private choice among them"
            if _least(forecasts) == "tuning"
            else f"the best of a secret number of fits of {settings} settings, {TRIES * settings} in the mean"
        )
        return f"{done}: epsilon {own.epsilon:g} at delta {own.delta:g} of {own.dataset!r}, once"

    def fit(self, X: Any, y: Any = None, *, units: Any = None) -> Self:
        """Search; ``best_estimator_`` is the chosen fit, ``best_params_`` its place in the grid."""
        self._check()
        found, grid = clone(self.estimator), self.candidates
        job = found.set_params(**({} if self.n_jobs is None else {"workers": self.n_jobs})).job(X, y, units)
        forecasts = self.forecasts(job["domain"])
        self.way_, self.announced_ = _least(forecasts), self._announced(forecasts)
        if self.verbose:
            print(self.announced_)
        found.set_params(learner={"kind": self.way_, "grid": grid})
        job["learner"] = found.learner
        if self.output is None:
            result = run(job, write=False)
        else:
            result = run_once(load_job({**job, "output": str(self.output)}))
        self.best_estimator_ = found.fitted(result, job)
        self.best_index_ = int(found.model_.details["place_in_grid"])
        self.best_params_ = {name: grid[self.best_index_][name] for name in self.param_grid}
        if hasattr(found, "classes_"):
            self.classes_ = found.classes_
        return self

    @property
    def statement_(self) -> Any:
        """What the whole search protects."""
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_.statement_

    def predict(self, X: Any) -> Any:
        """By the chosen model."""
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_.predict(X)

    @_has("predict_proba")  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Any:
        """By the chosen model."""
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_.predict_proba(X)

    def score(self, X: Any, y: Any = None) -> float:
        """Of **public** rows, by the chosen model."""
        check_is_fitted(self, "best_estimator_")
        return float(self.best_estimator_.score(X, y))
