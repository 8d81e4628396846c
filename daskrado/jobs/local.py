"""kind: local. Rows are randomised at the source, once; what is read from the reports is post-processing of them."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import model_validator

from daskrado.cluster import ClusterConfig, connect
from daskrado.errors import DataError, UsageError, about_the_key
from daskrado.jobs.base import Charge, Line, Outcome, PrivateJob, Run
from daskrado.jobs.local_reports import AnyReports, ColumnReports, Estimates, ReportFacts, RowReports
from daskrado.jobs.report import Section, bars
from daskrado.lake.collect import Progress
from daskrado.lake.report_rows import Kept, check_readable, write_reports
from daskrado.learners.on_release.moments import MomentsLearner
from daskrado.models.linear import LinearModel
from daskrado.privacy.accountant import Event, compose
from daskrado.privacy.release import Release
from daskrado.table.yaml_file import write_text

ROLE = "reports"
THEOREM = (
    "local differential privacy: every report is randomised by itself (Warner 1965; Kasiviswanathan et al. 2011)"
)


@dataclass(frozen=True)
class LocalFindings:
    """The number of reports, and what was estimated from them; a learned model stands beside it in the result."""

    reports: int
    estimates: Estimates = field(default_factory=dict)

    def table(self) -> list[tuple[str, str, str, str, str]]:
        """One row for each estimate: column, value, estimate, standard error, interval."""
        found = []
        for name, (values, estimate) in self.estimates.items():
            for k, value in enumerate(values):
                error = f"{math.sqrt(float(estimate.variance[k])):.3g}"
                interval = f"{estimate.low[k]:.4g} to {estimate.high[k]:.4g}"
                found.append((name, value, f"{estimate.values[k]:.5g}", error, interval))
        return found

    def save(self, path: Path) -> None:
        """Write the estimates as JSON."""
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
            for name, (values, estimate) in self.estimates.items()
        }
        write_text(path, json.dumps({"reports": self.reports, "columns": columns}, indent=2) + "\n")

    def sections(self) -> list[Section]:
        """The estimates, drawn and listed."""
        rows = self.table()
        fractions = {f"{row[0]} {row[1]}": float(row[2]) for row in rows if row[1] != "mean"}
        header = ("column", "value", "estimate", "standard error", "95 % interval")
        plot = bars(fractions, "estimated fraction") if fractions else ""
        return [Section("Estimates", header=header, rows=rows, plot=plot)]


class LocalJob(PrivateJob):
    """``reports`` says what is randomised and how; ``budget`` is the most that one person's reports may cost."""

    name: ClassVar[str] = "local"
    title: ClassVar[str] = "{job.dataset}: local reports of {job.reports.kind}"
    counts_units: ClassVar[bool] = True
    reports: AnyReports

    @model_validator(mode="after")
    def _check_reports(self) -> LocalJob:
        if not self.private:
            raise ValueError("local reports are always private")
        protect, budget, kind = self.asked.protect, self.asked.budget, self.reports.kind
        if protect.relation is not self.reports.relation:
            raise ValueError(f"reports of {kind} protect under {self.reports.relation}, not {protect.relation}")
        protect.sampled_only("a report of each row")
        with about_the_key():
            total = compose(self.events(), budget.delta)
        if not total.epsilon <= budget.epsilon * (1 + 1e-9):
            raise ValueError(
                f"the reports of one {protect.unit} cost epsilon {float(total.epsilon):.4g} at delta "
                f"{budget.delta:g} ({total.method}), more than the budget {budget.epsilon:g}"
            )
        return self

    def events(self) -> list[Event]:
        """What all reports of one person cost."""
        return self.reports.events(self.domain) * self.asked.protect.rows_per_unit

    def charges(self) -> tuple[Charge, ...]:
        events = self.events()
        method = f"local: {compose(events, self.asked.budget.delta).method}"
        how = (f"local reports of {self.reports.kind}", THEOREM, self.assumptions)
        return (Charge.of(ROLE, events, self.asked, *how, accountant=method, room=8),)

    def plan(self) -> Iterator[Line]:
        protect = self.asked.protect
        most = "one for each row" if protect.column is None else f"at most {protect.rows_per_unit} for {protect.unit}"
        yield "reports", f"{self.reports.kind}, randomised at the source, {most}"

    def encoding(self, **changes: Any) -> EncodeJob:
        """The job that writes these reports and reads nothing from them."""
        job = EncodeJob.model_validate({**dict(self), **changes})
        job._notes = self._notes
        return job

    def work(self, run: Run) -> Outcome:
        """Encode, then estimate or learn from what was encoded."""
        folder, rows = self._encoded(run)
        with run.clock("read"):
            found = read_reports(folder, cluster=self.cluster, progress=run.progress)
        lines = [f"{rows:,} reports of {self.reports.kind}, in {self.output}/reports", *found.lines]
        made = [("reports", f"{self.reports.kind}, randomised at the source")]
        return replace(found, lines=lines, made=made, files={"reports": partial(_link_all, folder), **found.files})

    def _encoded(self, run: Run) -> tuple[Path, int]:
        """A folder of reports beside the output, and their number: one draw, kept until it is published."""
        folder = run.account.kept_folder(self.output)
        with run.clock("encode"):
            drawn = run.draw(ROLE, lambda: self._readable(run), lambda kept: self._written(run, folder, kept))
        if not folder.is_dir():
            raise DataError(f"{folder}: the reports of run {run.account.run} are gone; its charge stays")
        return folder, int(drawn["rows"])

    def _readable(self, run: Run) -> Kept | None:
        """Find what is damaged before anything is drawn; which rows report, where units are bounded."""
        check_readable(self.domain, run.lake)
        units = run.units(self.asked.protect)
        return None if units is None else Kept(units, mixed=not self.asked.protect.rows_public)

    def _written(self, run: Run, folder: Path, kept: Kept | None) -> Mapping[str, np.ndarray]:
        """Randomise every row that reports, once; the folder is whole on disk, or gone."""
        facts = ReportFacts(reports=self.reports, domain=self.domain, statement=run.charges[ROLE].statement)
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o700)
            randomise = partial(self.reports.randomised, self.domain)
            rows = write_reports(self.domain, run.lake, randomise, folder, run.progress, kept)
            facts.save(folder)
            for path in folder.iterdir():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return {"rows": np.array(rows)}


