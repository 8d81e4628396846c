"""Whom an entry protects, and what it costs somebody else: relations and units that imply each other.

An entry that protects against one change protects against several by group privacy: if t changes lead from one lake
to another, the event counts as its group event of t steps. Where no number of such changes leads there, it proves
nothing, and the entry cannot be charged.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from daskrado.errors import UsageError, in_one_line
from daskrado.privacy.composition import group_event
from daskrado.privacy.events import Event
from daskrado.privacy.relations import Relation

__all__ = ["ProtectedUnit", "charged_as", "enough", "steps"]


@dataclass(frozen=True, slots=True)
class ProtectedUnit:
    """Whom a limit or an entry protects: ``rows`` rows, or, where ``column`` names its id, one whole unit.

    ``unit`` is its name in words. Without a column nothing is enforced, and ``rows`` is the declared number of rows
    that may change together. With one, ``bound`` is what one unit contributes (it is in the noise already and plays
    no part here), and ``owns`` the most rows that a unit has in the lake, if the owner declares it; nothing here
    enforces that, so whatever rests on it says so.
    ``feature`` is the protected column under feature_flip; in a limit "" is whichever an entry protects. A row
    belongs to its unit: replacing it keeps the id.
    """

    relation: Relation
    unit: str = "one row"
    column: str | None = None
    bound: int | None = None
    rows: int = 1
    feature: str | None = None
    owns: int | None = None
    within: str | None = None  # with a column: the unit's rows with one value of this column, such as a day

    def __post_init__(self) -> None:
        object.__setattr__(self, "relation", Relation(self.relation))
        object.__setattr__(self, "unit", in_one_line(self.unit))
        for name, value in (("rows", self.rows), ("bound", self.bound), ("owns", self.owns)):
            if value is not None and not (isinstance(value, int) and value >= 1):
                raise UsageError(f"{name} must be a whole number of rows, at least 1, got {value!r}")
        if (self.relation is Relation.FEATURE_FLIP) != (self.feature is not None):
            raise UsageError("feature names the protected column under feature_flip, and only then")
        if self.column is None and (self.bound is not None or self.owns is not None):
            raise UsageError("a bound on the rows of a unit needs the column that names the unit")
        if self.within is not None and self.column in (None, self.within):
            raise UsageError("a unit within a column's values needs another column that names it")

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; ``ProtectedUnit(**fields)`` reads it."""
        return {name: value for name, value in asdict(self).items() if value is not None} | {
            "relation": str(self.relation)
        }

    @property
    def whom(self) -> dict[str, Any]:
        """What tells it from somebody else under the same relation; nothing for one row."""
        own = {
            "column": self.column,
            "within": self.within,
            "feature": self.feature,
            "rows": self.rows if self.rows > 1 else None,
        }
        return {name: value for name, value in own.items() if value}

    def __str__(self) -> str:
        flipped = f" of {self.feature}" if self.feature else ""
        return f"{self.relation}{flipped} for {self.named}"

    @property
    def named(self) -> str:
        """The unit, its rows, and what is only declared of them."""
        if self.column is None:
            return self.unit if self.rows == 1 else f"{self.unit}, {self.rows} rows"
        owned = "" if self.owns is None else f", {self.owns:,} at most by the owner's word, which nothing checks"
        both = "" if self.within is None else f" and one {self.within}"
        return f"{self.unit} (all rows of one {self.column}{both}{owned})"


def steps(entry: ProtectedUnit, limit: ProtectedUnit) -> int | None:
    """How many changes of the kind that ``entry`` protects against lead to any neighbour under ``limit``.

    None where no number of them does, or none that is known.

    - *rows, rows*: a replacement, a flip of a label or of a feature is one removal and one addition; a flip is one
      replacement. r' changes in groups of r are ceil(r' / r) steps.
    - *unit, the same unit*: as for rows; replacing all its rows removes them and adds others.
    - *unit, rows*: whatever happens inside a unit replaces it (one step), or removes and adds it (two). Different
      rows may belong to different units. A row that is removed may be the last of its unit, which a replacement
      that keeps the id does not cover.
    - *unit, the unit within a value*: what happens to its rows of one day happens inside the unit, as for rows. The
      other way round nothing follows: a unit may have rows on any number of days.
    - *rows, unit*: only where the owner declared that a unit owns at most R rows. Replacing a unit may change the
      number of rows, which replacements of rows do not.

    >>> added, replaced = ProtectedUnit("add_remove"), ProtectedUnit("replace_one")
    >>> steps(added, replaced), steps(replaced, added)
    (2, None)
    >>> steps(ProtectedUnit("add_remove", rows=2), ProtectedUnit("add_remove", "patient", column="patient", owns=5))
    3
    """
    factor = _factor(entry, limit)
    if factor is None:
        return None
    if entry.column is None and limit.column is None:
        return math.ceil(factor * limit.rows / entry.rows)
    if entry.column is None:
        return _rows_for_unit(entry, limit, factor)
    if limit.column is not None and (limit.column, limit.within) == (entry.column, entry.within):
        return factor
    if limit.column is not None and (limit.column != entry.column or entry.within is not None):
        return None
    inside = 2 if entry.relation is Relation.ADD_REMOVE else 1
    return inside * limit.rows


def charged_as(event: Event, entry: ProtectedUnit, limit: ProtectedUnit) -> Event | None:
    """The event that counts under ``limit`` when ``event`` was charged for ``entry``; None where none is implied.

    t steps cost t epsilon, t mu, t^2 rho and delta (e^(t epsilon) - 1) / (e^epsilon - 1). None, too, where that
    leaves what an event can be (an epsilon above 50, a delta above 0.1): it protects nobody.

    *Reference*: Vadhan (2017), group privacy; Bun and Steinke (2016); Dong, Roth and Su (2022).
    """
    times = steps(entry, limit)
    if times is None:
        return None
    try:
        return group_event(event, times)
    except UsageError:
        return None


def enough(limit: Relation, entry: Relation) -> bool:
    """Whether a limit's relation covers all that an entry's protects, so that an owner who set it allowed the entry.

    A limit on labels alone says nothing about features; one on replaced rows will do for added ones.
    """
    return limit is entry or (limit, entry) == (Relation.REPLACE_ONE, Relation.ADD_REMOVE)


def _factor(entry: ProtectedUnit, limit: ProtectedUnit) -> int | None:
    """Changes under the entry's relation for one under the limit's, of rows or of whole units alike."""
    if entry.relation is Relation.ADD_REMOVE:
        return 1 if limit.relation is Relation.ADD_REMOVE else 2
    if entry.relation is Relation.REPLACE_ONE:
        return None if limit.relation is Relation.ADD_REMOVE else 1
    same = limit.feature in ("", entry.feature)
    return 1 if entry.relation is limit.relation and same else None


def _rows_for_unit(entry: ProtectedUnit, limit: ProtectedUnit, factor: int) -> int | None:
    if limit.owns is None or (entry.relation is limit.relation is Relation.REPLACE_ONE):
        return None
    return math.ceil(factor * limit.owns / entry.rows)
