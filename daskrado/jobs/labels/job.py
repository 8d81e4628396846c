"""kind: labels. The mean operator is released once, with noise; everything else sees features only."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from daskrado.cluster import connect
from daskrado.errors import DataError
from daskrado.jobs.labels.access import LabelRun, PrivateLabels, plan_of, publish
from daskrado.jobs.labels.config import FullLabels, LabelPipeline, MissingLabels, NoisyLabels, RandomisedLabels
from daskrado.jobs.labels.learn import (
    Measured,
    at_the_source,
    finish,
    label_means,
    loosest_means,
    measure,
    noise_facts,
    open_features,
)
from daskrado.jobs.labels.report import summary_lines
from daskrado.jobs.pipeline_job import PipelineJob
from daskrado.lake.collect import Progress, collect, open_passes
from daskrado.lake.scan import Lake
from daskrado.learners import supervision as weak
from daskrado.learners.on_passes.linear_odd import LakeFeatures, fit_mean
from daskrado.ledger.account import Account
from daskrado.ledger.charging import Clock
from daskrado.ledger.ledger import Ledger
from daskrado.ledger.opening import open_account
from daskrado.losses.margin import Loss
from daskrado.privacy.release import Release
from daskrado.statistics.base import Groups, Summary
from daskrado.statistics.features import normalised_l2
from daskrado.statistics.label_means import BagCounts


def run_labels(
    pipeline: LabelPipeline,
    *,
    overwrite: bool = False,
    ledger_path: str | Path | None = None,
    progress: Progress | None = None,
    write: bool = True,
    loss: Loss | None = None,
    account: Account | None = None,
) -> LabelRun:
    """Reserve, measure the public features, release the mean operator once, learn, publish."""
    with open_account(
        "labels",
        pipeline,
        overwrite=overwrite,
        ledger_path=ledger_path,
        write=write,
        remembered=loss is None,  # one given in Python cannot be
        private=pipeline.budget is not None,
        account=account,
    ) as account:
        result = _run(pipeline, account, progress, loss)
        if write:
            publish(result, pipeline, f"{pipeline.dataset}: learned from a mean operator", account)
    return result


def _run(pipeline: LabelPipeline, account: Account, progress: Progress | None, loss: Loss | None) -> LabelRun:
    clock, domain, lattice, strata = Clock(), pipeline.domain, pipeline.lattice, _strata(pipeline)
    with clock("scan"):
        extra = [domain.label.column, *([strata.column] if strata else [])]
        lake = open_features(pipeline.lake, domain, *extra)
    with (
        connect(pipeline.cluster, lake.size) as client,
        open_passes(lake, domain, lattice, client=client) as passes,
    ):
        labels = PrivateLabels(pipeline, lake, account, loosest_means(domain.width, lattice, strata))
        with clock("features"):
            measured = measure(passes, strata, progress=progress)
        missing = isinstance(pipeline.supervision, MissingLabels)
        statistic = label_means(measured, domain.width, lattice, strata, missing)

        def gather() -> Summary:
            summary = collect(statistic, lake, domain, lattice, client=client, progress=progress)
            if missing:  # which rows have a label is public: a group without any is found before the grant is spent
                weak.check_labelled(statistic.split(summary.vector)["labelled"].astype(np.float64), measured.rows)
            return summary

        with clock("labels"):
            released, chosen = labels.release(statistic, gather)
        mean, stretch, extras = _estimate(pipeline, released, measured, lake, client)
        loss = loss or pipeline.loss.build()
        with clock("learn"):
            features = LakeFeatures(passes, strata, progress)
            fit = fit_mean(features, loss, mean, pipeline.strength)
    noise = noise_facts(chosen, measured.total_rows, stretch) if chosen is not None else None
    statement = released.statement
    if isinstance(pipeline.supervision, RandomisedLabels) and pipeline.private:
        assert pipeline.protect is not None
        statement = at_the_source(pipeline.supervision.epsilon, pipeline.protect)
    learned = finish(
        domain,
        loss,
        pipeline.strength,
        mean,
        fit,
        measured.total_rows,
        statement,
        noise=noise,
        extras=extras,
    )
    return LabelRun(account.run, learned, labels.budget, clock.seconds, account.notes)


def _strata(pipeline: LabelPipeline) -> Groups | None:
    choice = pipeline.supervision
    return choice.strata.build() if isinstance(choice, MissingLabels) and choice.strata is not None else None


def _estimate(
    pipeline: LabelPipeline, released: Release, measured: Measured, lake: Lake, client: Any
) -> tuple[Any, float, dict[str, Any]]:
    """The mean operator from the release, how much the estimator stretches noise, and public facts on it."""
    bound = pipeline.domain.norm_bound
    sums = weak.LabelledSums(
        released.values["mean"] / bound, released.values["labelled"], measured.sums, measured.rows
    )
    choice = pipeline.supervision
    if isinstance(choice, FullLabels):
        return weak.complete(sums), 1.0, {}
    if isinstance(choice, MissingLabels):
        mean = weak.missing(sums)
        stretch = float(np.sqrt(((measured.rows / np.maximum(sums.labelled, 1)) ** 2).sum()))
        return mean, stretch, {"labelled_rows": int(sums.labelled.sum())}
    if isinstance(choice, RandomisedLabels):
        rates = weak.FlipRates.of_randomised_response(choice.epsilon)
    elif choice.audit is not None:
        rates = _audited(pipeline, choice, lake, client)
    else:
        assert choice.positive_flips is not None
        assert choice.negative_flips is not None
        rates = weak.FlipRates(choice.positive_flips, choice.negative_flips)
    keep = 1.0 - rates.positive - rates.negative
    facts: dict[str, Any] = {"flip_rates": {"positive": rates.positive, "negative": rates.negative}}
    if isinstance(choice, RandomisedLabels):
        # Var of a label's estimate is 1/keep^2 - 1, and a coordinate is at most max|x|_2: over m independent reports.
        largest = normalised_l2(measured.square_steps, pipeline.lattice_bits)
        facts["standard_error_at_most"] = largest * math.sqrt((keep**-2 - 1.0) / measured.total_rows)
    return weak.noisy(sums, rates), 1.0 / keep, facts


def _audited(pipeline: LabelPipeline, choice: NoisyLabels, lake: Lake, client: Any) -> weak.FlipRates:
    """Flip rates from the rows whose audit column holds the true label."""
    domain = pipeline.domain
    assert choice.audit is not None
    if choice.audit not in lake.schema.names:
        raise DataError(
            f"audit column {choice.audit!r} is not in the lake; it has {', '.join(lake.schema.names[:20])}"
        )
    truth = Groups(choice.audit, (domain.label.negative, domain.label.positive), optional=True)
    statistic = BagCounts(domain.width, truth)
    part = statistic.split(collect(statistic, lake, domain, pipeline.lattice, client=client).vector)
    table = np.stack([part["count"] - part["positives"], part["positives"]], axis=1)
    return weak.estimated_rates(table)


class LabelJob(PipelineJob[LabelPipeline]):
    """``kind: labels`` for ``daskrado plan`` and ``daskrado run``."""

    schema = LabelPipeline
    runner = staticmethod(run_labels)

    def plan_lines(self, ledger: Ledger | None) -> Iterator[str]:
        """Cost and noise, from public facts."""
        statistic = loosest_means(self.pipeline.domain.width, self.pipeline.lattice, _strata(self.pipeline))
        yield from plan_of(self.pipeline, statistic, ledger, "mean")
        yield f"supervision {self.pipeline.supervision.kind}"

    def lines(self, result: LabelRun) -> Iterator[str]:
        """Guarantee, budget and weights."""
        return summary_lines(result.learned, result.budget, result.notes, self.pipeline.output)