class EncodeJob(LocalJob):
    """``daskrado local encode``: the reports alone, in a folder that any reader of Parquet understands."""

    name: ClassVar[str] = "local encode"
    prefix: ClassVar[str] = "_"

    def work(self, run: Run) -> Outcome:
        folder, rows = self._encoded(run)
        return Outcome(
            LocalFindings(rows),
            run.charges[ROLE].statement,
            lines=[f"{rows:,} reports of {self.reports.kind}"],
            made=[("reports", f"{self.reports.kind}, randomised at the source")],
            files={path.name: partial(_link, path) for path in sorted(folder.iterdir())},
        )


def _link_all(kept: Path, target: Path) -> None:
    target.mkdir()
    for path in kept.iterdir():
        _link(path, target / path.name)


def _link(kept: Path, target: Path) -> None:
    """The same file under another name: what is kept stays until all is published."""
    try:
        os.link(kept, target)
    except OSError:  # a file system without links
        shutil.copyfile(kept, target)


def read_reports(folder: Path, *, cluster: ClusterConfig | None = None, progress: Progress | None = None) -> Outcome:
    """Estimates or a model, whichever the reports of a folder give. Charges nothing."""
    facts = ReportFacts.load(folder)
    if isinstance(facts.reports, ColumnReports):
        reports, found = estimate_local(folder, cluster=cluster, progress=progress)
        value = LocalFindings(reports, found)
        lines = [f"{row[0]:>16} {row[1]:>14} {row[2]:>12} ± {row[3]}" for row in value.table()]
        files = {"estimates.json": value.save}
        return Outcome(value, facts.statement, lines=lines, sections=value.sections, files=files)
    assert isinstance(facts.reports, RowReports)
    with connect(cluster or ClusterConfig()) as client:
        reports, released = facts.reports.moments(facts, folder, client, progress)
    weights, details = MomentsLearner().fit(released)
    learner = f"moments of local {facts.reports.kind}"
    model = LinearModel(facts.domain, weights, facts.statement, learner, details)
    noise = f"The noise on the mean operator has standard deviation {released.noise_std['mean']:.4g}."
    sections = [Section("Noise against signal", text=noise, detail=True)]
    return Outcome(LocalFindings(reports), model.statement, model, released, sections=lambda: sections)


def estimate_local(
    folder: str | Path,
    *,
    confidence: float = 0.95,
    cluster: ClusterConfig | None = None,
    progress: Progress | None = None,
) -> tuple[int, Estimates]:
    """The number of reports of columns in a folder; fractions of categories and means of numbers, by column."""
    facts = ReportFacts.load(folder)
    if not isinstance(facts.reports, ColumnReports):
        raise UsageError(f"{folder}: these are reports of {facts.reports.kind}; estimates need reports of columns")
    with connect(cluster or ClusterConfig()) as client:
        return facts.reports.estimates(facts.domain, Path(folder), confidence, client, progress)


def learn_local(
    folder: str | Path, *, cluster: ClusterConfig | None = None, progress: Progress | None = None
) -> tuple[LinearModel, Release]:
    """A least-squares model from reports of labels or of edge vectors: post-processing, nothing is charged."""
    reports = ReportFacts.load(folder).reports
    if not isinstance(reports, RowReports):
        raise UsageError(f"{folder}: reports of {reports.kind} give estimates, not a model; encode labels or edges")
    found = read_reports(Path(folder), cluster=cluster, progress=progress)
    assert found.model is not None
    return found.model, found.release
