"""A run's debits: each role is debited once, spent once, or voided once, whatever became of the process."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from daskrado.errors import DataError, LedgerError
from daskrado.lake.block_facts import EACH, Reading
from daskrado.lake.scan import Lake
from daskrado.ledger.charging import set_first_limit
from daskrado.ledger.config import LedgerConfig
from daskrado.ledger.entries import whose
from daskrado.ledger.journal import Journal, entries_of
from daskrado.ledger.ledger import Grant, Ledger, LedgerEntry, State
from daskrado.ledger.records import Debit
from daskrado.ledger.words import exposed_lines
from daskrado.privacy.accountant import Event
from daskrado.privacy.groups import ProtectedUnit
from daskrado.privacy.relations import Relation

RESUMED = "resumed: the interrupted run's grant was used, nothing more was debited"
PAID_ANEW = (
    "resumed: {role} was debited anew, since what the interrupted run had been granted for it was lost or voided"
)


class Grants:
    """What a run was granted; the base of :class:`daskrado.ledger.account.Account`, which draws."""

    def __init__(
        self, run: str, ledger: Ledger | None, journal: Journal | None, *, resumed: bool, again: str
    ) -> None:
        self.run = run
        self.journal = journal
        self.resumed = resumed
        self.notes: tuple[str, ...] = (RESUMED,) if resumed else ()
        self._ledger = ledger
        self._again = again
        self.reading: Reading | None = None  # what debits are for: version and blocks of the lake
        self.by_block = True  # False where one debit is for each block, those to come included
        self._grants: dict[str, Grant] = {}
        self._spent: set[int] = set()  # entries that are known to be spent, which is for ever

    @property
    def ledger(self) -> Ledger:
        """The ledger that is debited."""
        assert self._ledger is not None
        return self._ledger

    def first_limit(self, config: LedgerConfig, dataset: str, relation: Relation | ProtectedUnit) -> None:
        """Set a pipeline's first limit, where it applies, and note it."""
        people = isinstance(relation, ProtectedUnit) and relation.column is not None and relation.within is None
        block = EACH if self._blocks and not people else ""
        self.notes += set_first_limit(self.ledger, config, dataset, relation, block)

    @property
    def _blocks(self) -> tuple[str, ...]:
        if self.reading is None or not self.reading.blocks:
            return ()
        return tuple(self.reading.blocks) if self.by_block else (EACH,)

    def reserve(
        self,
        role: str,
        dataset: str,
        relation: Relation | ProtectedUnit,
        event: Event,
        *,
        theorem: str,
        fingerprint: str | None = None,
        part: str = "",
        room: int = 0,
        unspent: bool = False,
        delta: float | None = None,
    ) -> Grant:
        """Debit before a row is read, or find the debit that this run had made before it was cut off.

        ``room`` is the number of bytes that the release will need, ``delta`` was asked for with the event.
        ``fingerprint`` identifies the lake, which must be the same as then. ``unspent``: a debit that was spent is
        not found again, since an engine without answers needs one that nothing was drawn for.
        """
        if self.journal is not None:
            self.journal.set_aside(role, room)
        protected = whose(relation)
        entry = self._earlier(role, (dataset, protected.relation, event), fingerprint, unspent)
        if entry is not None:
            grant = grant_of(entry, self.ledger)
        else:
            public = [] if self.reading is None else self.ledger.exposures(dataset, self.reading.files)
            grant = self.ledger.reserve(
                dataset,
                protected,
                event,
                theorem=theorem,
                run=self.run,
                role=role,
                fingerprint=fingerprint,
                blocks=self._blocks,
                part=part,
                reading=self.reading,
                delta=delta,
            )
            self.notes += tuple(exposed_lines(public))
            if RESUMED in self.notes:
                self.notes = (*(note for note in self.notes if note != RESUMED), PAID_ANEW.format(role=role))
        self._grants[role] = grant
        if self.journal is not None:
            self.journal.granted(role, grant)
        return grant

    def reserve_debit(self, debit: Debit, dataset: str, fingerprint: str | None, room: int) -> Grant:
        """Debit for all that a run draws."""
        return self.reserve(
            debit.role,
            dataset,
            debit.whose,
            debit.event,
            theorem=debit.theorem,
            fingerprint=fingerprint,
            part=debit.part,
            room=room,
            delta=debit.delta,
        )

    def debited(self, role: str) -> bool:
        """Whether this run has a debit of a role that is not void."""
        made = entries_of(self.ledger, self.run).values()
        return any(entry.role == role and entry.state is not State.VOID for entry in made)

    def _earlier(
        self, role: str, wanted: tuple[str, Relation, Event], fingerprint: str | None, unspent: bool
    ) -> LedgerEntry | None:
        """The debit of a role, made by this process or by the one that was cut off."""
        if not (self.resumed or role in self._grants):
            return None
        made = [entry for entry in entries_of(self.ledger, self.run).values() if entry.role == role]
        found = next((entry for entry in reversed(made) if entry.state is not State.VOID), None)
        if found is None or (unspent and found.state.used):
            return None
        if (found.dataset, found.relation, found.event) != wanted:
            raise LedgerError(f"run {self.run}: its grant is for {found.event}, which is not what its pipeline costs")
        if fingerprint is not None and found.fingerprint not in (None, self.ledger.keyed(fingerprint)):
            raise self._input_changed("the lake")
        if self.reading is not None and found.blocks != self._blocks:
            raise self._input_changed("the choice of blocks")
        return found

    def entry(self, number: int) -> LedgerEntry | None:
        """A line of the ledger, of any run."""
        return self.ledger.entry(number)

    def adopt(self, role: str, entry: LedgerEntry) -> Grant:
        """Use the grant that an engine got in an earlier run. A failure of this run does not void it."""
        grant = grant_of(entry, self.ledger)
        if self.journal is not None:
            self.journal.granted(role, grant)
        return grant

    def unchanged(self, what: str, digest: str, named: str | None = None) -> None:
        """Refuse to go on with another input than the run began with."""
        if self.journal is None:
            return
        key = f"digest of {what}"
        if self.journal.content.get(key, digest) != digest:
            raise self._input_changed(named or what)
        self.journal.remember(**{key: digest})

    def same_lake(self, address: Any, lake: Lake) -> None:
        """Refuse to go on with a lake of which a file was added, removed or overwritten. Debits are for this lake."""
        self.reading = lake.reading
        known = isinstance(address, str | Path | list | tuple | Mapping)  # words for a frame would be its rows
        self.unchanged("lake", lake.digest, f"{address}: the lake" if known else "the frame")

    def _input_changed(self, what: str) -> DataError:
        """Why a run cannot go on. Where a pipeline has drawn nothing yet, its grants are voided."""
        if self._ledger is not None and self.journal is not None and "kind" in self.journal.content:
            entries = entries_of(self.ledger, self.run)
            if not any(entry.state.used for entry in entries.values()):
                self.void_run(entries)
        return DataError(f"{what} changed since run {self.run} got its grant; {self._again}")

    def spend(self, grant: Grant) -> None:
        """Mark a grant as spent for something that is no draw of noise; later calls, and resumed runs, find it so."""
        if not self.spent(grant):
            self.ledger.spend(grant)
            self._spent.add(grant.entry)

    def count(self, grant: Grant, name: str, digest: str = "", *, place: str = "") -> None:
        """Count a draw in the ledger, before it is made: the first one spends the grant, and none is made twice."""
        self.ledger.count_draw(grant, name, digest, place=place)
        self._spent.add(grant.entry)

    def end(self, grant: Grant, digest: str) -> None:
        """End a spent grant as published; one that ended before, or that nothing was drawn for, stays as it is."""
        if self._state(grant) is State.SPENT:
            self.ledger.publish(grant, digest)

    def spent(self, grant: Grant) -> bool:
        """Whether a grant is spent already, by this process or by the one that was cut off."""
        if grant.entry not in self._spent and self._state(grant).used:
            self._spent.add(grant.entry)
        return grant.entry in self._spent

    def _state(self, grant: Grant) -> State:
        return self.ledger.state(grant)

    def void_reserved(self) -> None:
        """Void what this process reserved, or took over from the one that was cut off, and did not spend."""
        for grant in self._grants.values():
            with contextlib.suppress(LedgerError):  # spent, or out of reach: it stays charged
                self.ledger.void(grant)

    def void_run(self, entries: Mapping[int, LedgerEntry]) -> None:
        """Void what is still reserved of a run that cannot be finished."""
        for entry in entries.values():
            if entry.state is State.RESERVED:
                self.ledger.void(grant_of(entry, self.ledger))


def grant_of(entry: LedgerEntry, ledger: Ledger) -> Grant:
    """The receipt of a debit that was made before."""
    return Grant(entry.id, entry.dataset, entry.relation, entry.event, ledger.path, entry.run)
