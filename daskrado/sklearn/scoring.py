"""Scores of private rows that somebody paid for: what scikit-learn's searches may use on them."""

from __future__ import annotations

import inspect
from typing import Any

from sklearn.utils.validation import check_is_fitted

from daskrado.errors import UsageError
from daskrado.jobs.spending import active
from daskrado.lake.holdout import Fold
from daskrado.sklearn.folds import Origin, origin_of

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

        fold = _fold_of_score(X)
        while not hasattr(estimator, "model_") and (inner := _inside(estimator, X)) is not None:
            estimator, X = inner
        check_is_fitted(estimator, "model_")
        if not estimator.private:
            raise UsageError(
                "private_scorer is for private fits: with private=False any scoring of scikit-learn works"
            )
        given = estimator.unread(X) if estimator._arrays else X
        rows = estimator._with_label(given, y, estimator.model_.domain)
        delta = estimator.delta if self.delta is None else self.delta
        protect = {"relation": estimator.relation, "unit": estimator._whose}
        found = evaluate(
            estimator.model_, rows, dataset=estimator.dataset, epsilon=self.epsilon, delta=delta, protect=protect,
            ledger=estimator.ledger, holdout=None if fold is None else fold.model_dump(),
        ).value  # fmt: skip
        if self.figure == "r2":
            return float(found.cells.r_squared.value)
        if self.figure == "mean_absolute_error":
            return -float(found.cells.absolute_error.value)
        if self.figure == "auc":
            return float(found.auc.value)
        error = found.error if hasattr(found, "error") else found.cells.error  # of two sides, of several classes
        return 1 - float(error.value)


def _inside(estimator: Any, X: Any) -> tuple[Any, Any] | None:
    """The model of a search or of a Pipeline, and the rows as it takes them."""
    if hasattr(estimator, "best_estimator_"):
        return estimator.best_estimator_, X
    return (estimator[-1], estimator[:-1].transform(X)) if hasattr(estimator, "steps") else None


def private_scorer(figure: str, *, epsilon: float, delta: float | None = None) -> PrivateScorer:
    """A scorer for ``scoring=`` whose every call is a private evaluation: auc, accuracy, r2, mean_absolute_error.

    Without ``delta`` it is the estimator's.
    """
    return PrivateScorer(figure, epsilon, delta)


def refuse_search(dataset: str | None, by: str | None, *, places: bool) -> Fold | None:
    """Refuse scikit-learn's searches on private rows, unless a budget is open, every score is paid for and folds are
    sound; else the fold that a fit inside one leaves out, None where it reads all rows or is charged as if it did.

    ``by`` is the column of the ids that the fit protects; ``places`` says that rows keep their places.
    """
    inside = [one.frame for one in inspect.stack(context=0) if _of_search(one.frame)]
    if not inside:
        return None
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
    origins = [_origin(frame, "train") for frame in inside if "train" in frame.f_locals]
    own = Origin(str(dataset), by, None)
    for origin in origins:
        if origin is None or origin._replace(fold=None) != own or (by is None and not places):
            raise UsageError(
                "a search on private rows needs folds that a hash of ids decides, cv=model.folds(5): splitters of "
                "scikit-learn go by place, class or size, and one row taken away moves others from fold to fold"
                + ("" if by is not None or places else "; name the column of ids (unit=, or id of the domain)")
            )
    return origins[0].fold if len(origins) == 1 and origins[0] is not None else None


def _origin(frame: Any, name: str) -> Origin | None:
    """What decided the rows of a fit, or of its score; None where nobody knows."""
    return origin_of(frame.f_locals.get(name)) if frame.f_code.co_name == "_fit_and_score" else None


def _fold_of_score(X: Any) -> Fold | None:
    """The fold that a scorer is given; None outside of searches, in one inside another, and for rows of the fit."""
    inside = [
        one.frame for one in inspect.stack(context=0) if "train" in one.frame.f_locals and _of_search(one.frame)
    ]
    if len(inside) != 1 or inside[0].f_locals.get("X_test") is not X:
        return None
    origin = _origin(inside[0], "test")
    return None if origin is None else origin.fold


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
