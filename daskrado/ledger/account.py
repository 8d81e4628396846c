"""The one way in which a job of any kind is charged, draws, keeps what it drew, and publishes.

The order is: journal, reserve, read, mark, count, draw, keep, publish, end, forget.

- Killed before *count*: nothing was drawn. A resumed run reads again and draws under the grant that it had.
- Killed after *keep*: what was drawn is on disk. A resumed run goes on from exactly that; it does not draw it again.
- Killed in between: noise may have been drawn, and is lost. The grant stays spent and is never drawn for again.
- Killed after *end*: the ledger knows the run as published; whoever resumes it is told so.

A job that draws several times, under one grant or under several, does so for each draw. *Count* is one transaction of
the ledger that only one process can win, and it spends the grant. The ledger, not the journal, knows which draws were
made: a journal that was put back from a copy, cut short or damaged lacks draws that were counted, and draws nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from daskrado.errors import LedgerError, PublishError, UsageError
from daskrado.lake.claim import Claim
from daskrado.lake.publish import new_folder
from daskrado.lake.snapshots import TableVersion, table_address, table_keys
from daskrado.ledger.draws import Draws
from daskrado.ledger.endings import AGAIN, MANIFEST
from daskrado.ledger.grants import RESUMED, grant_of
from daskrado.ledger.journal import Journal, entries_of
from daskrado.ledger.journal_folder import InUseError
from daskrado.ledger.ledger import Grant, Ledger, State

__all__ = ["AGAIN", "RESUMED", "Account", "guarded"]


class Account(Draws):
    """A run's grants and draws. Without a ledger it is that of a job that protects nobody.

    Invariants, over all processes that ever work on a run (tests/ledger/test_account_states.py checks them):

    1. Nothing is drawn before the ledger counted it and, where the run has a journal, its mark is on disk.
    2. A role has at most one grant that is not void: a resumed run debits nothing that it had debited.
    3. A grant is used for the data set, relation and event that it was reserved for, and for no other lake.
    4. A named draw (a role, or a numbered draw of a role) is made at most once, whatever copy of its journal is used.
    5. What was kept is what is returned, and published, byte for byte, in this process and in every later one.
    6. A draw that may have been made and was not kept is never made again; its grant stays spent.
    7. A reservation stays charged until it is spent or voided, and one of these happens, once. A killed run gets
       nothing back by itself; what was spent is never given back, and ends as published, once.
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
        self.left_out: list[str] = [] if journal is None else journal.content.get("left_out", [])  # blocks
        self._outliving: set[int] = set()  # entries of engines, which do not end with the run
        self._kept_folder: Path | None = None
        self._engine: Path | None = None
        self._done = False
        self._published = ""  # what to say of it to whoever ends the run later

    def __repr__(self) -> str:
        return f"<Account of run {self.run[:12]}: {len(self._grants)} grants{', resumed' if self.resumed else ''}>"

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

    def remember_blocks(self, column: str, values: Sequence[str], left_out: Sequence[str]) -> None:
        """Pin the blocks that are read: a resumed run reads the same ones, whatever budget they have left."""
        self.left_out = list(left_out)
        if self.journal is not None and (job := self.journal.content.get("pipeline")) is not None:
            pinned = {**job, "blocks": {"column": column, "values": list(values)}}
            self.journal.remember(pipeline=pinned, left_out=self.left_out)

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
    def publish(self, output: str | Path, document: str = MANIFEST) -> Iterator[Path]:
        """The folder of artefacts, whole and on disk or not at all; then grants end and nothing is left to resume.

        ``document`` lists all other files with their digests: its own stands for what was published.
        """
        try:
            with new_folder(output, overwrite=self.overwrite, claim=self.claim) as folder:
                yield folder
        except OSError as error:
            rest = f"; {self._left()}" if self.journal is not None else ""
            raise PublishError(f"{error.filename or output}: {error.strerror or error}{rest}") from error
        self._published = f"everything was published in {output} before that"
        if self.claim is not None:
            self.claim.release()  # before the journal goes: whoever resumes the run removes what is left beside it
        self.done(digest_of(Path(output) / document))

    def outlives(self, grant: Grant) -> Grant:
        """Note that a grant belongs to an engine: it does not end with this run."""
        self._outliving.add(grant.entry)
        return grant

    def done(self, published: str | None = None) -> None:
        """End the run, with the digest of what it ``published``: nothing is left to finish."""
        self._done = True
        if published is not None and self._ledger is not None:
            try:
                self._end(published)
            except LedgerError as error:  # out of reach: what is published stays so, and the journal says the rest
                self.notes += (f"the ledger could not note that this run is published ({error})",)
                return
        if self.journal is not None:
            self.journal.forget()
        elif self._kept_folder is not None:
            shutil.rmtree(self._kept_folder, ignore_errors=True)

    def _end(self, published: str) -> None:
        """End all grants of the run but those of engines, which are known here or by the names of their draws."""
        for entry in entries_of(self.ledger, self.run).values():
            own = any(grant.entry == entry.id for grant in self._grants.values())
            engines = entry.id in self._outliving
            if not own and entry.state is State.SPENT:
                engines = any("@" in name for name in self.ledger.draws(entry.id))
            if not engines:
                self.end(grant_of(entry, self.ledger), published)

    def void_unspent(self, error: BaseException) -> None:
        """After a failure: void what was not spent, forget a run that is not charged, and say what is left."""
        if self._done or self._ledger is None:  # published before it failed, or never charged
            if self._published:
                error.add_note(self._published)
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
                if self.resumed and self.journal.lost(self.ledger):
                    self.journal.remove_kept_folder()  # nothing can be done with it
            elif charged:
                self.done()
                kept = "what was drawn was not kept" if self._engine is None else f"answers are in {self._engine}"
                error.add_note(f"the grant was spent and stays charged; {kept}")


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


def digest_of(document: Path) -> str:
    """A published document as the ledger notes it: its name and digest."""
    try:
        return f"{document.name} sha256 {hashlib.sha256(document.read_bytes()).hexdigest()}"
    except OSError:  # taken away at this moment
        return f"{document.name} sha256 unknown"
