"""Who is protected: the neighbouring relations, and the sensitivity of a statistic under one of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Relation(StrEnum):
    """When two lakes count as neighbours. Budgets under different relations never add up.

    >>> Relation("label_flip").meaning()
    'the label of one record flipped; all features and the number of rows are public'
    >>> [str(relation) for relation in Relation if not relation.rows_public]
    ['add_remove']
    """

    ADD_REMOVE = "add_remove"
    REPLACE_ONE = "replace_one"
    LABEL_FLIP = "label_flip"
    FEATURE_FLIP = "feature_flip"

    def meaning(self, rows_per_unit: int = 1, column: str | None = None) -> str:
        """One sentence for a report, about so many records, or about all records of a unit that a column names."""
        one, several, whole = _MEANING[self]
        if column is not None:
            return whole.format(column)
        return one if rows_per_unit == 1 else several.format(rows_per_unit)

    @property
    def rows_public(self) -> bool:
        """Whether the number of rows is public: true for every relation except add/remove."""
        return self is not Relation.ADD_REMOVE


_MEANING = {
    Relation.ADD_REMOVE: (
        "one record added to or removed from the lake; the number of rows is secret",
        "up to {} records added to or removed from the lake; the number of rows is secret",
        "all records with one {} added to or removed from the lake; the number of rows is secret",
    ),
    Relation.REPLACE_ONE: (
        "one record replaced by any other; the number of rows is public",
        "up to {} records replaced by any others; the number of rows is public",
        "all records with one {} replaced by any others; the number of units is public, that of rows secret",
    ),
    Relation.LABEL_FLIP: (
        "the label of one record flipped; all features and the number of rows are public",
        "the labels of up to {} records flipped; all features and the number of rows are public",
        "any labels of the records with one {} flipped; all features and the number of rows are public",
    ),
    Relation.FEATURE_FLIP: (
        "one declared feature of one record changed or flipped; everything else is public",
        "one declared feature of up to {} records changed or flipped; everything else is public",
        "one declared feature of any records with one {} changed or flipped; everything else is public",
    ),
}


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """How far one neighbouring change can move the normalised joint vector of a statistic.

    The joint vector divides every block by its public unit (see ``statistics.base.Block``), so the norm
    bound never appears here. Blocks named in ``public`` do not depend on what the relation protects and are
    left out of the vector and of the noise.

    >>> Sensitivity(l1=2.0, l2=1.0).times(rows_per_unit=3)
    Sensitivity(l1=6.0, l2=3.0, public=frozenset())
    """

    l1: float
    l2: float
    public: frozenset[str] = frozenset()

    def times(self, rows_per_unit: int) -> Sensitivity:
        """Group privacy: a unit that owns several rows moves an additive statistic that many times as far."""
        return Sensitivity(self.l1 * rows_per_unit, self.l2 * rows_per_unit, self.public)
