"""The one access to labels that a label job has, and what such jobs share around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from daskrado.jobs.labels.config import LabelBase, RandomisedLabels
from daskrado.jobs.labels.learn import Learned, at_the_source, label_mechanism, label_statement
from daskrado.jobs.labels.report import write_labels
from daskrado.lake.scan import Lake
from daskrado.ledger.account import Account
from daskrado.ledger.charging import left_for, limit_line
from daskrado.ledger.ledger import Grant, Ledger
from daskrado.privacy.accountant import Event
from daskrado.privacy.mechanisms import Mechanism
from daskrado.privacy.relations import Relation
from daskrado.privacy.release import Release, release_without_privacy
from daskrado.privacy.statement import PrivacyStatement
from daskrado.statistics.base import Statistic, Summary
from daskrado.table.yaml_file import parse, read_yaml

AnyModel = TypeVar("AnyModel", bound=BaseModel)


@dataclass(frozen=True)
class LabelRun:
    """What a label job leaves behind: all of it publishable."""

    run: str
    learned: Learned
    budget: dict[str, Any]
    seconds: dict[str, float]
    notes: tuple[str, ...] = field(default=())


def mechanism_for(pipeline: LabelBase, statistic: Statistic, granted: Event | None = None) -> Mechanism:
    """The pipeline's mechanism, calibrated for a statistic of labels."""
    assert pipeline.protect is not None
    assert pipeline.budget is not None
    return label_mechanism(
        pipeline.mechanism_name(),
        statistic,
        pipeline.lattice,
        pipeline.protect.rows_per_unit,
        pipeline.budget.epsilon,
        pipeline.budget.delta,
        granted,
    )


class PrivateLabels:
    """Reserved before a row is read, spent before noise is drawn; or exact, and plainly not private."""

    def __init__(self, pipeline: LabelBase, lake: Lake, account: Account, loosest: Statistic) -> None:
        self._pipeline, self._account = pipeline, account
        self._grant: Grant | None = None
        self.budget: dict[str, Any] = {}
        if pipeline.budget is None:
            return
        chosen = mechanism_for(pipeline, loosest)
        account.same_lake(pipeline.lake, lake)
        account.first_limit(pipeline.ledger, pipeline.dataset, Relation.LABEL_FLIP)
        self._grant = account.reserve(
            "labels",
            pipeline.dataset,
            Relation.LABEL_FLIP,
            chosen.event,
            theorem=chosen.theorem,
            fingerprint=lake.fingerprint,
            room=16 * loosest.size,
        )

    def release(self, statistic: Statistic, gather: Callable[[], Summary]) -> tuple[Release, Mechanism | None]:
        """Collect the labels' statistic and add noise, once; exact where the job is not private."""
        pipeline = self._pipeline
        if self._grant is None:
            return release_without_privacy(gather()), None
        assert pipeline.protect is not None
        assert pipeline.budget is not None
        chosen = mechanism_for(pipeline, statistic, self._grant.event)
        statement = label_statement(
            chosen, pipeline.protect.unit, pipeline.protect.rows_per_unit, pipeline.budget.delta
        )
        released = self._account.release("labels", self._grant, chosen, statement, gather)
        self.budget = self._account.budget(self._grant)
        return released, chosen


def publish(result: LabelRun, pipeline: LabelBase, title: str, account: Account, sections: Any = ()) -> None:
    """Write the run's folder, whole or not at all."""
    config = pipeline.model_dump(mode="json", exclude={"lake", "domain", "cluster", "ledger"})
    with account.publish(pipeline.output) as folder:
        write_labels(
            result.learned,
            folder,
            run=result.run,
            title=title,
            config=config,
            budget=result.budget,
            seconds=result.seconds,
            notes=result.notes,
            sections=sections,
        )


def load_pipeline(kind: type[AnyModel], pipeline: AnyModel | Mapping[str, Any] | str | Path) -> AnyModel:
    """A pipeline from a file or from its keys; ``kind`` in either is left out of account."""
    if isinstance(pipeline, kind):
        return pipeline
    where = str(pipeline) if isinstance(pipeline, str | Path) else "pipeline"
    content = read_yaml(pipeline) if isinstance(pipeline, str | Path) else pipeline
    if isinstance(content, Mapping):
        content = {key: value for key, value in content.items() if key != "kind"}
    return parse(kind, content, where)


def plan_of(pipeline: LabelBase, statistic: Statistic, ledger: Ledger | None, block: str) -> Iterator[str]:
    """The lines that label jobs have in common."""
    yield f"data set    {pipeline.dataset}"
    yield f"features    {pipeline.domain.width}, norm bound {pipeline.domain.norm_bound:g}, public"
    yield f"loss        {pipeline.loss.kind}, regulariser strength {pipeline.strength:g}"
    if pipeline.budget is None:
        statement, choice = PrivacyStatement.none(), getattr(pipeline, "supervision", None)
        if isinstance(choice, RandomisedLabels) and pipeline.protect is not None:
            statement = at_the_source(choice.epsilon, pipeline.protect)
            yield "cost        nothing: labels were randomised at the source; no budget is spent"
        yield f"guarantee   {statement.sentence()}"
        for text in statement.assumptions:
            yield f"assumes     {text}"
        return
    assert pipeline.protect is not None
    chosen = mechanism_for(pipeline, statistic)
    statement = label_statement(chosen, pipeline.protect.unit, pipeline.protect.rows_per_unit, pipeline.budget.delta)
    yield f"guarantee   {statement.sentence()}"
    yield f"mechanism   {chosen.theorem}"
    yield f"cost        {chosen.event}"
    std = chosen.noise_std()[block]
    shorter = "at most, less where rows are short" if block == "mean" else "in labels"
    yield f"noise       {block}: standard deviation {std:.4g} on the sum ({shorter})"
    for text in statement.assumptions:
        yield f"assumes     {text}"
    yield limit_line(left_for(ledger, pipeline.dataset, Relation.LABEL_FLIP), pipeline.ledger)
