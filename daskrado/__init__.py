"""Differentially private linear models learned from Parquet lakes on Dask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"
__all__ = [
    "AdaBoost",
    "Domain",
    "Layout",
    "LinearModel",
    "RadoSet",
    "Relation",
    "Result",
    "audit_file",
    "breiman_bound",
    "budget",
    "combine",
    "compose",
    "contribute",
    "encode_local",
    "estimate_local",
    "evaluate",
    "fit",
    "fit_bags",
    "fit_labels",
    "ingest",
    "join",
    "label_noise_bounds",
    "learn_local",
    "learn_rados",
    "make_rados",
    "margin_bound",
    "measure_margins",
    "open_queries",
    "open_study",
    "open_teachers",
    "private_scorer",
    "report",
    "resume",
    "run",
    "run_study",
    "run_teachers",
    "serve",
]

if TYPE_CHECKING:
    from daskrado.api import (
        encode_local,
        evaluate,
        fit,
        fit_bags,
        fit_labels,
        make_rados,
        measure_margins,
        open_queries,
        open_teachers,
        run,
        run_teachers,
    )
    from daskrado.audit.rados import audit_file
    from daskrado.bounds.label_noise import label_noise_bounds
    from daskrado.bounds.margins import breiman_bound, margin_bound
    from daskrado.jobs.index_report import report
    from daskrado.jobs.load import resume
    from daskrado.jobs.local import estimate_local, learn_local
    from daskrado.jobs.outcome import Result
    from daskrado.jobs.rado_file import learn_rados
    from daskrado.jobs.spending import budget
    from daskrado.lake.ingest import Layout, ingest
    from daskrado.learners.on_passes.adaboost import AdaBoost
    from daskrado.models.linear import LinearModel
    from daskrado.models.rados import RadoSet
    from daskrado.parties.coordinator import combine, open_study
    from daskrado.parties.serving import serve
    from daskrado.parties.site import contribute, join
    from daskrado.parties.steps import run_study
    from daskrado.privacy.accountant import compose
    from daskrado.privacy.relations import Relation
    from daskrado.sklearn.scoring import private_scorer
    from daskrado.table.domain import Domain

_HOMES = {  # of what is not in daskrado.api
    "AdaBoost": "daskrado.learners.on_passes.adaboost",
    "Domain": "daskrado.table.domain",
    "Layout": "daskrado.lake.ingest",
    "LinearModel": "daskrado.models.linear",
    "RadoSet": "daskrado.models.rados",
    "Relation": "daskrado.privacy.relations",
    "Result": "daskrado.jobs.outcome",
    "audit_file": "daskrado.audit.rados",
    "breiman_bound": "daskrado.bounds.margins",
    "budget": "daskrado.jobs.spending",
    "combine": "daskrado.parties.coordinator",
    "compose": "daskrado.privacy.accountant",
    "contribute": "daskrado.parties.site",
    "estimate_local": "daskrado.jobs.local",
    "ingest": "daskrado.lake.ingest",
    "join": "daskrado.parties.site",
    "label_noise_bounds": "daskrado.bounds.label_noise",
    "learn_local": "daskrado.jobs.local",
    "learn_rados": "daskrado.jobs.rado_file",
    "margin_bound": "daskrado.bounds.margins",
    "open_study": "daskrado.parties.coordinator",
    "private_scorer": "daskrado.sklearn.scoring",
    "report": "daskrado.jobs.index_report",
    "resume": "daskrado.jobs.load",
    "run_study": "daskrado.parties.steps",
    "serve": "daskrado.parties.serving",
}


def __getattr__(name: str) -> Any:
    """Import on first use: ``daskrado --help`` must not wait for Dask."""
    from importlib import import_module

    if name in ("mlflow", "skops", "sklearn"):
        return import_module(f"daskrado.{name}")
    if name in __all__:
        return getattr(import_module(_HOMES.get(name, "daskrado.api")), name)
    raise AttributeError(f"module 'daskrado' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, for tab completion; nothing is imported for it."""
    return [*__all__, "__version__"]
