"""MLflow: a finished run as a run there, with its model, manifest, report and figures.

``pip install 'daskrado[mlflow]'``. All of it is released or public; nothing is charged.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import daskrado
from daskrado.errors import UsageError
from daskrado.jobs.outcome import Result
from daskrado.jobs.published import Published
from daskrado.models.linear import LinearModel
from daskrado.privacy.statement import PrivacyStatement

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["log"]


class _Predictor:
    """What MLflow calls: a frame of rows in, a Series of predicted labels out."""

    def __init__(self, model: LinearModel) -> None:
        self.model = model

    def predict(self, rows: pd.DataFrame) -> Any:
        """By the published model."""
        return self.model.predict(rows)


def _load_pyfunc(path: str) -> _Predictor:
    """What MLflow loads a logged model with; no pickle is read."""
    return _Predictor(LinearModel.load(path))


def log(result: Result | str | Path, *, name: str = "model") -> Any:
    """Log a result, or the folder of a run, to the active MLflow run; without one, to a run of its own.

    There are then the model ``name`` as a pyfunc (its ``model.json``, loaded without pickles), all published files
    (manifest, report, evaluation) under ``published``, epsilon, delta and all figures of the manifest as metrics, who
    is protected and by what as parameters, and the guarantee in words as tag ``privacy``. A result that was returned
    and not written has neither manifest nor report: run with ``out=`` to have them. Returns MLflow's ModelInfo, None
    where the run published no model.
    """
    try:
        import mlflow
    except ImportError as error:
        raise UsageError("daskrado.mlflow needs MLflow: pip install 'daskrado[mlflow]'") from error
    folder = result.folder if isinstance(result, Result) else Path(result)
    known = None if folder is None else Published.load(folder)
    if isinstance(result, Result):
        about, statement, model = vars(result), result.statement, result.model
    else:
        assert known is not None
        about, model = known.content, known.model
        statement = known.statement or PrivacyStatement.none()
    with contextlib.ExitStack() as stack:
        if mlflow.active_run() is None:
            stack.enter_context(mlflow.start_run(run_name=f"{about['dataset']} {about['run'][:12]}"))
        mlflow.set_tag("privacy", statement.sentence())
        told = {"epsilon": statement.epsilon, "delta": statement.delta, **about["facts"]}
        mlflow.log_metrics(dict(_figures(told)))
        whom = {"relation": statement.relation, "unit": statement.unit, "mechanism": statement.mechanism}
        facts = {key: about[key] for key in ("kind", "dataset", "run")} | whom
        facts["learner"] = None if model is None else model.learner
        mlflow.log_params({key: str(value) for key, value in facts.items() if value})
        if known is not None:
            mlflow.log_artifacts(str(known.folder), "published")
        return None if model is None else _log_model(mlflow, model, name)


def _log_model(mlflow: Any, model: LinearModel, name: str) -> Any:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        model.save(path)
        return mlflow.pyfunc.log_model(
            name=name,
            loader_module=__name__,
            data_path=str(path),
            pip_requirements=[f"daskrado=={daskrado.__version__}"],
            metadata={"privacy": model.statement.sentence()},
        )


def _figures(facts: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, float]]:
    """Single numbers of nested facts, by the path that leads to each."""
    for key, value in facts.items():
        if isinstance(value, Mapping):
            yield from _figures(value, f"{above}{key}.")
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            yield re.sub(r"[^\w\-. :/]", "_", f"{above}{key}"), float(value)  # the characters that MLflow allows
