"""A commented domain and pipeline for a lake, from its schema alone: what ``daskrado init`` writes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

from daskrado.errors import UsageError
from daskrado.lake.propose import Proposal
from daskrado.table.drafts import flow
from daskrado.table.type_hints import is_number, is_text
from daskrado.table.yaml_file import OPEN

_DOMAIN = """\
# What is public about the columns of {lake}: made from its schema by daskrado init; no row was read.
# Replace every ... by a public fact, or take them from another file with "daskrado init --from".
# A bound or a category that somebody read off the private rows would break the guarantee.
# Kinds: numeric (lower, upper; perhaps bins: [edges], or transform: log1p), date (lower, upper), categorical (values,
# other), boolean. A null makes its row count as nothing, unless nulls: {{fill: VALUE}} replaces and flags it.
# norm_bound is derived from the columns (daskrado plan shows it); every key: data/README.md.
"""
_PIPELINE = """\
# daskrado plan {name}    cost, noise and schema; reads no row and spends nothing
# daskrado run {name}     debits the ledger, reads, adds noise, learns, publishes
dataset: {dataset}      # the name under which the ledger knows these data, wherever they lie
lake: {lake}      # relative to this file
domain: {domain}
output: {output}      # relative to the working folder
protect:
  relation: add_remove      # whether a {whom} is in the lake at all is secret, and so is the number of rows
  unit: {unit}
budget: {{epsilon: {epsilon:g}, delta: {delta}}}
ledger: {{first_limit: {{epsilon: {limit:g}, delta: {limit_delta}}}}}      # only where the owner has set no limit yet
learner: {learner}      # or auto, the best of several for this budget; daskrado plan says which
{holdout}"""


_PLAIN_FOLDERS = {"lake", "data", "parquet", "table", "tables", "delta"}  # names that many lakes have


_HOLDOUT = """\
holdout: 0.2      # of the ids: nobody is in both parts, so that the evaluation costs nothing more
evaluate: {}      # error, ROC, calibration; by: [COLUMN] for groups
"""
_NO_HOLDOUT = """\
# holdout: 0.2 needs a column that names units or records (daskrado ingest --id row_id adds one); without, daskrado
# evaluate measures a model on rows that it was trained on, and both are charged
"""


@dataclass(frozen=True)
class LabelFlags:
    """What the command line says of the label: its sides, or a threshold."""

    column: str
    positive: Sequence[str] = ()
    negative: Sequence[str] = ()
    above: float | None = None

    def content(self, kind: pa.DataType) -> dict[str, Any]:
        """The label's keys, its values in the column's own type."""
        if self.above is not None:
            if not is_number(kind):
                raise UsageError(f"--above {self.above:g}: the column {self.column} is {kind}, not a number")
            return {"column": self.column, "above": self.above}
        positive, negative = ([_typed(text, kind, self.column) for text in side] for side in self._sides())
        if not positive and not negative and pa.types.is_boolean(kind):
            positive, negative = [True], [False]
        if len(positive) == 1 and len(negative) == 1:
            return {"column": self.column, "positive": positive[0], "negative": negative[0]}
        if not positive and not negative:
            return {"column": self.column, "positive": OPEN, "negative": OPEN}
        return {"column": self.column, "positive": positive or "rest", "negative": negative or "rest"}

    def _sides(self) -> tuple[Sequence[str], Sequence[str]]:
        return self.positive, self.negative


def _typed(text: str, kind: pa.DataType, column: str) -> Any:
    """A value of a flag in the type of its column."""
    if is_text(kind):
        return text
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        value = text
    fits = isinstance(value, bool) if pa.types.is_boolean(kind) else isinstance(value, int | float)
    if not fits or (isinstance(value, bool) and not pa.types.is_boolean(kind)):
        like = "true or false" if pa.types.is_boolean(kind) else "numbers, such as 1"
        raise UsageError(f"{column} is {kind}: {text!r} is no value of it; its values are {like}")
    return value


def domain_text(lake: str, label: Mapping[str, Any], proposal: Proposal, schema: pa.Schema) -> str:
    """The draft of a domain, a line for each column, with its type as a comment."""
    lines = [f"label: {flow(dict(label))}"]
    if proposal.record is not None:
        lines.append(f"id: {flow(proposal.record)}      # names a record; it is no feature")
    lines.append("columns:")
    for name, draft in proposal.columns.items():
        lines.append(f"  {flow(name)}: {flow(draft)}      # {one_line(str(schema.field(name).type))}")
    for name, reason in proposal.excluded.items():
        lines.append(f"# no feature: {one_line(name)}, {one_line(reason)}")
    return _DOMAIN.format(lake=one_line(lake)) + "\n".join(lines) + "\n"


def one_line(text: str) -> str:
    """A name as a comment can hold it: YAML has several line ends, and characters that it never takes."""
    return text if text.isprintable() else repr(text)


@dataclass(frozen=True)
class Pipeline:
    """What a drafted pipeline says beside its lake and domain."""

    dataset: str
    unit: str | None = None
    epsilon: float = 1.0
    delta: float = 1e-6
    learner: str = "moments"
    record: str | None = None  # the column that names a record

    def text(self, lake: str, domain: Path, path: Path) -> str:
        """The pipeline, which lies at ``path``."""
        unit = self.unit
        named = {"column": unit, "name": f"one {unit}", "bound": 1, "how": "spread"} if unit else "one row"
        return _PIPELINE.format(
            name=path.name,
            dataset=self.dataset,
            lake=flow(_beside(lake, path.parent)),
            domain=flow(domain.name),
            output=flow(f"runs/{self.dataset}"),
            whom=one_line(unit or "row"),
            unit=flow(named),
            epsilon=self.epsilon,
            delta=flow(self.delta),
            limit=10 * self.epsilon,
            limit_delta=flow(float(f"{10 * self.delta:.12g}")),
            learner=self.learner,
            holdout=_HOLDOUT if unit or self.record else _NO_HOLDOUT,
        )


def _beside(lake: str, folder: Path) -> str:
    """A lake's path as a pipeline in a folder writes it; an address as it is."""
    if "://" in lake or os.path.isabs(lake):
        return lake
    return os.path.relpath(lake, folder)


def dataset_of(lake: str) -> str:
    """A name for the ledger from the lake's last folder that says something: letters, digits, points, dashes."""
    where = lake if "://" in lake else os.path.abspath(os.path.expanduser(lake))
    parts = [part for part in re.split(r"[/\\]+", where) if part.strip(".~*")]
    named = [part for part in parts if part.lower() not in _PLAIN_FOLDERS] or parts or ["lake"]
    return (re.sub(r"[^A-Za-z0-9._-]+", "-", named[-1]).strip("-.") or "lake")[:100]


def open_facts(proposal: Proposal, label: Mapping[str, Any]) -> Iterator[str]:
    """The keys that are left open."""
    yield from (f"label.{key}" for key, value in label.items() if value == OPEN)
    for name, draft in proposal.columns.items():
        yield from (f"columns.{name}.{key}" for key, value in draft.items() if value == OPEN)
