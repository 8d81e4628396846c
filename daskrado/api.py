"""daskrado in a few lines of Python: the same plan, ledger and run as the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from daskrado.cluster import cluster_config
from daskrado.errors import UsageError
from daskrado.jobs.base import Job, Opening, perform
from daskrado.jobs.load import job_class, load_job, load_kind
from daskrado.jobs.outcome import Result
from daskrado.lake.collect import Progress
from daskrado.table.domain import Domain
from daskrado.table.yaml_file import parse

if TYPE_CHECKING:
    from daskrado.engines.queries import PrivateQueries
    from daskrado.jobs.teacher_session import Session
    from daskrado.losses.margin import Loss

Source = Job | Mapping[str, Any] | str | Path  # a job, its keys, or its file

__all__ = [
    "encode_local",
    "evaluate",
    "fit",
    "fit_bags",
    "fit_labels",
    "make_rados",
    "measure_margins",
    "open_queries",
    "open_teachers",
    "run",
    "run_teachers",
]


def run(
    job: Source,
    *,
    out: str | Path | None = None,
    write: bool = True,
    workers: int | None = None,
    changes: Mapping[str, Any] | None = None,
    **how: Unpack[Opening],
) -> Result:
    """Run a job of any kind: a pipeline file, its keys as a mapping, or a job object.

    ``ledger``, ``overwrite`` (False), ``cluster`` and ``progress`` are keywords of this and of the functions of
    single kinds.

    ``out`` replaces the output folder; ``write=False`` publishes nothing and only returns the result. ``changes``
    replaces keys of the file, dotted where nested: ``{"budget.epsilon": 0.5}``. See :func:`fit` for ``workers`` and
    ``cluster``.
    """
    if workers is not None:
        how["cluster"] = cluster_config(workers, how.get("cluster"))
    chosen = load_job(job, changes).with_changes(output=None if out is None else str(out))
    return perform(chosen, write=write, **how)


def fit(
    lake: Any,
    domain: Domain | Mapping[str, Any] | str | Path,
    *,
    dataset: str,
    epsilon: float | None = None,
    delta: float = 0.0,
    relation: str = "add_remove",
    unit: str | Mapping[str, Any] | None = None,
    rows_per_unit: int = 1,
    rows: int | None = None,
    feature: str | None = None,
    blocks: Mapping[str, Any] | None = None,
    learner: str | Mapping[str, Any] | None = None,
    goal: str | Mapping[str, Any] | None = None,
    statistic: str | Mapping[str, Any] | None = None,
    mechanism: str | None = None,
    lattice_bits: int | None = None,
    ledger: str | Path | None = None,
    first_limit: tuple[float, float] | None = None,
    private: bool = True,
    workers: int | None = None,
    cluster: Any = None,
    output: str | Path | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Learn a linear classifier from a lake and return the model, the release and what they cost.

    ``lake`` is an address, a list of files, a pandas DataFrame or a Dask DataFrame; ``dataset`` is the name by which
    the ledger knows it. ``output`` writes model.json, manifest.json and report.html there. ``first_limit`` is the
    (epsilon, delta) limit to set if the data set's owner has set none. ``rows`` is a public guess at the number
    of rows, for learners that read the lake several times under add_remove, which count in private without it.
    ``unit`` protects all rows of a person, as ``{"column": "patient", "name": "one patient"}``; a text is a name
    only, and protects rows. ``blocks`` reads some blocks of the lake only, each of which pays from its own budget:
    ``{"column": "day", "last": 30}``. ``private=False`` gives a baseline whose every artefact says that it is not
    private. With ``goal`` public facts choose the learner (``auto``), else it is ``moments``; it says what for:
    "error", "auc", "logloss" or ``{"cost": 5}``, where a missed positive costs as much as five false alarms.

    ``workers`` is a number of local worker processes, 0 for none; by default a lake below 64 MiB is read in this
    process and a larger one by a worker for each core. Workers do not run the calling script anew: it needs no
    ``if __name__ == "__main__"``. ``cluster`` is a cluster file, a scheduler's address, a Dask
    client, a cluster object with ``get_client()`` or a ClusterConfig; by default the client that is active here or in
    the task that calls, if there is one. Clients that others opened are never closed.

    Sensitivity
        Derived by the statistic from the Domain's norm bound and the relation; there is no argument for it.

    Reference
        See the ``theorem`` of ``result.statement``.
    """
    if not isinstance(domain, Domain):
        domain = Domain.load(domain) if isinstance(domain, str | Path) else parse(Domain, domain, "domain")
    content: dict[str, Any] = {
        "dataset": dataset,
        "lake": lake,
        "domain": domain,
        "blocks": blocks,
        "output": "." if output is None else _path("output", output),
        "private": private,
        "goal": goal,
        "mechanism": mechanism,
        "lattice_bits": lattice_bits,
        "rows": rows,
        "statistic": None if statistic is None else _choice("statistic", statistic),
        "cluster": cluster_config(workers, cluster),
        "ledger": {
            "path": None if ledger is None else _path("ledger", ledger),
            "first_limit": None if first_limit is None else first_limit_keys(first_limit),
        },
    }
    if learner is not None:
        content["learner"] = _choice("learner", learner)
    if private:
        content["protect"] = {"relation": relation, "unit": unit or "one record", "feature": feature}
        if not isinstance(unit, Mapping) or rows_per_unit != 1:
            content["protect"]["rows_per_unit"] = rows_per_unit
        content["budget"] = {"epsilon": epsilon, "delta": delta}
    from daskrado.jobs.learn import LearnJob

    job = parse(LearnJob, content, "pipeline")
    return perform(job, overwrite=overwrite, progress=progress, write=output is not None)


