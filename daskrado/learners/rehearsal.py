"""A rehearsal on public rows: parameters that a learner does not take are found before anything is spent."""

from __future__ import annotations

import warnings

import numpy as np

from daskrado.errors import UsageError
from daskrado.learners.black_box import BlackBox
from daskrado.table.domain import Domain


def rehearse(box: BlackBox, where: str, domain: Domain, classes: int) -> None:
    """Fit and ask a throw-away estimator on synthetic rows, or a UsageError that begins with ``where``.

    The rows are drawn from a public seed inside the norm bound, with all classes among them, so the error's text
    tells nothing.
    """
    if not box.rehearsed:
        return
    rows, width = box.rehearsal_rows, domain.width
    draw = np.random.Generator(np.random.Philox(key=[13, 0]))
    x = draw.uniform(-1, 1, size=(rows, width)) * (domain.norm_bound / np.sqrt(width))
    y = np.arange(rows, dtype=np.int64) % classes
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            estimator = box.make_quick(domain)
            estimator.fit(x, y)
            np.asarray(estimator.predict(x), dtype=np.float64).reshape(rows)
    except Exception as error:  # whatever a black box raises
        text = " ".join(str(error).split()) or "no reason given"
        raise UsageError(f"{where}: {box.title} does not learn ({type(error).__name__}: {text})") from error
