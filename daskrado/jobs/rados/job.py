"""Pipelines of kind ``rados``: make sets of rados from a lake, publish each with its statement, learn from them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import daskrado
from daskrado.bounds.rado_risk import separability
from daskrado.cluster import connect
from daskrado.jobs.pipeline import RadoBoostChoice
from daskrado.jobs.pipeline_job import PipelineJob, Progress
from daskrado.jobs.rados.pipeline import FixedSupportSet, NoisyEdgesSet, RadosPipeline, SummedSet
from daskrado.jobs.rados.plan import SetPlan, plan_set, refuse_recoverable, with_choice
from daskrado.jobs.rados.report import plan_lines, report, run_lines
from daskrado.lake.collect import collect
from daskrado.lake.scan import Lake, open_lake
from daskrado.lake.seeds import SignatureKey
from daskrado.lake.shards import check_signatures
from daskrado.learners.choose_round import THEOREM, choose_by_mistakes, mistakes
from daskrado.ledger.account import Account
from daskrado.ledger.charging import Clock, published_seconds
from daskrado.ledger.ledger import Grant, Ledger
from daskrado.ledger.opening import open_account
from daskrado.models.linear import LinearModel
from daskrado.models.rados import RadoSet, noise_of, rados_of
from daskrado.privacy.accountant import PureEvent, event_to_json
from daskrado.privacy.release import Release, release_noised_rows, release_without_privacy
from daskrado.statistics.base import Statistic, Summary
from daskrado.table.yaml_file import write_text

MANIFEST_SCHEMA = "daskrado.rados-manifest/1"
_SEPARABLE_CELLS = 1 << 18  # beyond this the linear program takes longer than the rest of a run


@dataclass(frozen=True)
class MadeSet:
    """One set after the run: rados, the model if one was asked for, and diagnostics from released values only."""

    plan: SetPlan
    rados: RadoSet
    model: LinearModel | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class RadosResult:
    """What a job of kind ``rados`` leaves behind: all of it publishable, as far as each statement goes."""

    pipeline: RadosPipeline
    run: str
    sets: tuple[MadeSet, ...]
    budgets: tuple[dict[str, Any], ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def make_rados(
    pipeline: RadosPipeline,
    *,
    overwrite: bool = False,
    ledger_path: str | Path | None = None,
    progress: Progress | None = None,
    write: bool = True,
    account: Account | None = None,
) -> RadosResult:
    """Make every set: all charges are reserved before a row is read, each is spent just before its set is released.

    All rows are read before anything is spent, so that an unusable row costs nothing. Noise on rows is a function of
    a secret key and is part of the sums that workers return; nothing of them leaves this process before the charge
    is spent. A killed process leaves every reservation charged, and :func:`daskrado.resume` goes on under them.
    """
    plans = [plan_set(pipeline, item) for item in pipeline.sets]
    clock = Clock()
    with open_account(
        "rados",
        pipeline,
        overwrite=overwrite,
        ledger_path=ledger_path,
        write=write,
        private=any(plan.event is not None for plan in plans),
        account=account,
    ) as account:
        with clock("scan"):
            lake = open_lake(pipeline.lake, pipeline.domain, ids=pipeline.domain.id is not None)
            plans = [plan.at(lake.rows) for plan in plans]
            if not pipeline.accept_no_privacy:
                refuse_recoverable(plans, lake.rows)
        account.same_lake(pipeline.lake, lake)
        result = _Making(pipeline, lake, account, clock, progress).make(plans)
        if write:
            with account.publish(pipeline.output) as folder:
                _write(result, folder)
    return result


class _Making:
    """One run's moving parts: the lake, the account, and the grants of the sets by their roles."""

    def __init__(
        self, pipeline: RadosPipeline, lake: Lake, account: Account, clock: Clock, progress: Progress | None
    ) -> None:
        self.pipeline, self.lake, self.account = pipeline, lake, account
        self.clock, self.progress = clock, progress
        self.client: Any = None
        self.grants: dict[str, Grant] = {}

    def make(self, plans: list[SetPlan]) -> RadosResult:
        self._reserve(plans)
        with connect(self.pipeline.cluster, self.lake.size) as self.client:
            summaries = [self._ahead(plan) for plan in plans]
            released = [self._released(plan, summary) for plan, summary in zip(plans, summaries, strict=True)]
            made = [self._finish(plan, release) for plan, release in zip(plans, released, strict=True)]
            budgets = {grant.relation: self.account.budget(grant) for grant in self.grants.values()}
        return RadosResult(
            self.pipeline,
            self.account.run,
            tuple(made),
            tuple(budgets.values()),
            self.clock.seconds,
            self.account.notes,
        )

    def _reserve(self, plans: list[SetPlan]) -> None:
        used = dict.fromkeys(plan.statement.relation for plan in plans if plan.statement.relation is not None)
        if used:
            self.account.first_limit(self.pipeline.ledger, self.pipeline.dataset, *used)
        for plan in plans:
            if plan.event is None or plan.statement.relation is None:
                continue
            if isinstance(plan.item, SummedSet | FixedSupportSet) and plan.item.seed is not None:
                check_signatures(self.lake, self.pipeline.domain)
            wanted = [(_role(plan), plan.event, plan.statement.theorem, 16 * plan.statistic.size)]
            if plan.item.keep_epsilon is not None:
                wanted.append((_role(plan, "choice"), PureEvent(plan.item.keep_epsilon), THEOREM, 8))
            for role, event, theorem, room in wanted:
                self.grants[role] = self.account.reserve(
                    role,
                    self.pipeline.dataset,
                    plan.statement.relation,
                    event,
                    theorem=theorem,
                    fingerprint=self.lake.fingerprint,
                    room=room,
                )

    def _ahead(self, plan: SetPlan) -> Summary | None:
        """The sums of a set, unless its release is kept. A resumed run repeats the noise on its rows."""
        if self.account.has(_role(plan)):
            return None
        seed = plan.item.seed if isinstance(plan.item, SummedSet | FixedSupportSet) else None
        if plan.statistic.noises_rows:
            key = self.account.row_key(_role(plan))
        else:
            key = SignatureKey.secret() if seed is None else SignatureKey.from_seed(seed)
        with self.clock(f"collect {plan.item.name}"):
            return self._gather(plan.statistic, plan, key)

    def _gather(self, statistic: Statistic, plan: SetPlan, key: SignatureKey | None = None) -> Summary:
        return collect(
            statistic,
            self.lake,
            self.pipeline.domain,
            plan.lattice,
            key=key,
            client=self.client,
            progress=self.progress,
        )

    def _finish(self, plan: SetPlan, released: Release) -> MadeSet:
        relation = plan.statement.relation
        public_rows = relation is None or relation.rows_public
        noise = noise_of(released)
        if isinstance(plan.item, NoisyEdgesSet):
            support = plan.item.support if plan.item.support is not None else self.lake.rows / 2
            noise = (plan.edge_noise * math.sqrt(support),) * self.pipeline.domain.width
        rados = RadoSet(
            plan.item.kind,
            self.pipeline.domain,
            rados_of(released),
            noise,
            plan.statement,
            self.lake.rows if public_rows else None,
            plan.item.model_dump(mode="json", exclude={"protect", "budget", "learn"}, exclude_none=True),
            plan.lattice.bits,
        )
        return self._learned(plan, rados, self.grants.get(_role(plan, "choice")))

    def _released(self, plan: SetPlan, summary: Summary | None) -> Release:
        def gather() -> Summary:
            assert summary is not None
            return summary

        with self.clock(f"release {plan.item.name}"):
            if plan.event is None:
                return release_without_privacy(gather(), plan.statement)
            grant = self.grants[_role(plan)]
            if plan.mechanism is not None:
                return self.account.release(_role(plan), grant, plan.mechanism, plan.statement, gather)
            noisy = gather()
            self.account.spend(grant)
            return release_noised_rows(noisy, plan.statement)

    def _learned(self, plan: SetPlan, rados: RadoSet, choice: Grant | None) -> MadeSet:
        notes = diagnose(rados)
        learn = plan.item.learn
        if learn is None:
            return MadeSet(plan, rados, None, notes)
        with self.clock(f"learn {plan.item.name}"):
            learner, statement = learn.build(), plan.statement
            if isinstance(learn, RadoBoostChoice) and choice is not None:
                theta, details, statement = self._chosen(plan, rados, learn, choice)
            else:
                theta, details = learner.learn(rados.rados)
            model = LinearModel(self.pipeline.domain, theta, statement, learner.name, details)
        return MadeSet(plan, rados, model, notes)

    def _chosen(self, plan: SetPlan, rados: RadoSet, learn: RadoBoostChoice, choice: Grant) -> tuple[Any, Any, Any]:
        assert plan.event is not None
        assert plan.item.keep_epsilon is not None
        path, epsilon = learn.build().path(rados.rados), plan.item.keep_epsilon
        thetas = np.vstack([np.zeros_like(rados.rados[:1]), path])  # round 0 is there even if no round was made
        statistic, units = mistakes(thetas, plan.lattice), plan.statement.rows_per_unit
        spend = partial(self.account.spend_once, choice)
        drawn = self.account.draw(
            _role(plan, "choice"),
            choice,
            lambda: self._gather(statistic, plan),
            lambda counts: {"round": np.array(choose_by_mistakes(counts, spend, epsilon, units))},
        )
        at = int(drawn["round"])
        details = {"rados": len(rados.rados), "rounds": len(path), "kept_round": at}
        return thetas[at], details, with_choice(plan.statement, plan.event, plan.item.keep_epsilon, THEOREM)


