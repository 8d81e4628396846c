"""What is wrong with a lake, for its owner alone: files, columns, kinds of mistakes and exact counts of rows.

No private job: what it says is about single rows. It reads every page, so that checksums show damaged ones.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from daskrado.errors import DataError
from daskrado.lake.files import LakeFile, find_files, first_line
from daskrado.lake.folder_values import folder_readers
from daskrado.lake.parquet_files import Footer, footer_problems, read_footer
from daskrado.lake.scan import is_address, open_lake
from daskrado.table.domain import Domain
from daskrado.table.encoding import encode_table, needed_columns


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: where, what, and in how many rows; None where a whole file cannot be used."""

    where: str
    what: str
    rows: int | None = None

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" + ("" if self.rows is None else f" ({self.rows:,} rows)")


def check_lake(source: Any, domain: Domain) -> Iterator[Finding]:
    """Everything in a lake that its Domain does not allow, file by file."""
    columns = needed_columns(domain, ids=True)
    if not is_address(source):
        lake = open_lake(source, domain, ids=True)
        for partition in lake.partitions:
            yield from _check_rows(partition, domain, columns)
        return
    readers, footers = folder_readers(domain, columns, strict=True), []
    for file in find_files(source):
        try:
            footer = read_footer(readers, file)
        except DataError as error:
            yield Finding(file.path, _without(file.path, error))
            continue
        footers.append(footer)
        wrong = footer_problems(footer, domain, columns, strict=False)
        yield from (Finding(file.path, problem.removeprefix(f"{file.path}: ")) for problem in wrong)
        for partition in () if wrong else footer.partitions():
            yield from _check_rows(partition, domain, columns)
    for path, first in _copies(footers):
        yield Finding(path, f"has the same bytes as {first}, so its rows would count twice")


def check_files(source: Any) -> Iterator[Finding]:
    """What is wrong with a lake's files alone: damaged pages, columns that differ from file to file, copies."""
    known: dict[str, tuple[Any, str]] = {}
    footers = []
    for file in find_files(source):
        try:
            footer = read_footer({}, file)
            for partition in footer.partitions():
                for _ in partition.tables(footer.schema.names):
                    pass
        except DataError as error:
            yield Finding(file.path, _without(file.path, error))
            continue
        footers.append(footer)
        for column in footer.schema:
            kind, first = known.setdefault(column.name, (column.type, file.path))
            if _family(kind) != _family(column.type):
                yield Finding(file.path, f"column {column.name!r} is {column.type}, and {kind} in {first}")
    for footer in footers:
        missing = [name for name in known if name not in footer.schema.names]
        for name in missing:
            yield Finding(footer.file.path, f"column {name!r} is missing, which {known[name][1]} has")
    for path, first in _copies(footers):
        yield Finding(path, f"has the same bytes as {first}, so its rows would count twice")


def _family(kind: pa.DataType) -> str:
    """Types that are read alike: texts, whole numbers, numbers."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return "text"
    numbers = pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    return "whole" if pa.types.is_integer(kind) else "number" if numbers else str(kind)


def _check_rows(partition: Any, domain: Domain, columns: Sequence[str]) -> Iterator[Finding]:
    where, found = str(getattr(partition, "path", partition.name)), Counter[str]()
    try:
        for _, table in partition.tables(columns):
            encoded = encode_table(domain, table, ids=True)
            encoded.fill_missing()
            for problem, rows in encoded.problems.items():
                found[str(problem)] += rows
    except DataError as error:
        yield Finding(where, _without(where, error))
    yield from (Finding(where, what, rows) for what, rows in sorted(found.items()))


def _without(where: str, error: DataError) -> str:
    return str(error).removeprefix(f"{where}: ")


def _copies(footers: Sequence[Footer]) -> Iterator[tuple[str, str]]:
    """Files with the same bytes as another, each with the first of them. Only those with one footer are read.

    Said to the owner alone: whoever may put a guess beside a private file would learn from a run that refuses
    whether the two are equal.
    """
    alike: dict[Any, list[LakeFile]] = {}
    for footer in footers:
        table = footer.file.table
        if footer.rows and (table is None or table.form == "folder"):  # another table's log says which files count
            place = (footer.file.size, footer.group_rows, footer.group_bytes, footer.hive, str(footer.facts))
            alike.setdefault(place, []).append(footer.file)
    for files in alike.values():
        seen: dict[bytes, str] = {}
        for file in files if len(files) > 1 else ():
            first = seen.setdefault(_content_digest(file), file.path)
            if first != file.path:
                yield file.path, first


def _content_digest(file: LakeFile) -> bytes:
    digest = hashlib.blake2b()
    try:
        with file.filesystem.open_input_stream(file.path) as stream:
            while part := stream.read(1 << 22):
                digest.update(part)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{file.path}: cannot be read ({first_line(error)})") from error
    return digest.digest()
