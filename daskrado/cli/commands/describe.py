"""The command that finds out in private what a lake's columns hold."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from daskrado.cli.commands.shared import progress_bar
from daskrado.cli.commands.signature import LedgerPath, Lines, OnCluster, command
from daskrado.errors import UsageError


@command()
def describe(
    lake: str,
    *,
    domain: Annotated[Path, "The domain file; what is open (...) in it is found and written into it."],
    epsilon: Annotated[float, "What it costs."],
    delta: Annotated[float | None, "By default that of the pipeline beside the domain."] = None,
    dataset: Annotated[str | None, "The data set's name in the ledger; by default the pipeline's."] = None,
    relation: Annotated[Literal["add_remove", "replace_one"] | None, "By default the pipeline's."] = None,
    unit: Annotated[str | None, "Whom to protect, in words; by default as in the pipeline."] = None,
    out: Annotated[Path | None, "Folder for manifest and report; by default runs/DATASET-describe."] = None,
    cluster: OnCluster,
    ledger: LedgerPath = None,
    overwrite: Annotated[bool, "Replace the output folder if it exists."] = False,
) -> Lines:
    """Find bounds, bins, categories and nulls of LAKE in private, charged, and write them into a draft domain.

    Of a domain in which nothing is open, noisy shares of null, unknown, clipped, unusable and positive values are
    released. Data set, protection and ledger are those of pipeline.yaml beside the domain, as daskrado init wrote it.

    Examples:
      daskrado describe lake/ --domain domain.yaml --epsilon 0.1
      daskrado describe lake/ --domain domain.yaml --epsilon 0.5 --dataset clinic --delta 1e-6
    """
    from daskrado.jobs.base import perform
    from daskrado.jobs.load import load_job
    from daskrado.table.domain import refuse_pipeline
    from daskrado.table.yaml_file import open_keys, read_yaml

    content = read_yaml(domain)
    refuse_pipeline(content, str(domain))
    left = open_keys(content)
    drafted = bool(left)
    unknown = any(key.rpartition(".")[2] in ("values", "positive", "negative") for key in left)
    beside = _beside(domain)
    dataset = dataset or beside.get("dataset")
    if dataset is None:
        raise UsageError(f"what is found is charged: give --dataset, or keep pipeline.yaml beside {domain}")
    protect = _protect(beside.get("protect"), relation, unit, unknown=unknown)
    default = (beside.get("budget") or {}).get("delta", 1e-6) if drafted or beside else 0.0
    keys = {
        "kind": "discover" if drafted else "describe",
        "dataset": dataset,
        "lake": lake,
        "domain": str(domain),
        **({"fills": str(domain.absolute())} if drafted else {}),
        "output": str(out or Path("runs") / f"{dataset}-describe"),
        "protect": protect,
        "budget": {"epsilon": epsilon, "delta": default if delta is None else delta},
        "ledger": {key: value for key, value in (beside.get("ledger") or {}).items() if key != "path"},
    }
    with progress_bar("describe") as progress:
        job = load_job(keys).with_changes(cluster=cluster)
        return perform(job, overwrite=overwrite, ledger=ledger or _ledger(beside, domain), progress=progress).lines


def _beside(domain: Path) -> dict[str, Any]:
    """The pipeline beside a domain that names it; nothing where there is none."""
    from daskrado.table.yaml_file import read_yaml

    path = domain.parent / "pipeline.yaml"
    content = read_yaml(path) if path.is_file() else None
    if not isinstance(content, dict) or not isinstance(content.get("domain"), str):
        return {}
    return content if (path.parent / content["domain"]).resolve() == domain.resolve() else {}


def _ledger(beside: dict[str, Any], domain: Path) -> str | None:
    path = (beside.get("ledger") or {}).get("path")
    return path if path is None or "://" in path else str(domain.parent / Path(path).expanduser())


def _protect(known: Any, relation: str | None, unit: str | None, *, unknown: bool) -> dict[str, Any]:
    """Whom the pipeline protects, unless options say otherwise. Unknown values need whole rows of a unit."""
    protect: dict[str, Any] = (
        dict(known) if isinstance(known, dict) else {"relation": "add_remove", "unit": "one row"}
    )
    if relation is not None:
        protect["relation"] = relation
    if unit is not None:
        protect = {"relation": protect["relation"], "unit": unit}
    if unknown and isinstance(protect.get("unit"), dict):
        protect["unit"] = {**protect["unit"], "how": "sample"}
    return protect
