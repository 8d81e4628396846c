"""Reading text tables as streams of text columns: CSV, compressed CSV, CSV in a zip archive, and ARFF.

Errors name the file, the line and the column. They never quote a line: it is somebody's row.
"""

from __future__ import annotations

import contextlib
import io
import re
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv
from pyarrow import fs as pafs

from daskrado.errors import DataError, UsageError
from daskrado.lake.files import first_line, remote, shown
from daskrado.lake.written_cells import iso_dates, named_dates, plain_numbers, without_sign

_BLOCK_BYTES = 4 << 20
SAMPLE = 1 << 16  # bytes from which open questions are decided
_ATTRIBUTE = re.compile(r"""@attribute\s+('[^']*'|"[^"]*"|\S+)\s+(.+)""", re.IGNORECASE)


@dataclass(frozen=True)
class TextFormat:
    """How text becomes columns. ``missing`` are the marks of a missing value; spaces around values never count.

    What is left open (None, or no marks) is decided by :mod:`daskrado.lake.sniff` from the first lines.
    """

    kind: Literal["auto", "csv", "arff"] = "auto"
    header: bool | None = None
    names: tuple[str, ...] = ()
    delimiter: str | None = None
    missing: tuple[str, ...] = ()
    skip_lines: int = 0
    encoding: str | None = None
    member: str | None = None
    dates: Literal["dmy", "mdy", "text"] | None = None
    dated: tuple[str, ...] = ()  # columns whose dates are written in that order
    named: tuple[str, ...] = ()  # columns whose dates have the names of months
    first_year: int | None = None  # of the hundred that years of two digits are
    decimal: Literal["point", "comma"] | None = None
    marked: tuple[str, ...] = ()  # columns whose numbers have a decimal comma, or marks between thousands
    signed: tuple[tuple[str, str], ...] = ()  # columns whose numbers have a sign of a currency or %, and which

    def is_arff(self, address: str) -> bool:
        """Whether a file is ARFF, as said or by its name."""
        return self.kind == "arff" or (self.kind == "auto" and re.search(r"\.arff(\.\w+)?$", address) is not None)

    def __post_init__(self) -> None:
        if self.delimiter is not None and len(self.delimiter) != 1:
            raise UsageError(f"--delimiter must be one character, got {self.delimiter!r}")
        if self.skip_lines < 0:
            raise UsageError(f"--skip-lines must be 0 or more, got {self.skip_lines}")
        if self.first_year is not None and not 1000 <= self.first_year <= 9000:
            raise UsageError(f"--first-year must be a year such as 1950, got {self.first_year}")


def read_text(address: str, form: TextFormat, part: tuple[int, int | None] = (0, None)) -> Iterator[pa.Table]:
    """Tables of text columns, a few megabytes each, spaces trimmed and missing values null.

    ``part`` is where to begin and to end, in bytes of a file that is not compressed.
    """
    with _opened(address, form.member, part) as stream:
        arff = form.is_arff(address)
        names: Sequence[str] = form.names
        if arff:
            names = _arff_names(stream, address)
        else:
            for _ in range(form.skip_lines):
                stream.readline()
        yield from _columns(stream, address, form, tuple(names), arff)


def first_bytes(address: str, form: TextFormat) -> bytes:
    """The first bytes of a file, decompressed."""
    with _opened(address, form.member) as stream:
        try:
            return stream.read(SAMPLE)
        except (pa.ArrowException, OSError, EOFError) as error:
            raise DataError(f"{shown(address)}: {_reason(error, form)}") from None


