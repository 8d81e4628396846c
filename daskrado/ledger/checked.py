"""What makes a ledger believable: its identity, its secret, and the check of its chain, once a process."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from contextlib import suppress

from daskrado.errors import LedgerError
from daskrado.ledger import chain
from daskrado.ledger.chain import BEGINNING, Head, Kind
from daskrado.ledger.store import VERSION, Rows, Store

_SAVED_EVERY = 10_000  # records: checking so many takes some hundredths of a second
_held: dict[str, Head] = {}  # by address: how far this process has followed a ledger's chain


def begin(rows: Rows, who: str) -> None:
    """Write the first record of a new ledger, and the secret that it keeps."""
    secret = secrets.token_hex(32)
    rows.execute("INSERT INTO notes (name, value) VALUES ('secret', ?)", (secret,))
    identity = {"version": VERSION, "id": secrets.token_hex(16), "secret": _commitment(secret)}
    chain.append(rows, Kind.LEDGER, identity, who=who)


def identity(rows: Rows) -> str:
    """The name that a ledger was born with; copies have the same. A ledger of a newer version is refused."""
    for record in chain.records(rows, "r.id = 1"):
        if record.facts["version"] != VERSION:
            raise LedgerError(
                f"the ledger {rows.address} has version {record.facts['version']}; this daskrado reads versions "
                f"1 and {VERSION}: use the daskrado that wrote it"
            )
        return str(record.facts["id"])
    raise chain.broken(rows, 1)


def keyed(rows: Rows, fingerprint: str) -> str:
    """A lake's fingerprint as this ledger keeps it: without its secret nobody can compare it with a guess."""
    return hmac.new(secret_of(rows), fingerprint.encode(), "sha256").hexdigest()


def secret_of(rows: Rows) -> bytes:
    """The secret that the first record is bound to."""
    secret = note(rows, "secret")
    (first,) = chain.records(rows, "r.id = 1")
    if secret is None or first.facts["secret"] != _commitment(secret):
        raise LedgerError(f"the ledger {rows.address} is damaged: its secret was changed; restore it from a copy")
    return bytes.fromhex(secret)


def check(store: Store) -> None:
    """Refuse a ledger whose pages, indexes or chain are damaged.

    A process checks the pages once, and the chain from the last digest that it, or another process, has followed it
    to. A record that lies before that is checked against its digest whenever it is read.
    """
    known = _held.get(store.address)
    with store.reading() as rows:
        if known is None or not chain.holds(rows, known):
            store.check_pages()
            known = saved = _saved(rows)
        else:
            saved = known
        end = chain.follow(rows, known)
        identity(rows)
    _held[store.address] = end
    if end.record - saved.record >= _SAVED_EVERY:
        with suppress(LedgerError), store.transaction() as rows:  # read-only or busy: the next process checks again
            rows.execute(
                "INSERT INTO notes (name, value) VALUES ('checked', ?) "
                "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                (str(end),),
            )


def forget(address: str) -> None:
    """Check a ledger as a new process does, at its next opening."""
    _held.pop(address, None)


def _saved(rows: Rows) -> Head:
    """How far a process has followed the chain; the beginning, where that is not known."""
    with suppress(LedgerError):
        head = Head.read(note(rows, "checked") or "")
        if chain.holds(rows, head):
            return head
    return Head(0, BEGINNING)


def note(rows: Rows, name: str) -> str | None:
    """What a ledger keeps beside its chain under a name."""
    for row in rows.execute("SELECT value FROM notes WHERE name = ?", (name,)):
        return str(row["value"])
    return None


def _commitment(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
