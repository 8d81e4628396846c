"""Scores of private rows that somebody paid for: what scikit-learn's searches may use on them."""

from __future__ import annotations

import inspect
from typing import Any

from sklearn.utils.validation import check_is_fitted

from daskrado.errors import UsageError
from daskrado.jobs.spending import active

_ONE_FIT = ("sklearn.base", "sklearn.pipeline", "sklearn.compose", "sklearn.utils")
"""What fits an estimator once and looks at no label: all else of scikit-learn may fit, score or calibrate on rows."""
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
    scorers = [one for frame in inside for one in _scorers(frame)]
    if not scorers or not all(map(_is_private, scorers)):
        raise UsageError(
            "a search on private rows needs scoring=daskrado.private_scorer(...): other scorers are exact"
        )


def _of_search(frame: Any) -> bool:
    name = f"{frame.f_globals.get('__name__', '')}."
    return name.startswith("sklearn.") and not name.startswith(tuple(f"{one}." for one in _ONE_FIT))


def _scorers(frame: Any) -> list[Any]:
    """What a function of scikit-learn scores with, as far as it knows: of two searches, one in the other, both."""
    known = frame.f_locals
    if (own := next((name for name in ("scorer", "scoring") if name in known), None)) is not None:
        return [known[own]]
    return [known["self"].scoring] if hasattr(known.get("self"), "scoring") else []


def _is_private(scorer: Any) -> bool:
    several = getattr(scorer, "_scorers", scorer)  # of several figures
    if isinstance(several, dict):
        return bool(several) and all(map(_is_private, several.values()))
    return isinstance(scorer, PrivateScorer)
