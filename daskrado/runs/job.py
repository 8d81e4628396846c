"""One run, top to bottom: plan, reserve, collect, release, learn, publish."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from daskrado.cluster import connect
from daskrado.errors import LedgerError
from daskrado.lake.collect import collect
from daskrado.lake.publish import check_free, new_folder
from daskrado.lake.scan import Lake, open_lake
from daskrado.lake.seeds import SignatureKey
from daskrado.models import LinearModel
from daskrado.privacy.ledger import Grant, Ledger
from daskrado.release import Release, release, release_without_privacy
from daskrado.runs.pipeline import Pipeline, RadoStatistic, default_ledger
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
    release: Release
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

    Whatever fails before the noise is drawn gives the grant back; a killed process leaves it charged.
    """
    plan = make_plan(pipeline)
    if write:
        check_free(pipeline.output, overwrite=overwrite)
    clock = _Clock()
    with _ledger(plan, ledger_path) as ledger:
        with clock("scan"):
            by_record = pipeline.domain.id is not None and plan.statistic.needs_seeds
            lake = open_lake(pipeline.lake, pipeline.domain, ids=by_record)
            plan.lattice.guard(lake.rows, plan.statistic.largest_per_row(plan.lattice))
        identifier = uuid.uuid4().hex
        released, budget, notes = _release(plan, lake, ledger, identifier, clock, progress)
    with clock("learn"):
        weights, details = plan.learner.fit(released)
        model = LinearModel(pipeline.domain, weights, plan.statement, plan.learner.name, details)
    public_rows = not pipeline.private or (pipeline.protect is not None and pipeline.protect.relation.rows_public)
    result = RunResult(
        plan, identifier, model, released, budget, clock.seconds, lake.rows if public_rows else None, notes
    )
    if write:
        with new_folder(pipeline.output, overwrite=overwrite) as folder:
            write_artefacts(result, folder)
    return result


def _release(
    plan: Plan, lake: Lake, ledger: Ledger | None, identifier: str, clock: _Clock, progress: Progress | None
) -> tuple[Release, dict[str, Any], tuple[str, ...]]:
    pipeline = plan.pipeline
    with connect(pipeline.cluster, lake.size) as client:

        def gather() -> Summary:
            with clock("collect"):
                return collect(
                    plan.statistic,
                    lake,
                    pipeline.domain,
                    plan.lattice,
                    key=_signature_key(pipeline),
                    client=client,
                    progress=progress,
                )

        if ledger is None or plan.mechanism is None:
            return release_without_privacy(gather()), {}, ()
        notes = _first_limit(plan, ledger)
        assert plan.statement.relation is not None
        grant = ledger.reserve(
            pipeline.dataset,
            plan.statement.relation,
            plan.mechanism.event,
            theorem=plan.statement.theorem,
            run=identifier,
            fingerprint=lake.fingerprint,
        )
        with _void_unless_spent(ledger, grant):
            summary = gather()
            with clock("release"):
                released = release(summary, plan.mechanism, ledger, grant, plan.statement)
        return released, budget_facts(ledger, grant), notes


@contextlib.contextmanager
def _void_unless_spent(ledger: Ledger, grant: Grant) -> Iterator[None]:
    """Give the grant back if the block fails before anything was drawn; also on Ctrl-C."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(LedgerError):  # spent, or out of reach: it stays charged
            ledger.void(grant)
        raise


@contextlib.contextmanager
def _ledger(plan: Plan, path: str | Path | None) -> Iterator[Ledger | None]:
    if plan.mechanism is None:
        yield None
        return
    chosen = path or plan.pipeline.ledger.path
    if chosen is None:
        chosen = default_ledger()
        chosen.parent.mkdir(parents=True, exist_ok=True)
    with Ledger.open(chosen) as ledger:
        yield ledger


def _first_limit(plan: Plan, ledger: Ledger) -> tuple[str, ...]:
    """Set the pipeline's first limit on a data set that has none under any relation, and say so."""
    first, name, relation = plan.pipeline.ledger.first_limit, plan.pipeline.dataset, plan.statement.relation
    if first is None or relation is None or ledger.has_limits(name):
        return ()
    ledger.set_limit(name, relation, first.epsilon, first.delta)
    return (f"first limit of {name!r} under {relation}: epsilon {first.epsilon:g}, delta {first.delta:g}",)


def budget_facts(ledger: Ledger, grant: Grant) -> dict[str, Any]:
    """The state of the budget after a grant, for the manifest and the report."""
    limit = ledger.limit(grant.dataset, grant.relation)
    assert limit is not None
    spent = ledger.spent(grant.dataset, grant.relation)
    left = ledger.remaining(grant.dataset, grant.relation)
    return {
        "dataset": grant.dataset,
        "relation": str(grant.relation),
        "limit_epsilon": float(limit.epsilon),
        "limit_delta": float(limit.delta),
        "spent_epsilon": float(spent.epsilon),
        "accountant": spent.method,
        "left_epsilon": float(left.epsilon),
    }


def _signature_key(pipeline: Pipeline) -> SignatureKey:
    choice = pipeline.statistic
    if isinstance(choice, RadoStatistic) and choice.seed is not None:
        return SignatureKey.from_seed(choice.seed)
    return SignatureKey.secret()


class _Clock:
    """Wall seconds of each stage, rounded so that they tell a person enough and nobody more."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = round(time.perf_counter() - start, 2)
