"""Commands that run pipelines and use what they publish."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from daskrado.cli.commands.shared import open_ledger, progress_bar
from daskrado.cli.commands.signature import LedgerPath, Lines, OnCluster, command
from daskrado.errors import NoLedgerError, UsageError

if TYPE_CHECKING:
    from daskrado.cluster import ClusterConfig

Changes = Annotated[
    tuple[str, ...],
    "--set KEY=VALUE",
    "Replace a key of the pipeline, dotted where nested: budget.epsilon=0.5 (repeatable).",
]


def _changes(pairs: tuple[str, ...]) -> dict[str, Any]:
    """Keys and values, the values as YAML reads them."""
    import yaml

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


@command()
def plan(pipeline: Path, *, changes: Changes = (), ledger: LedgerPath = None) -> Iterator[str]:
    """Show what a pipeline costs and how much noise it adds. Reads no data and spends nothing.

    Examples:
      daskrado plan pipeline.yaml
      daskrado plan pipeline.yaml --set budget.epsilon=0.5 --set learner=auto
    """
    from daskrado.jobs.load import load_job
    from daskrado.jobs.show import plan_lines

    job = load_job(pipeline, _changes(changes))
    try:
        opened = open_ledger(ledger or job.ledger.path, create=False)
    except NoLedgerError:
        opened = None
    yield from plan_lines(job, opened)


@command()
def run(
    pipeline: Path | None = None,
    *,
    cluster: OnCluster,
    ledger: LedgerPath = None,
    changes: Changes = (),
    out: Annotated[str | None, "--out", "--output", "Output folder, instead of the pipeline's."] = None,
    overwrite: Annotated[bool, "Replace the output folder if it exists."] = False,
    performance_report: Annotated[
        str | None, "--performance-report FILE", "Save Dask's page about tasks and workers."
    ] = None,
    unfinished: Annotated[str | None, "--resume RUN", "Finish a run that was cut off."] = None,
) -> Lines:
    """Run a pipeline: debit the ledger, read the lake, add noise once, learn, publish.

    With --resume and no pipeline, finish a run that had its grant when it was cut off, as `daskrado ledger show`
    lists them: nothing more is debited, and noise is never drawn twice for one grant.

    Examples:
      daskrado run pipeline.yaml
      daskrado run pipeline.yaml --set budget.epsilon=0.5 --out runs/half --workers 2
    """
    from daskrado.jobs.base import perform
    from daskrado.jobs.load import load_job

    if performance_report is not None:
        if cluster is None:
            raise UsageError("--performance-report needs --workers or --cluster (or cluster.performance_report)")
        cluster = cluster.model_copy(update={"performance_report": performance_report})
    if unfinished is not None:
        if pipeline is not None or out is not None or overwrite or changes:
            raise UsageError(
                "--resume takes the pipeline and the output of the run it finishes: give nothing but RUN"
            )
        return _finish(unfinished, cluster, ledger)
    if pipeline is None:
        raise UsageError("give a pipeline file, or --resume RUN")
    job = load_job(pipeline, _changes(changes)).with_changes(cluster=cluster, output=out)
    with progress_bar(job.name) as progress:
        return perform(job, overwrite=overwrite, ledger=ledger, progress=progress).lines


@command()
def resume(run: str, *, cluster: OnCluster, ledger: LedgerPath = None) -> Lines:
    """Finish RUN, which had its grant when it was cut off; `daskrado ledger show` lists such runs.

    Examples:
      daskrado resume 3f2a9c
    """
    return _finish(run, cluster, ledger)


def _finish(unfinished: str, cluster: ClusterConfig | None, ledger: str | None) -> Lines:
    from daskrado.jobs.load import resume

    with progress_bar("resume") as progress:
        return resume(unfinished, cluster=cluster, ledger_path=ledger, progress=progress).lines


@command()
def predict(
    model: Path,
    lake: str,
    *,
    out: Path,
    keep: Annotated[tuple[str, ...], "A column to carry over (repeatable); the id column by default."] = (),
    probability: Annotated[bool, "Write the probability of the positive label, too."] = False,
    rank: Annotated[bool, "Write the share of evaluated units with a smaller margin, too."] = False,
    threshold: Annotated[float | None, "Say the positive label from this probability on."] = None,
    cluster: OnCluster,
    overwrite: bool = False,
) -> Lines:
    """Score a lake with a published model, out of core, into Parquet.

    MODEL is a model file or the folder of a run. Columns: margin, predicted, and on request probability and rank.

    Examples:
      daskrado predict runs/visits lake/ --out scored/ --probability --threshold 0.3
    """
    from daskrado.cluster import ClusterConfig, connect
    from daskrado.lake.publish import check_free
    from daskrado.lake.scan import draft_schema
    from daskrado.lake.score import by_scoring, score
    from daskrado.models.linear import LinearModel

    model = model / "model.json" if model.is_dir() else model
    check_free(out, overwrite=overwrite, own=by_scoring, reading=(lake, model))
    loaded = LinearModel.load(model)
    loaded = loaded if threshold is None else loaded.saying_yes_from(threshold)
    also = [name for name, wanted in (("probability", probability), ("rank", rank)) if wanted]
    name = loaded.domain.id
    kept = keep or ((name,) if name is not None and name in draft_schema(lake).names else ())
    with connect(cluster or ClusterConfig()) as client, progress_bar("score") as progress:
        how: dict[str, Any] = {"keep": kept, "also": also, "overwrite": overwrite}
        rows = score(loaded, lake, out, client=client, progress=progress, **how)
    return f"{out}: {rows:,} rows scored; as sensitive as the lake they are about"


@command()
def sql(
    model: Path,
    *,
    table: str = "lake",
    keep: Annotated[tuple[str, ...], "A column to select beside the margin (repeatable)."] = (),
    probability: Annotated[bool, "Select probability and predicted label, too."] = False,
) -> Iterator[str]:
    """Print a SELECT that gives a model's margins in a database, under a comment that says how private it is.

    Examples:
      daskrado sql runs/visits --table visits --keep patient_id --probability
    """
    from daskrado.models.linear import LinearModel

    loaded = LinearModel.load(model / "model.json" if model.is_dir() else model)
    select = loaded.sql(table, keep=keep, probability=probability)
    yield f"-- {' '.join(loaded.statement.sentence().split())}"  # a unit of two lines would end the comment
    yield select


@command()
def onnx(model: Path, *, out: Path, overwrite: bool = False) -> Lines:
    """Write a model as ONNX: margin, probability and label from the columns as they are, for onnxruntime and others.

    MODEL is a model file or the folder of a run.

    Examples:
      daskrado onnx runs/visits --out model.onnx
    """
    from daskrado.models.linear import LinearModel
    from daskrado.models.onnx_graph import write_onnx

    if out.exists() and not overwrite:
        raise UsageError(f"{out}: exists; choose another or pass --overwrite")
    loaded = LinearModel.load(model / "model.json" if model.is_dir() else model)
    inputs = write_onnx(loaded, out)
    return f"{out}: takes {', '.join(inputs)}; {loaded.statement.sentence()}"
