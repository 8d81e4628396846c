"""Differentially private linear classifiers learned from Parquet lakes on Dask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"
__all__ = [
    "Domain",
    "LinearModel",
    "RadoSet",
    "Relation",
    "Result",
    "budget",
    "compose",
    "encode_local",
    "estimate_local",
    "evaluate",
    "fit",
    "fit_bags",
    "fit_labels",
    "learn_local",
    "learn_rados",
    "make_rados",
    "measure_margins",
    "open_queries",
    "open_teachers",
    "private_scorer",
    "resume",
    "run",
    "run_teachers",
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
    from daskrado.jobs.load import resume
    from daskrado.jobs.local import estimate_local, learn_local
    from daskrado.jobs.outcome import Result
    from daskrado.jobs.rado_file import learn_rados
    from daskrado.jobs.spending import budget
    from daskrado.models.linear import LinearModel
    from daskrado.models.rados import RadoSet
    from daskrado.privacy.accountant import compose
    from daskrado.privacy.relations import Relation
    from daskrado.sklearn.scoring import private_scorer
    from daskrado.table.domain import Domain

_HOMES = {  # of what is not in daskrado.api
    "Domain": "daskrado.table.domain",
    "LinearModel": "daskrado.models.linear",
    "RadoSet": "daskrado.models.rados",
    "Relation": "daskrado.privacy.relations",
    "Result": "daskrado.jobs.outcome",
    "budget": "daskrado.jobs.spending",
    "compose": "daskrado.privacy.accountant",
    "estimate_local": "daskrado.jobs.local",
    "learn_local": "daskrado.jobs.local",
    "learn_rados": "daskrado.jobs.rado_file",
    "private_scorer": "daskrado.sklearn.scoring",
    "resume": "daskrado.jobs.load",
}


def __getattr__(name: str) -> Any:
    """Import on first use: ``daskrado --help`` must not wait for Dask."""
    if name in __all__:
        from importlib import import_module

        return getattr(import_module(_HOMES.get(name, "daskrado.api")), name)
    raise AttributeError(f"module 'daskrado' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, for tab completion; nothing is imported for it."""
    return [*__all__, "__version__"]
