"""The one way in which a job of any kind is charged, draws, keeps what it drew, and publishes.

The order is: journal, reserve, read, mark, spend, draw, keep, publish, forget.

- Killed before *spend*: the grant is reserved and nothing was drawn. A resumed run reads again and spends that grant.
- Killed after *keep*: what was drawn is on disk. A resumed run goes on from exactly that; it does not draw it again.
- Killed in between: noise may have been drawn, and is lost. The grant stays spent and is never drawn for again.

A job that draws several times, under one grant or under several, does so for each draw. *Spend* is one transaction of
the ledger that only one process can win, and a journal has a lock, so that two resumed runs cannot both draw.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import DataError, LedgerError, PublishError
from daskrado.lake.publish import new_folder
from daskrado.lake.scan import Lake
from daskrado.lake.seeds import SignatureKey
from daskrado.ledger.charging import budget_facts, set_first_limit
from daskrado.ledger.config import LedgerConfig
from daskrado.ledger.journal import Arrays, Journal, entries_of
from daskrado.ledger.ledger import Grant, Ledger, LedgerEntry, State
from daskrado.privacy.accountant import Event
from daskrado.privacy.mechanisms import Mechanism
from daskrado.privacy.noise import get_ready
from daskrado.privacy.relations import Relation
from daskrado.privacy.release import Release, release
from daskrado.privacy.statement import PrivacyStatement
from daskrado.statistics.base import Summary

T = TypeVar("T")
RESUMED = "resumed: the interrupted run's grant was used, nothing more was debited"
AGAIN = "run the pipeline again for a new one"


class Account:
    """A run's grants and draws. Without a ledger it is that of a job that protects nobody."""

    def __init__(
        self,
        run: str,
        ledger: Ledger | None = None,
        journal: Journal | None = None,
        *,
        overwrite: bool = False,
        resumed: bool = False,
        again: str = AGAIN,
    ) -> None:
        self.run = run
        self.journal = journal
        self.overwrite = overwrite
        self.resumed = resumed
        self.notes: tuple[str, ...] = (RESUMED,) if resumed else ()
        self._ledger = ledger
        self._grants: dict[str, Grant] = {}
        self._beside: Path | None = None
        self._done = False
        self._again = again
        self.final = False  # set where whoever resumes the run would fail in the same way, and nothing is lost

    @property
    def ledger(self) -> Ledger:
        """The ledger that is debited."""
        assert self._ledger is not None
        return self._ledger

    def first_limit(self, config: LedgerConfig, dataset: str, *relations: Relation) -> None:
        """Set a pipeline's first limit, where it applies, and note it."""
        self.notes += set_first_limit(self.ledger, config, dataset, *relations)

    def reserve(
        self,
        role: str,
        dataset: str,
        relation: Relation,
        event: Event,
        *,
        theorem: str,
        fingerprint: str | None = None,
        room: int = 0,
    ) -> Grant:
        """Debit before a row is read, or find the debit that this run had made before it was cut off.

        ``room`` is the number of bytes that the release will need. ``fingerprint`` identifies the lake, which must be
        the same as then.
        """
        if self.journal is not None:
            self.journal.set_aside(role, room)
        entry = self._earlier(role, dataset, relation, event, fingerprint)
        if entry is not None:
            grant = _grant_of(entry, self.ledger)
        else:
            grant = self.ledger.reserve(
                dataset, relation, event, theorem=theorem, run=self.run, fingerprint=fingerprint
            )
        self._grants[role] = grant
        if self.journal is not None and self.journal.grants.get(role) != grant.entry:
            self.journal.granted(role, grant.entry)
        return grant

    def _earlier(
        self, role: str, dataset: str, relation: Relation, event: Event, fingerprint: str | None
    ) -> LedgerEntry | None:
        if self.journal is None or not self.resumed:
            return None
        entries, known = entries_of(self.ledger, self.run), self.journal.grants
        same = (dataset, relation, event)
        found = entries.get(known.get(role, -1))
        if found is None:  # debited, and cut off before that was written down
            spare = [e for e in entries.values() if e.id not in known.values() and e.state is not State.VOID]
            found = next((e for e in spare if (e.dataset, e.relation, e.event) == same), None)
        if found is None or found.state is State.VOID:
            return None
        if (found.dataset, found.relation, found.event) != same:
            raise LedgerError(f"run {self.run}: its grant is for {found.event}, which is not what its pipeline costs")
        if fingerprint is not None and found.fingerprint not in (None, fingerprint):
            raise self._changed("the lake")
        return found

    def _changed(self, what: str) -> DataError:
        """Why a run cannot go on. Where a pipeline has drawn nothing yet, its grant is given back."""
        if self._ledger is not None and self.journal is not None and "kind" in self.journal.content:
            entries = entries_of(self.ledger, self.run)
            if all(entry.state is not State.SPENT for entry in entries.values()):
                self.give_back_all(entries)
        return DataError(f"{what} changed since run {self.run} got its grant; {self._again}")

    def unchanged(self, what: str, digest: str, named: str | None = None) -> None:
        """Refuse to go on with another input than the run began with."""
        if self.journal is None:
            return
        key = f"digest of {what}"
        if self.journal.content.get(key, digest) != digest:
            raise self._changed(named or what)
        self.journal.remember(**{key: digest})

    def same_lake(self, address: Any, lake: Lake) -> None:
        """Refuse to go on with a lake of which a file was added, removed or overwritten."""
        self.unchanged("lake", lake.digest, f"{address}: the lake")

    def spend(self, grant: Grant) -> None:
        """Mark a grant as spent, just before its first draw; later draws, and resumed runs, find it so."""
        if not self.spent(grant):
            self.ledger.spend(grant)

    def spent(self, grant: Grant) -> bool:
        """Whether a grant is spent already, by this process or by the one that was cut off."""
        return entries_of(self.ledger, grant.run)[grant.entry].state is State.SPENT

    def draw(
        self,
        role: str,
        grant: Grant | None,
        gather: Callable[[], T],
        perturb: Callable[[T], Arrays],
        *,
        number: int | None = None,
    ) -> Arrays:
        """What was drawn and kept before, else ``perturb(gather())``, marked before and kept after.

        ``gather`` reads rows and draws nothing; ``perturb`` spends the grant and draws. Without a grant the draw is
        of public randomness and may be repeated. ``number`` counts the draws of one role.
        """
        if self.journal is None:
            return perturb(gather())
        name = role if number is None else f"{role}#{number:05d}"
        kept = self.journal.kept(name)
        if kept is not None:
            return kept
        if grant is not None and self.spent(grant) and (self.journal.begun(name) or not self.journal.has_kept(role)):
            raise LedgerError(lost(self.run, self._again))
        private = gather()
        get_ready()
        try:
            self.journal.begin(name)
        except OSError as error:
            raise LedgerError(
                f"{self.journal.folder}: cannot be written ({error.strerror}); {self._left()}"
            ) from error
        drawn = perturb(private)
        try:
            self.journal.keep(name, drawn)
        except OSError as error:  # a disk that fails here is no reason to lose what was paid for
            self.notes += (f"a release could not be kept in {self.journal.folder} ({error.strerror})",)
        return drawn

    def release(
        self,
        role: str,
        grant: Grant,
        mechanism: Mechanism,
        statement: PrivacyStatement,
        gather: Callable[[], Summary],
    ) -> Release:
        """Collect a statistic, spend the grant and add noise, once; or the release that was kept."""

        def perturb(summary: Summary) -> Arrays:
            return {**release(summary, mechanism, self.ledger, grant, statement).values}

        values = self.draw(role, grant, gather, perturb)
        target = mechanism.target
        return Release(target.statistic, target.lattice, values, mechanism.noise_std(), statement)

    def numbered(self, role: str, grant: Grant) -> Callable[[bool, Callable[[], Any], Callable[[Any], Any]], Any]:
        """The draws of a learner that draws several times under one grant, in their order."""
        done = 0

        def draw(paid: bool, gather: Callable[[], Any], perturb: Callable[[Any], NDArray[Any]]) -> NDArray[Any]:
            nonlocal done
            done += 1
            kept = self.draw(
                role, grant if paid else None, gather, lambda private: {"drawn": perturb(private)}, number=done
            )
            return np.asarray(kept["drawn"])

        return draw

    def row_key(self, role: str) -> SignatureKey:
        """A secret key for noise on rows: the noise is a function of it, so that keeping it repeats the same draw."""
        if self.journal is None:
            return SignatureKey.secret()
        return SignatureKey(self.journal.secret(role), public=False)

    def has(self, role: str) -> bool:
        """Whether the release of a role is kept, so that rows are not needed."""
        return self.journal is not None and self.journal.kept(role) is not None

    def remember_rows(self, count: int | None) -> None:
        """Remember the number of rows, where it is public."""
        if self.journal is not None:
            self.journal.remember(rows=count)

    @property
    def known_rows(self) -> int | None:
        """The number of rows, where it is public and was remembered."""
        return None if self.journal is None else self.journal.content.get("rows")

    def budget(self, grant: Grant) -> dict[str, Any]:
        """The state of the budget, for artefacts."""
        return budget_facts(self.ledger, grant)

    def beside(self, output: str | Path) -> Path:
        """A folder for what is drawn and too large for a journal: on the output's disk, gone when the run is done."""
        target = Path(os.path.abspath(output))
        folder = target.parent / f".{target.name}.{self.run[:12]}.kept"
        self._beside = folder
        if self.journal is not None:
            self.journal.remember(beside=str(folder))
        return folder

    def place(self, name: str) -> Path | None:
        """Where an engine with a journal of its own keeps it; None where nothing is kept."""
        return None if self.journal is None else self.journal.place(name)

    @contextlib.contextmanager
    def publish(self, output: str | Path) -> Iterator[Path]:
        """The folder of artefacts, whole or not at all; then nothing is left to resume."""
        try:
            with new_folder(output, overwrite=self.overwrite) as folder:
                yield folder
        except OSError as error:
            rest = f"; {self._left()}" if self.journal is not None else ""
            raise PublishError(f"{error.filename or output}: {error.strerror or error}{rest}") from error
        self.done()

    def done(self) -> None:
        """Nothing is left to finish."""
        self._done = True
        if self.journal is not None:
            self.journal.forget()
        elif self._beside is not None:
            shutil.rmtree(self._beside, ignore_errors=True)

    def _left(self) -> str:
        """What a user can do about a run that ended early; the truth in each state."""
        assert self.journal is not None
        return left_over(self.journal, self.ledger, self._again)

    def give_back_all(self, entries: Mapping[int, LedgerEntry]) -> None:
        """Void what is still reserved of a run that cannot be finished."""
        for entry in entries.values():
            if entry.state is State.RESERVED:
                self.ledger.void(_grant_of(entry, self.ledger))

    def give_back(self, error: BaseException) -> None:
        """After a failure: void what was not spent, forget what was not charged, and say what is left."""
        if self._done:  # published before it failed
            return
        for grant in self._grants.values():
            with contextlib.suppress(LedgerError):  # spent, or out of reach: it stays charged
                self.ledger.void(grant)
        if self._ledger is None:
            return
        with contextlib.suppress(LedgerError):  # a ledger out of reach: the run may be charged, so remember it
            charged = any(e.state is not State.VOID for e in entries_of(self.ledger, self.run).values())
            if self.final:
                self.done()
            elif self.journal is not None and not charged:
                self.journal.forget()
            elif self.journal is not None:
                error.add_note(self._left())
                if self.resumed and self.journal.lost(entries_of(self.ledger, self.run)):
                    self.journal.forget_beside()  # nothing can be done with it
            elif charged:
                self.done()
                error.add_note("the grant was spent and stays charged; what was drawn was not kept")


