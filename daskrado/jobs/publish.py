"""From an outcome to files and a result: files and manifest first, then the report, which may fail without loss."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from daskrado.errors import in_one_line
from daskrado.jobs.chosen_blocks import block_facts
from daskrado.jobs.manifest import manifest_of, plain_json
from daskrado.jobs.outcome import Outcome, Result, check_claim
from daskrado.jobs.report import page_of
from daskrado.lake.steps import begin_step
from daskrado.ledger.words import PAID_EARLIER, run_line
from daskrado.models.error_bars import NOISE, SIGNAL, UNSEEN
from daskrado.models.linear import LinearModel
from daskrado.table.yaml_file import write_text

if TYPE_CHECKING:
    from daskrado.jobs.run import Run

SHOWN_WEIGHTS = 8
_log = logging.getLogger(__name__)


def publish(run: Run, outcome: Outcome, *, write: bool) -> Result:
    """Publish what a run found, if it is to be written, and return it."""
    check_claim(run, outcome.statement)
    begin_step(run.progress, "publish")
    job, rows, prices = run.job, run.rows, run.prices()
    known = ({"rows": rows} if job.rows_public else {}) | ({"table": run.table} if run.table else {})
    known |= block_facts(job, run.account)
    result = Result(
        job.name,
        run.account.run,
        job.dataset,
        outcome.value,
        outcome.statement,
        tuple(price.to_json() | {"ledger_head": str(run.account.ledger.head())} for price in prices),
        outcome.model,
        outcome.release,
        plain_json({**known, **outcome.facts}),
        (*run.account.notes, *outcome.notes),
        # How long a pass takes depends on the rows, on their number and on what they hold.
        {} if job.protects else dict(run.clock.seconds),
    )
    names = _write(run, outcome, result) if write else []
    notes = (*run.account.notes, *outcome.notes)
    paid = [PAID_EARLIER] if run.paid_earlier else [run_line(run.asked, prices)] if prices else []
    lines = [result.statement.sentence(), *outcome.lines, *paid, *notes]
    if outcome.model is not None:
        lines += ["largest weights:", *weight_lines(outcome.model)]
    if write:
        spent = ", ".join(f"{stage} {value:g} s" for stage, value in result.seconds.items())
        lines.append("; ".join(filter(None, [spent, f"written to {job.output}: {', '.join(names)}"])))
    folder = Path(job.output) if write else None
    return replace(result, notes=notes, lines=tuple(map(in_one_line, lines)), folder=folder)


def _write(run: Run, outcome: Outcome, result: Result) -> list[str]:
    """Write files, manifest and report; returns their names."""
    job, account, stopped = run.job, run.account, None
    manifest, report = f"{job.prefix}manifest.json", f"{job.prefix}report.html"
    with account.publish(job.output, manifest) as folder:
        names = [*write_files(outcome, folder), manifest]
        content = manifest_of(run, result, folder)
        write_text(folder / manifest, json.dumps(content, indent=2, allow_nan=False) + "\n")
        try:
            write_text(folder / report, page_of(run, outcome, result))
            names.append(report)
        except BaseException as error:  # what was paid for is on disk: a page is not worth losing it
            _log.info("report", exc_info=True)
            why = f"could not be drawn ({type(error).__name__}); everything else is complete"
            account.notes += (f"{report} {why}",)
            stopped = None if isinstance(error, Exception) else error
    if stopped is not None:  # Ctrl-C ends the command, after what was paid for is published
        raise stopped
    return names


def write_files(outcome: Outcome, folder: Path) -> list[str]:
    """Write the model and the kind's own files; returns their names."""
    writers = {**({} if outcome.model is None else {"model.json": outcome.model.save}), **outcome.files}
    for name, write in writers.items():
        write(folder / name)
    return list(writers)


def weight_lines(model: LinearModel) -> Iterator[str]:
    """The largest weights with their intervals, one line each, and what is to be said of all of them."""
    names, weights, bars = model.weight_names, model.weights.ravel().tolist(), model.error_bars
    rows = sorted(zip(names, weights, bars.low, bars.high, bars.marks, strict=True), key=lambda row: -abs(row[1]))
    for name, weight, low, high, mark in [row for row in rows if row[4] != UNSEEN][:SHOWN_WEIGHTS]:
        interval = f"{low:+8.3g} to {high:+8.3g}" if mark in (SIGNAL, NOISE) else ""
        said = "  (noise)" if mark == NOISE else ""
        yield f"  {weight:+10.4g}  {interval:<20}  {name}{said}".rstrip()
    unseen = [name for name, mark in zip(names, bars.marks, strict=True) if mark == UNSEEN]
    if unseen:
        more = f" and {len(unseen) - SHOWN_WEIGHTS} more" if len(unseen) > SHOWN_WEIGHTS else ""
        yield f"  hidden by noise, so shrunk to the mean of their column: {', '.join(unseen[:SHOWN_WEIGHTS])}{more}"
    yield f"  ({bars.about})"
