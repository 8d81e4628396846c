"""What a job asks of the ledger, and what it found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from daskrado.jobs.report import Section
from daskrado.models.linear import LinearModel
from daskrado.privacy.accountant import Event
from daskrado.privacy.mechanisms import OneShot
from daskrado.privacy.protect import Private
from daskrado.privacy.relations import Relation
from daskrado.privacy.statement import PrivacyStatement

Line = tuple[str, str]


@dataclass(frozen=True)
class Charge:
    """What a job asks of the ledger, from public facts alone.

    ``role`` names the charge and its draw within the run; ``room`` is the number of bytes that the draw needs on
    disk. Charges of disjoint ``part`` values count once; ``blocks`` are the blocks of the lake that are read.
    """

    role: str
    event: Event
    statement: PrivacyStatement
    room: int = 0
    part: str = ""
    blocks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        from daskrado.jobs.claims import covers  # which needs this module for its types

        if not (self.statement.private and covers(self.statement, [self.event])):
            raise ValueError(f"charge {self.role!r} costs {self.event}, and its statement says less")

    @classmethod
    def of_mechanism(cls, role: str, mechanism: OneShot, private: Private, assumptions: Sequence[str] = ()) -> Charge:
        """The charge of one calibrated mechanism."""
        statement = PrivacyStatement.of(
            mechanism.event,
            private.protect,
            private.budget,
            mechanism=mechanism.name,
            theorem=mechanism.theorem,
            assumptions=(*assumptions, *mechanism.assumptions),
        )
        return cls(role, mechanism.event, statement, 16 * mechanism.target.statistic.size)

    @property
    def relation(self) -> Relation:
        """Who is protected."""
        assert self.statement.relation is not None
        return self.statement.relation


@dataclass(frozen=True)
class Outcome:
    """What a job found. All of it is released or public.

    ``sections`` are made when the report is drawn, after ``files`` and the manifest are on disk. A ``model`` brings
    its file, its section and its lines with it.
    """

    value: Any
    statement: PrivacyStatement
    model: LinearModel | None = None
    release: Any = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    lines: Sequence[str] = ()
    made: Sequence[Line] = ()
    sections: Callable[[], Iterable[Section]] = tuple
    files: Mapping[str, Callable[[Path], None]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    title: str = ""  # of the report, where the job itself cannot say it
