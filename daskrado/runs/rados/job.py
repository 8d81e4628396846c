"""Pipelines of kind ``rados``: make sets of rados from a lake, publish each with its statement, learn from them."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import daskrado
from daskrado.bounds.rado_risk import separability
from daskrado.cluster import ClusterConfig, connect
from daskrado.domain import parse
from daskrado.lake.collect import collect
from daskrado.lake.publish import check_free, new_folder
from daskrado.lake.scan import Lake, open_lake
from daskrado.lake.seeds import SignatureKey
from daskrado.learners.keep import THEOREM, choose_by_mistakes
from daskrado.models import LinearModel, write_text
from daskrado.privacy.accountant import PureEvent, event_to_json
from daskrado.privacy.ledger import Grant, Ledger
from daskrado.rado_set import RadoSet, noise_of, rados_of
from daskrado.release import Release, release, release_noised_rows, release_without_privacy
from daskrado.runs.charging import (
    Clock,
    budget_facts,
    opened_ledger,
    published_seconds,
    set_first_limit,
    void_unless_spent,
)
from daskrado.runs.job import Progress
from daskrado.runs.labels.access import changed
from daskrado.runs.pipeline import RadoBoostChoice, default_ledger
from daskrado.runs.rados.pipeline import FixedSupportSet, NoisyEdgesSet, RadosPipeline, SummedSet
from daskrado.runs.rados.plan import SetPlan, plan_set, with_choice
from daskrado.runs.rados.report import plan_lines, report, run_lines
from daskrado.statistics.base import Statistic, Summary

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


class RadosJob:
    """A pipeline that makes rados."""

    def __init__(self, pipeline: RadosPipeline) -> None:
        self.pipeline = pipeline

    @classmethod
    def load(cls, content: Any, where: str) -> RadosJob:
        """Validate the YAML content."""
        return cls(parse(RadosPipeline, content, where))

    def overridden(self, cluster: ClusterConfig | None, output: str | None) -> RadosJob:
        """The same job on other workers or with another output folder."""
        return RadosJob(changed(self.pipeline, cluster, output))

    @property
    def ledger_path(self) -> Path:
        """The pipeline's ledger, else this user's."""
        return Path(self.pipeline.ledger.path) if self.pipeline.ledger.path else default_ledger()

    def plan_lines(self, ledger: Ledger | None) -> Iterator[str]:
        """Cost, noise and statement of every set."""
        return plan_lines(self.pipeline, [plan_set(self.pipeline, item) for item in self.pipeline.sets], ledger)

    def run(self, *, overwrite: bool, ledger_path: Path | None, progress: Progress | None) -> Iterator[str]:
        """Make the sets and write them."""
        return run_lines(make_rados(self.pipeline, overwrite=overwrite, ledger_path=ledger_path, progress=progress))


def make_rados(
    pipeline: RadosPipeline,
    *,
    overwrite: bool = False,
    ledger_path: str | Path | None = None,
    progress: Progress | None = None,
    write: bool = True,
) -> RadosResult:
    """Make every set: all charges are reserved before a row is read, each is spent just before its noise is drawn.

    Sets whose noise is on rows are charged when their rows are read, and last, so that an earlier failure costs
    nothing. A killed process leaves every reservation charged.
    """
    if write:
        check_free(pipeline.output, overwrite=overwrite)
    plans = [plan_set(pipeline, item) for item in pipeline.sets]
    clock, identifier = Clock(), uuid.uuid4().hex
    with clock("scan"):
        lake = open_lake(pipeline.lake, pipeline.domain, ids=pipeline.domain.id is not None)
        plans = [plan.at(lake.rows, accept_no_privacy=pipeline.accept_no_privacy) for plan in plans]
    if all(plan.event is None for plan in plans):
        making = _Making(pipeline, lake, None, identifier, clock, progress)
        result = making.make(plans)
    else:
        with opened_ledger(ledger_path, pipeline.ledger) as ledger:
            making = _Making(pipeline, lake, ledger, identifier, clock, progress)
            result = making.make(plans)
    if write:
        with new_folder(pipeline.output, overwrite=overwrite) as folder:
            _write(result, folder)
    return result


class _Making:
    """One run's moving parts: the lake, the ledger, and the grants that are still to be spent."""

    def __init__(
        self,
        pipeline: RadosPipeline,
        lake: Lake,
        ledger: Ledger | None,
        identifier: str,
        clock: Clock,
        progress: Progress | None,
    ) -> None:
        self.pipeline, self.lake, self.ledger = pipeline, lake, ledger
        self.identifier, self.clock, self.progress = identifier, clock, progress
        self.client: Any = None

    def make(self, plans: list[SetPlan]) -> RadosResult:
        notes: list[str] = []
        grants: dict[str, Grant] = {}
        choices: dict[str, Grant] = {}
        if self.ledger is not None:
            notes, grants, choices = self._reserve(plans)
        with connect(self.pipeline.cluster, self.lake.size) as self.client:
            if self.ledger is None:
                made = [self._finish(plan, self._collect(plan), None, None) for plan in plans]
                return RadosResult(self.pipeline, self.identifier, tuple(made), (), self.clock.seconds)
            with void_unless_spent(self.ledger, *grants.values(), *choices.values()):
                order = sorted(range(len(plans)), key=lambda i: plans[i].statistic.noises_rows)
                summaries: dict[int, Summary] = {}
                for i in order:
                    if plans[i].statistic.noises_rows:
                        self.ledger.spend(grants[plans[i].item.name])  # this set's noise is drawn while rows are read
                    summaries[i] = self._collect(plans[i])
                made = [
                    self._finish(plan, summaries[i], grants.get(plan.item.name), choices.get(plan.item.name))
                    for i, plan in enumerate(plans)
                ]
            budgets = {g.relation: budget_facts(self.ledger, g) for g in grants.values()}
        return RadosResult(
            self.pipeline, self.identifier, tuple(made), tuple(budgets.values()), self.clock.seconds, tuple(notes)
        )

    def _reserve(self, plans: list[SetPlan]) -> tuple[list[str], dict[str, Grant], dict[str, Grant]]:
        assert self.ledger is not None
        used = dict.fromkeys(plan.statement.relation for plan in plans if plan.statement.relation is not None)
        notes = list(set_first_limit(self.ledger, self.pipeline.ledger, self.pipeline.dataset, *used))
        grants: dict[str, Grant] = {}
        choices: dict[str, Grant] = {}
        try:
            for plan in plans:
                if plan.event is None or plan.statement.relation is None:
                    continue
                relation, name = plan.statement.relation, self.pipeline.dataset
                wanted = [(grants, plan.event, plan.statement.theorem)]
                if plan.item.keep_epsilon is not None:
                    wanted.append((choices, PureEvent(plan.item.keep_epsilon), THEOREM))
                for held, event, theorem in wanted:
                    held[plan.item.name] = self.ledger.reserve(
                        name, relation, event, theorem=theorem, run=self.identifier, fingerprint=self.lake.fingerprint
                    )
        except BaseException:
            for grant in (*grants.values(), *choices.values()):
                self.ledger.void(grant)
            raise
        return notes, grants, choices

    def _collect(self, plan: SetPlan) -> Summary:
        item = plan.item
        seed = item.seed if isinstance(item, SummedSet | FixedSupportSet) else None
        key = SignatureKey.secret() if seed is None else SignatureKey.from_seed(seed)
        with self.clock(f"collect {item.name}"):
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

    def _finish(self, plan: SetPlan, summary: Summary, grant: Grant | None, choice: Grant | None) -> MadeSet:
        with self.clock(f"release {plan.item.name}"):
            released = self._released(plan, summary, grant)
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
            )
        return self._learned(plan, rados, choice)

    def _released(self, plan: SetPlan, summary: Summary, grant: Grant | None) -> Release:
        if plan.event is None:
            return release_without_privacy(summary, plan.statement)
        if plan.mechanism is None:
            return release_noised_rows(summary, plan.statement)
        assert self.ledger is not None
        assert grant is not None
        return release(summary, plan.mechanism, self.ledger, grant, plan.statement)

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
        assert self.ledger is not None
        assert plan.event is not None
        assert plan.item.keep_epsilon is not None
        thetas = learn.build().path(rados.rados)
        at = choose_by_mistakes(
            thetas,
            plan.lattice,
            lambda statistic: self._gather(statistic, plan),
            self.ledger,
            choice,
            plan.item.keep_epsilon,
            plan.statement.rows_per_unit,
        )
        details = {"rados": len(rados.rados), "rounds": len(thetas), "kept_round": at + 1}
        return thetas[at], details, with_choice(plan.statement, plan.event, plan.item.keep_epsilon, THEOREM)


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
