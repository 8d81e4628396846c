"""A draft Domain from Parquet schemas alone: bounds and categories are left for the owner to fill in."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import yaml

from daskrado.errors import UsageError
from daskrado.lake.scan import draft_schema

_HEADER = """\
# A draft Domain, made from Parquet schemas only: no row was read.
# Replace every "..." by a public fact. A bound or a category taken from the private rows would break the guarantee.
# Delete columns that are not features. Kinds: numeric (lower, upper, optional transform: log1p, or bins: [edges]),
# date (lower, upper: dates), categorical (values, other), boolean. nulls: error is the default; nulls: {fill: VALUE}
# adds an indicator feature.
"""


def describe(source: Any, label: str) -> tuple[str, int]:
    """The draft as YAML text, and how many facts it leaves open; it does not validate until all are filled in."""
    schema = draft_schema(source)
    if label not in schema.names:
        raise UsageError(f"--label {label}: the lake has no such column; it has {', '.join(schema.names)}")
    columns: dict[str, Any] = {}
    skipped = []
    for field in schema:
        if field.name == label:
            continue
        draft = _draft(field.type)
        if draft is None:
            skipped.append(f"# skipped: {_one_line(field.name)} is {_one_line(str(field.type))}\n")
        else:
            columns[field.name] = draft
    content = {
        "label": {"column": label, "positive": "...", "negative": "..."},
        "norm_bound": "...",
        "intercept": 1.0,
        "columns": columns,
    }
    left = 3 + sum(value == "..." for draft in columns.values() for value in draft.values())
    draft_text = yaml.safe_dump(content, sort_keys=False, default_flow_style=False)
    return _HEADER + "".join(skipped) + draft_text, left


def _one_line(text: str) -> str:
    """A name as a comment can hold it: YAML has several line ends, and characters that it never takes."""
    return text if text.isprintable() else repr(text)


def _draft(kind: pa.DataType) -> dict[str, Any] | None:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_boolean(kind):
        return {"kind": "boolean"}
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return {"kind": "numeric", "lower": "...", "upper": "..."}
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return {"kind": "date", "lower": "...", "upper": "..."}
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return {"kind": "categorical", "values": "..."}
    return None
