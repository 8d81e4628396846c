"""Scores of private rows that somebody paid for: what scikit-learn's searches may use on them."""

from __future__ import annotations

import inspect
from typing import Any

from sklearn.utils.validation import check_is_fitted

from daskrado.errors import UsageError
from daskrado.jobs.spending import active

_SEARCHES = "sklearn.model_selection"
FIGURES = ("auc", "accuracy", "r2", "mean_absolute_error")


class PrivateScorer:
    """``scorer(estimator, X, y)``: one private evaluation of the fitted model, charged with its own epsilon."""

    def __init__(self, figure: str, epsilon: float, delta: float | None) -> None:
        if figure not in FIGURES:
            raise UsageError(f"private_scorer: {figure!r} is not one of {', '.join(FIGURES)}")
        self.figure = figure
        self.epsilon = epsilon
        self.delta = delta

    def __repr__(self) -> str:
        return f"private_scorer({self.figure!r}, epsilon={self.epsilon:g})"

    def __call__(self, estimator: Any, X: Any, y: Any = None) -> float:
        """The figure, larger for better."""
        from daskrado.api import evaluate

        check_is_fitted(estimator, "model_")
        if not estimator.private:
            raise UsageError(
                "private_scorer is for private fits: with private=False any scoring of scikit-learn works"
            )
        rows = estimator._with_label(estimator._rows(X) if y is not None else X, y, estimator.model_.domain)
        delta = estimator.delta if self.delta is None else self.delta
        protect = {"relation": estimator.relation, "unit": estimator._whose}
        found = evaluate(
            estimator.model_, rows, dataset=estimator.dataset, epsilon=self.epsilon, delta=delta, protect=protect,
            ledger=estimator.ledger,
        ).value  # fmt: skip
        if self.figure == "r2":
            return float(found.cells.r_squared.value)
        if self.figure == "mean_absolute_error":
            return -float(found.cells.absolute_error.value)
        if self.figure == "auc":
            return float(found.auc.value)
        error = found.error if hasattr(found, "error") else found.cells.error  # of two sides, of several classes
        return 1 - float(error.value)


def private_scorer(figure: str, *, epsilon: float, delta: float | None = None) -> PrivateScorer:
    """A scorer for ``scoring=`` whose every call is a private evaluation: auc, accuracy, r2, mean_absolute_error.

    Without ``delta`` it is the estimator's.
    """
    return PrivateScorer(figure, epsilon, delta)


def refuse_search(dataset: str | None) -> None:
    """Refuse scikit-learn's searches on private rows, unless a budget is open and every score is paid for."""
    inside = [one.frame for one in inspect.stack(context=0) if _of_search(one.frame)]
    if not inside:
        return
    if not active(dataset):
        raise UsageError(
            "cross-validation on private rows gives out exact scores that nobody paid for: open a block 'with "
            f"daskrado.budget({dataset!r}, epsilon=...)' and give scoring=daskrado.private_scorer(...), take "
            "PrivateSearchCV, or search on public rows with private=False; worker processes of n_jobs see no block"
        )
    scorers = [frame.f_locals.get("scorer", getattr(frame.f_locals.get("self"), "scoring", None)) for frame in inside]
    if not any(isinstance(one, PrivateScorer) for one in scorers):
        raise UsageError(
            "a search on private rows needs scoring=daskrado.private_scorer(...): other scorers are exact"
        )


def _of_search(frame: Any) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith(_SEARCHES)
