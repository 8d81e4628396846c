"""Local reports: what they cost, and the estimates and models that are post-processing of them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import model_validator

from daskrado.cluster import ClusterConfig, connect
from daskrado.errors import DataError, UsageError
from daskrado.jobs.measure.base import MeasurePipeline, statement_of
from daskrado.jobs.measure.reports import (
    ColumnReports,
    EdgeReports,
    LabelReports,
    ReportCounts,
    ReportFacts,
    Reports,
    report_events,
)
from daskrado.jobs.report import Section, bars
from daskrado.lake.collect import Progress, collect
from daskrado.lake.scan import open_lake
from daskrado.lake.tally import tally
from daskrado.learners.on_release.moments import MomentsLearner
from daskrado.models.linear import LinearModel
from daskrado.privacy.accountant import Event, compose, total_event
from daskrado.privacy.local import Estimate, UnaryEncoding
from daskrado.privacy.local_numbers import LocalNumber
from daskrado.privacy.relations import Relation
from daskrado.privacy.release import Release
from daskrado.statistics.base import Rows
from daskrado.statistics.moments import Moments
from daskrado.table.lattice import Lattice
from daskrado.table.yaml_file import write_text

THEOREM = (
    "local differential privacy: every report is randomised by itself (Warner 1965; Kasiviswanathan et al. 2011)"
)


class LocalPipeline(MeasurePipeline):
    """``reports`` says what is randomised and how; ``budget`` is the most that one person's reports may cost."""

    reports: Reports

    @model_validator(mode="after")
    def _check_reports(self) -> LocalPipeline:
        if not self.private:
            raise ValueError("local reports are always private")
        assert self.protect is not None
        assert self.budget is not None
        needed = Relation.LABEL_FLIP if isinstance(self.reports, LabelReports) else Relation.REPLACE_ONE
        if self.protect.relation is not needed:
            raise ValueError(f"reports of {self.reports.kind} protect under {needed}, not {self.protect.relation}")
        try:
            total = compose(self.events(), self.budget.delta)
        except UsageError as error:
            raise ValueError(str(error)) from error
        if not total.epsilon <= self.budget.epsilon * (1 + 1e-9):
            raise ValueError(
                f"the reports of one {self.protect.unit} cost epsilon {float(total.epsilon):.4g} at delta "
                f"{self.budget.delta:g} ({total.method}), more than the budget {self.budget.epsilon:g}"
            )
        return self

    def events(self) -> list[Event]:
        """What all reports of one person cost."""
        assert self.protect is not None
        return report_events(self.reports, self.domain) * self.protect.rows_per_unit

    def event(self) -> Event:
        """The same as one event for the ledger."""
        assert self.budget is not None
        return total_event(self.events(), self.budget.delta)

    def facts(self) -> ReportFacts:
        """What is published beside the reports."""
        assert self.budget is not None
        total = compose(self.events(), self.budget.delta)
        statement = statement_of(
            self,
            epsilon=float(total.epsilon),
            delta=0.0 if total.method == "basic" else self.budget.delta,
            mechanism=f"local reports of {self.reports.kind}",
            theorem=THEOREM,
            accountant=f"local: {total.method}",
        )
        return ReportFacts(self.reports, self.domain, statement)


def estimates(
    folder: str | Path,
    *,
    confidence: float = 0.95,
    cluster: ClusterConfig | None = None,
    progress: Progress | None = None,
) -> tuple[int, dict[str, tuple[tuple[str, ...], Estimate]]]:
    """Fractions of categories and means of numbers, from a folder of column reports, over its partitions."""
    facts = ReportFacts.load(folder)
    if not isinstance(facts.reports, ColumnReports):
        raise UsageError(f"{folder}: these are reports of {facts.reports.kind}; estimates need reports of columns")
    mechanisms = facts.reports.mechanisms(facts.domain)
    count = ReportCounts(
        tuple(
            (name, axis.values if axis is not None else (), isinstance(mechanism, UnaryEncoding))
            for name, (axis, mechanism) in mechanisms.items()
        )
    )
    with connect(cluster or ClusterConfig()) as client:
        total = tally(str(folder), count.columns(), count, client=client, progress=progress)
    rows, at = int(total[0]), 1
    found: dict[str, tuple[tuple[str, ...], Estimate]] = {}
    for name, (axis, mechanism) in mechanisms.items():
        if isinstance(mechanism, LocalNumber):
            found[name] = (("mean",), mechanism.estimate(int(total[at]), rows, confidence))
            at += 1
        else:
            assert axis is not None
            counts = total[at : at + len(axis.values)]
            if not isinstance(mechanism, UnaryEncoding) and counts.sum() != rows:
                raise DataError(f"{folder}: column {name!r} holds reports outside {list(axis.values)}")
            found[name] = (axis.values, mechanism.estimate(counts, rows, confidence))
            at += len(axis.values)
    return rows, found


@dataclass(frozen=True)
class _EdgeMoments:
    """Rows, then the moments of a table of edge vectors in grid steps."""

    names: tuple[str, ...]

    def __call__(self, table: pa.Table) -> NDArray[np.int64]:
        """Exact integer sums."""
        edges = np.column_stack([table.column(name).to_numpy().astype(np.float64) for name in self.names])
        rows = Rows(np.asfortranarray(edges), np.ones(len(edges), dtype=np.int8))
        return np.append(np.int64(len(edges)), Moments(len(self.names)).partial(rows))


