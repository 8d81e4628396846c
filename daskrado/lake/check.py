"""What is wrong with a lake, for its owner alone: files, columns, kinds of mistakes and exact counts of rows.

No private job: what it says is about single rows. It reads every page, so that checksums show damaged ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from daskrado.errors import DataError
from daskrado.lake.files import find_files
from daskrado.lake.folder_values import folder_readers
from daskrado.lake.parquet_files import footer_problems, read_footer
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
    readers = folder_readers(domain, columns, strict=True)
    for file in find_files(source):
        try:
            footer = read_footer(readers, file)
        except DataError as error:
            yield Finding(file.path, _without(file.path, error))
            continue
        wrong = footer_problems(footer, domain, columns, strict=False)
        yield from (Finding(file.path, problem.removeprefix(f"{file.path}: ")) for problem in wrong)
        for partition in () if wrong else footer.partitions():
            yield from _check_rows(partition, domain, columns)


def _check_rows(partition: Any, domain: Domain, columns: Sequence[str]) -> Iterator[Finding]:
    where, found = str(getattr(partition, "path", partition.name)), Counter[str]()
    try:
        for _, table in partition.tables(columns):
            encoded = encode_table(domain, table, ids=True)
            encoded.settle()
            for problem, rows in encoded.problems.items():
                found[str(problem)] += rows
    except DataError as error:
        yield Finding(where, _without(where, error))
    yield from (Finding(where, what, rows) for what, rows in sorted(found.items()))


def _without(where: str, error: DataError) -> str:
    return str(error).removeprefix(f"{where}: ")
