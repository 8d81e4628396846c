"""Blocks of a lake: values of a public column that its folders, its partitions or a frame have; a job reads some.

A block is one value, such as a day. The names of all blocks are public, and so is the choice of those that are read:
it never depends on rows. Rows without a block count as nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from pydantic import AliasChoices, Field, field_validator, model_validator

from daskrado.errors import DataError, UsageError
from daskrado.lake.block_facts import EACH
from daskrado.lake.files import LakeFile, find_files
from daskrado.table.yaml_file import Frozen


@dataclass(frozen=True)
class PartOfLake:
    """The files of a lake that lie in some blocks: a source like any other."""

    source: Any = field(repr=False)
    column: str
    values: tuple[str, ...]

    def files(self) -> list[LakeFile]:
        """The files of the blocks."""
        wanted = set(self.values)
        found = [file for file in find_files(self.source) if _block(file, self.column) in wanted]
        gone = wanted - {_block(file, self.column) for file in found}
        if gone:
            raise DataError(f"the lake has no block {self.column}={min(gone)} any more; restore it")
        return found


class Blocks(Frozen):
    """Which blocks of a lake a job reads: the ``last`` ones, those from one to another, or those that are named."""

    column: str = Field(min_length=1)
    last: int | None = Field(default=None, ge=1)
    start: str | None = Field(default=None, validation_alias=AliasChoices("from", "start"))
    end: str | None = Field(default=None, validation_alias=AliasChoices("to", "end"))
    values: tuple[str, ...] | None = Field(default=None, min_length=1)

    @field_validator("start", "end", mode="before")
    @classmethod
    def _text(cls, value: Any) -> Any:
        """YAML reads 2026-11-17 as a date, and 7 as a number; a folder's name is text."""
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return str(value) if number or isinstance(value, date) else value

    @field_validator("values", mode="before")
    @classmethod
    def _texts(cls, value: Any) -> Any:
        return [cls._text(item) for item in value] if isinstance(value, list | tuple) else value

    @model_validator(mode="after")
    def _one_way(self) -> Blocks:
        if self.values is not None and (self.last, self.start, self.end) != (None, None, None):
            raise ValueError("names its values, or gives last, from and to; not both")
        return self

    def __str__(self) -> str:
        if self.values is not None:
            return f"{self.column}: {shown_blocks(self.values)}"
        limits = [f"{word} {value}" for word, value in (("from", self.start), ("to", self.end)) if value is not None]
        return " ".join([f"{self.column}:", "all" if self.last is None else f"the last {self.last}", *limits])

    @property
    def assumption(self) -> str:
        """What a statement takes for granted."""
        return (
            f"which values of {self.column!r} there are is public; a row that is replaced keeps its value; other "
            "runs read a block only within its own budget"
        )

    @classmethod
    def spoken(cls, text: str) -> Blocks:
        """``day``: all of them; ``day:30``: the last thirty."""
        column, _, last = text.rpartition(":") if ":" in text else (text, "", "")
        if not column or (last and not (last.isdecimal() and int(last) > 0)):
            raise UsageError(f"blocks are COLUMN, or COLUMN:LAST such as day:30, got {text!r}")
        return cls(column=column, last=int(last) if last else None)

    def exactly(self, values: Sequence[str]) -> Blocks:
        """These blocks and no others, whatever the lake gets later."""
        return Blocks(column=self.column, values=tuple(values))

    def chosen(self, source: Any) -> tuple[str, ...]:
        """The blocks of a lake that are meant, in their order, from the names of its folders alone."""
        known = block_names(source, self.column)
        if self.values is not None:
            strange = [value for value in self.values if value not in known]
            if strange:
                raise UsageError(
                    f"blocks.values: the lake has no block {self.column}={strange[0]}; it has {shown_blocks(known)}"
                )
            return tuple(value for value in known if value in set(self.values))
        read = _reader([*known, *(value for value in (self.start, self.end) if value is not None)])
        found = [
            value
            for value in known
            if (self.start is None or read(value) >= read(self.start))
            and (self.end is None or read(value) <= read(self.end))
        ]
        if not found:
            raise UsageError(f"blocks: the lake has none of {self}; it has {shown_blocks(known)}")
        return tuple(found[-self.last :] if self.last is not None else found)


def block_names(source: Any, column: str) -> tuple[str, ...]:
    """The blocks of a lake in their order: numbers by size, everything else as text, so ISO dates by time."""
    if not isinstance(source, str | list | tuple | Mapping) and not hasattr(source, "__fspath__"):
        from daskrado.lake.frame_blocks import values_of

        return _ordered(values_of(source, column), column)
    files = find_files(source)
    found = {block for file in files if (block := _block(file, column))}
    if not found:
        folders = sorted({name for file in files for name, _ in (*file.hive, *file.parts)})
        have = f"its folders are named after {', '.join(folders)}" if folders else "it has no folders of values"
        raise UsageError(
            f"blocks.column {column!r}: the lake has no folders {column}=VALUE ({have}); "
            f"lay it out with daskrado ingest --by {column}"
        )
    iceberg = [file for file in files if file.table is not None and file.table.form == "iceberg"]
    older = [file.path for file in iceberg if column not in dict(file.parts)]
    if older:
        raise UsageError(
            f"blocks.column {column!r}: {older[0]} was written before the table was partitioned by it, so its rows "
            "would be left out; rewrite the table's files"
        )
    return _ordered(found, column)


def _ordered(found: Collection[str], column: str) -> tuple[str, ...]:
    if EACH in found:
        raise UsageError(f"blocks.column {column!r}: {EACH!r} stands for each block; rename the folder {column}=%2A")
    return tuple(sorted(found, key=_reader(found)))


def shown_blocks(names: Sequence[str]) -> str:
    """``2026-11-15, 2026-11-16``, or ``30 blocks, 2026-10-19 to 2026-11-17``."""
    return ", ".join(names) if len(names) <= 3 else f"{len(names)} blocks, {names[0]} to {names[-1]}"


def grouped(files: Iterable[LakeFile], column: str, values: Collection[str]) -> dict[str, list[int]]:
    """The places of files in their order, by block."""
    found: dict[str, list[int]] = {value: [] for value in values}
    for place, file in enumerate(files):
        block = _block(file, column)
        if block in found:
            found[block].append(place)
    return found


def _block(file: LakeFile, column: str) -> str | None:
    """The block of a file; a folder without a value, or with an empty one, is in none."""
    return dict((*file.hive, *file.parts)).get(column) or None


def _reader(names: Collection[str]) -> Callable[[str], Any]:
    try:
        numbers = {name: float(name) for name in names}
    except ValueError:
        return str
    return lambda name: (numbers[name], name)