def learn(
    folder: str | Path, *, cluster: ClusterConfig | None = None, progress: Progress | None = None
) -> tuple[LinearModel, Release]:
    """A least-squares model from reports of labels or of edge vectors: post-processing, nothing is charged.

    Labels: E[reported y] = (2p - 1) y, so the mean operator is divided by 2p - 1. Edge vectors: the noise adds
    m zeta^2 I to the second moments, which is taken off again.
    """
    facts = ReportFacts.load(folder)
    width = facts.domain.width
    statistic = Moments(width)
    with connect(cluster or ClusterConfig()) as client:
        if isinstance(facts.reports, LabelReports):
            lattice = Lattice(facts.domain.norm_bound, statistic.default_bits)
            lake = open_lake(str(folder), facts.domain)
            summary = collect(statistic, lake, facts.domain, lattice, client=client, progress=progress)
            parts = {name: part.astype(np.float64) for name, part in statistic.split(summary.vector).items()}
            mechanism = facts.reports.mechanism()
            gap = mechanism.p - mechanism.q
            spread = 2 * math.sqrt(mechanism.p * mechanism.q * float(parts["second"].max())) / gap
            parts["mean"] = parts["mean"] / gap
            noise = {"mean": spread * lattice.step, "second": 0.0}
        elif isinstance(facts.reports, EdgeReports):
            lattice = facts.lattice
            names = facts.domain.feature_names
            total = tally(str(folder), names, _EdgeMoments(names), client=client, progress=progress)
            rows, scale = int(total[0]), facts.reports.mechanism().scale
            parts = {name: part.astype(np.float64) for name, part in statistic.split(total[1:]).items()}
            diagonal = np.equal(*np.triu_indices(width))
            parts["second"] = parts["second"] - rows * scale**2 * diagonal
            std = math.sqrt(rows) * scale
            noise = {"mean": std * lattice.step, "second": std * scale * lattice.step**2}
        else:
            raise UsageError(f"{folder}: reports of columns give estimates, not a model; encode labels or edges")
    values = {block.name: parts[block.name] * block.step(lattice) for block in statistic.blocks}
    released = Release(statistic, lattice, values, noise, facts.statement)
    weights, details = MomentsLearner().fit(released)
    return LinearModel(
        facts.domain, weights, facts.statement, f"moments of local {facts.reports.kind}", details
    ), released


def analysed(
    reports: Path, folder: Path, cluster: ClusterConfig | None, progress: Progress | None
) -> tuple[list[Section], list[str]]:
    """Write estimates.json or model.json for a folder of reports, and say it in sections and lines."""
    if isinstance(ReportFacts.load(reports).reports, ColumnReports):
        rows, found = estimates(reports, cluster=cluster, progress=progress)
        write_text(folder / "estimates.json", json.dumps(estimates_json(rows, found), indent=2) + "\n")
        table = list(estimate_rows(found))
        plots = {f"{r[0]} {r[1]}": float(r[2]) for r in table if r[1] != "mean"}
        section = Section(
            "Estimates",
            header=("column", "value", "estimate", "standard error", "95 % interval"),
            rows=table,
            plot=bars(plots, "estimated fraction") if plots else "",
        )
        return [section], [f"{r[0]:>16} {r[1]:>14} {r[2]:>12} ± {r[3]}" for r in table]
    model, released = learn(reports, cluster=cluster, progress=progress)
    model.save(folder / "model.json")
    weights = {str(name): float(weight) for name, weight in model.coefficients.items()}
    said = f"The noise on the mean operator has standard deviation {released.noise_std['mean']:.4g}."
    ranked = sorted(weights.items(), key=lambda item: -abs(item[1]))[:8]
    return [Section("Coefficients", text=said, plot=bars(weights, "weight"))], [
        f"  {w:+12.5g}  {n}" for n, w in ranked
    ]


def estimate_rows(found: dict[str, tuple[tuple[str, ...], Estimate]]) -> Iterator[tuple[str, str, str, str, str]]:
    """One line for each estimate."""
    for name, (values, estimate) in found.items():
        for k, value in enumerate(values):
            error = math.sqrt(float(estimate.variance[k]))
            interval = f"{estimate.low[k]:.4g} to {estimate.high[k]:.4g}"
            yield name, value, f"{estimate.values[k]:.5g}", f"{error:.3g}", interval


def estimates_json(rows: int, found: dict[str, tuple[tuple[str, ...], Estimate]]) -> dict[str, Any]:
    """Estimates as plain values."""
    columns = {
        name: {
            value: {
                "estimate": float(estimate.values[k]),
                "variance": float(estimate.variance[k]),
                "population_variance": float(estimate.population_variance[k]),
                "interval": [float(estimate.low[k]), float(estimate.high[k])],
            }
            for k, value in enumerate(values)
        }
        for name, (values, estimate) in found.items()
    }
    return {"reports": rows, "columns": columns}
