"""The command that prints JSON Schemas, by which editors complete and check pipelines and domains."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import click

from daskrado.cli.commands.signature import AsJson, Lines, command

_ALWAYS = ("dataset", "lake", "output")


@command()
def schema(
    what: Annotated[Literal["pipeline", "domain"], click.Choice(["pipeline", "domain"])], *, as_json: AsJson = True
) -> Lines:
    """Print the JSON Schema of pipelines or of domains, for editors.

    Many take it from a first line of the file: # yaml-language-server: $schema=domain.schema.json

    Examples:
      daskrado schema pipeline > pipeline.schema.json
      daskrado schema domain > domain.schema.json
    """
    import json

    del as_json  # it is JSON anyway
    return json.dumps(pipeline_schema() if what == "pipeline" else domain_schema(), indent=1)


def domain_schema() -> dict[str, Any]:
    """Of a domain file; an open key (...) is allowed nowhere."""
    from daskrado.table.domain import Domain

    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Domain.model_json_schema()}


def pipeline_schema() -> dict[str, Any]:
    """Of a pipeline of any kind: its keys are strict, what lies below them is offered."""
    from pydantic.json_schema import models_json_schema

    from daskrado.jobs.base import Job
    from daskrado.jobs.load import DEFAULT_KIND, PACKAGE
    from daskrado.registry import kinds

    found = {name: kind for name, kind in sorted(kinds(Job, PACKAGE).items()) if " " not in name}
    refs, shared = models_json_schema([(kind, "validation") for kind in found.values()])
    defs = shared["$defs"]
    branches = []
    for name, kind in found.items():
        own = refs[kind, "validation"]
        content = defs[own["$ref"].rpartition("/")[2]]
        # What is nested may be written in several ways that only the job itself can read: offered, not enforced.
        nested = {"$ref", "anyOf", "oneOf", "items"}
        for key, value in content["properties"].items():
            content["properties"][key] = {"anyOf": [value, {}]} if nested & value.keys() else value
        content["properties"]["kind"] = {"const": name}
        content["required"] = [*_ALWAYS, *([] if issubclass(kind, found[DEFAULT_KIND]) else ["kind"])]
        branches.append(own)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "pipeline",
        "anyOf": branches,
        "$defs": defs,
    }