def _grant_of(entry: LedgerEntry, ledger: Ledger) -> Grant:
    return Grant(entry.id, entry.dataset, entry.relation, entry.event, ledger.path, entry.run)


def lost(run: str, again: str = AGAIN) -> str:
    """What is said of a run whose noise may have been drawn and was not kept."""
    return (
        f"run {run} was cut off between spending its grant and keeping its release: noise is never drawn twice "
        f"for one grant, so the charge stays; {again}"
    )


def left_over(journal: Journal, ledger: Ledger, again: str = AGAIN) -> str:
    """What is left of a run that was charged."""
    entries = entries_of(ledger, journal.run)
    if journal.lost(entries):
        again = journal.content.get("again", again)
        return f"noise was being drawn and was not kept, so the charge stays; {again}"
    if journal.has_kept():
        return f"what was drawn is kept: {journal.finish}"
    spent = any(entry.state is State.SPENT for entry in entries.values())
    return f"{'what was paid for stands' if spent else 'the grant is not used up'}: {journal.finish}"


@contextlib.contextmanager
def guarded(account: Account) -> Iterator[Account]:
    """Let go of an account at the end; whatever fails before a draw gives its grant back."""
    try:
        yield account
    except BaseException as error:
        account.give_back(error)
        raise
    finally:
        if account.journal is not None:
            account.journal.close()
