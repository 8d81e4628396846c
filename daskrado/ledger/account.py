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
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from daskrado.errors import LedgerError, PublishError, UsageError
from daskrado.lake.claim import Claim
from daskrado.lake.publish import new_folder
from daskrado.lake.seeds import SignatureKey
from daskrado.lake.snapshots import TableVersion, table_address, table_keys
from daskrado.ledger.grants import AGAIN, RESUMED, Grants
from daskrado.ledger.journal import Arrays, Journal, entries_of
from daskrado.ledger.journal_folder import InUseError
from daskrado.ledger.ledger import Grant, Ledger, State
from daskrado.privacy.mechanisms import Mechanism
from daskrado.privacy.noise import get_ready
from daskrado.privacy.release import Release, release
from daskrado.privacy.statement import PrivacyStatement
from daskrado.statistics.base import Summary

__all__ = ["AGAIN", "RESUMED", "Account", "guarded", "left_over", "lost"]

T = TypeVar("T")


class Account(Grants):
    """A run's grants and draws. Without a ledger it is that of a job that protects nobody.

    Invariants, over all processes that ever work on a run (tests/ledger/test_account_states.py checks them):

    1. Nothing is drawn before its grant is spent and, where the run has a journal, its mark is on disk.
    2. A role has at most one grant that is not void: a resumed run debits nothing that it had debited.
    3. A grant is used for the data set, relation and event that it was reserved for, and for no other lake.
    4. A named draw (a role, or a numbered draw of a role) is made at most once.
    5. What was kept is what is returned, and published, byte for byte, in this process and in every later one.
    6. A draw that may have been made and was not kept is never made again; its grant stays spent.
    7. A reservation stays charged until it is spent or voided, and one of these happens, once. A killed run gets
       nothing back by itself; what was spent is never given back.
    8. A process that fails voids what it reserved, or took over from one that was cut off, and did not spend. A run
       that is refused, or fails, before it spent anything so leaves no charge and no journal.
    9. A run that fails later stays charged, and its journal stays until the run is published.
    10. Two processes never hold the journal of a run at once.
    11. A run is published once, whole; then no journal, key or kept folder is left, and nothing to resume.
    """

    def __init__(
        self,
        run: str,
        ledger: Ledger | None = None,
        journal: Journal | None = None,
        *,
        overwrite: bool = False,
        claim: Claim | None = None,
        resumed: bool = False,
        again: str = AGAIN,
    ) -> None:
        super().__init__(run, ledger, journal, resumed=resumed, again=again)
        self.overwrite = overwrite
        self.claim = claim  # of the output folder; without one it is claimed when it is written
        self.final = False  # set where whoever resumes the run would fail in the same way, and nothing is lost
        self._drawn: set[str] = set()  # names of the draws that this process made or tried
        self._kept_folder: Path | None = None
        self._engine: Path | None = None
        self._done = False

    def __repr__(self) -> str:
        return f"<Account of run {self.run[:12]}: {len(self._grants)} grants{', resumed' if self.resumed else ''}>"

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
        name = role if number is None else f"{role}#{number:05d}"
        kept = None if self.journal is None else self.journal.kept(name)
        if kept is not None:
            return kept
        if grant is not None and self.spent(grant) and self._may_be_drawn(role, name):
            raise LedgerError(lost(self.run, self._again))
        private = gather()
        get_ready()
        self._begin(name)
        self._drawn.add(name)
        drawn = perturb(private)
        if grant is not None and not self.spent(grant):
            raise LedgerError(f"run {self.run}: {name} was drawn without spending its grant; it is not released")
        self._keep(name, drawn)
        return drawn

    def _may_be_drawn(self, role: str, name: str) -> bool:
        """Whether a draw of a spent grant may have been made; it was not where others of its role came before it."""
        if name in self._drawn or (self.journal is not None and self.journal.begun(name)):
            return True
        here = role in {drawn.partition("#")[0] for drawn in self._drawn}
        return not here and not (self.journal is not None and self.journal.has_kept(role))

    def _begin(self, name: str) -> None:
        """Mark a draw before it is made."""
        if self.journal is None:
            return
        try:
            self.journal.begin(name)
        except OSError as error:
            raise LedgerError(
                f"{self.journal.folder}: cannot be written ({error.strerror}); {self._left()}"
            ) from error

    def _keep(self, name: str, drawn: Arrays) -> None:
        if self.journal is None:
            return
        try:
            self.journal.keep(name, drawn)
        except OSError as error:  # a disk that fails here is no reason to lose what was paid for
            self.notes += (f"a release could not be kept in {self.journal.folder} ({error.strerror})",)

    @contextlib.contextmanager
    def marked(self, role: str) -> Iterator[None]:
        """Mark a draw that an engine keeps and could not repeat: a run that is killed inside is not resumed."""
        self._begin(role)
        yield
        if self.journal is not None:
            self.journal.unmark(role)

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
            return {**release(summary, mechanism, grant, partial(self.spend_once, grant), statement).values}

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

    def remember_table(self, table: TableVersion) -> None:
        """Pin the version of a table: a resumed run reads the same one, whatever was committed since."""
        if self.journal is None:
            return
        facts: dict[str, Any] = {"table": table.facts}
        job = self.journal.content.get("pipeline")
        if job is not None:
            lake = job["lake"]
            address = table_address(lake)[1] if isinstance(lake, Mapping) else lake
            facts["pipeline"] = {**job, "lake": table_keys(table.form, address, table.version)}
        self.journal.remember(**facts)

    @property
    def known_table(self) -> dict[str, Any] | None:
        """The version of the table that was read, where it was remembered."""
        return None if self.journal is None else self.journal.content.get("table")

    @property
    def known_rows(self) -> int | None:
        """The number of rows, where it is public and was remembered."""
        return None if self.journal is None else self.journal.content.get("rows")

    def kept_folder(self, output: str | Path) -> Path:
        """A folder for what is drawn and too large for a journal: on the output's disk, gone when the run is done."""
        target = Path(os.path.abspath(output))
        folder = target.parent / f".{target.name}.{self.run[:12]}.kept"
        self._kept_folder = folder
        if self.journal is not None:
            self.journal.remember(kept_folder=str(folder))
        return folder

    @contextlib.contextmanager
    def engine_journal(self, folder: Path, content: Mapping[str, Any]) -> Iterator[Journal]:
        """The journal of an engine that outlives this run, new or as it was left.

        If the block fails, what this run reserved and did not spend is voided, and an engine that nothing pays for
        is removed.
        """
        try:
            journal = Journal.open(folder, content)
        except InUseError:
            raise UsageError(f"{folder}: another process is answering from this journal") from None
        if self._ledger is not None:
            journal.check_ledger(self._ledger)
        self._engine = folder
        try:
            yield journal
        except BaseException:
            self.void_reserved()
            if self._is_unpaid(journal):
                journal.forget()
            raise
        finally:
            journal.close()

    def _is_unpaid(self, journal: Journal) -> bool:
        try:
            paid = {(number, run): self.ledger.entry(number) for number, run in journal.paid.values()}
        except LedgerError:  # busy or out of reach: the grant may be charged, so the engine stays
            return False
        return all(entry and entry.run == run and entry.state is State.VOID for (_, run), entry in paid.items())

    @contextlib.contextmanager
    def publish(self, output: str | Path) -> Iterator[Path]:
        """The folder of artefacts, whole and on disk or not at all; then nothing is left to resume."""
        try:
            with new_folder(output, overwrite=self.overwrite, claim=self.claim) as folder:
                yield folder
        except OSError as error:
            rest = f"; {self._left()}" if self.journal is not None else ""
            raise PublishError(f"{error.filename or output}: {error.strerror or error}{rest}") from error
        if self.claim is not None:
            self.claim.release()  # before the journal goes: whoever resumes the run removes what is left beside it
        self.done()

    def done(self) -> None:
        """End the run: nothing is left to finish."""
        self._done = True
        if self.journal is not None:
            self.journal.forget()
        elif self._kept_folder is not None:
            shutil.rmtree(self._kept_folder, ignore_errors=True)

    def _left(self) -> str:
        """What a user can do about a run that ended early; the truth in each state."""
        assert self.journal is not None
        return left_over(self.journal, self.ledger, self._again)

    def void_unspent(self, error: BaseException) -> None:
        """After a failure: void what was not spent, forget a run that is not charged, and say what is left."""
        if self._done or self._ledger is None:  # published before it failed, or never charged
            return
        self.void_reserved()
        with contextlib.suppress(LedgerError):  # a ledger out of reach: the run may be charged, so remember it
            entries = entries_of(self.ledger, self.run)
            charged = any(entry.state is not State.VOID for entry in entries.values())
            if self.final:
                self.done()
            elif self.journal is not None and not charged:
                self.journal.forget()
            elif self.journal is not None:
                error.add_note(self._left())
                if self.resumed and self.journal.lost(entries):
                    self.journal.remove_kept_folder()  # nothing can be done with it
            elif charged:
                self.done()
                kept = "what was drawn was not kept" if self._engine is None else f"answers are in {self._engine}"
                error.add_note(f"the grant was spent and stays charged; {kept}")


def lost(run: str, again: str = AGAIN) -> str:
    """Why a run whose noise may have been drawn and was not kept cannot go on."""
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
    spent = any(entry.state.used for entry in entries.values())
    return f"{'what was paid for stands' if spent else 'the grant is not used up'}: {journal.finish}"


@contextlib.contextmanager
def guarded(account: Account) -> Iterator[Account]:
    """Close the account; void its grants if the block fails before noise is drawn."""
    try:
        yield account
    except BaseException as error:
        account.void_unspent(error)
        raise
    finally:
        if account.journal is not None:
            account.journal.close()
