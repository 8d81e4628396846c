"""The manifest: one envelope for every kind. ``manifest.schema.json`` beside this file says what is in it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from functools import cache
from importlib.resources import files as package_files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import daskrado
from daskrado.privacy.accountant import event_to_json

if TYPE_CHECKING:
    from daskrado.jobs.outcome import Charge, Result
    from daskrado.jobs.run import Run

SCHEMA = "daskrado.manifest/2"


def manifest_of(run: Run, result: Result, folder: Path) -> dict[str, Any]:
    """Everything public about a run. ``seconds`` is left out where anybody is protected."""
    return {
        "schema": SCHEMA,
        "daskrado": daskrado.__version__,
        "kind": result.kind,
        "run": result.run,
        "dataset": result.dataset,
        "statement": result.statement.model_dump(mode="json"),
        "privacy_in_words": result.statement.sentence(),
        "charges": [_charge(charge) for charge in run.charges.values()],
        "budget": list(result.budget),
        "job": run.job.public_options(),
        "domain_sha256": run.job.domain.digest(),
        "files": [_file(folder, path) for path in sorted(folder.rglob("*")) if path.is_file()],
        "facts": result.facts,
        "notes": list(result.notes),
        **({"seconds": result.seconds} if result.seconds else {}),
    }


def _charge(charge: Charge) -> dict[str, Any]:
    return {
        "role": charge.role,
        "event": event_to_json(charge.event),
        "statement": charge.statement.model_dump(mode="json"),
        "part": charge.part,
        "blocks": list(charge.blocks),
    }


def _file(folder: Path, path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"name": path.relative_to(folder).as_posix(), "sha256": digest, "bytes": path.stat().st_size}


def plain_json(value: Any) -> Any:
    """Facts as JSON can say them: a number of NumPy becomes a plain one, one that is not finite becomes null."""
    if isinstance(value, Mapping):
        return {str(key): plain_json(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | list | tuple | set | frozenset):
        return [plain_json(item) for item in value]
    if isinstance(value, np.generic):
        return plain_json(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int | bool) else str(value)


@cache
def manifest_schema() -> dict[str, Any]:
    """The JSON Schema of a manifest."""
    content: dict[str, Any] = json.loads(package_files("daskrado.jobs").joinpath("manifest.schema.json").read_text())
    return content


def file_digest(manifest: Mapping[str, Any], name: str) -> str | None:
    """The digest that a manifest, of this version or the one before, gives for a published file."""
    for entry in manifest.get("files", ()):
        if entry.get("name") == name:
            return str(entry["sha256"])
    older = manifest.get("student_sha256") if manifest.get("student") == name else None
    return None if older is None else str(older)
