"""The narrowest type that holds every value of a column of text."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


class Guess:
    """Narrows one column's type as its text goes by."""

    def __init__(self) -> None:
        self.open = [pa.bool_(), pa.int64(), pa.float64(), pa.date32(), pa.timestamp("us")]
        self.seen = False

    @property
    def kind(self) -> pa.DataType:
        """The narrowest type that is left; text where nothing was seen."""
        return self.open[0] if self.open and self.seen else pa.string()

    def see(self, column: pa.ChunkedArray) -> None:
        """Drop the types that some value does not fit."""
        if not self.open or column.null_count == len(column):
            return
        self.seen = True
        self.open = [kind for kind in self.open if fits(column, kind)]

    def both(self, other: Guess) -> Guess:
        """What two pieces of the column show."""
        if self.seen and other.seen:
            self.open = [kind for kind in self.open if kind in other.open]
        elif other.seen:
            self.open = other.open
        self.seen |= other.seen
        return self


def fits(column: pa.ChunkedArray, kind: pa.DataType) -> bool:
    """Whether every text of a column is a value of a type."""
    if pa.types.is_boolean(kind):
        return bool(
            pc.all(pc.is_in(pc.utf8_lower(column.drop_null()), value_set=pa.array(["true", "false"]))).as_py()
        )
    if pc.any(pc.match_substring_regex(column, r"^[-+]?0[0-9]")).as_py():
        return False  # 007 is a code, not a number
    try:
        column.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True