def _columns(
    stream: BinaryIO, address: str, form: TextFormat, names: tuple[str, ...], arff: bool
) -> Iterator[pa.Table]:
    wrong: list[str] = []

    def skip_or_note(row: csv.InvalidRow) -> str:
        if arff and row.text.lstrip().startswith("%"):
            return "skip"
        where = f"line {row.number} of its data" if row.number is not None else "a line"
        wrong.append(f"{where} has {row.actual_columns} fields, expected {row.expected_columns}")
        return "error"

    headed = form.header is not False and not arff and not form.names
    reading = csv.ReadOptions(
        use_threads=False,
        block_size=_BLOCK_BYTES,
        encoding=form.encoding or "utf8",
        autogenerate_column_names=not headed and not names,
        column_names=list(names) or None,
        skip_rows=1 if form.header and form.names and not arff else 0,
    )
    parsing = csv.ParseOptions(
        delimiter="," if arff else form.delimiter or ",",
        quote_char="'" if arff else '"',
        newlines_in_values=True,  # else a line that a block cuts inside quotes is lost
        invalid_row_handler=skip_or_note,
    )
    try:
        found = _header(stream, address, form, headed, names, parsing)
        reading.column_names, reading.autogenerate_column_names = found, False
        if not stream.peek(1):  # type: ignore[attr-defined]
            return
        text = csv.ConvertOptions(column_types=dict.fromkeys(found, pa.string()), strings_can_be_null=False)
        with csv.open_csv(stream, reading, parsing, text) as reader:
            for batch in reader:
                yield _tidy(pa.Table.from_batches([batch]), form)
    except (pa.ArrowException, OSError, EOFError, UnicodeError) as error:
        # Arrow's own words may quote the line, so they are left out.
        reason = wrong[0] if wrong else _reason(error, form)
        raise DataError(f"{shown(address)}: {reason}") from None


def _header(
    stream: BinaryIO, address: str, form: TextFormat, headed: bool, names: tuple[str, ...], parsing: csv.ParseOptions
) -> list[str]:
    """The column names: given, read from the first line, or c00, c01, ... by the number of fields in it."""
    if names:
        found = list(names)
    else:
        mark = stream.readline() if headed else _peek_line(stream)
        if not mark.strip():
            raise DataError(f"{shown(address)}: is empty")
        line = next(iter(_fields(mark, form, parsing)))
        found = line if headed else [f"c{i:02d}" for i in range(len(line))]
    found = named(found)
    twice = sorted({name for name in found if found.count(name) > 1})
    if twice or not all(found):
        what = f"the column name {twice[0]!r} occurs twice" if twice else "a column has no name"
        raise DataError(f"{shown(address)}: {what}; give --names")
    return found


def named(names: Sequence[str]) -> list[str]:
    """Names of columns; the first one, which pandas and R leave empty above row numbers, is called index."""
    return ["index" if not names[0] and "index" not in names else names[0], *names[1:]] if names else []


def _peek_line(stream: Any) -> bytes:
    """The first line, which stays unread; its length is unknown, so look further until it ends."""
    size = 1 << 14
    while True:
        seen: bytes = stream.peek(size)[:]
        if b"\n" in seen or len(seen) < size or size >= stream.room:
            return seen.split(b"\n", 1)[0]
        size *= 2


def _fields(line: bytes, form: TextFormat, parsing: csv.ParseOptions) -> Iterator[list[str]]:
    import csv as python_csv

    encoding = form.encoding or "utf8"
    text = line.decode("utf-8-sig" if encoding in ("utf8", "utf-8") else encoding)
    for row in python_csv.reader([text.rstrip("\r\n")], delimiter=parsing.delimiter, quotechar=parsing.quote_char):
        yield [name.strip() for name in row]


def _tidy(table: pa.Table, form: TextFormat) -> pa.Table:
    marks = pa.array(list(form.missing), pa.string())
    columns = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        trimmed = pc.utf8_trim_whitespace(column)
        if name in form.dated:
            trimmed = iso_dates(trimmed, day_first=form.dates == "dmy")
        if name in form.named:
            trimmed = named_dates(trimmed, form.first_year)
        if (sign := dict(form.signed).get(name)) is not None:
            trimmed = without_sign(trimmed, sign)
        if name in form.marked:
            trimmed = plain_numbers(trimmed, comma=form.decimal == "comma")
        columns.append(pc.if_else(pc.is_in(trimmed, value_set=marks), pa.scalar(None, pa.string()), trimmed))
    return pa.table(columns, names=table.column_names)


