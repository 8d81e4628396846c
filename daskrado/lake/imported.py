"""Public facts about columns from other files: JSON Schema, Frictionless Table Schema and Data Package, a domain."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from daskrado.errors import UsageError
from daskrado.table.yaml_file import OPEN, read_yaml

ColumnFacts = dict[str, dict[str, Any]]
_FORMS = "a domain (columns), a JSON Schema (properties) or a Frictionless schema or package (fields, resources)"


def imported(path: str | Path) -> ColumnFacts:
    """Bounds, categories and null policies by column, as far as a file declares them."""
    content = _read(Path(path))
    if isinstance(content, Mapping):
        if isinstance(content.get("columns"), Mapping):
            return {
                str(name): _of_domain(one) for name, one in content["columns"].items() if isinstance(one, Mapping)
            }
        if isinstance(content.get("properties"), Mapping):
            return {str(name): _facts(one, one) for name, one in content["properties"].items() if _is_mapping(one)}
        fields = [one for one in _fields(content) if _is_mapping(one) and "name" in one]
        if fields:
            return {str(one["name"]): _facts(one, one.get("constraints") or {}) for one in fields}
    raise UsageError(f"{path}: is none of {_FORMS}")


def _read(path: Path) -> Any:
    if path.suffix.lower() != ".json":
        return read_yaml(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise UsageError(f"{path}: is not valid JSON ({error})") from error


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


def _fields(content: Mapping[str, Any]) -> Iterator[Any]:
    """The fields of a Table Schema, or of all resources of a Data Package."""
    for holder in (content, *(content.get("resources") or ())):
        inner = holder.get("schema", holder) if isinstance(holder, Mapping) else None
        if isinstance(inner, Mapping) and isinstance(inner.get("fields"), list):
            yield from inner["fields"]


def _of_domain(column: Mapping[str, Any]) -> dict[str, Any]:
    return {str(key): value for key, value in column.items() if value != OPEN}


def _facts(column: Mapping[str, Any], limits: Mapping[str, Any]) -> dict[str, Any]:
    """``minimum``, ``maximum`` and ``enum``, which both standards call by the same names."""
    found: dict[str, Any] = {}
    values = limits.get("enum", column.get("categories"))
    if isinstance(values, list) and values and column.get("type") != "boolean":
        named = [one.get("value") if isinstance(one, Mapping) else one for one in values]
        return {"values": [one for one in named if one is not None]}
    for key, names in (("lower", ("minimum", "exclusiveMinimum")), ("upper", ("maximum", "exclusiveMaximum"))):
        given = next((limits[name] for name in names if limits.get(name) is not None), None)
        if given is not None and not isinstance(given, bool):
            found[key] = given
    return found
