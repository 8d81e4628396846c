"""Kinds of things, found by walking packages.

A statistic, mechanism, learner, loss or kind of job is one class in one file. A module that lies in the package is
found without being named anywhere; so is a class that an installed extension brings (entry points of the group
``daskrado`` name the modules to import), or that a caller defines in Python.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

from pydantic import (
    BaseModel,
    BeforeValidator,
    GetCoreSchemaHandler,
    GetPydanticSchema,
    PlainSerializer,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
)

from daskrado.errors import UsageError
from daskrado.table.nearest import did_you_mean
from daskrado.table.yaml_file import NestedMistakes, no_truth_for_a_number, shown

T = TypeVar("T")
Given = Callable[[ValidationInfo], Mapping[str, Any]]


@cache
def _import_all(package: str) -> None:
    found = import_module(package)
    for module in pkgutil.walk_packages(found.__path__, f"{package}."):
        import_module(module.name)


@cache
def _import_extensions() -> None:
    for entry in entry_points(group="daskrado"):
        entry.load()


def concrete(base: type[T]) -> Iterator[type[T]]:
    """The subclasses of a class, at any depth, that can be made."""
    for child in base.__subclasses__():
        if not inspect.isabstract(child) and not child.__name__.startswith("_"):
            yield child
        yield from concrete(child)


def kinds(base: type[T], *packages: str) -> dict[str, type[T]]:
    """The concrete subclasses of ``base`` by name, after every module of the packages was imported."""
    for package in packages:
        _import_all(package)
    _import_extensions()
    return loaded(base)


def loaded(base: type[T]) -> dict[str, type[T]]:
    """The kinds among the classes that are imported."""
    found: dict[str, type[T]] = {}
    for kind in concrete(base):
        for name in _names(kind):
            if name in found and found[name] is not kind:
                raise UsageError(f"two kinds are called {name!r}: {found[name].__module__} and {kind.__module__}")
            found[name] = kind
    return found


def _names(kind: type) -> tuple[str, ...]:
    """Its own ``name``, or what the key ``kind`` of a model may say; a class that inherits them is no kind."""
    name = vars(kind).get("name")
    if isinstance(name, str):
        return (name,)
    if issubclass(kind, BaseModel) and "kind" in vars(kind).get("__annotations__", ()):
        return get_args(kind.model_fields["kind"].annotation)
    return ()


def options(thing: Any) -> dict[str, Any]:
    """A registered object as a file writes it: its kind, and its options as plain values."""
    plain = TypeAdapter(type(thing)).dump_python(thing, mode="json", exclude=set(getattr(thing, "hidden", ())))
    return {"kind": thing.name, **plain}


def make(base: type[T], packages: tuple[str, ...], content: Any, given: Mapping[str, Any] | None = None) -> T:
    """An object from ``{kind: NAME, option: value}`` or from a bare name; an object of a kind stays as it is.

    ``given`` are fields that a file does not write, such as a Domain's width.
    """
    if isinstance(content, base):
        return content
    if isinstance(content, str):
        content = {"kind": content}
    if not isinstance(content, Mapping):
        raise ValueError(f"must be a kind, or a mapping of kind and options, got {type(content).__name__}")
    name = content.get("kind")
    known = loaded(base)
    if not isinstance(name, str) or name not in known:  # only then is the whole package worth importing
        known = kinds(base, *packages)
    if name is None:
        raise ValueError(f"kind: missing, and it has no default; allowed: {', '.join(sorted(known))}")
    if not isinstance(name, str) or name not in known:
        near = did_you_mean(name, known) if isinstance(name, str) else ""
        raise ValueError(f"kind must be one of {', '.join(map(repr, sorted(known)))} (got {shown(name)}){near}")
    chosen, rest = known[name], {key: value for key, value in content.items() if key != "kind"}
    if issubclass(chosen, BaseModel):
        try:
            return chosen.model_validate(content)
        except ValidationError as error:
            raise NestedMistakes.of(error, content) from error
    if not is_dataclass(chosen):
        raise TypeError(f"{chosen.__name__} is not a dataclass")
    rest = getattr(chosen, "current_spelling", dict)(rest)
    hidden = dict(given or {})
    own = {field.name for field in fields(chosen)} - set(hidden)
    unknown = [
        f"{key}: unknown key; {name} takes {', '.join(sorted(own)) or 'none'}{did_you_mean(str(key), own)}"
        for key in rest
        if key not in own
    ]
    if unknown:
        raise NestedMistakes(unknown)
    no_truth_for_a_number(rest, get_type_hints(chosen))
    try:
        return TypeAdapter(chosen).validate_python(hidden | rest)
    except ValidationError as error:
        raise NestedMistakes.of(error, rest) from error
    except UsageError as error:  # options that contradict each other
        raise ValueError(str(error)) from error


def one_of(*packages: str, given: Given | None = None) -> GetPydanticSchema:
    """Mark of a pydantic field whose type is the base of several kinds: ``Annotated[Base, one_of("package")]``."""

    def schema(base: type, handler: GetCoreSchemaHandler) -> Any:
        def read(content: Any, info: ValidationInfo) -> Any:
            return make(base, packages, content, None if given is None else given(info))

        written = () if issubclass(base, BaseModel) else (PlainSerializer(options),)  # a model writes itself
        return handler.generate_schema(Annotated[Any, BeforeValidator(read), *written])

    return GetPydanticSchema(schema)
