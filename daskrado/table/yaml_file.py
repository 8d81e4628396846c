"""Small documents: YAML in, validated key by key; text out, whole or not at all."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import tempfile
from collections.abc import Hashable, Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import AliasChoices, BaseModel, ConfigDict, ValidationError, model_validator
from pydantic.fields import FieldInfo

from daskrado.errors import UsageError
from daskrado.table.nearest import allowed_keys, did_you_mean, meant_or_allowed

OPEN = "..."  # a fact that a draft leaves to its owner
_LONGEST = 80  # characters of a value that are quoted
_MOST_VALUES = 1_000_000  # that a document may stand for: a domain of many categories has some thousands

ModelT = TypeVar("ModelT", bound=BaseModel)


class Frozen(BaseModel):
    """An immutable, strictly keyed piece of configuration."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, content: Any) -> Any:
        """YAML's yes, on and true are not numbers."""
        if isinstance(content, Mapping):
            fields = cls.model_fields.items()
            no_truth_for_a_number(
                content, {key: field.annotation for name, field in fields for key in _keys(name, field)}
            )
        return content


def _keys(name: str, field: FieldInfo) -> list[str]:
    """A field's name and the other spellings of its key."""
    choices = field.validation_alias.choices if isinstance(field.validation_alias, AliasChoices) else []
    return [name, *(str(choice) for choice in choices)]


class NestedMistakes(ValueError):
    """Mistakes inside a value that was validated by itself, each with its own key: ``rounds: must be ...``."""

    def __init__(self, texts: Sequence[str]) -> None:
        super().__init__("; ".join(texts))
        self.texts = tuple(texts)

    @classmethod
    def of(cls, error: ValidationError, content: Any) -> NestedMistakes:
        """The mistakes that pydantic found in ``content``."""
        return cls(list(_explained(error, content)))

    def under(self, key: str) -> Iterator[str]:
        """The same below the key that holds the value."""
        for text in self.texts:
            yield f"{key}: {text.removeprefix('file: ')}" if text.startswith("file: ") else f"{key}.{text}"


def no_truth_for_a_number(content: Mapping[str, Any], annotations: Mapping[str, Any]) -> None:
    """Refuse YAML's yes, on and true where a number is meant."""
    for name, given in content.items():
        for item in given if isinstance(given, list | tuple) else [given]:
            if isinstance(item, bool) and name in annotations and _numbers_only(annotations[name]):
                raise ValueError(f"{name} must be a number, got {item}")


def _numbers_only(annotation: Any) -> bool:
    """Whether a key takes numbers, perhaps a list of them, and no truth values."""
    kinds, found = [annotation], []
    while kinds:
        kind = kinds.pop()
        kinds += get_args(kind)
        found.append(kind)
    return bool not in found and (int in found or float in found)


def canonical_digest(content: Any) -> str:
    """The hash of plain JSON values, their keys in the order given."""
    return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()


def read_yaml(path: str | Path) -> Any:
    """A YAML file as plain Python values; a missing or malformed one is a one-line UsageError."""
    try:
        return yaml.load(Path(path).read_text(encoding="utf-8"), Loader=_UniqueKeyLoader)
    except OSError as error:
        file = "; give a file, such as pipeline.yaml" if isinstance(error, IsADirectoryError) else ""
        raise UsageError(f"{path}: cannot be read ({error.strerror}){file}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: is not UTF-8 text") from error
    except yaml.YAMLError as error:
        tabs = "; indent with blanks, not with tabs" if "'\\t'" in str(error) else ""
        raise UsageError(f"{path}: is not valid YAML: {' '.join(str(error).split())}{tabs}") from error
    except RecursionError as error:
        raise UsageError(f"{path}: is no configuration (its brackets are nested too deeply)") from error


