"""What is said of a run that ended early: the truth in each state, in one line, and what to do about it."""

from __future__ import annotations

from collections.abc import Collection

from daskrado.ledger.journal import Journal, entries_of
from daskrado.ledger.ledger import Ledger

AGAIN = "run the pipeline again for a new one"
MANIFEST = "manifest.json"  # ends the name of the document that stands for all that a run published


def lost(run: str, again: str = AGAIN) -> str:
    """Why a run whose noise may have been drawn and was not kept cannot go on."""
    return (
        f"run {run} was cut off between spending its grant and keeping its release: noise is never drawn twice "
        f"for one grant, so the charge stays; {again}"
    )


def outdated(what: str, missing: Collection[str], again: str = AGAIN) -> str:
    """Why a journal that lacks draws that the ledger counted cannot go on."""
    first = min(missing)
    return (
        f"{what} is older than the ledger, or parts of it are gone: it lacks {len(missing)} of the draws that were "
        f"counted (the first is {first}), and noise is never drawn twice for one grant, so the charge stays; put the "
        f"newest copy back, or {again}"
    )


def cannot_go_on(journal: Journal, ledger: Ledger, again: str = AGAIN, made: Collection[str] = ()) -> str | None:
    """Why a run cannot be finished from its journal; None where it can. This process has what it ``made`` itself."""
    again = journal.content.get("again", again)
    missing = journal.lost(ledger) - {*made}
    if not missing:
        return None
    if all(journal.begun(name) for name in missing):
        return lost(journal.run, again)
    return outdated(f"the journal of run {journal.run}", missing, again)


def left_over(journal: Journal, ledger: Ledger, again: str = AGAIN) -> str:
    """What is left of a run that was charged."""
    if cannot_go_on(journal, ledger) is not None:
        again = journal.content.get("again", again)
        return f"noise was being drawn and was not kept, so the charge stays; {again}"
    if journal.has_kept():
        return f"what was drawn is kept: {journal.finish}"
    spent = any(entry.state.used for entry in entries_of(ledger, journal.run).values())
    return f"{'what was paid for stands' if spent else 'the grant is not used up'}: {journal.finish}"


def published_as(ledger: Ledger, run: str) -> str | None:
    """The digest under which the ledger knows a run as published; None where it is not."""
    ended = [entry.published or "" for entry in entries_of(ledger, run).values()]
    return next((text for text in ended if text.partition(" ")[0].endswith(MANIFEST)), None)
