"""Opening the account of a run: a new one, one that was cut off, one with a name of its own, or none to remember."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from daskrado.errors import LedgerError, UsageError
from daskrado.lake.claim import Claim
from daskrado.lake.publish import claimed
from daskrado.lake.snapshots import FORMS, table_address
from daskrado.ledger.account import Account, guarded
from daskrado.ledger.charging import opened_ledger
from daskrado.ledger.endings import AGAIN, cannot_go_on, published_as
from daskrado.ledger.journal import Journal, entries_of, find_journal, journal_folder, journals
from daskrado.ledger.ledger import Ledger, Mark, State


@contextlib.contextmanager
def open_account(
    kind: str,
    job: Any,
    *,
    overwrite: bool,
    ledger_path: str | Path | None,
    write: bool,
    private: bool = True,
    remembered: bool = True,
    account: Account | None = None,
) -> Iterator[Account]:
    """The account of a new run, or the one that a resumed run was given; ``remembered`` in a journal if it writes."""
    if account is not None:
        yield account
        return
    run = uuid.uuid4().hex
    output = claimed(job.output, overwrite=overwrite, reading=_read_by(job), who=f"run {run[:12]}")
    with output if write else contextlib.nullcontext() as claim:
        if not private:
            if write and getattr(job, "private", True) is False:  # before a row is read: what is seen stays seen
                opened_ledger(ledger_path, job.ledger).mark(job.dataset, Mark.NOT_PRIVATE, run=run)
            yield Account(run, overwrite=overwrite, claim=claim)
            return
        with opened_ledger(ledger_path, job.ledger) as ledger:
            content = _remembered(kind, job, overwrite, ledger) if write and remembered else None
            journal = None if content is None else Journal.create(journal_folder(ledger) / run, content)
            with guarded(Account(run, ledger, journal, overwrite=overwrite, claim=claim)) as opened:
                yield opened


def begun(job: Any, ledger: Ledger) -> str | None:
    """The run of this very job, on whatever workers, that was charged and cut off; None if there is none."""
    own = _remembered(job.name, job, False, ledger)
    for run, content in journals(ledger):
        told = content.get("pipeline")
        if own is None or told is None or content.get("kind") != job.name:
            continue
        same = json.loads(json.dumps({**own["pipeline"], "cluster": None})) == {**told, "cluster": None}
        if same and any(entry.state is not State.VOID for entry in entries_of(ledger, run).values()):
            return run
    return None


@contextlib.contextmanager
def resumed_account(ledger: Ledger, identifier: str) -> Iterator[Account]:
    """The account of a run that was cut off, by its identifier; refuse what cannot or need not be finished."""
    journal = Journal.take(find_journal(ledger, identifier))
    journal.check_ledger(ledger)
    overwrite = bool(journal.content.get("overwrite"))
    with (
        guarded(Account(journal.run, ledger, journal, overwrite=overwrite, resumed=True)) as account,
        _claim_of(journal) as account.claim,
    ):
        run, entries = journal.run, entries_of(ledger, journal.run)
        if all(entry.state is State.VOID for entry in entries.values()):
            what = "gave its grant back" if entries else "never got a grant"
            raise UsageError(f"run {run} {what}: there is nothing to resume; run its pipeline again")
        if "kind" not in journal.content:
            raise UsageError(f"run {run}: finish it with: {journal.finish}")
        if (published := published_as(ledger, run)) is not None:
            account.done(published)
            raise UsageError(f"run {run} was published ({published}): there is nothing left to finish")
        if (why := cannot_go_on(journal, ledger)) is not None:
            account.void_run(entries)
            raise LedgerError(why)
        yield account


def _claim_of(journal: Journal) -> contextlib.AbstractContextManager[Claim | None]:
    """The claim of the output that a journal names, which removes what the process before left beside it."""
    if "pipeline" not in journal.content:
        return contextlib.nullcontext()
    return Claim.take(journal.content["pipeline"]["output"], f"run {journal.run[:12]}")


@contextlib.contextmanager
def named_account(
    ledger: Ledger, run: str, finish: str, *, overwrite: bool = False, again: str = AGAIN, charged_once: bool = False
) -> Iterator[Account]:
    """The account of a run with a name of its own, new or as it was left: for parties of a study.

    ``charged_once``: what the ledger holds under this name pays for all that is done under it, also after it is done.
    """
    folder, there = _named_folder(ledger, run), is_open(ledger, run)
    journal = Journal.take(folder) if there else Journal.create(folder, {"run": run, "finish": finish})
    journal.check_ledger(ledger)
    resumed = there or (charged_once and bool(entries_of(ledger, run)))
    with guarded(Account(run, ledger, journal, overwrite=overwrite, resumed=resumed, again=again)) as opened:
        yield opened


def is_open(ledger: Ledger, run: str) -> bool:
    """Whether a run with a name of its own has a journal: it is at work, or was cut off."""
    return (_named_folder(ledger, run) / "run.json").exists()


def _named_folder(ledger: Ledger, run: str) -> Path:
    return journal_folder(ledger) / hashlib.blake2b(run.encode(), digest_size=16).hexdigest()


def _remembered(kind: str, job: Any, overwrite: bool, ledger: Ledger) -> Mapping[str, Any] | None:
    """A job as its journal keeps it, with addresses that any folder reads alike; None for a lake in memory."""
    lake = _absolute(job.lake)
    if lake is None:
        return None
    dumped = job.model_dump(mode="json", exclude={"lake"})
    for *path, last in (*job.common_addresses, *job.addresses):
        holder: Any = dumped
        for key in path:
            holder = holder.get(key) if isinstance(holder, dict) else None
        if isinstance(holder, dict) and isinstance(holder.get(last), str | list):
            holder[last] = _absolute(holder[last]) or holder[last]
    output = os.path.abspath(dumped["output"])
    pipeline = {**dumped, "lake": lake, "output": output}
    return {"kind": kind, "ledger": ledger.address, "overwrite": overwrite, "pipeline": pipeline}


def _read_by(job: Any) -> list[Any]:
    """Input addresses of a job; its output must not overwrite them."""
    found = [job.lake]
    for address in job.addresses:
        value = job
        for key in address:
            value = getattr(value, key, None)
        found.append(value)
    return found


def _absolute(lake: Any) -> Any:
    """An address as any working folder would read it; None for a lake in memory."""
    if isinstance(lake, list | tuple):
        parts = [_absolute(part) for part in lake]
        return None if any(part is None for part in parts) else parts
    if isinstance(lake, Mapping) and FORMS.keys() & lake.keys():
        form, address, _ = table_address(lake)
        named = form == "iceberg" and "/" not in address  # CATALOG.TABLE
        return {**lake, form: address if named else _absolute(address)}
    if not isinstance(lake, str | os.PathLike):
        return None
    address = os.fspath(lake)
    return address if "://" in address else os.path.abspath(address)
