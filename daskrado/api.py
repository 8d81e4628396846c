"""daskrado in a few lines of Python: the same plan, ledger and run as the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from daskrado.cluster import ClusterConfig, cluster_config
from daskrado.engines.queries import PrivateQueries
from daskrado.errors import UsageError
from daskrado.jobs.job import RunResult, run
from daskrado.jobs.labels.access import LabelRun, load_pipeline
from daskrado.jobs.labels.bag_job import run_bags
from daskrado.jobs.labels.config import BagPipeline, LabelPipeline
from daskrado.jobs.labels.job import run_labels
from daskrado.jobs.measure.local import LocalPipeline
from daskrado.jobs.measure.local import estimates as estimate_local
from daskrado.jobs.measure.local import learn as learn_local
from daskrado.jobs.measure.local_job import encode
from daskrado.jobs.measure.margins import MarginsPipeline, run_margins
from daskrado.jobs.measure.margins_report import MarginsResult
from daskrado.jobs.measure.queries import QueriesPipeline
from daskrado.jobs.measure.queries import open_queries as open_engine
from daskrado.jobs.pipeline import make_pipeline
from daskrado.jobs.rados.job import RadosResult
from daskrado.jobs.rados.job import make_rados as run_rados
from daskrado.jobs.rados.pipeline import RadosPipeline
from daskrado.jobs.teachers.config import TeachersPipeline, load_teachers
from daskrado.jobs.teachers.job import TeachersResult
from daskrado.jobs.teachers.job import run as run_teachers_job
from daskrado.jobs.teachers.session import Session, open_session
from daskrado.losses.margin import Loss
from daskrado.table.domain import Domain
from daskrado.table.yaml_file import parse

__all__ = [
    "encode_local",
    "estimate_local",
    "fit",
    "fit_bags",
    "fit_labels",
    "learn_local",
    "measure_margins",
    "open_queries",
    "open_teachers",
    "run_teachers",
]


def fit(
    lake: Any,
    domain: Domain | Mapping[str, Any] | str | Path,
    *,
    dataset: str,
    epsilon: float | None = None,
    delta: float = 0.0,
    relation: str = "add_remove",
    unit: str | None = None,
    rows_per_unit: int = 1,
    rows: int | None = None,
    feature: str | None = None,
    learner: str | Mapping[str, Any] = "moments",
    statistic: str | Mapping[str, Any] | None = None,
    mechanism: str | None = None,
    lattice_bits: int | None = None,
    ledger: str | Path | None = None,
    first_limit: tuple[float, float] | None = None,
    private: bool = True,
    workers: int | None = None,
    cluster: str | Path | ClusterConfig | None = None,
    output: str | Path | None = None,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> RunResult:
    """Learn a linear classifier from a lake and return the model, the release and what they cost.

    ``lake`` is an address, a list of files, a pandas DataFrame or a Dask DataFrame; ``dataset`` is the name by which
    the ledger knows it. ``output`` writes model.json, manifest.json and report.html there. ``first_limit`` is the
    (epsilon, delta) limit to set if the data set's owner has set none. ``rows`` is a public guess at the number
    of rows, for learners that read the lake several times under add_remove. ``private=False`` gives a baseline
    whose every artefact says that it is not private.

    ``workers`` is a number of local worker processes, 0 for none; by default a lake below 64 MiB is read in this
    process and a larger one by a worker for each core. Workers do not run the calling script anew: it needs no
    ``if __name__ == "__main__"``. ``cluster`` is a cluster file, a scheduler's address or a ClusterConfig.

    Sensitivity
        Derived by the statistic from the Domain's norm bound and the relation; there is no argument for it.

    Reference
        See the ``theorem`` of ``result.plan.statement``.
    """
    if not isinstance(domain, Domain):
        domain = Domain.load(domain) if isinstance(domain, str | Path) else parse(Domain, domain, "domain")
    where = cluster if isinstance(cluster, ClusterConfig) else cluster_config(workers, cluster)
    content: dict[str, Any] = {
        "dataset": dataset,
        "lake": lake,
        "domain": domain,
        "output": "." if output is None else _path("output", output),
        "private": private,
        "learner": _choice("learner", learner),
        "mechanism": mechanism,
        "lattice_bits": lattice_bits,
        "cluster": where,
        "ledger": {
            "path": None if ledger is None else _path("ledger", ledger),
            "first_limit": None if first_limit is None else _limit(first_limit),
        },
    }
    if rows is not None:
        content["rows"] = rows
    if statistic is not None:
        content["statistic"] = _choice("statistic", statistic)
    if private:
        whose = unit or ("one record" if rows_per_unit == 1 else "the owner of the records")
        content["protect"] = {"relation": relation, "unit": whose, "rows_per_unit": rows_per_unit, "feature": feature}
        content["budget"] = {"epsilon": epsilon, "delta": delta}
    return run(make_pipeline(**content), overwrite=overwrite, progress=progress, write=output is not None)


def _choice(name: str, value: Any) -> dict[str, Any]:
    """A learner or a statistic by its kind alone, or with its options."""
    if isinstance(value, str):
        return {"kind": value}
    if not isinstance(value, Mapping):
        raise UsageError(f"{name} must be a kind, or a mapping of kind and options, got {type(value).__name__}")
    return dict(value)


def _limit(value: Any) -> dict[str, Any]:
    if not isinstance(value, tuple | list) or len(value) != 2:
        length = f" of {len(value)}" if isinstance(value, tuple | list) else ""
        raise UsageError(f"first_limit must be a pair (epsilon, delta), got {type(value).__name__}{length}")
    return {"epsilon": value[0], "delta": value[1]}


def _path(name: str, value: Any) -> str:
    if not isinstance(value, str | Path):
        raise UsageError(f"{name} must be a path, got {type(value).__name__}")
    return str(value)


def fit_labels(
    pipeline: LabelPipeline | Mapping[str, Any] | str | Path,
    *,
    loss: Loss | None = None,
    ledger: str | Path | None = None,
    write: bool = False,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> LabelRun:
    """Learn where only the labels are secret, weak or missing: a ``labels`` pipeline, as a file or as its keys.

    The lake may also be a pandas or a Dask DataFrame. ``loss`` replaces the pipeline's by any linear-odd loss, such
    as ``UserLoss(function)``. ``result.learned`` holds the model, the released mean operator and its bounds.

    Sensitivity
        Of the mean operator under a flipped label: twice the largest L1 or L2 norm of the public rows, measured.
    """
    return run_labels(
        load_pipeline(LabelPipeline, pipeline),
        loss=loss,
        ledger_path=ledger,
        write=write,
        overwrite=overwrite,
        progress=progress,
    )


def fit_bags(
    pipeline: BagPipeline | Mapping[str, Any] | str | Path,
    *,
    ledger: str | Path | None = None,
    write: bool = False,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> LabelRun:
    """Learn from bags of rows and their label proportions: a ``bags`` pipeline, as a file or as its keys."""
    return run_bags(
        load_pipeline(BagPipeline, pipeline), ledger_path=ledger, write=write, overwrite=overwrite, progress=progress
    )


def open_teachers(
    pipeline: TeachersPipeline | Mapping[str, Any] | str | Path,
    *,
    ledger: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
    learner: Any = None,
) -> AbstractContextManager[Session]:
    """The engine of a ``teachers`` pipeline, for adaptive queries: ``with open_teachers(p) as t: t.ask(frame)``.

    ``pipeline`` is a file or the same keys as a mapping, where the lake may also be a pandas or a Dask DataFrame.
    ``learner`` may be any unfitted object with fit and predict, in place of the pipeline's teachers.
    ``ask`` takes public rows and gives a pandas Series of private labels, None where the engine refused.
    """
    return open_session(load_teachers(pipeline), ledger_path=ledger, progress=progress, learner=learner)


def run_teachers(
    pipeline: TeachersPipeline | Mapping[str, Any] | str | Path,
    *,
    ledger: str | Path | None = None,
    write: bool = False,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> TeachersResult:
    """Answer a ``teachers`` pipeline's public queries and train its student; ``write`` publishes as ``run`` does."""
    return run_teachers_job(
        load_teachers(pipeline), ledger_path=ledger, write=write, overwrite=overwrite, progress=progress
    )