def evaluate(
    model: Any,
    lake: Any,
    *,
    by: Sequence[str | Mapping[str, Any]] = (),
    epsilon: float | None = None,
    delta: float | None = None,
    against: Sequence[Any] = (),
    dataset: str | None = None,
    protect: Mapping[str, Any] | None = None,
    holdout: float | Mapping[str, int] | None = None,
    private: bool = True,
    bins: int | None = None,
    threshold: str | Mapping[str, Any] | None = None,
    output: str | Path | None = None,
    **how: Unpack[Opening],
) -> Result:
    """Measure a published model on a lake: error, ROC, calibration, base rate, by group, with 95 % intervals.

    ``model`` is a model, a result, a model file or the folder of a run; ``against`` are others to compare it with.
    ``by`` names columns of the domain, or ``{"column": ..., "values": [...]}``. Data set, delta and ``protect`` are
    those of the model's run where they are left out; rows that it held out, if any, are those that are read
    (``holdout``: a share, or ``{"fold": 0, "of": 5}``).
    ``private=False`` gives exact figures that protect nobody. ``threshold`` is chosen from the counts: "f1",
    "youden", ``{"cost": 5}`` or ``{"rate": 0.1}``; what is written holds the model with fitted probabilities.
    ``result.value`` has ``error``, ``auc``, ``base_rate``, ``cells`` and ``groups``.

    Sensitivity
        Of counts in disjoint cells: see :class:`daskrado.statistics.score_cells.ScoreCells`.
    """
    from daskrado.jobs.evaluate import EvaluateJob, keys_beside

    known = keys_beside(model)
    same = dataset in (None, known.get("dataset")) and "unit" not in (protect or {})  # ids that training held out by
    content: dict[str, Any] = {
        "dataset": dataset or known.get("dataset"),
        "lake": lake,
        "model": model,
        "against": list(against),
        "by": list(by),
        "bins": bins,
        "threshold": threshold,
        "holdout": known.get("holdout") if same and holdout is None else holdout,
        "output": "." if output is None else _path("output", output),
        "private": private,
    }
    if content["dataset"] is None:
        raise UsageError("dataset: say under which name the ledger knows these rows (no manifest beside the model)")
    if private:
        if epsilon is None:
            raise UsageError("epsilon: an evaluation is charged; say what it may cost, or that it is not private")
        content["protect"] = {**known["protect"], **(protect or {})}
        if isinstance(content["protect"]["unit"], Mapping):
            content["protect"].pop("rows_per_unit", None)
        content["budget"] = {"epsilon": epsilon, "delta": known["delta"] if delta is None else delta}
    return perform(parse(EvaluateJob, content, "evaluate"), write=output is not None, **how)


def _choice(name: str, value: Any) -> dict[str, Any]:
    """A learner or a statistic by its kind alone, or with its options."""
    if isinstance(value, str):
        return {"kind": value}
    if not isinstance(value, Mapping):
        raise UsageError(f"{name} must be a kind, or a mapping of kind and options, got {type(value).__name__}")
    return dict(value)