def _role(plan: SetPlan, what: str = "set") -> str:
    """Under which name a set's charge and draw are remembered."""
    return f"{what}~{plan.item.name}"


def diagnose(rados: RadoSet) -> tuple[str, ...]:
    """Plain words on what a learner should know of a set; from the published rados only."""
    notes = []
    if rados.zero_columns:
        shown = ", ".join(rados.zero_columns[:5]) + (", ..." if len(rados.zero_columns) > 5 else "")
        notes.append(f"{len(rados.zero_columns)} columns are 0 in every rado and are dropped: {shown}")
    if rados.rados.size <= _SEPARABLE_CELLS and (found := separability(rados.rados)).separable:
        notes.append(found.warning)
    return tuple(notes)


def _write(result: RadosResult, folder: Path) -> None:
    for made in result.sets:
        made.rados.save(folder / f"{made.plan.item.name}.rados.parquet")
        if made.model is not None:
            made.model.save(folder / f"{made.plan.item.name}.model.json")
    write_text(folder / "manifest.json", json.dumps(manifest(result), indent=2, allow_nan=False) + "\n")
    write_text(folder / "report.html", report(result))


def manifest(result: RadosResult) -> dict[str, Any]:
    """Everything public about the run."""
    return {
        "schema": MANIFEST_SCHEMA,
        "daskrado": daskrado.__version__,
        "run": result.run,
        "dataset": result.pipeline.dataset,
        "domain_sha256": result.pipeline.domain.digest(),
        "accept_no_privacy": result.pipeline.accept_no_privacy,
        "sets": [
            {
                "name": made.plan.item.name,
                "kind": made.plan.item.kind,
                "privacy": made.plan.statement.model_dump(mode="json"),
                "privacy_in_words": made.plan.statement.sentence(),
                "event": event_to_json(made.plan.event) if made.plan.event is not None else None,
                "rados": len(made.rados.rados),
                "rows": made.rados.rows,
                "noise_std": list(made.rados.noise_std),
                "lattice_bits": made.rados.lattice_bits,
                "learner": made.model.learner if made.model is not None else None,
                "notes": list(made.notes),
            }
            for made in result.sets
        ],
        "budgets": list(result.budgets),
        "seconds": published_seconds(
            result.seconds, rows_public=all(made.rados.rows is not None for made in result.sets)
        ),
        "notes": list(result.notes),
    }


class RadosJob(PipelineJob[RadosPipeline]):
    """A pipeline that makes rados."""

    schema = RadosPipeline
    runner = staticmethod(make_rados)

    def plan_lines(self, ledger: Ledger | None) -> Iterator[str]:
        """Cost, noise and statement of every set."""
        return plan_lines(self.pipeline, [plan_set(self.pipeline, item) for item in self.pipeline.sets], ledger)

    def lines(self, result: RadosResult) -> Iterator[str]:
        """Sets, budgets and models."""
        return run_lines(result)
