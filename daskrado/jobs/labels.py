"""kind: labels. The mean operator is released once, with noise; everything else sees features only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field, model_validator

from daskrado.errors import DataError
from daskrado.jobs.base import Line, Outcome, Run
from daskrado.jobs.label_learning import LabelLearningJob, MeanOperatorFit, NoiseFacts, label_outcome
from daskrado.lake.scan import Lake
from daskrado.learners.on_passes.linear_odd import LakeFeatures, fit_mean
from daskrado.learners.on_passes.public_features import measure, open_features
from daskrado.learners.supervision import FlipRates, LabelledSums, Supervision, check_labelled, estimated_rates
from daskrado.privacy.statement import PrivacyStatement
from daskrado.registry import one_of
from daskrado.statistics.base import Groups, Summary
from daskrado.statistics.label_means import BagCounts, LabelMeans


class LabelsJob(LabelLearningJob):
    """Learn from labels through their mean operator, which alone is released."""

    name: ClassVar[str] = "labels"
    title: ClassVar[str] = "{job.dataset}: learned from a mean operator"
    protected_elsewhere: ClassVar[bool] = True

    supervision: Annotated[Supervision, one_of()] = Field(default="full", validate_default=True)

    @model_validator(mode="after")
    def _check_supervision(self) -> LabelsJob:
        if self.private and self.supervision.at_source and self.protect is None:
            raise ValueError("protect is missing: say whose labels were randomised")
        if self.supervision.at_source and self.protect is not None and self.protect.how == "spread":
            raise ValueError(
                "protect.unit.how: spread reads all reports of a unit, each of which was randomised for itself and "
                "costs epsilon: use how: sample, which reads at most unit.bound of them"
            )
        if self.private and self.supervision.audited is not None:
            raise ValueError("audit reads true labels outside the budget: give the flip rates, or say private: false")
        _ = self.statement  # refuses what cannot be stated
        return self

    @property
    def spends(self) -> bool:
        return not self.supervision.at_source

    @property
    def loosest(self) -> LabelMeans:
        return LabelMeans.loosest(self.domain.width, self.lattice_bits, self.supervision.groups)

    @property
    def statement(self) -> PrivacyStatement:
        return PrivacyStatement.none() if self.protect is None else self.supervision.statement(self.protect)

    def plan(self) -> Iterator[Line]:
        yield from super().plan()
        yield "supervision", self.supervision.name
        if self.private and self.supervision.at_source:
            yield "cost", "nothing: labels were randomised at the source; no budget is spent"

    def scan(self) -> Lake:
        groups, audited = self.supervision.groups, self.supervision.audited
        strata = [] if groups is None else [groups.column]
        lake = open_features(self.source, self.domain, self.domain.label.column, *strata, strict=not self.protects)
        if audited is not None and audited not in lake.schema.names:
            have = ", ".join(lake.schema.names[:20])
            raise DataError(f"audit column {audited!r} is not in the lake; it has {have}")
        return lake

    def work(self, run: Run) -> Outcome:
        """Measure the public features, release the mean operator once, learn from it."""
        groups, missing = self.supervision.groups, self.supervision.incomplete
        with run.passes(self.lattice) as passes:
            with run.clock("features"):
                measured = measure(passes, groups, progress=run.progress)
            statistic = measured.label_means(groups, missing=missing)

            def gather() -> Summary:
                summary = run.collect(statistic, self.lattice)
                if missing and not self.protects:
                    check_labelled(statistic.split(summary.vector)["labelled"].astype(np.float64), measured.rows)
                return summary

            with run.clock("labels"):
                released, chosen = self.release(run, statistic, gather)
            mean, labelled = released.values["mean"] / self.domain.norm_bound, released.values["labelled"]
            sums = LabelledSums(mean, labelled, measured.sums, measured.rows, measured.largest)
            found = self.supervision.estimate(sums, self._audited_rates(run))
            with run.clock("learn"):
                features = LakeFeatures(passes, groups, run.progress)
                fit = fit_mean(features, self.loss, found.mean, self.regularisation)
        noise = None if chosen is None else NoiseFacts.of(chosen, measured.total_rows, found.stretch)
        return label_outcome(
            self.domain,
            MeanOperatorFit(found.mean, fit, noise),
            self.loss,
            self.regularisation,
            released.statement if run.charges else self.statement,
            rows=measured.total_rows,
            facts=found.facts,
            release=released,
        )

    def _audited_rates(self, run: Run) -> FlipRates | None:
        """Flip rates from the rows whose audit column holds the true label."""
        if self.supervision.audited is None:
            return None
        pair = self.domain.label.two_values("supervision.audited")
        truth = Groups(self.supervision.audited, pair, optional=True)
        statistic = BagCounts(self.domain.width, truth)
        part = statistic.split(run.collect(statistic, self.lattice).vector)
        return estimated_rates(np.stack([part["count"] - part["positives"], part["positives"]], axis=1))