def _reason(error: BaseException, form: TextFormat) -> str:
    text = str(error)
    if isinstance(error, UnicodeError) or "UTF8" in text or "UTF-8" in text:
        return f"is not text in the encoding {form.encoding}; give --encoding"
    if isinstance(error, pa.ArrowInvalid):
        return "cannot be read as a table of text (unbalanced quotes, or a line of another form)"
    return f"cannot be read ({type(error).__name__}: {first_line(error)})"


def _arff_names(stream: BinaryIO, address: str) -> list[str]:
    """Attribute names up to @data; the stream is left at the first row."""
    names: list[str] = []
    for raw in iter(stream.readline, b""):
        line = raw.decode("utf-8", errors="replace").strip()
        if line.lower() == "@data":
            if not names:
                raise DataError(f"{shown(address)}: the ARFF header declares no attribute")
            return names
        if (match := _ATTRIBUTE.match(line)) is not None:
            names.append(match.group(1).strip("'\""))
    raise DataError(f"{shown(address)}: is not ARFF (no @data line)")


class _Peekable(io.BufferedReader):
    """A buffered reader whose buffer is large enough to see the first line without reading it."""

    room = 1 << 20


class _Range(io.RawIOBase):
    """Some bytes of a file."""

    def __init__(self, file: Any, start: int, stop: int) -> None:
        self._file, self._left = file, stop - start
        file.seek(start)

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer, up to the end of the range."""
        data = self._file.read(min(len(buffer), self._left))
        buffer[: len(data)] = data
        self._left -= len(data)
        return len(data)


def _located(address: str) -> tuple[pafs.FileSystem, str]:
    return remote(address) if "://" in address else (pafs.LocalFileSystem(), str(Path(address).absolute()))


def file_size(address: str) -> int:
    """Bytes of a file; 0 if it is not there, which reading it will say."""
    filesystem, path = _located(address)
    return filesystem.get_file_info(path).size or 0


def byte_range(address: str, start: int, stop: int) -> bytes:
    """Some bytes of a file that is not compressed."""
    filesystem, path = _located(address)
    with filesystem.open_input_file(path) as file:
        file.seek(min(start, file.size()))
        return bytes(file.read(stop - start))


@contextlib.contextmanager
def _opened(address: str, member: str | None, part: tuple[int, int | None] = (0, None)) -> Iterator[BinaryIO]:
    """The bytes of a file, decompressed: gz, bz2, zst and lz4 by their names, zip by its member."""
    try:
        if part[1] is not None:
            filesystem, path = _located(address)
            with filesystem.open_input_file(path) as file:
                yield _Peekable(_Range(file, part[0], part[1]), _Peekable.room)
            return
        if address.endswith(".zip"):
            with zipfile.ZipFile(address) as archive, archive.open(_member(archive, address, member)) as inside:
                yield _Peekable(inside, _Peekable.room)  # type: ignore[arg-type]
            return
        filesystem, path = _located(address)
        with filesystem.open_input_stream(path, compression="detect") as stream:
            yield _Peekable(stream, _Peekable.room)
    except (OSError, pa.ArrowException, zipfile.BadZipFile) as error:
        raise DataError(f"{shown(address)}: cannot be read ({first_line(error)})") from error


def _member(archive: zipfile.ZipFile, address: str, member: str | None) -> str:
    names = [name for name in archive.namelist() if not name.endswith("/")]
    if member is None and len(names) == 1:
        return names[0]
    found = [name for name in names if name == member or name.rsplit("/", 1)[-1] == member]
    if len(found) != 1:
        raise UsageError(f"{shown(address)}: give --member with one of {', '.join(names[:10])}")
    return found[0]
