"""One run, top to bottom: plan, reserve, collect, release, learn, publish."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from daskrado.cluster import connect
from daskrado.jobs.learning import by_record, check_dealing, learn_iteratively
from daskrado.jobs.old_report import write_artefacts
from daskrado.jobs.pipeline import Pipeline, RadoStatistic
from daskrado.jobs.pipeline_job import Progress
from daskrado.jobs.plan import Plan, make_plan
from daskrado.lake.collect import collect
from daskrado.lake.scan import Lake, open_lake
from daskrado.lake.seeds import SignatureKey
from daskrado.learners.on_passes.iterative import Learned
from daskrado.ledger.account import Account
from daskrado.ledger.charging import Clock
from daskrado.ledger.ledger import Grant
from daskrado.ledger.opening import open_account
from daskrado.models.linear import LinearModel
from daskrado.privacy.release import Release, release_without_privacy
from daskrado.statistics.base import Summary

ROLE = "release"


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
    account: Account | None = None,
) -> RunResult:
    """Run a pipeline: the ledger is debited before any row is read, noise is drawn once, the rest is post-processing.

    Whatever fails before the noise is drawn gives the grant back; a killed process leaves it charged, and
    :func:`daskrado.resume` finishes what it had begun, with the ``account`` that the run had.
    """
    plan, clock = make_plan(pipeline), Clock()
    with open_account(
        "learn",
        pipeline,
        overwrite=overwrite,
        ledger_path=ledger_path,
        write=write,
        private=plan.event is not None,
        account=account,
    ) as account:
        if account.has(ROLE) and plan.mechanism is not None:  # a kept release needs no rows
            kept, rows = _reserved(plan, account, None), account.known_rows
            released: Release | Learned = account.release(ROLE, kept, plan.mechanism, plan.statement, _no_rows)
            grant: Grant | None = kept
        else:
            with clock("scan"):
                lake = scanned(plan)
            account.same_lake(pipeline.lake, lake)
            rows = lake.rows if pipeline.rows_public else None
            account.remember_rows(rows)
            released, grant = _release(plan, lake, account, clock, progress)
        if isinstance(released, Learned):
            weights, details = released.weights, released.details
        else:
            with clock("learn"):
                weights, details = plan.fitter.fit(released)
        model = LinearModel(pipeline.domain, weights, plan.statement, plan.learner.name, details)
        budget = {} if grant is None else account.budget(grant)
        result = RunResult(plan, account.run, model, released, budget, clock.seconds, rows, account.notes)
        if write:
            with account.publish(pipeline.output) as folder:
                write_artefacts(result, folder)
    return result


def scanned(plan: Plan, sites: int = 1) -> Lake:
    """The lake of a plan; sums of it, and of ``sites`` lakes like it, must fit in 64 bits."""
    lake = open_lake(plan.pipeline.lake, plan.pipeline.domain, ids=by_record(plan))
    check_dealing(plan, lake)
    if plan.statistic is not None:
        plan.lattice.guard(lake.rows * sites, plan.statistic.largest_per_row(plan.lattice))
    return lake


def gatherer(plan: Plan, lake: Lake, client: Any, progress: Progress | None) -> Callable[[], Summary]:
    """Collects a plan's statistic over its lake."""
    return lambda: collect(
        plan.summed,
        lake,
        plan.pipeline.domain,
        plan.lattice,
        key=signature_key(plan.pipeline),
        client=client,
        progress=progress,
    )


def _release(
    plan: Plan, lake: Lake, account: Account, clock: Clock, progress: Progress | None
) -> tuple[Release | Learned, Grant | None]:
    """Reserve, collect, spend, draw, keep."""
    with connect(plan.pipeline.cluster, lake.size) as client:
        exact = gatherer(plan, lake, client, progress)

        def gather() -> Summary:
            with clock("collect"):
                return exact()

        if plan.event is None:
            if plan.statistic is not None:
                return release_without_privacy(gather()), None
            with clock("learn"):
                return learn_iteratively(plan, lake, client, progress), None
        assert plan.statement.relation is not None
        account.first_limit(plan.pipeline.ledger, plan.pipeline.dataset, plan.statement.relation)
        grant = _reserved(plan, account, lake.fingerprint)
        if plan.mechanism is not None:
            return account.release(ROLE, grant, plan.mechanism, plan.statement, gather), grant
        draws, spend = account.numbered(ROLE, grant), partial(account.spend, grant)
        return learn_iteratively(plan, lake, client, progress, spend, draws), grant


def _reserved(plan: Plan, account: Account, fingerprint: str | None) -> Grant:
    assert plan.event is not None
    assert plan.statement.relation is not None
    return account.reserve(
        ROLE,
        plan.pipeline.dataset,
        plan.statement.relation,
        plan.event,
        theorem=plan.statement.theorem,
        fingerprint=fingerprint,
        room=16 * plan.size if plan.mechanism is not None else 0,
    )


def _no_rows() -> Summary:
    raise AssertionError("a kept release is published without reading rows")


def signature_key(pipeline: Pipeline) -> SignatureKey:
    """The public key of a declared seed, else a secret and fresh one."""
    choice = pipeline.statistic
    if isinstance(choice, RadoStatistic) and choice.seed is not None:
        return SignatureKey.from_seed(choice.seed)
    return SignatureKey.secret()