@contextmanager
def open_queries(
    pipeline: QueriesPipeline | Mapping[str, Any] | str | Path,
    *,
    ledger: str | Path | None = None,
    journal: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[PrivateQueries]:
    """The engine of a ``queries`` pipeline, for adaptive queries: ``with open_queries(p) as q: q.ask({...})``.

    Counts the lake's cells once and charges the whole engine; see ``PrivateQueries`` for what it answers.
    With a ``journal`` folder a later session goes on with the same engine and pays nothing more.
    """
    loaded = load_pipeline(QueriesPipeline, pipeline)
    with open_engine(loaded, ledger_path=ledger, progress=progress, journal=journal) as engine:
        yield engine


def measure_margins(
    pipeline: MarginsPipeline | Mapping[str, Any] | str | Path,
    *,
    ledger: str | Path | None = None,
    write: bool = False,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> MarginsResult:
    """The margin distributions of a ``margins`` pipeline, exact or noised and charged, with their bounds."""
    loaded = load_pipeline(MarginsPipeline, pipeline)
    return run_margins(loaded, ledger_path=ledger, write=write, overwrite=overwrite, progress=progress)


def encode_local(
    pipeline: LocalPipeline | Mapping[str, Any] | str | Path,
    out: str | Path,
    *,
    ledger: str | Path | None = None,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Randomise a lake at its source into a folder of reports, as a ``local`` pipeline says; returns the rows.

    Read the folder with ``estimate_local`` (columns) or ``learn_local`` (labels, edges): both charge nothing.
    """
    loaded = load_pipeline(LocalPipeline, pipeline)
    return encode(loaded, out, overwrite=overwrite, ledger_path=ledger, progress=progress).rows


def make_rados(
    pipeline: RadosPipeline | Mapping[str, Any] | str | Path,
    *,
    ledger: str | Path | None = None,
    write: bool = False,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> RadosResult:
    """The sets of rados of a ``rados`` pipeline, each with a statement of what it protects.

    ``write`` publishes one Parquet file for each set, from which ``learn_rados`` learns without the lake.
    """
    loaded = load_pipeline(RadosPipeline, pipeline)
    return run_rados(loaded, ledger_path=ledger, write=write, overwrite=overwrite, progress=progress)
