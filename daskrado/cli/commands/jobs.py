"""Commands that run pipelines and use what they publish."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from daskrado.cli.commands.shared import progress_bar, with_cluster, with_ledger

if TYPE_CHECKING:
    from daskrado.cluster import ClusterConfig

_set = click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="KEY=VALUE",
    help="Replace a key of the pipeline, dotted where nested: budget.epsilon=0.5 (repeatable).",
)


def _changes(pairs: tuple[str, ...]) -> dict[str, Any]:
    """Keys and values, the values as YAML reads them."""
    import yaml

    from daskrado.errors import UsageError

    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise UsageError(f"--set {pair}: must be KEY=VALUE, such as budget.epsilon=0.5")
        try:
            found[key] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise UsageError(f"--set {pair}: the value is not valid YAML") from error
    return found


@click.command()
@click.argument("pipeline", type=click.Path(path_type=Path))
@_set
@with_ledger
def plan(pipeline: Path, changes: tuple[str, ...], ledger: Path | None) -> None:
    """Show what a pipeline costs and how much noise it adds. Reads no data and spends nothing."""
    from daskrado.jobs.load import load_job
    from daskrado.jobs.show import plan_lines
    from daskrado.ledger.config import default_ledger
    from daskrado.ledger.ledger import Ledger

    job = load_job(pipeline, _changes(changes))
    path = ledger or Path(job.ledger.path or default_ledger())
    with Ledger.open(path, create=False) if path.exists() else contextlib.nullcontext() as opened:
        for line in plan_lines(job, opened):
            click.echo(line)


@click.command()
@click.argument("pipeline", type=click.Path(path_type=Path), required=False)
@with_cluster
@with_ledger
@_set
@click.option("--out", "--output", "out", default=None, help="Output folder, instead of the pipeline's.")
@click.option("--overwrite", is_flag=True, help="Replace the output folder if it exists.")
@click.option("--performance-report", default=None, metavar="FILE", help="Save Dask's page about tasks and workers.")
@click.option("--resume", "unfinished", default=None, metavar="RUN", help="Finish a run that was cut off.")
def run(
    pipeline: Path | None,
    workers: int | None,
    cluster: str | None,
    ledger: Path | None,
    changes: tuple[str, ...],
    out: str | None,
    overwrite: bool,
    performance_report: str | None,
    unfinished: str | None,
) -> None:
    """Run a pipeline: debit the ledger, read the lake, add noise once, learn, publish.

    With --resume and no pipeline, finish a run that had its grant when it was cut off, as `daskrado ledger show`
    lists them: nothing more is debited, and noise is never drawn twice for one grant.
    """
    from daskrado.errors import UsageError
    from daskrado.jobs.base import perform
    from daskrado.jobs.load import load_job

    where = _cluster(workers, cluster, performance_report)
    if unfinished is not None:
        if pipeline is not None or out is not None or overwrite or changes:
            raise UsageError(
                "--resume takes the pipeline and the output of the run it finishes: give nothing but RUN"
            )
        _finish(unfinished, where, ledger)
        return
    if pipeline is None:
        raise UsageError("give a pipeline file, or --resume RUN")
    job = load_job(pipeline, _changes(changes)).with_changes(cluster=where, output=out)
    with progress_bar(job.name) as progress:
        result = perform(job, overwrite=overwrite, ledger=ledger, progress=progress)
    for line in result.lines:
        click.echo(line)


@click.command()
@click.argument("run")
@with_cluster
@with_ledger
def resume(run: str, workers: int | None, cluster: str | None, ledger: Path | None) -> None:
    """Finish RUN, which had its grant when it was cut off; `daskrado ledger show` lists such runs."""
    _finish(run, _cluster(workers, cluster, None), ledger)


def _cluster(workers: int | None, cluster: str | None, performance_report: str | None) -> ClusterConfig | None:
    """The workers that the options name; None where the pipeline's count."""
    from daskrado.cluster import cluster_config
    from daskrado.errors import UsageError

    if workers is not None or cluster is not None:
        return cluster_config(workers, cluster, performance_report)
    if performance_report is not None:
        raise UsageError("--performance-report needs --workers or --cluster (or cluster.performance_report)")
    return None


def _finish(unfinished: str, where: ClusterConfig | None, ledger: Path | None) -> None:
    from daskrado.jobs.resume import resume

    with progress_bar("resume") as progress:
        result = resume(unfinished, cluster=where, ledger_path=ledger, progress=progress)
    for line in result.lines:
        click.echo(line)


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("lake")
@click.option("--out", type=click.Path(path_type=Path), required=True)
@click.option("--keep", multiple=True, help="A column to carry over (repeatable); the id column by default.")
@with_cluster
@click.option("--overwrite", is_flag=True)
def predict(
    model: Path,
    lake: str,
    out: Path,
    keep: tuple[str, ...],
    workers: int | None,
    cluster: str | None,
    overwrite: bool,
) -> None:
    """Score a lake with a published model, out of core, into Parquet."""
    from daskrado.cluster import cluster_config, connect
    from daskrado.lake.publish import check_free
    from daskrado.lake.scan import draft_schema
    from daskrado.lake.score import by_scoring, score
    from daskrado.models.linear import LinearModel

    check_free(out, overwrite=overwrite, own=by_scoring, reading=(lake, model))
    loaded = LinearModel.load(model)
    name = loaded.domain.id
    kept = keep or ((name,) if name is not None and name in draft_schema(lake).names else ())
    with connect(cluster_config(workers, cluster)) as client, progress_bar("score") as progress:
        rows = score(loaded, lake, out, keep=kept, client=client, overwrite=overwrite, progress=progress)
    click.echo(f"{out}: {rows:,} rows scored; as sensitive as the lake they are about")


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--table", default="lake", show_default=True)
@click.option("--keep", multiple=True, help="A column to select beside the margin (repeatable).")
def sql(model: Path, table: str, keep: tuple[str, ...]) -> None:
    """Print a SELECT that gives a model's margins in a database, under a comment that says how private it is."""
    from daskrado.models.linear import LinearModel

    loaded = LinearModel.load(model)
    select = loaded.sql(table, keep=keep)
    click.echo(f"-- {' '.join(loaded.statement.sentence().split())}")  # a unit of two lines would end the comment
    click.echo(select)