def first_limit_keys(value: Any) -> dict[str, Any]:
    """A pair (epsilon, delta) as a pipeline writes it."""
    if not isinstance(value, tuple | list) or len(value) != 2:
        length = f" of {len(value)}" if isinstance(value, tuple | list) else ""
        raise UsageError(f"first_limit must be a pair (epsilon, delta), got {type(value).__name__}{length}")
    return {"epsilon": value[0], "delta": value[1]}


def _path(name: str, value: Any) -> str:
    if not isinstance(value, str | Path):
        raise UsageError(f"{name} must be a path, got {type(value).__name__}")
    return str(value)


def fit_labels(pipeline: Source, *, loss: Loss | None = None, write: bool = False, **how: Unpack[Opening]) -> Result:
    """Learn where only the labels are secret, weak or missing: a ``labels`` pipeline, as a file or as its keys.

    The lake may also be a frame. ``loss`` replaces the pipeline's by any linear-odd loss, such
    as ``UserLoss(function)``. ``result.value`` holds the released mean operator, the fit and its bounds.

    Sensitivity
        Of the mean operator under a flipped label: twice the largest L1 or L2 norm of the public rows, measured.
    """
    job = load_kind(job_class("labels"), pipeline)
    if loss is not None:
        from daskrado.losses.linear_odd import make_odd_loss

        job = job.model_copy(update={"loss": make_odd_loss(loss)})
    return perform(job, write=write, **how)


def fit_bags(pipeline: Source, *, write: bool = False, **how: Unpack[Opening]) -> Result:
    """Learn from bags of rows and their label proportions: a ``bags`` pipeline, as a file or as its keys."""
    return perform(load_kind(job_class("bags"), pipeline), write=write, **how)


def open_teachers(
    pipeline: Source, *, learner: Any = None, **how: Unpack[Opening]
) -> AbstractContextManager[Session]:
    """The engine of a ``teachers`` pipeline, for adaptive queries: ``with open_teachers(p) as t: t.ask(frame)``.

    ``pipeline`` is a file or the same keys as a mapping, where the lake may also be a frame.
    ``learner`` may be any unfitted object with fit and predict, in place of the pipeline's teachers.
    ``ask`` takes public rows and gives a pandas Series of private labels, None where the engine refused.
    """
    from daskrado.jobs.teacher_session import open_session
    from daskrado.jobs.teachers import TeachersJob

    return open_session(load_kind(TeachersJob, pipeline), learner=learner, **how)


def run_teachers(pipeline: Source, *, write: bool = False, **how: Unpack[Opening]) -> Result:
    """Answer a ``teachers`` pipeline's public queries and train its student: ``result.value``."""
    return perform(load_kind(job_class("teachers"), pipeline), write=write, **how)


def open_queries(
    pipeline: Source, *, journal: str | Path | None = None, **how: Unpack[Opening]
) -> AbstractContextManager[PrivateQueries]:
    """The engine of a ``queries`` pipeline, for adaptive queries: ``with open_queries(p) as q: q.ask({...})``.

    Counts the lake's cells once and charges the whole engine; see ``PrivateQueries`` for what it answers.
    With a ``journal`` folder a later session goes on with the same engine and pays nothing more.
    """
    from daskrado.jobs.queries import QueriesJob
    from daskrado.jobs.queries import open_queries as open_engine

    return open_engine(load_kind(QueriesJob, pipeline), journal=journal, **how)


def measure_margins(pipeline: Source, *, write: bool = False, **how: Unpack[Opening]) -> Result:
    """The margin distributions of a ``margins`` pipeline, exact or noised and charged, with their bounds."""
    return perform(load_kind(job_class("margins"), pipeline), write=write, **how)


def encode_local(pipeline: Source, out: str | Path, **how: Unpack[Opening]) -> Result:
    """Randomise a lake at its source into a folder of reports, as a ``local`` pipeline says.

    Read the folder with ``estimate_local`` (columns) or ``learn_local`` (labels, edges): both charge nothing.
    """
    from daskrado.jobs.local import LocalJob

    return perform(load_kind(LocalJob, pipeline).encoding(output=str(out)), **how)


def make_rados(pipeline: Source, *, write: bool = False, **how: Unpack[Opening]) -> Result:
    """The sets of rados of a ``rados`` pipeline, each with a statement of what it protects: ``result.value.sets``.

    ``write`` publishes one Parquet file for each set, from which ``learn_rados`` learns without the lake.
    """
    return perform(load_kind(job_class("rados"), pipeline), write=write, **how)
