"""The command that begins: a domain and a pipeline for a lake, from its schema."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import click

from daskrado.cli.commands.signature import command
from daskrado.errors import UsageError


@command()
def init(
    lake: str,
    *,
    label: Annotated[str | None, "The column to predict."] = None,
    positive: Annotated[tuple[str, ...], "A value of the label that becomes +1 (repeatable)."] = (),
    negative: Annotated[tuple[str, ...], "A value that becomes -1 (repeatable); by default all others."] = (),
    above: Annotated[float | None, "Labels above this number become +1, all others -1."] = None,
    unit: Annotated[str | None, "The column that names whom to protect; by default each row."] = None,
    record: Annotated[str | None, "--id", "The column that names a record."] = None,
    drop: Annotated[tuple[str, ...], "A column that is no feature (repeatable)."] = (),
    bins: Annotated[bool, "Cut numbers into bins, at edges that are left open, too."] = False,
    source: Annotated[
        Path | None,
        "--from FILE",
        "Take bounds and categories from a JSON Schema, a Frictionless schema or package, or another domain.",
    ] = None,
    dataset: Annotated[str | None, "The name in the ledger; by default the lake's folder."] = None,
    epsilon: Annotated[float, "What a run of the pipeline may cost."] = 1.0,
    delta: float = 1e-6,
    out: Annotated[Path, "The folder for domain.yaml and pipeline.yaml."] = Path(),
    overwrite: Annotated[bool, "Replace the two files if they exist."] = False,
) -> Iterator[str]:
    """Write a commented domain.yaml and pipeline.yaml for LAKE, from its schema and public metadata.

    No row is read. Ids are no features; dates, booleans, categories and numbers are proposed by type. Bounds and
    categories are left open (...) for you or for --from. On a terminal it asks for what is missing.

    Examples:
      daskrado init lake/ --label readmitted --unit patient_id
      daskrado init lake/ --label income --positive '>50K' --from schema.json
    """
    from daskrado.lake.draft import LabelFlags, Pipeline, dataset_of, domain_text, open_facts
    from daskrado.lake.imported import imported
    from daskrado.lake.propose import propose
    from daskrado.lake.publish import check_free_text
    from daskrado.lake.scan import draft_schema
    from daskrado.table.yaml_file import write_text

    schema = draft_schema(lake)
    label, asked = _label(label, schema.names)
    if asked and unit is None:
        unit = click.prompt("Column that names whom to protect (empty: each row)", default="", err=True) or None
    proposal = propose(
        schema, label, unit=unit, record=record, drop=drop, known=imported(source) if source else None, bins=bins
    )
    said = LabelFlags(label, positive, negative, above).content(schema.field(label).type)
    out.mkdir(parents=True, exist_ok=True)
    domain, pipeline = out / "domain.yaml", out / "pipeline.yaml"
    for path in (domain, pipeline):
        check_free_text(path, overwrite=overwrite)
    named = Pipeline(dataset or dataset_of(lake), unit, epsilon, delta, record=proposal.record)
    write_text(domain, domain_text(lake, said, proposal, schema))
    write_text(pipeline, named.text(lake, domain, pipeline))
    ids = [name for name, reason in proposal.excluded.items() if reason.startswith("it names")]
    rest = f"; no features: {', '.join(ids)}" if ids else ""
    yield f"{domain}: {len(proposal.columns)} features, label {label}{rest}"
    yield f"{pipeline}: data set {named.dataset}, protects {f'one {unit}' if unit else 'one row'}"
    still_open = list(open_facts(proposal, said))
    if still_open:
        yield f"still open (...): {', '.join(still_open)}"
        if any(key.startswith("label.") for key in still_open):
            yield "say what is +1: --positive VALUE, or edit label in the domain"
    if proposal.record is None and (unit is None or any(key.endswith(".values") for key in still_open)):
        lost = "rows are held out" if unit is None else "describe finds categories"
        yield f"no column names a record, by which {lost}: --id names it, and daskrado ingest --id row_id adds one"
    if still_open:
        yield f"next: daskrado describe {lake} --domain {domain} --epsilon 0.1 finds the rest in private, charged"
        yield f"      (or write public facts there); then daskrado plan {pipeline}"
    else:
        yield f"next: daskrado plan {pipeline}"


def _label(label: str | None, names: list[str]) -> tuple[str, bool]:
    """The label column, and whether somebody was asked for it."""
    if label is not None:
        return label, False
    if not sys.stdin.isatty():
        raise UsageError(f"--label is missing: name the column to predict, one of {', '.join(names[:40])}")
    return click.prompt("Column to predict", type=click.Choice(names), err=True, show_choices=False), True
