"""Commands on teachers: private answers to public queries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import click

from daskrado.cli.commands.shared import progress_bar
from daskrado.cli.commands.signature import LedgerPath, Lines, OnCluster, command

teachers = click.Group(
    "teachers", help="Private answers to classification queries from teachers on disjoint shards of a lake."
)
AtLeastOne = click.IntRange(1)


@command(teachers)
def ask(
    pipeline: Path,
    queries: str,
    *,
    out: Annotated[Path, "Parquet file for the answers."],
    cluster: OnCluster,
    ledger: LedgerPath = None,
    overwrite: bool = False,
) -> Lines:
    """Answer a Parquet file of public QUERIES by the engine of PIPELINE; refused queries are null.

    Examples:
      daskrado teachers ask pipelines/teachers.yaml queries.parquet --out answers.parquet
    """
    from daskrado.jobs.load import load_kind
    from daskrado.jobs.teacher_session import ask_file
    from daskrado.jobs.teachers import TeachersJob

    job = load_kind(TeachersJob, pipeline).with_changes(cluster=cluster)
    with progress_bar("teachers") as progress:
        counts = ask_file(job, queries, out, overwrite=overwrite, ledger=ledger, progress=progress)
    rest = ""
    if "thresholds" in counts:
        rest = f" under {counts['thresholds']:,} more thresholds, of which each session and each refusal costs one"
    return (
        f"{out}: {counts['answered']:,} answered, {counts['refused']:,} refused, {counts['stopped']:,} not reached; "
        f"the engine takes {counts['left']:,} more queries{rest}"
    )


@command(teachers)
def plan(
    *,
    teachers: Annotated[int, AtLeastOne, "Teachers (k)."],
    queries: Annotated[int, AtLeastOne, "Queries to answer in all (m)."],
    refusals: Annotated[int | None, AtLeastOne, "Refusals at which sparse_vector stops (T)."] = None,
    epsilon: float,
    delta: float,
    agreement: Annotated[float, "Share of teachers that agree."] = 0.9,
    rows: Annotated[int | None, AtLeastOne, "Rows of the lake (n), if public."] = None,
    features: Annotated[int | None, AtLeastOne, "Encoded features (d)."] = None,
) -> Iterator[str]:
    """Which mechanism to use: the vote margin and the teachers that each needs. Reads nothing.

    Examples:
      daskrado teachers plan --teachers 800 --queries 1000 --epsilon 1 --delta 1e-6
    """
    from daskrado.bounds.teachers import (
        compare,
        forecast_lines,
        refuse_if_hopeless,
        rows_per_teacher,
        theorem_refusals,
    )
    from daskrado.engines.answers import Terms, answering
    from daskrado.privacy.events import asked_epsilon

    chosen = refusals if refusals is not None else theorem_refusals(max(0.0, 1 - agreement), queries)
    asked_epsilon(epsilon)
    terms = Terms(epsilon, delta, queries, chosen)
    refuse_if_hopeless(answering(compare(terms, teachers, agreement)[0].name, terms), teachers, agreement)
    if rows is not None and features is not None:
        yield f"{'rows':<11} {rows_per_teacher(rows, teachers, features)}"
    for name, text in forecast_lines(terms, teachers, agreement):
        yield f"{name:<11} {text}"
