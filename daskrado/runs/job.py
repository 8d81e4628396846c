"""One run, top to bottom: plan, reserve, collect, release, learn, publish."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import pandas as pd

from daskrado.cluster import ClusterConfig, connect
from daskrado.errors import DataError, LedgerError, PublishError
from daskrado.lake.collect import collect
from daskrado.lake.publish import check_free, new_folder
from daskrado.lake.scan import Lake, open_lake
from daskrado.lake.seeds import SignatureKey
from daskrado.learners.iterative import Learned
from daskrado.models import LinearModel
from daskrado.privacy.ledger import Grant, Ledger
from daskrado.release import Release, release, release_without_privacy
from daskrado.runs.charging import Clock, budget_facts, opened_ledger, set_first_limit, void_unless_spent
from daskrado.runs.journal import Journal, new_journal, unfinished_run
from daskrado.runs.learning import by_record, learn_iteratively
from daskrado.runs.pipeline import Learner, Pipeline, RadoStatistic, default_ledger
from daskrado.runs.plan import Plan, make_plan
from daskrado.runs.report import write_artefacts
from daskrado.statistics.base import Summary

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class RunResult:
    """What a run leaves behind: all of it publishable."""

    plan: Plan
    run: str
    model: LinearModel
    release: Release | Learned
    budget: dict[str, Any]
    seconds: dict[str, float]
    rows: int | None = field(default=None)
    notes: tuple[str, ...] = ()

    @property
    def coefficients(self) -> pd.DataFrame:
        """Weights by feature, largest first."""
        frame = self.model.coefficients.to_frame()
        return frame.reindex(frame["weight"].abs().sort_values(ascending=False).index)


def run(
    pipeline: Pipeline,
    *,
    overwrite: bool = False,
    ledger_path: str | Path | None = None,
    progress: Progress | None = None,
    write: bool = True,
) -> RunResult:
    """Run a pipeline: the ledger is debited before any row is read, noise is drawn once, the rest is post-processing.

    Whatever fails before the noise is drawn gives the grant back; a killed process leaves it charged, and
    :func:`resume` finishes what it had begun.
    """
    plan = make_plan(pipeline)
    if write:
        check_free(pipeline.output, overwrite=overwrite)
    clock = Clock()
    identifier = uuid.uuid4().hex
    with _ledger(plan, ledger_path) as ledger:
        lake = _scan(plan, clock)
        journalled = (
            new_journal(ledger, identifier, plan, overwrite=overwrite) if ledger is not None and write else None
        )
        with journalled or contextlib.nullcontext() as journal:
            released, budget, notes = _release(plan, lake, ledger, identifier, clock, progress, journal)
            rows = lake.rows if pipeline.rows_public else None
            return _publish(plan, identifier, released, budget, clock, rows, notes, overwrite, write, journal)


def resume(
    identifier: str,
    *,
    cluster: ClusterConfig | None = None,
    ledger_path: str | Path | None = None,
    progress: Progress | None = None,
) -> RunResult:
    """Finish a run that had its grant but published nothing: no second debit, and no second draw of noise.

    A run that was cut off before its noise was drawn reads the lake again and spends the grant it had; one that was
    cut off later publishes the release it had kept.
    """
    with (
        Ledger.open(ledger_path or default_ledger(), create=False) as ledger,
        unfinished_run(ledger, identifier) as left,
    ):
        journal = left.journal
        pipeline = journal.pipeline if cluster is None else journal.pipeline.model_copy(update={"cluster": cluster})
        plan = make_plan(pipeline)
        check_free(pipeline.output, overwrite=journal.overwrite)
        clock = Clock()
        grant = left.grant(ledger)
        if plan.event != grant.event:
            raise LedgerError(
                f"run {journal.run}: its grant is for {grant.event}, which is not what its pipeline costs"
            )
        kept = journal.kept(plan)
        released: Release | Learned
        if kept is not None:
            released, rows = kept
            budget = budget_facts(ledger, grant)
            notes: tuple[str, ...] = ("resumed: published the release that the interrupted run had drawn",)
        else:
            lake = _scan(plan, clock)
            if lake.fingerprint != left.entry.fingerprint:
                raise DataError(
                    f"{pipeline.lake}: the lake changed since run {journal.run} got its grant; run the pipeline again"
                )
            released, budget, _ = _release(plan, lake, ledger, journal.run, clock, progress, journal, grant)
            rows = lake.rows if pipeline.rows_public else None
            notes = ("resumed: the interrupted run had drawn nothing; its grant was used, nothing more was debited",)
        return _publish(plan, journal.run, released, budget, clock, rows, notes, journal.overwrite, True, journal)


def _scan(plan: Plan, clock: Clock) -> Lake:
    with clock("scan"):
        lake = open_lake(plan.pipeline.lake, plan.pipeline.domain, ids=by_record(plan))
        if plan.statistic is not None:
            plan.lattice.guard(lake.rows, plan.statistic.largest_per_row(plan.lattice))
    return lake


def _publish(
    plan: Plan,
    identifier: str,
    released: Release | Learned,
    budget: dict[str, Any],
    clock: Clock,
    rows: int | None,
    notes: tuple[str, ...],
    overwrite: bool,
    write: bool,
    journal: Journal | None,
) -> RunResult:
    """Learn from the release and write the artefacts: post-processing, which may be repeated."""
    pipeline = plan.pipeline
    if isinstance(released, Learned):
        weights, details = released.weights, released.details
    else:
        with clock("learn"):
            weights, details = cast(Learner, plan.learner).fit(released)
    model = LinearModel(pipeline.domain, weights, plan.statement, plan.learner.name, details)
    result = RunResult(plan, identifier, model, released, budget, clock.seconds, rows, notes)
    if write:
        try:
            with new_folder(pipeline.output, overwrite=overwrite) as folder:
                write_artefacts(result, folder)
        except OSError as error:
            rest = "" if journal is None else f"; the release is kept: daskrado run --resume {identifier[:12]}"
            raise PublishError(f"{error.filename or pipeline.output}: {error.strerror or error}{rest}") from error
    if journal is not None:
        journal.forget()
    return result


def _release(
    plan: Plan,
    lake: Lake,
    ledger: Ledger | None,
    identifier: str,
    clock: Clock,
    progress: Progress | None,
    journal: Journal | None,
    grant: Grant | None = None,
) -> tuple[Release | Learned, dict[str, Any], tuple[str, ...]]:
    """Reserve (unless an earlier process did), collect, spend, draw, keep."""
    pipeline = plan.pipeline
    with connect(pipeline.cluster, lake.size) as client:

        def gather() -> Summary:
            assert plan.statistic is not None
            with clock("collect"):
                return collect(
                    plan.statistic,
                    lake,
                    pipeline.domain,
                    plan.lattice,
                    key=signature_key(pipeline),
                    client=client,
                    progress=progress,
                )

        if ledger is None or plan.event is None:
            if plan.statistic is None:
                with clock("learn"):
                    return learn_iteratively(plan, lake, client, None, progress), {}, ()
            return release_without_privacy(gather()), {}, ()
        notes: tuple[str, ...] = ()
        if grant is None:
            assert plan.statement.relation is not None
            notes = set_first_limit(ledger, pipeline.ledger, pipeline.dataset, plan.statement.relation)
            grant = ledger.reserve(
                pipeline.dataset,
                plan.statement.relation,
                plan.event,
                theorem=plan.statement.theorem,
                run=identifier,
                fingerprint=lake.fingerprint,
            )
        released: Release | Learned
        with void_unless_spent(ledger, grant):
            if plan.mechanism is None:
                released = learn_iteratively(plan, lake, client, partial(ledger.spend, grant), progress)
            else:
                summary = gather()
                with clock("release"):
                    released = release(summary, plan.mechanism, ledger, grant, plan.statement)
            notes += _keep(journal, released, lake.rows if pipeline.rows_public else None)
        return released, budget_facts(ledger, grant), notes


def _keep(journal: Journal | None, released: Release | Learned, rows: int | None) -> tuple[str, ...]:
    """Keep the release until it is published. A disk that fails here is no reason to lose what was paid for."""
    if journal is None:
        return ()
    try:
        journal.keep(released, rows)
    except OSError as error:
        return (f"the release could not be kept in {journal.path.parent} ({error.strerror})",)
    return ()


@contextlib.contextmanager
def _ledger(plan: Plan, path: str | Path | None) -> Iterator[Ledger | None]:
    if plan.event is None:
        yield None
        return
    with opened_ledger(path, plan.pipeline.ledger) as ledger:
        yield ledger


def signature_key(pipeline: Pipeline) -> SignatureKey:
    """The public key of a declared seed, else a secret and fresh one."""
    choice = pipeline.statistic
    if isinstance(choice, RadoStatistic) and choice.seed is not None:
        return SignatureKey.from_seed(choice.seed)
    return SignatureKey.secret()