class _UniqueKeyLoader(yaml.SafeLoader):
    """Safe YAML that refuses a key given twice, where plain YAML keeps the last one; mistakes name their line."""

    def get_single_node(self) -> yaml.Node | None:
        """The document, unless its aliases stand for more than any configuration holds."""
        found = super().get_single_node()
        if found is not None and _size(found, {}) > _MOST_VALUES:
            raise _mistake(f"aliases (*name) stand for more than {_MOST_VALUES:,} values, write them out", found)
        return found

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Build one value."""
        try:
            return super().construct_object(node, deep)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):  # PyYAML lets all of them out
            raise _mistake("neither a number that fits nor a day that exists", node) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Build one mapping, checking its keys."""
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                raise _mistake("merge keys (<<) are not supported, write the keys out", key_node)
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise _mistake(f"a {type(key).__name__} as a key", key_node)
            if key in seen:
                raise _mistake(f"key {key!r} given twice", key_node)
            seen.add(key)
        return super().construct_mapping(node, deep)


def _size(node: yaml.Node, known: dict[int, float]) -> float:
    """How many values a node stands for once its aliases are written out; infinitely many where it holds itself."""
    if not isinstance(node.value, list):
        return 1
    if id(node) not in known:
        known[id(node)] = math.inf
        pairs = isinstance(node, yaml.MappingNode)
        inner = [one for item in node.value for one in (item if pairs else [item])]
        known[id(node)] = 1 + sum(_size(one, known) for one in inner)
    return known[id(node)]


def _mistake(what: str, node: yaml.Node) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, what, node.start_mark)


def parse(model: type[ModelT], content: Any, where: str) -> ModelT:
    """Validate plain values as ``model``, naming the file, the key, the value and what is allowed."""
    if isinstance(content, model):
        return content
    if not isinstance(content, Mapping):
        raise UsageError(f"{where}: must be a mapping of keys, got {type(content).__name__}")
    if not getattr(model, "takes_drafts", False) and (still_open := open_keys(content)):
        raise UsageError(
            f"{where}: still open (...): {', '.join(still_open)}; write public facts there, take them from another "
            "file with daskrado init --from, or find them in private with daskrado describe"
        )
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise UsageError(f"{where}: " + "; ".join(_explained(error, content, model))) from error


def open_keys(content: Any) -> list[str]:
    """The dotted keys that a draft leaves open, in their order; what a bomb repeats is looked at once."""
    found: list[str] = []
    seen: set[int] = set()
    waiting: list[tuple[str, Any]] = [("", content)]
    while waiting:
        key, value = waiting.pop()
        if isinstance(value, str) and value == OPEN:
            found.append(key)
        if isinstance(value, Mapping) and id(value) not in seen:
            seen.add(id(value))
            waiting += [(f"{key}.{name}".removeprefix("."), inner) for name, inner in [*value.items()][::-1]]
    return found


def _explained(error: ValidationError, content: Any, model: type[BaseModel] | None = None) -> Iterator[str]:
    """One text for each mistake: of a union, the branch that was meant, else all that is allowed."""
    problems = error.errors()
    places = [tuple(problem["loc"]) for problem in problems]
    allowed: dict[tuple[str, str], list[str]] = {}
    for problem, place in zip(problems, places, strict=True):
        key, at_branch = _key(problem, content)
        if isinstance(problem.get("ctx", {}).get("error"), NestedMistakes):
            yield from problem["ctx"]["error"].under(key)
        elif not (at_branch and problem["type"].endswith("_type")):
            unknown = model is not None and problem["type"] == "extra_forbidden"
            hint = meant_or_allowed(str(place[-1]), allowed_keys(model, place[:-1])) if unknown and model else ""
            yield _explain(problem, key) + hint
        elif not any(other[: len(place) - 1] == place[:-1] and len(other) > len(place) for other in places):
            kind = problem["msg"].removeprefix("Input should be ")
            allowed.setdefault((key, shown(problem["input"])), []).append(kind)
    for (key, given), kinds in allowed.items():
        yield f"{key}: input should be {' or '.join(dict.fromkeys(kinds))} (got {given})"


