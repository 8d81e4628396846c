"""Commands from function signatures: a parameter is written once, with its type, its default and what help says.

Positional parameters are the command's arguments, keyword-only ones its options. What stands beside a type in
``Annotated`` is a spelling if it begins with ``--`` (with a placeholder after a space, if there is one), a narrower
type if it is one of click's, else the help. What a command returns or yields is printed line by line.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable
from inspect import Parameter, cleandoc, signature
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

import click

if TYPE_CHECKING:
    from daskrado.cluster import ClusterConfig

Lines = str | Iterable[str]
_PLACE = ("workers", "cluster", "priority", "resources")
_CLUSTER = object()  # marks the parameter that two options together make

if TYPE_CHECKING:
    OnCluster = ClusterConfig | None
else:
    OnCluster = Annotated[Any, _CLUSTER]
_JSON = "One JSON object on stdout and nothing else."
AsJson = Annotated[bool, "--json", _JSON]
_USUAL = {  # what options mean wherever a command says nothing else
    "out": "Where the result is written.",
    "overwrite": "Replace what is there.",
    "rows": "Rows of the lake.",
    "features": "Features of a row.",
    "partitions": "Files of the lake.",
    "seed": "Of the synthetic rows.",
    "columns": "Columns of a row.",
    "passes": "Passes over the rows.",
    "rounds": "Rounds of boosting.",
    "rados": "Rados that are made.",
    "workers": "Worker processes.",
    "teachers": "Teachers to train.",
    "learner": "The learner's kind.",
    "table": "The table's name in the database.",
    "format": "Of the files.",
    "epsilon": "Of the guarantee.",
    "delta": "Of the guarantee.",
    "rows_per_unit": "Rows that one unit may own.",
}
Count = Annotated[int, click.IntRange(1)]
LedgerPath = Annotated[str | None, "Ledger, a file or postgresql://... (default: DASKRADO_LEDGER, or ~/.daskrado)."]


_WHO = click.Option(
    ["--who"],
    expose_value=False,
    callback=lambda _context, _option, name: name and os.environ.update(DASKRADO_WHO=name),
    help="The name that the ledger notes (default: DASKRADO_WHO, or the user's).",
)


def command(group: click.Group | None = None, name: str | None = None) -> Callable[[Callable[..., Lines]], Any]:
    """A click command of a function, in a group if there is one; its docstring is the help."""

    def made(function: Callable[..., Lines]) -> Any:
        own_json = "as_json" in signature(function).parameters

        @functools.wraps(function)
        def printed(**given: Any) -> None:
            as_json = False if own_json else given.pop("as_json")
            if "workers" in given and "cluster" in given:
                given["cluster"] = _on_cluster(*(given.pop(name) for name in _PLACE))
            found = function(**{name: _of_home(value) for name, value in given.items()})
            lines = (found,) if isinstance(found, str) else found
            if as_json:
                import json

                click.echo(json.dumps({"command": name or function.__name__, "lines": list(lines)}))
                return
            for line in lines:
                click.echo(line)

        hints = get_type_hints(function, include_extras=True)
        parts = [part for p in signature(function).parameters.values() for part in _parts(p, hints[p.name])]
        if not own_json:
            parts.append(click.Option(["--json", "as_json"], is_flag=True, help=_JSON))
        text = cleandoc(function.__doc__ or "").replace("\nExamples:\n", "\n\b\nExamples:\n")
        made = click.Command(name or function.__name__, callback=printed, params=parts, help=text)
        if group is not None:
            group.add_command(made)
        return made

    return made


def _of_home(value: Any) -> Any:
    """Paths with a leading ~ expanded, which shells leave alone in ``--out=~/lake``."""
    if isinstance(value, tuple):
        return tuple(map(_of_home, value))
    if isinstance(value, str | Path) and str(value).startswith("~"):
        return type(value)(os.path.expanduser(value))
    return value


def _parts(parameter: Parameter, hint: Any) -> list[click.Parameter]:
    """The argument or option of a parameter."""
    hint, *beside = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if _CLUSTER in beside:
        return [
            click.Option(
                ["--workers"], type=int, help="Local worker processes, 0 for none; by default as size asks."
            ),
            click.Option(["--cluster"], help="A cluster YAML file or a scheduler address; by default this machine."),
            click.Option(["--priority"], type=int, help="Of tasks beside those of other jobs (default: 0)."),
            click.Option(["--resources"], help="What a worker must offer, such as GPU=1 (default: nothing)."),
        ]
    if hint == str | None and parameter.name == "ledger":
        return [*_option(parameter, hint, beside), _WHO]
    return _option(parameter, hint, beside)


def _option(parameter: Parameter, hint: Any, beside: list[Any]) -> list[click.Parameter]:
    required, several = parameter.default is Parameter.empty, get_origin(hint) is tuple
    kind = next((item for item in beside if isinstance(item, click.ParamType)), None) or _click_type(hint)
    if parameter.kind is not Parameter.KEYWORD_ONLY:
        return [click.Argument([parameter.name], type=kind, nargs=-1 if several else 1, required=required)]
    words = [item for item in beside if isinstance(item, str)]
    spellings = [word for word in words if word.startswith("--")] or [f"--{parameter.name.replace('_', '-')}"]
    about = next((word for word in words if not word.startswith("--")), None) or _USUAL.get(parameter.name)
    shown: bool | str = parameter.default not in (None, False, ())
    if not shown and hint is not bool and "default" not in (about or ""):
        shown = "none"
    default = {} if required else {"default": parameter.default, "show_default": shown}
    return [
        click.Option(
            [word.partition(" ")[0] for word in spellings] + [parameter.name],
            type=None if hint is bool else kind,
            is_flag=hint is bool or None,  # False would let an option go without its value
            multiple=several,
            required=required,
            metavar=spellings[0].partition(" ")[2] or None,
            help=about,
            **default,
        )
    ]


def _click_type(hint: Any) -> Any:
    """Of ``X | None`` and of a tuple the type of one value."""
    inner = hint if get_origin(hint) is Literal else _inner(hint)
    if get_origin(inner) is Literal:
        return click.Choice(get_args(inner))
    return click.Path(path_type=Path) if inner is Path else inner


def _inner(hint: Any) -> Any:
    return next((part for part in get_args(hint) if part not in (NoneType, ...)), hint)


def _on_cluster(
    workers: int | None, cluster: str | None, priority: int | None, resources: str | None
) -> ClusterConfig | None:
    """The workers that the options name; None where others decide."""
    from daskrado.cluster import cluster_config
    from daskrado.errors import UsageError

    if workers is None and cluster is None:
        if priority is not None or resources is not None:
            raise UsageError("--priority and --resources are for workers that others use too: give --cluster")
        return None
    return cluster_config(workers, cluster, priority=priority, resources=resources)
