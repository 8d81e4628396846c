"""The command that measures a published model on a lake."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from daskrado.cli.commands.shared import progress_bar
from daskrado.cli.commands.signature import LedgerPath, Lines, OnCluster, command
from daskrado.errors import UsageError


@command()
def evaluate(
    model: Path,
    lake: str,
    *,
    by: Annotated[
        tuple[str, ...], "--by COLUMN", "A group column (repeatable); COLUMN=A,B if it is no feature."
    ] = (),
    epsilon: Annotated[float | None, "What the evaluation costs."] = None,
    delta: Annotated[float | None, "(default: the model's own)"] = None,
    against: Annotated[tuple[Path, ...], "--against MODEL", "Another model to compare with (repeatable)."] = (),
    dataset: Annotated[str | None, "The data set's name in the ledger (default: that of the model's run)."] = None,
    relation: Annotated[Literal["add_remove", "replace_one"] | None, "(default: the model's own)"] = None,
    unit: Annotated[str | None, "--unit COLUMN", "Protect all rows of one COLUMN (default: as the model)."] = None,
    no_privacy: Annotated[bool, "Exact figures that protect nobody."] = False,
    threshold: Annotated[
        str | None, "--threshold RULE", "Choose one from the counts: f1, youden, cost=5 or rate=0.1."
    ] = None,
    bins: Annotated[int | None, "Score bins (default: 20 with noise)."] = None,
    out: Annotated[Path | None, "Output folder (default: beside the model's, with -evaluation)."] = None,
    cluster: OnCluster,
    ledger: LedgerPath = None,
    overwrite: bool = False,
) -> Lines:
    """Measure a published model on a lake: error, ROC, calibration, by group, with 95 % intervals, charged.

    MODEL is a model file or the folder of a run.

    Examples:
      daskrado evaluate runs/quickstart data/clinic_sample --by sex --epsilon 0.2
    """
    from daskrado.api import evaluate as measured

    folder = model if model.is_dir() else model.parent
    folder = folder if folder.name else folder.resolve()
    protect: dict[str, Any] = {} if relation is None else {"relation": relation}
    if unit is not None:
        protect["unit"] = {"column": unit, "name": f"one {unit}"}
    with progress_bar("evaluate") as progress:
        result = measured(
            model,
            lake,
            by=[_group(text) for text in by],
            epsilon=epsilon,
            delta=delta,
            against=against,
            dataset=dataset,
            protect=protect or None,
            private=not no_privacy,
            bins=bins,
            threshold=threshold,
            output=out or folder.with_name(f"{folder.name}-evaluation"),
            overwrite=overwrite,
            cluster=cluster,
            ledger=ledger,
            progress=progress,
        )
    return result.lines


def _group(text: str) -> str | dict[str, Any]:
    """COLUMN, or COLUMN=A,B for a column outside the domain."""
    import yaml

    column, equals, values = text.partition("=")
    if not equals:
        return column
    listed = [yaml.safe_load(value) for value in values.split(",") if value]
    if not column or not listed:
        raise UsageError(f"--by {text}: must be COLUMN, or COLUMN=A,B for a column that is no feature")
    return {"column": column, "values": listed}
