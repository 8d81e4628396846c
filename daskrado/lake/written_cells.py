"""Numbers and dates as people write them, such as 1.234,5 and $12 and 17-Nov-26, as machines read them."""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc

MARKED = {  # numbers with a decimal comma, or with commas between thousands
    "comma": r"^[-+]?([0-9]+|[0-9]{1,3}(\.[0-9]{3})+)(,[0-9]+)?$",
    "point": r"^[-+]?([0-9]+|[0-9]{1,3}(,[0-9]{3})+)(\.[0-9]+)?$",
}
SIGNS = "$€£¥%"
_NUMBER = r"([0-9][0-9.,]*|\.[0-9]+)"
SIGNED = re.compile(rf"([-+]?)([$€£¥]) ?([-+]?){_NUMBER}|([-+]?){_NUMBER} ?([{SIGNS}])")  # $12, -$1,234.5, 12 %, 12 €
_MONTHS = ["january", "february", "march", "april", "may", "june", "july"]
_MONTHS += ["august", "september", "october", "november", "december"]
_NAMES = [f"({name}|{name[:3]}{'|sept' if name == 'september' else ''})" for name in _MONTHS]
_MONTH = f"({'|'.join(name.strip('()') for name in _NAMES)})"
NAMED_DATE = re.compile(  # 17-Nov-26, 17 November 2026; Nov 17, 2026
    rf"\d{{1,2}}[-/ .]{_MONTH}[-/ .,]+(\d{{4}}|\d\d)|{_MONTH}[- .]\d{{1,2}},? (\d{{4}})", re.IGNORECASE
)


def sign_of(cell: str) -> str | None:
    """The currency or percent sign of a number; empty without one, None of what is no number.

    >>> [sign_of(cell) for cell in ("$1,234.50", "-$3", "12 %", "12", "$ a", "a$")]
    ['$', '$', '%', '', None, None]
    """
    if re.fullmatch(rf"[-+]?{_NUMBER}([eE][-+]?[0-9]+)?", cell):
        return ""
    found = SIGNED.fullmatch(cell)
    if found is None or (found[1] and found[3]):
        return None
    return found[2] or found[7]


def without_sign(column: pa.ChunkedArray, sign: str) -> pa.ChunkedArray:
    """$12 as 12, of this sign alone; what is no such number stays as it is."""
    mark = re.escape(sign)
    before = pc.replace_substring_regex(column, rf"^([-+]?){mark} ?([-+]?)({_NUMBER})$", r"\1\2\3")
    return pc.replace_substring_regex(before, rf"^([-+]?{_NUMBER}) ?{mark}$", r"\1")


def plain_numbers(column: pa.ChunkedArray, *, comma: bool) -> pa.ChunkedArray:
    """1.234,5 or 1,234.5 as 1234.5; what is no such number stays as it is."""
    group, point = (".", ",") if comma else (",", ".")
    bare = pc.replace_substring(pc.replace_substring(column, group, ""), point, ".")
    return pc.if_else(pc.match_substring_regex(column, MARKED["comma" if comma else "point"]), bare, column)


def iso_dates(column: pa.ChunkedArray, *, day_first: bool) -> pa.ChunkedArray:
    """17.11.2026 or 11/17/2026 as 2026-11-17; what is no such date stays as it is."""
    padded = pc.replace_substring_regex(column, r"^(\d[./-]\d{1,2}[./-]\d{4})$", r"0\1")
    padded = pc.replace_substring_regex(padded, r"^(\d\d[./-])(\d[./-]\d{4})$", r"\10\2")  # group 1, a zero, group 2
    order = r"\3-\2-\1" if day_first else r"\3-\1-\2"
    return pc.replace_substring_regex(padded, r"^(\d\d)[./-](\d\d)[./-](\d{4})$", order)


def named_dates(column: pa.ChunkedArray, first_year: int | None) -> pa.ChunkedArray:
    """17-Nov-26 or Nov 17, 2026 as 2026-11-17; what is no such date stays as it is.

    Years of two digits are the hundred from ``first_year`` on; without one, they stay as they are.
    """
    years = r"\d{4}" if first_year is None else r"\d{4}|\d\d"
    for number, name in enumerate(_NAMES, start=1):
        day_first = rf"(?i)^(\d{{1,2}})[-/ .]{name}[-/ .,]+({years})$"
        column = pc.replace_substring_regex(column, day_first, rf"\3-{number:02d}-\1")
        month_first = rf"(?i)^{name}[- .](\d{{1,2}}),? (\d{{4}})$"
        column = pc.replace_substring_regex(column, month_first, rf"\3-{number:02d}-\2")
    column = pc.replace_substring_regex(column, r"^((\d{4}|\d\d)-\d\d-)(\d)$", r"\10\3")  # group 1, a zero, group 3
    if first_year is None:
        return column
    century, year = divmod(first_year, 100)
    late = pc.greater_equal(pc.utf8_slice_codeunits(column, 0, 2), pa.scalar(f"{year:02d}"))
    whole = [pc.replace_substring_regex(column, r"^(\d\d-\d\d-\d\d)$", rf"{century + more}\1") for more in (0, 1)]
    return pc.if_else(late, whole[0], whole[1])
