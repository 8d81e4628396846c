"""What every estimator here is: parameters, one charged fit, predictions by the published model."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Self
from weakref import WeakKeyDictionary

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data

from daskrado import __version__
from daskrado.api import run
from daskrado.errors import UsageError
from daskrado.jobs.outcome import Result
from daskrado.lake.holdout import Fold
from daskrado.models.linear import LinearModel
from daskrado.privacy.relations import Relation
from daskrado.privacy.statement import PrivacyStatement
from daskrado.sklearn.folds import PrivateKFold
from daskrado.sklearn.rows import (
    UNIT,
    bounds_of_rows,
    cells,
    domain_of_numbers,
    is_frame,
    is_lake,
    mark_of,
    named,
    read_domain,
    renamed,
    with_column,
    without_rows,
)
from daskrado.sklearn.scoring import refuse_search
from daskrado.table.domain import Domain

_VERSION = "_daskrado_version"
_FITTED_ON: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # of this process; never in a pickle


class LakeEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """An estimator whose ``fit`` is one run of a job: charged to the ledger under ``dataset`` before a row is read.

    A clone has the parameters and nothing else: its fit is a run of its own and is charged anew. What is learned
    (``result_``, ``model_``) is released or public, so a pickle holds no row.
    """

    label_fact: ClassVar[str]  # the parameter that says of an array's label what a Domain would

    dataset: str | None
    domain: Any
    bounds: Any
    private: bool
    relation: str
    unit: Any

    result_: Result
    model_: LinearModel
    n_features_in_: int
    feature_names_in_: NDArray[np.object_]

    @abstractmethod
    def _job(self, domain: Domain) -> Mapping[str, Any]:
        """The keys of the job, but for lake, domain, data set and output."""

    @abstractmethod
    def _label(self, fact: Any) -> Mapping[str, Any]:
        """A Domain's label of column ``y``, from its public fact."""

    @abstractmethod
    def _fact_of(self, y: Any) -> Any:
        """The same fact, read off labels that nobody protects."""

    @abstractmethod
    def _score(self, rows: Any, labels: Any, sample_weight: Any) -> float:
        """How good predictions of rows in memory are."""

    def fit(self, X: Any, y: Any = None, *, units: Any = None) -> Self:
        """Learn from a lake's address, from a frame that holds the label, or from ``X`` and ``y``.

        ``units`` are the ids of the people who own the rows, where they are no column of ``X``.
        """
        job = self.job(X, y, units)
        return self.fitted(run(job, write=False), job)

    def job(self, X: Any, y: Any = None, units: Any = None) -> dict[str, Any]:
        """The keys of the job that a fit runs; what is missing is said here, before anything is charged."""
        domain = read_domain(self.domain)
        if domain is None and self.private and (self.bounds is None or getattr(self, self.label_fact) is None):
            raise UsageError(
                f"{type(self).__name__} needs domain=, the public bounds and categories of the columns ('daskrado "
                f"init LAKE --label COLUMN' drafts one from a schema), or bounds=(lower, upper) and "
                f"{self.label_fact}= for an array of numbers: neither is ever read off private rows"
            )
        if self.private and self.dataset is None:
            raise UsageError(f"{type(self).__name__} needs dataset=, the name by which the ledger knows these rows")
        fold = self._fold(domain) if self.private else None
        if domain is None:
            rows, domain = self._own_domain(X, y)
        else:
            rows = self._with_label(X, y, domain)
        if units is not None:
            rows = with_column(rows, self._unit_column or UNIT, units, "units", domain)
        job = {
            **self._job(domain),
            "dataset": self.dataset or "unnamed",
            "lake": rows,
            "domain": domain,
            "output": ".",
        }
        if fold is not None and job.get("kind", "learn") == "learn":  # others read the rows given, and pay for all
            job["holdout"] = fold
        return job

    def fitted(self, result: Result, job: Mapping[str, Any]) -> Self:
        """The estimator with what a run of its job found."""
        self._learned(result, arrays=self.domain is None)
        rows = job["lake"]
        if self.private and not (is_lake(rows) or hasattr(rows, "npartitions")):
            _FITTED_ON[self] = mark_of(rows, job["domain"])
        return self

    def folds(self, n_splits: int = 5) -> PrivateKFold:
        """Folds by the ids that a fit protects, for ``cv=`` of scikit-learn's searches inside a budget."""
        by = self._ids(read_domain(self.domain))
        return PrivateKFold(n_splits, dataset=self.dataset or "unnamed", by=by)

    def _ids(self, domain: Domain | None) -> str | None:
        return self._unit_column or (None if domain is None else domain.id)

    def _fold(self, domain: Domain | None) -> Fold | None:
        by, places = self._ids(domain), Relation(self.relation).rows_public and self.unit is None
        return refuse_search(self.dataset, by, places=places)

    def _learned(self, result: Result, *, arrays: bool) -> Self:
        assert result.model is not None
        self._arrays = arrays  # columns have no names of the Domain's, and scikit-learn checks them
        self.result_ = result
        self.model_ = result.model
        domain = result.model.domain
        if not arrays:
            self.feature_names_in_ = np.array(list(domain.columns), dtype=object)
            self.n_features_in_ = len(domain.columns)
        return self

    def _own_domain(self, X: Any, y: Any) -> tuple[Any, Domain]:
        """Rows as scikit-learn checks them, and a Domain of numbers: declared, or read off rows that are not private.

        Of private rows only the schema is checked: no value, and not their number.
        """
        if is_lake(X):
            raise UsageError(f"{type(self).__name__} needs domain= to read a lake: see 'daskrado init LAKE'")
        if self.private:
            X = self.unread(X, reset=True)
            if y is None:
                raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
            bounds, fact = self.bounds, getattr(self, self.label_fact)
        else:
            X, y = validate_data(self, X, y, dtype=np.float64, **self._checks)
            bounds, fact = bounds_of_rows(X), self._fact_of(y)
        names = [f"x{i}" for i in range(X.shape[1])]
        domain = domain_of_numbers(names, bounds, self._label(fact))
        return with_column(named(X, names), "y", y, "y", domain), domain

    def unread(self, X: Any, *, reset: bool = False) -> Any:
        """Private rows without names, as scikit-learn checks their schema: no value of them, and not their number."""
        X = cells(X)
        with without_rows():
            if is_frame(X):
                validate_data(self, X, reset=reset, skip_check_array=True)
            else:
                checks = {"dtype": None, "ensure_all_finite": False, "ensure_min_samples": 0}
                X = pd.DataFrame(validate_data(self, X, reset=reset, **checks))
        return renamed(X, [f"x{i}" for i in range(X.shape[1])])

    _checks: ClassVar[Mapping[str, Any]] = {}  # of labels, by scikit-learn, where nobody is protected

    def _with_label(self, X: Any, y: Any, domain: Domain) -> Any:
        if y is None:
            if is_lake(X) or is_frame(X):
                return X if is_lake(X) else named(X, [])
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None; a frame or a lake may "
                f"hold it as column {domain.label.column!r}"
            )
        if is_lake(X):
            raise UsageError(f"a lake holds its label: y is read from its column {domain.label.column!r}; drop y")
        return with_column(named(X, list(domain.columns)), domain.label.column, y, "y", domain)

    @property
    def _unit_column(self) -> str | None:
        return self.unit.get("column") if isinstance(self.unit, Mapping) else self.unit

    @property
    def _whose(self) -> Any:
        """``protect.unit`` of the job: a column of ids, or no more than a row."""
        if self.unit is None or isinstance(self.unit, Mapping):
            return self.unit or "one record"
        return {"column": self.unit, "name": f"one {self.unit}"}

    @property
    def _sign(self) -> float:
        """-1 where weights are turned round, as scikit-learn orders the classes."""
        return 1.0

    def _rows(self, X: Any) -> Any:
        check_is_fitted(self, "model_")
        if self._arrays:
            X = validate_data(self, X, reset=False, dtype=np.float64)
        return named(X, list(self.model_.domain.columns))

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """How good predictions of **public** rows are, exactly: the share that is right, or R^2 of numbers.

        The rows of the fit are refused: an exact score of them is a release that nobody paid for. Other private rows
        cannot be told from public ones.
        """
        check_is_fitted(self, "model_")
        domain = self.model_.domain
        if is_lake(X):
            raise UsageError("score takes rows in memory: 'daskrado evaluate MODEL LAKE' evaluates a lake")
        rows = self._with_label(self._rows(X) if y is not None else X, y, domain)
        if self.private and _FITTED_ON.get(self) == mark_of(rows, domain):
            raise UsageError(
                f"these rows are private, as data set {self.dataset!r}, and score is exact: give public rows, or pay "
                "for an evaluation (daskrado.evaluate)"
            )
        column = rows[domain.label.column] if isinstance(rows, pd.DataFrame) else rows.column(domain.label.column)
        return self._score(rows, column, sample_weight)

    @property
    def statement_(self) -> PrivacyStatement:
        """What the fit protects, for whom, by which theorem."""
        check_is_fitted(self, "model_")
        return self.result_.statement

    @property
    def coefficients_(self) -> pd.DataFrame:
        """Weights by encoded feature, as the model publishes them: weight, low, high, p, mark."""
        check_is_fitted(self, "model_")
        return self.model_.coefficients

    def intervals(self, level: float = 0.95) -> pd.DataFrame:
        """Both ends of the interval of each weight; NaN where there is none, and ``model_.error_bars.about`` why."""
        check_is_fitted(self, "model_")
        return self.model_.intervals(level)

    @property
    def coef_(self) -> NDArray[np.float64]:
        """Weights of the encoded features (``model_.domain.feature_names``), without the constant."""
        check_is_fitted(self, "model_")
        constant = bool(self.model_.domain.intercept)
        return self._sign * self.model_.weights[..., : self.model_.domain.width - constant]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), _VERSION: __version__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if (written := state.get(_VERSION)) != __version__:
            raise UsageError(
                f"this {type(self).__name__} was pickled by daskrado {written or 'of another version'} and this is "
                f"{__version__}: a published model.json is read by every later version, a pickle by its own alone"
            )
        super().__setstate__({key: value for key, value in state.items() if key != _VERSION})

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = bool(self.private)
        tags.target_tags.required = self.domain is None
        return tags
