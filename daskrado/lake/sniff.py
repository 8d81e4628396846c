"""What a text table looks like: its encoding, delimiter, header and marks of missing values, from its first lines.

What is decided is said in one line. Where the first lines allow two readings it is refused, with the option that
decides: a wrong reading would make one column of ten, or a row of the names.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import pyarrow as pa

from daskrado.errors import DataError, UsageError
from daskrado.lake.files import shown
from daskrado.lake.text_tables import SAMPLE, TextFormat, first_bytes, named
from daskrado.lake.written_cells import MARKED, NAMED_DATE, sign_of, without_sign

_DELIMITERS = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a bar"}
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_DATE = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d+)?)?)?")
_SPOKEN_DATE = re.compile(r"(\d{1,2})([./-])(\d{1,2})\2(\d{4})")  # 17.11.2026, 11/17/2026
_DECIMALS = {"comma": "with a decimal comma", "point": "with commas between thousands"}
Decimal = Literal["point", "comma"]
Order = Literal["dmy", "mdy", "text"]
_ORDERS = {"dmy": "day, month, year", "mdy": "month, day, year"}
_TRUTH = {"true", "false"}
_MISSING = ("", "?")
_PERHAPS_MISSING = ("NA", "N/A", "n/a", "NULL", "null", "NaN", "nan", "None", "-", ".")
_LINES = 200
_ENOUGH = 10  # rows from which repeated values show that the first line is no row


def sniffed(source: str, form: TextFormat, texts: Sequence[str] = ()) -> tuple[TextFormat, str]:
    """The format with everything decided that was left open, and what was decided, in one line.

    Columns that are kept as ``texts`` decide nothing.
    """
    if form.is_arff(source):
        return replace(form, missing=form.missing or _MISSING), "ARFF"
    name, sample = shown(source), first_bytes(source, form)
    encoding = form.encoding or _encoding(sample, name)
    lines = _lines(sample, encoding, form.skip_lines)
    delimiter = form.delimiter or _delimiter(lines, name)
    rows = [[cell.strip() for cell in row] for row in csv.reader(lines, delimiter=delimiter) if row]
    usual = _usual([len(row) for row in rows])
    if len(rows) > 2 and len(rows[0]) != usual and len(rows[1]) == usual:
        raise DataError(
            f"{name}: its first line has {len(rows[0])} fields and the others have {usual}; mend it, or leave it out "
            f"with --skip-lines {form.skip_lines + 1}"
        )
    header = not form.names and _has_header(rows, name) if form.header is None else form.header
    missing = form.missing or (*_MISSING, *_marks(rows[1:] if header else rows))
    names = form.names or (named(rows[0]) if header and rows else [f"c{i:02d}" for i in range(usual)])
    names = ["" if column in texts else column for column in names]
    cells = {
        column: [row[place] for row in rows[header:] if place < len(row) and row[place] not in missing]
        for place, column in enumerate(names)
        if column
    }
    order, dated = _dates(cells, form.dates, name)
    months = _named(cells, form, name)
    signed = _signs(cells, name)
    bare = {column: _without(held, signed.get(column, "")) for column, held in cells.items()}
    decimal, marked = _decimals(bare, form.decimal, name)
    found = replace(form, encoding=encoding, delimiter=delimiter, header=header, missing=missing)
    found = replace(found, dates=order, dated=dated, named=months, decimal=decimal, marked=marked)
    found = replace(found, signed=tuple(signed.items()))
    days = f", dates of {', '.join(dated)} as {_ORDERS[order]}" if order in _ORDERS and dated else ""
    if months:
        from_year = "" if form.first_year is None else f" (years of two digits from {form.first_year} on)"
        days += f", dates of {', '.join(months)} by the names of months{from_year}"
    for sign in dict.fromkeys(signed.values()):
        days += (
            f", numbers of {', '.join(column for column, one in signed.items() if one == sign)} without their {sign}"
        )
    if marked:
        days += f", numbers of {', '.join(marked)} {_DECIMALS[decimal or 'point']}"
    marks = ", ".join(repr(mark) for mark in missing if mark)
    return found, (
        f"{encoding} text, {_DELIMITERS.get(delimiter, repr(delimiter))} between fields, "
        f"{'names in the first line' if header else 'no names in the first line'}, missing where empty or {marks}"
        f"{days}"
    )


def _encoding(sample: bytes, name: str) -> str:
    if sample.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{name}: is text in UTF-16; save it as UTF-8")
    if sample.startswith(b"PAR1"):
        raise DataError(f"{name}: is Parquet already, which is a lake: go on with daskrado init")
    if sample.startswith((b"PK\x03\x04", b"\xd0\xcf\x11\xe0")):
        raise DataError(f"{name}: is a workbook or another archive; save the sheet as CSV")
    for cut in range(4 if len(sample) == SAMPLE else 1):  # a sample of a longer file may end inside a character
        try:
            sample[: len(sample) - cut].decode()
        except UnicodeDecodeError:
            continue
        return "utf8"
    raise DataError(f"{name}: is not text in the encoding utf8; give --encoding, such as latin-1 or cp1252")


def _lines(sample: bytes, encoding: str, skip: int) -> list[str]:
    """The first lines that are whole."""
    text = sample.decode("utf-8-sig" if encoding in ("utf8", "utf-8") else encoding, errors="replace")
    lines = text.splitlines(keepends=True)
    whole = lines if len(lines) == 1 or text.endswith("\n") else lines[:-1]
    return whole[skip : skip + _LINES]


def _delimiter(lines: Sequence[str], name: str) -> str:
    """The one character that cuts the lines into equally many fields."""
    widths = {mark: [len(row) for row in csv.reader(lines, delimiter=mark) if row] for mark in _DELIMITERS}
    for broken in (0, max(1, len(lines) // 10)):  # reading the table will name the lines that are
        fitting = [mark for mark, found in widths.items() if _usual(found) > 1 and _others(found) <= broken]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            readings = " or ".join(f"{_usual(widths[mark])} by {_DELIMITERS[mark]}" for mark in fitting)
            raise UsageError(f"{name}: its lines may have {readings}; say which with --delimiter")
    if any(mark in line for line in lines for mark in _DELIMITERS):
        raise UsageError(
            f"{name}: no delimiter cuts its lines into equally many fields; name it with --delimiter, or the lines "
            "before the table with --skip-lines"
        )
    return ","


def _usual(widths: Sequence[int]) -> int:
    return max(set(widths), key=widths.count) if widths else 0


def _others(widths: Sequence[int]) -> int:
    return len(widths) - widths.count(_usual(widths))


def _is_typed(cell: str) -> bool:
    kinds = (_NUMBER, _DATE, _SPOKEN_DATE, NAMED_DATE, *map(re.compile, MARKED.values()))
    return any(kind.fullmatch(cell) for kind in kinds) or cell.lower() in _TRUTH or bool(sign_of(cell))


def _has_header(rows: Sequence[Sequence[str]], name: str) -> bool:
    """Whether the first line holds names: texts above numbers, or texts that never come again where others do."""
    first, rest = rows[0] if rows else [], rows[1:]
    if any(_is_typed(cell) or cell in _MISSING for cell in first[1:]) or (first and _is_typed(first[0])):
        return False
    columns = [[row[i] for row in rest if i < len(row)] for i in range(len(first))]
    if not rest or any(_typed_column(column) for column in columns):
        return True
    again = any(cell in column for cell, column in zip(first, columns, strict=True))
    repeated = [len(set(column)) < len(column) for column in columns]
    if again:
        return False
    if len(rest) >= _ENOUGH and 2 * sum(repeated) >= len(columns):
        return True
    raise UsageError(f"{name}: is its first line names or a row? All of it is text; say --header or --no-header")


def _typed_column(column: Sequence[str]) -> bool:
    held = [cell for cell in column if cell not in _MISSING and cell not in _PERHAPS_MISSING]
    return bool(held) and all(map(_is_typed, held))


def _marks(rows: Sequence[Sequence[str]]) -> list[str]:
    """Marks of missing values that stand among numbers and in no column of texts."""
    columns = [[row[i] for row in rows if i < len(row)] for i in range(max(map(len, rows), default=0))]
    typed = {cell for column in columns if _typed_column(column) for cell in column}
    texts = {cell for column in columns if not _typed_column(column) for cell in column}
    return [mark for mark in _PERHAPS_MISSING if mark in typed and mark not in texts]


def _dates(
    columns: Mapping[str, Sequence[str]], given: Order | None, where: str
) -> tuple[Order | None, tuple[str, ...]]:
    """In which order days and months are written, and in which columns; unclear where no day is above 12."""
    if given == "text":
        return given, ()
    dated, seen = [], set[Order]()
    for column, cells in columns.items():
        found = [_SPOKEN_DATE.fullmatch(cell) for cell in cells]
        parts = [(int(match[1]), int(match[3]), match[2]) for match in found if match]
        first, second = max((part[0] for part in parts), default=0), max((part[1] for part in parts), default=0)
        if not parts or len(parts) < len(found) or min(first, second) > 12 or max(first, second) > 31:
            continue  # text, or dates in both orders: a column of texts
        dated.append(column)
        if max(first, second) > 12 or parts[0][2] == ".":
            seen.add("mdy" if second > 12 else "dmy")
    if given is None and dated and len(seen) != 1:
        raise UsageError(
            f"{where}: are the dates of column {dated[0]!r} day, month, year or month, day, year? Say --dates dmy or "
            "--dates mdy, or --dates text to keep them as they are"
        )
    return given or next(iter(seen), None), tuple(dated)


def _named(columns: Mapping[str, Sequence[str]], form: TextFormat, where: str) -> tuple[str, ...]:
    """Columns of dates such as 17-Nov-26; in which century years of two digits are, nobody can see."""
    if form.dates == "text":
        return ()
    found = {column: [NAMED_DATE.fullmatch(cell) for cell in cells] for column, cells in columns.items()}
    whole = {column: matches for column, matches in found.items() if matches and all(matches)}
    for column, matches in whole.items():
        if form.first_year is None and any(match is not None and len(match[2] or "") == 2 for match in matches):
            raise UsageError(
                f"{where}: in which century are the years of column {column!r}, which have two digits? Say "
                "--first-year 1950 (then 50 is 1950 and 49 is 2049), or --dates text to keep them as they are"
            )
    return tuple(whole)


def _signs(columns: Mapping[str, Sequence[str]], where: str) -> dict[str, str]:
    """Columns whose numbers have a sign of a currency or %; unclear where they have different ones, or some none."""
    found = {}
    for column, cells in columns.items():
        signs = [sign_of(cell) for cell in cells]
        if None in signs or not any(signs):
            continue
        own = {sign for sign, cell in zip(signs, cells, strict=True) if sign or cell != "0"}
        if len(own) > 1:
            shown = " and ".join(repr(sign) if sign else "none" for sign in sorted(map(str, own), reverse=True))
            raise UsageError(
                f"{where}: the numbers of column {column!r} have different signs ({shown}): make them alike, or keep "
                f"them with --text {column}"
            )
        found[column] = str(own.pop())
    return found


def _without(cells: Sequence[str], sign: str) -> list[str]:
    if not sign:
        return list(cells)
    return [str(cell) for cell in without_sign(pa.chunked_array([cells], pa.string()), sign).to_pylist()]


def _decimals(
    columns: Mapping[str, Sequence[str]], given: Decimal | None, where: str
) -> tuple[Decimal | None, tuple[str, ...]]:
    """What a comma in numbers means, and in which columns it stands; unclear where three digits follow each."""
    fits: dict[str, set[Decimal]] = {}
    for column, cells in columns.items():
        ways: list[Decimal] = ["comma", "point"] if given is None else [given]
        if any("," in cell for cell in cells):
            fits[column] = {way for way in ways if all(re.match(MARKED[way], cell) for cell in cells)}
    marked = tuple(column for column, ways in fits.items() if ways)
    common = set[Decimal].intersection(*(fits[column] for column in marked)) if marked else set()
    if marked and len(common) != 1:
        raise UsageError(
            f"{where}: is the comma in numbers of column {marked[0]!r} decimal, or between thousands? Say --decimal "
            f"comma or --decimal point, or keep it with --text {marked[0]}"
        )
    return next(iter(common), given), marked
