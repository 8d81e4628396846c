"""Where a ledger is kept: what an SQLite file and a PostgreSQL database have in common.

Statements are written once, in the SQL that both know, with ``?`` for values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

VERSION = 2

# ``records`` is the chain and the truth. ``balances`` points at the record that holds a budget's running total, so
# that a debit costs the same in a long history as in a short one. ``lakes`` and ``notes``, with the secret, are never
# exported.
TABLES = (
    "CREATE TABLE records (id INTEGER PRIMARY KEY, kind TEXT NOT NULL, at TEXT NOT NULL, who TEXT NOT NULL, "
    "dataset TEXT NOT NULL, run TEXT NOT NULL, entry INTEGER, name TEXT NOT NULL, body TEXT NOT NULL, "
    "digest TEXT NOT NULL)",
    "CREATE TABLE balances (budget TEXT PRIMARY KEY, dataset TEXT NOT NULL, record INTEGER NOT NULL, "
    "digest TEXT NOT NULL)",
    "CREATE TABLE lakes (record INTEGER PRIMARY KEY, dataset TEXT NOT NULL, fingerprint TEXT NOT NULL, "
    "salt TEXT NOT NULL)",
    "CREATE TABLE notes (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE UNIQUE INDEX records_once ON records (entry, kind, name)",
    "CREATE INDEX records_of_run ON records (run)",
    "CREATE INDEX records_of_dataset ON records (dataset, kind, name)",
    "CREATE INDEX lakes_seen ON lakes (fingerprint)",
)


class Rows(Protocol):
    """One transaction of a store."""

    @property
    def address(self) -> str:
        """What people call the ledger."""

    def execute(self, statement: str, values: Sequence[object] = ()) -> Iterable[Mapping[str, Any]]:
        """Run one statement; the rows that it finds."""


class Store(Protocol):
    """A place that holds one ledger, shared by any number of processes. No connection outlives a transaction."""

    @property
    def address(self) -> str:
        """What people call the ledger, without a password."""

    @property
    def path(self) -> Path:
        """The file; for a server, the local name beside which journals and engines are kept."""

    def prepare(self, *, create: bool) -> None:
        """Check that a sound ledger of this version is there, or make or convert it."""

    def transaction(self) -> AbstractContextManager[Rows]:
        """A write transaction that excludes all others from its first read to its commit."""

    def reading(self) -> AbstractContextManager[Rows]:
        """One consistent view; never creates or changes anything."""

    def check_pages(self) -> None:
        """Refuse a store whose pages or indexes are damaged."""
