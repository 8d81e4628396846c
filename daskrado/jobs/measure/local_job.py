"""kind: local. Rows are randomised at the source, once; the reports are kept whole before anything is published."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from daskrado.errors import DataError
from daskrado.jobs.measure.base import ROLE, plan_head, reserved, write_pages
from daskrado.jobs.measure.local import THEOREM, LocalPipeline, analysed
from daskrado.jobs.measure.reports import check_rows, write_reports
from daskrado.jobs.pipeline_job import PipelineJob
from daskrado.lake.collect import Progress
from daskrado.lake.scan import open_lake
from daskrado.ledger.account import Account
from daskrado.ledger.charging import Clock
from daskrado.ledger.journal import Arrays
from daskrado.ledger.ledger import Grant, Ledger
from daskrado.ledger.opening import open_account


@dataclass(frozen=True)
class LocalResult:
    """What a local job leaves behind: all of it publishable."""

    run: str
    rows: int
    budget: dict[str, Any]
    notes: tuple[str, ...]
    found: tuple[str, ...] = ()


class Encoded:
    """A folder of reports beside the output: one draw, kept until it is published."""

    def __init__(self, pipeline: LocalPipeline, account: Account, progress: Progress | None) -> None:
        self.folder = account.kept_folder(pipeline.output)
        lake = open_lake(pipeline.lake, pipeline.domain)
        self.grant: Grant = reserved(account, pipeline, lake, pipeline.event(), THEOREM, room=8)

        def randomise(_: None) -> Arrays:
            account.spend(self.grant)
            try:
                return {"rows": np.array(self._write(pipeline, lake, progress))}
            except BaseException:
                shutil.rmtree(self.folder, ignore_errors=True)
                raise

        drawn = account.draw(ROLE, self.grant, lambda: check_rows(pipeline.domain, lake), randomise)
        self.rows = int(drawn["rows"])
        if not self.folder.is_dir():
            raise DataError(f"{self.folder}: the reports of run {account.run} are gone; its charge stays")

    def _write(self, pipeline: LocalPipeline, lake: Any, progress: Progress | None) -> int:
        facts = pipeline.facts()
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        self.folder.mkdir(mode=0o700)
        rows = write_reports(facts, lake, self.folder, progress)
        facts.save(self.folder)
        for path in self.folder.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        return rows

    def put_into(self, target: Path) -> None:
        """The same files under another name: what is kept stays until all is published."""
        target.mkdir(exist_ok=True)
        for path in self.folder.iterdir():
            try:
                os.link(path, target / path.name)
            except OSError:  # a file system without links
                shutil.copyfile(path, target / path.name)


def encode(
    pipeline: LocalPipeline,
    out: str | Path | None = None,
    *,
    overwrite: bool = False,
    ledger_path: str | Path | None = None,
    progress: Progress | None = None,
    account: Account | None = None,
) -> LocalResult:
    """Write a folder of reports at the source: charged before a row is read, randomised once, whole or not at all.

    ``out`` is the folder, by default the pipeline's output.
    """
    chosen = pipeline if out is None else pipeline.model_copy(update={"output": str(out)})
    with open_account(
        "local encode", chosen, overwrite=overwrite, ledger_path=ledger_path, write=True, account=account
    ) as account:
        encoded = Encoded(chosen, account, progress)
        with account.publish(chosen.output) as folder:
            encoded.put_into(folder)
        return LocalResult(account.run, encoded.rows, account.budget(encoded.grant), account.notes)


def run_local(
    pipeline: LocalPipeline,
    *,
    overwrite: bool = False,
    ledger_path: str | Path | None = None,
    progress: Progress | None = None,
    account: Account | None = None,
) -> LocalResult:
    """Encode, then estimate or learn from what was encoded, and publish all of it."""
    clock = Clock()
    with open_account(
        "local", pipeline, overwrite=overwrite, ledger_path=ledger_path, write=True, account=account
    ) as account:
        with clock("encode"):
            encoded = Encoded(pipeline, account, progress)
        budget = account.budget(encoded.grant)
        with account.publish(pipeline.output) as folder:
            encoded.put_into(folder / "reports")
            with clock("read"):
                sections, found = analysed(folder / "reports", folder, pipeline.cluster, progress)
            write_pages(
                folder,
                title=f"{pipeline.dataset}: local reports of {pipeline.reports.kind}",
                run=account.run,
                pipeline=pipeline,
                statement=pipeline.facts().statement,
                event=pipeline.event(),
                budget=budget,
                facts={"rows": encoded.rows, "reports": pipeline.reports.model_dump(mode="json")},
                sections=sections,
                seconds=clock.seconds,
                notes=account.notes,
            )
        return LocalResult(account.run, encoded.rows, budget, account.notes, tuple(found))


class LocalJob(PipelineJob[LocalPipeline]):
    """``kind: local`` for ``daskrado plan`` and ``daskrado run``: encode, then estimate or learn."""

    schema = LocalPipeline
    runner = staticmethod(run_local)

    def plan_lines(self, ledger: Ledger | None) -> Iterator[str]:
        """What the reports of one person cost."""
        yield from plan_head(self.pipeline, self.pipeline.event(), ledger)
        yield f"reports     {self.pipeline.reports.kind}, randomised at the source, one for each row"
        yield f"guarantee   {self.pipeline.facts().statement.sentence()}"

    def lines(self, result: LocalResult) -> Iterator[str]:
        """Guarantee and estimates."""
        yield self.pipeline.facts().statement.sentence()
        yield f"{result.rows:,} reports of {self.pipeline.reports.kind}, in {self.pipeline.output}/reports"
        yield from (*result.found, *result.notes)
        yield f"written to {self.pipeline.output}"


class EncodeJob(LocalJob):
    """``daskrado local encode``: the reports alone."""

    runner = staticmethod(encode)

    def lines(self, result: LocalResult) -> Iterator[str]:
        """Guarantee and budget."""
        yield self.pipeline.facts().statement.sentence()
        yield from result.notes
        spent, limit = result.budget["spent_epsilon"], result.budget["limit_epsilon"]
        yield f"{self.pipeline.output}: {result.rows:,} reports; epsilon {spent:.4g} of {limit:g} spent"
