"""Commands on teachers: private answers to public queries."""

from __future__ import annotations

from pathlib import Path

import click

from daskrado.cli.commands.shared import progress_bar, with_cluster, with_ledger


@click.group()
def teachers() -> None:
    """Private answers to classification queries from teachers on disjoint shards of a lake."""


@teachers.command("ask")
@click.argument("pipeline", type=click.Path(path_type=Path))
@click.argument("queries")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Parquet file for the answers.")
@with_cluster
@with_ledger
@click.option("--overwrite", is_flag=True)
def teachers_ask(
    pipeline: Path,
    queries: str,
    out: Path,
    workers: int | None,
    cluster: str | None,
    ledger: Path | None,
    overwrite: bool,
) -> None:
    """Answer a Parquet file of public QUERIES by the engine of PIPELINE; refused queries are null."""
    from daskrado.cluster import cluster_config
    from daskrado.jobs.load import load_kind
    from daskrado.jobs.teacher_session import ask_file
    from daskrado.jobs.teachers import TeachersJob

    where = cluster_config(workers, cluster) if workers is not None or cluster is not None else None
    job = load_kind(TeachersJob, pipeline).with_changes(cluster=where)
    with progress_bar("teachers") as progress:
        counts = ask_file(job, queries, out, overwrite=overwrite, ledger=ledger, progress=progress)
    rest = ""
    if "thresholds" in counts:
        rest = f" under {counts['thresholds']:,} more thresholds, of which each session and each refusal costs one"
    click.echo(
        f"{out}: {counts['answered']:,} answered, {counts['refused']:,} refused, {counts['stopped']:,} not reached; "
        f"the engine takes {counts['left']:,} more queries{rest}"
    )


@teachers.command("plan")
@click.option("--teachers", "count", type=click.IntRange(min=1), required=True, help="Teachers (k).")
@click.option("--queries", type=click.IntRange(min=1), required=True, help="Queries to answer in all (m).")
@click.option(
    "--refusals", type=click.IntRange(min=1), default=None, help="Refusals at which sparse_vector stops (T)."
)
@click.option("--epsilon", type=float, required=True)
@click.option("--delta", type=float, required=True)
@click.option("--agreement", type=float, default=0.9, show_default=True, help="Share of teachers that agree.")
@click.option("--rows", type=click.IntRange(min=1), default=None, help="Rows of the lake (n), if public.")
@click.option("--features", type=click.IntRange(min=1), default=None, help="Encoded features (d).")
def teachers_plan(
    count: int,
    queries: int,
    refusals: int | None,
    epsilon: float,
    delta: float,
    agreement: float,
    rows: int | None,
    features: int | None,
) -> None:
    """Which mechanism to use: the vote margin and the teachers that each needs. Reads nothing."""
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
    refuse_if_hopeless(answering(compare(terms, count, agreement)[0].name, terms), count, agreement)
    if rows is not None and features is not None:
        click.echo(f"{'rows':<11} {rows_per_teacher(rows, count, features)}")
    for name, text in forecast_lines(terms, count, agreement):
        click.echo(f"{name:<11} {text}")
