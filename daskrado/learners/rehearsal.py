"""A rehearsal on public rows: parameters that a learner does not take are found before anything is spent."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from daskrado.errors import UsageError
from daskrado.learners.black_box import ObjectFactory, OwnFactory, SklearnFactory

_ROWS = 256
_ROUNDS = 3


def dry_fit(
    factory: OwnFactory | SklearnFactory | ObjectFactory, where: str, width: int, norm_bound: float, classes: int
) -> None:
    """Fit and ask a throw-away estimator on synthetic rows, or a UsageError that begins with ``where``.

    This library's own learners are not rehearsed: their settings are checked where they are read. The rows are drawn
    from a public seed inside the norm bound, with all classes among them, so the error's text tells nothing.
    """
    if isinstance(factory, OwnFactory):
        return
    neighbours: Any = factory.parameters.get("n_neighbors", 0) if isinstance(factory, SklearnFactory) else 0
    rows = max(_ROWS, neighbours if isinstance(neighbours, int) else 0)
    draw = np.random.Generator(np.random.Philox(key=[13, 0]))
    x = draw.uniform(-1, 1, size=(rows, width)) * (norm_bound / np.sqrt(width))
    y = np.arange(rows, dtype=np.int64) % classes
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            estimator = factory.make(0)
            if isinstance(factory, SklearnFactory):
                _shorten(estimator)
            estimator.fit(x, y)
            np.asarray(estimator.predict(x), dtype=np.float64).reshape(rows)
    except Exception as error:  # whatever a black box raises
        reason = " ".join(str(error).split()) or "no reason given"
        raise UsageError(f"{where}: {factory.path} does not learn ({type(error).__name__}: {reason})") from error


def _shorten(estimator: Any) -> None:
    """A few rounds are enough to see that the parameters are taken; a number of rounds that is not, stays."""
    for name in ("max_iter", "n_estimators"):
        value = estimator.get_params().get(name)
        if isinstance(value, int) and value > _ROUNDS:
            estimator.set_params(**{name: _ROUNDS})