def _key(problem: Any, content: Any) -> tuple[str, bool]:
    """The user's keys that lead to a mistake, and whether its place ends in a branch of a union instead of a key.

    Pydantic puts the names of branches into the place; no such key is in the content.
    """
    keys: list[Any] = []
    at_branch = False
    for part in problem["loc"]:
        try:
            content, at_branch = content[part], False
        except (LookupError, TypeError):
            at_branch = not isinstance(part, int)  # a place in a list that was read from elsewhere
        if not at_branch:
            keys.append(part)
    if problem["type"] == "missing":
        keys.append(problem["loc"][-1])
    return ".".join(map(str, keys)) or "file", at_branch


def _explain(problem: Any, key: str) -> str:
    kind = problem["type"]
    if kind == "missing":
        found = key.rpartition(".")[2] in ("lower", "upper", "values") and key.startswith("columns.")
        return f"{key}: missing, and it has no default" + ("; ... leaves it to daskrado describe" if found else "")
    if kind == "extra_forbidden":
        return f"{key}: unknown key"
    if kind == "value_error":
        return f"{key}: {problem['ctx']['error']}"
    if kind == "union_tag_invalid":
        tag, allowed = str(problem["ctx"]["tag"]), problem["ctx"]["expected_tags"]
        return f"{key}: kind must be one of {allowed} (got {shown(tag)}){_near(tag, allowed)}"
    text = f"{problem['msg'][0].lower()}{problem['msg'][1:]}"
    if kind == "string_pattern_mismatch":  # of names, all of one pattern
        text = "may hold letters, digits, points, dashes and underscores only"
    for word, plain in _PLAIN.items():
        text = text.replace(word, plain)
    return f"{key}: {text} (got {shown(problem['input'])}){_way_out(problem)}"


_PLAIN = {  # what people write in a file, by what Pydantic calls it
    "a valid tuple": "a list in brackets",
    "tuple should": "list should",
    " after validation": "",
    "a valid dictionary": "a mapping of keys",
    ", unable to parse string as a number": "",
    ", unable to parse string as an integer": "",
}


def _near(word: str, quoted: str) -> str:
    return did_you_mean(word, re.findall(r"'([^']*)'", quoted))


def _way_out(problem: Any) -> str:
    """What to write instead, where a mistake is a usual one."""
    given, kind = problem["input"], problem["type"]
    if kind in ("literal_error", "enum") and isinstance(given, str):
        return _near(given, problem["ctx"]["expected"])
    if kind in ("float_parsing", "int_parsing") and isinstance(given, str):
        if re.fullmatch(r"[+-]?[0-9.]*,[0-9]+", given.strip()):
            return "; write a point, not a comma"
        return "; a date is written as 2026-01-31" if re.search(r"[0-9][./-][0-9]+[./-][0-9]", given) else ""
    if kind.startswith("less_than") and isinstance(given, int | float) and 2 <= given <= 100:
        most = problem["ctx"].get("le", problem["ctx"].get("lt", 2))
        return f"; it is a share: {given / 100:g} for {given:g} %" if most <= 1 else ""
    return ""


def shown(value: Any) -> str:
    """A value as it may be printed, cut where it is long: what YAML can say.

    Anything else may hold rows, and only its type is named. No more is built than is shown: a value of a few hundred
    bytes that repeats itself may stand for billions.
    """
    text = ""
    for piece in _pieces(value):
        text += piece
        if len(text) > _LONGEST:
            return f"{text[:_LONGEST]}..."
    return text


def _pieces(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield "{"
        for at, (key, item) in enumerate(value.items()):
            yield ", " if at else ""
            yield from _pieces(key)
            yield ": "
            yield from _pieces(item)
        yield "}"
    elif isinstance(value, list | tuple):
        yield "["
        for at, item in enumerate(value):
            yield ", " if at else ""
            yield from _pieces(item)
        yield "]"
    else:
        plain = value is None or isinstance(value, str | bool | int | float | date)
        yield repr(value) if plain else type(value).__name__


def write_text(path: str | Path, text: str) -> None:
    """Write a file under a temporary name, then rename: a reader sees the old content or the new, never half."""
    target = Path(path)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
