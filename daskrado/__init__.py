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
    "compose",
    "encode_local",
    "estimate_local",
    "fit",
    "fit_bags",
    "fit_labels",
    "learn_local",
    "learn_rados",
    "make_rados",
    "measure_margins",
    "open_queries",
    "open_teachers",
    "resume",
    "run",
    "run_teachers",
]

if TYPE_CHECKING:
    from daskrado.api import (
        encode_local,
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
    from daskrado.jobs.local import estimate_local, learn_local
    from daskrado.jobs.rado_file import learn_rados
    from daskrado.jobs.result import Result
    from daskrado.jobs.resume import resume
    from daskrado.models.linear import LinearModel
    from daskrado.models.rados import RadoSet
    from daskrado.privacy.accountant import compose
    from daskrado.privacy.relations import Relation
    from daskrado.table.domain import Domain

_HOMES = {
    "Domain": "daskrado.table.domain",
    "LinearModel": "daskrado.models.linear",
    "RadoSet": "daskrado.models.rados",
    "Relation": "daskrado.privacy.relations",
    "Result": "daskrado.jobs.result",
    "compose": "daskrado.privacy.accountant",
    "fit": "daskrado.api",
    "resume": "daskrado.jobs.resume",
    "fit_bags": "daskrado.api",
    "fit_labels": "daskrado.api",
    "encode_local": "daskrado.api",
    "estimate_local": "daskrado.jobs.local",
    "learn_local": "daskrado.jobs.local",
    "measure_margins": "daskrado.api",
    "open_queries": "daskrado.api",
    "learn_rados": "daskrado.jobs.rado_file",
    "make_rados": "daskrado.api",
    "open_teachers": "daskrado.api",
    "run": "daskrado.api",
    "run_teachers": "daskrado.api",
}


def __getattr__(name: str) -> Any:
    """Import on first use: ``daskrado --help`` must not wait for Dask."""
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'daskrado' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, for tab completion; nothing is imported for it."""
    return [*__all__, "__version__"]
