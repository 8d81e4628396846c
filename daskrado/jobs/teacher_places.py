"""A teacher for each value of a public column, each folder of values or each file: which there are, under what.

A shard must be a function of who or where a row is. By folder, or by file, it is one where a public column names that
place: then a row that is added or removed is in one place, and the rows of all other places stay as they are. The
number of a row in a file, or a row group, is no such place: one row more moves its followers to others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from daskrado.errors import DataError, UsageError
from daskrado.lake.blocks import PartOfLake
from daskrado.lake.files import LakeFile, find_files
from daskrado.lake.scan import is_address
from daskrado.lake.shards import folder_of
from daskrado.privacy.relations import Relation
from daskrado.table.domain import BooleanColumn, CategoricalColumn, Domain
from daskrado.table.label import Scalar
from daskrado.table.yaml_file import Frozen

if TYPE_CHECKING:
    from daskrado.privacy.protect import Protect


class ShardColumn(Frozen):
    """The column whose values have a teacher each: categorical or boolean in the domain, or that folders go by."""

    column: str = Field(min_length=1)

    def __str__(self) -> str:
        return f"column {self.column}"


ShardPlace = Literal["partition", "file"] | ShardColumn


@dataclass(frozen=True)
class Places:
    """What shard 0, 1, ... holds: values of ``column``, or folders; all of it public."""

    column: str | None
    values: tuple[Scalar, ...]
    assumption: str


def check_place(by: ShardPlace, protect: Protect, domain: Domain) -> None:
    """Refuse a relation under which a row may reach two teachers."""
    named = {by.column} if isinstance(by, ShardColumn) else set()
    if protect.relation is Relation.REPLACE_ONE:
        raise ValueError(
            "teachers.shard_by: a replaced record may come to another place and reach two teachers: protect under "
            "add_remove, or use shard_by: position"
        )
    _check_named(named, protect, domain)


def _check_named(named: set[str], protect: Protect, domain: Domain) -> None:
    if domain.label.column in named:
        raise ValueError(f"teachers.shard_by: {domain.label.column!r} is the label: a teacher would see one class")
    if protect.feature in named:
        raise ValueError(f"teachers.shard_by: {protect.feature!r} is protected: its flip would reach two teachers")


def places_of(by: ShardPlace, source: Any, protect: Protect, domain: Domain) -> Places:
    """The places of a lake, by what its Domain declares or by the names of its folders alone."""
    found = _values(by.column, source, domain) if isinstance(by, ShardColumn) else _folders(by, source)
    try:
        _check_named({*found[1]}, protect, domain)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if len(found[0].values) < 2:
        raise UsageError(f"teachers.shard_by: {by}: the lake has one such place, and one teacher is no vote")
    return found[0]


def _values(column: str, source: Any, domain: Domain) -> tuple[Places, list[str]]:
    known = domain.columns.get(column)
    if isinstance(known, CategoricalColumn | BooleanColumn):
        values = known.values or (False, True)
        said = f"a row is in the shard of its {column}, one of the values that the domain declares, and in no other"
        return Places(column, tuple(values), said), [column]
    files = _files(source, f"column {column!r} is not categorical or boolean in the domain, and ")
    texts = {text for file in files if (text := dict((*file.hive, *file.parts)).get(column))}
    if not texts:
        raise UsageError(
            f"teachers.shard_by: the lake has no folders {column}=VALUE, and the domain no categorical or boolean "
            f"column {column!r}: lay it out with daskrado ingest --by {column}"
        )
    said = f"a row is in the shard of its {column}, which is public and fixes its folder; {_GIVEN}"
    return Places(column, tuple(sorted(texts)), said), [column]


_GIVEN = "which of them there are does not depend on rows"


def _folders(by: str, source: Any) -> tuple[Places, list[str]]:
    files = _files(source, "")
    bare = next((file.path for file in files if not file.hive), None)
    if bare is not None:
        raise DataError(
            f"{bare}: teachers.shard_by: {by} needs folders that are named after public columns (site=north): "
            "nothing else says to which file a row belongs; use shard_by: record, or daskrado ingest --by COLUMN"
        )
    folders = [folder_of(file.name) for file in files]
    twice = next((folder for folder in folders if folders.count(folder) > 1), None) if by == "file" else None
    if twice is not None:
        raise DataError(
            f"{twice}: teachers.shard_by: file needs one file in each folder: no public column says to which of "
            "several a row belongs; use shard_by: partition"
        )
    columns = sorted({name for file in files for name, _ in file.hive})
    said = f"a row is in the shard of its folder, which public columns fix ({', '.join(columns)}); {_GIVEN}"
    return Places(None, tuple(sorted({*folders})), said), columns


def _files(source: Any, why: str) -> list[LakeFile]:
    if isinstance(source, PartOfLake):
        return source.files()
    if not is_address(source):
        raise UsageError(f"teachers.shard_by: {why}a frame has no folders: name a column that the domain declares")
    return find_files(source)
