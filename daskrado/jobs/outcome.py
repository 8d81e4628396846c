"""What a job asks of the ledger, what it found, that the one covers the other, and what the caller gets of it."""

from __future__ import annotations

import html
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daskrado.jobs.section import Section
from daskrado.ledger.account import Account
from daskrado.ledger.ledger import Grant
from daskrado.ledger.records import Debit
from daskrado.ledger.words import amount
from daskrado.models.linear import LinearModel
from daskrado.privacy.accountant import Event, SeveralEvents, compose
from daskrado.privacy.groups import ProtectedUnit
from daskrado.privacy.mechanisms import OneShot, default_mechanism, mechanism
from daskrado.privacy.protect import Private
from daskrado.privacy.relations import Relation
from daskrado.privacy.statement import PrivacyStatement
from daskrado.statistics.base import Statistic
from daskrado.statistics.bounded import target_of
from daskrado.table.lattice import Lattice

if TYPE_CHECKING:
    import pandas as pd

    from daskrado.jobs.run import Run

Line = tuple[str, str]
_ROUNDING = Fraction(1, 10**8)  # of a calibration, and of an epsilon that is kept as a float


def calibrated(
    private: Private, statistic: Statistic, lattice: Lattice, name: str | None = None, granted: Event | None = None
) -> OneShot:
    """The mechanism for one release of a statistic: as named, else by the budget's delta.

    It stays within the event that was ``granted``, where that was reserved before the statistic's bounds were known.
    """
    protect, budget = private.protect, private.budget
    target = target_of(statistic, lattice, protect)
    return mechanism(name or default_mechanism(budget.delta), target, budget.epsilon, budget.delta, granted)


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
        if not (self.statement.private and covers(self.statement, [self.event])):
            raise ValueError(f"charge {self.role!r} costs {self.event}, and its statement says less")

    @classmethod
    def of(
        cls,
        role: str,
        events: Event | Sequence[Event],
        private: Private,
        mechanism: str,
        theorem: str,
        assumptions: Sequence[str],
        *,
        accountant: str | None = None,
        room: int = 0,
    ) -> Charge:
        """The charge of an event, or of several as one, and its statement: see :meth:`PrivacyStatement.of`."""
        statement = PrivacyStatement.of(
            events,
            private.protect,
            private.budget,
            mechanism=mechanism,
            theorem=theorem,
            assumptions=assumptions,
            accountant=accountant,
        )
        event = SeveralEvents.of(events) if isinstance(events, Sequence) else events
        return cls(role, event, statement, room)

    @classmethod
    def of_mechanism(cls, role: str, chosen: OneShot, private: Private, assumptions: Sequence[str] = ()) -> Charge:
        """The charge of one calibrated mechanism."""
        room, assumed = 16 * chosen.target.statistic.size, (*assumptions, *chosen.assumptions)
        return cls.of(role, chosen.event, private, chosen.name, chosen.theorem, assumed, room=room)

    @property
    def relation(self) -> Relation:
        """Who is protected."""
        assert self.statement.relation is not None
        return self.statement.relation

    @property
    def debit(self) -> Debit:
        """What is asked of the ledger, and for whom."""
        feature = "" if self.relation is Relation.FEATURE_FLIP else None
        said = self.statement
        if said.column is None:
            whose = ProtectedUnit(self.relation, said.unit, rows=said.rows_per_unit, feature=feature)
        else:
            bound = said.rows_per_unit
            whose = ProtectedUnit(self.relation, said.unit, said.column, bound, feature=feature, within=said.within)
        blocks = tuple(self.blocks)
        return Debit(whose, self.event, self.statement.theorem, blocks, delta=said.delta, part=self.part)

    def reserve(self, account: Account, dataset: str, fingerprint: str | None = None) -> Grant:
        """Debit an account's ledger."""
        return account.reserve(
            self.role,
            dataset,
            self.debit.whose,
            self.event,
            theorem=self.statement.theorem,
            fingerprint=fingerprint,
            part=self.part,
            room=self.room,
            delta=self.statement.delta,
        )


def asked_for(charges: Sequence[Charge]) -> str:
    """What a run asks for, in words: charges for the same people are one amount, others are told one by one."""
    asked = Counter(amount(charge.statement.epsilon or 0, charge.statement.delta or 0) for charge in charges)
    if len(charges) == 1:
        return asked.popitem()[0]
    if len(asked) == 1 and len({charge.part for charge in charges}) == len(charges):
        return f"{asked.popitem()[0]} for each of {len(charges)} parts"
    if len({(charge.debit.whose, charge.part) for charge in charges}) == 1:
        delta = max(charge.statement.delta or 0 for charge in charges)
        total = float(compose([charge.event for charge in charges], delta).epsilon)
        if math.isfinite(total):
            return f"{amount(float(f'{total:.4g}'), delta)} in {len(charges)} charges"
    return " and ".join(text if often == 1 else f"{often} times {text}" for text, often in asked.items())


@dataclass(frozen=True)
class Outcome:
    """What a job found. All of it is released or public.

    ``sections`` are made when the report is drawn, after ``files`` and the manifest are on disk. A ``model`` brings
    its file, its section and its lines with it. ``headline`` are figures that the report puts first; ``parts`` are
    the statements of several things that were published, by name.
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
    headline: Sequence[Line] = ()
    parts: Mapping[str, PrivacyStatement] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class Result:
    """What a run released, what it protects and what it cost; all of it publishable.

    ``value`` is what the kind is about (a model, sets of rados, answers); ``model`` and ``release`` are there where
    the kind has them; ``budget`` is the state of each budget that was charged; ``lines`` is the summary that the
    command line prints, ``folder`` where all of it was written, if it was.
    """

    kind: str
    run: str
    dataset: str
    value: Any
    statement: PrivacyStatement
    budget: tuple[dict[str, Any], ...] = ()
    model: LinearModel | None = None
    release: Any = None
    facts: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    lines: tuple[str, ...] = ()
    folder: Path | None = None

    def __repr__(self) -> str:
        return f"<daskrado {self.kind} run {self.run[:12]} of {self.dataset!r}: {self.statement.sentence()}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: statement, budget, headline figures."""
        colour = "#2f855a" if self.statement.private else "#c53030"
        lines = "".join(f"<li>{html.escape(line.strip())}</li>" for line in self.lines[1:])
        return (
            f'<div style="border-left:6px solid {colour};padding:.4rem 1rem">'
            f"<b>{html.escape(self.kind)}</b> of {html.escape(self.dataset)}, run {html.escape(self.run[:12])}<br>"
            f"{html.escape(self.statement.sentence())}<ul>{lines}</ul></div>"
        )

    @property
    def rows(self) -> int | None:
        """The number of rows, where it is public."""
        return self.facts.get("rows")

    @property
    def coefficients(self) -> pd.DataFrame:
        """Weights by feature with their error bars, largest first."""
        if self.model is None:
            raise AttributeError(f"a result of kind {self.kind} has no model")
        frame = self.model.coefficients
        return frame.reindex(frame["weight"].abs().sort_values(ascending=False).index)


def covers(statement: PrivacyStatement, events: Sequence[Event]) -> bool:
    """Whether a statement says at least what events cost together."""
    assert statement.epsilon is not None
    assert statement.delta is not None
    return bool(compose(events, statement.delta).epsilon <= Fraction(statement.epsilon) * (1 + _ROUNDING) + _ROUNDING)


def check_claim(run: Run, claim: PrivacyStatement) -> None:
    """Refuse a statement that says less than the run's charges, or that nobody paid or drew for.

    Checked for every kind before anything is written.
    """
    job = run.job
    if not claim.private:
        return
    if not run.charges:
        if not job.protected_elsewhere or claim != job.statement:
            raise ValueError(f"kind {job.name} publishes a private statement and charges nothing for it")
        return
    mine = [charge for charge in run.charges.values() if charge.statement.whose == claim.whose]
    parts = [[charge.event for charge in mine if charge.part in ("", part)] for part in {c.part for c in mine}]
    if not parts or not all(covers(claim, events) for events in parts):
        raise ValueError(f"kind {job.name} publishes {claim.sentence()!r}, which is not what it was charged for")
    for role in () if run.charged_elsewhere else run.charges:
        if role not in run.grants or not run.account.spent(run.grants[role]):
            raise ValueError(f"kind {job.name} publishes without drawing for its charge {role!r}")
