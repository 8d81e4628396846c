"""The SQLite side of the ledger: its tables, its connections, and clear errors about the file.

A connection lives for one operation only. So a ledger object may be forked, pickled and shared between threads,
and no process ever holds a lock between two operations.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from daskrado.errors import LedgerError

APPLICATION_ID = 0x6461736B  # "dask"
SCHEMA_VERSION = 1

# Rows are only ever added; an entry may change once, from reserved to spent or void. REPLACE deletes without
# firing a delete trigger, so inserting over an existing id is refused as well. Triggers stop mistakes and raw
# SQL; they do not stop somebody who owns the file and wants to cheat.
_SCHEMA = """
CREATE TABLE limits (
  id INTEGER PRIMARY KEY AUTOINCREMENT, dataset TEXT NOT NULL, relation TEXT NOT NULL,
  epsilon TEXT NOT NULL, delta TEXT NOT NULL, set_at TEXT NOT NULL
) STRICT;
CREATE TABLE fingerprints (
  id INTEGER PRIMARY KEY AUTOINCREMENT, fingerprint TEXT NOT NULL UNIQUE, dataset TEXT NOT NULL, seen_at TEXT NOT NULL
) STRICT;
CREATE TABLE entries (
  id INTEGER PRIMARY KEY AUTOINCREMENT, dataset TEXT NOT NULL, relation TEXT NOT NULL, event TEXT NOT NULL,
  theorem TEXT NOT NULL, run TEXT NOT NULL, fingerprint TEXT,
  state TEXT NOT NULL CHECK (state IN ('reserved', 'spent', 'void')), reserved_at TEXT NOT NULL, settled_at TEXT
) STRICT;
CREATE INDEX entries_by_budget ON entries (dataset, relation);
CREATE TRIGGER entries_begin BEFORE INSERT ON entries
  WHEN NEW.state <> 'reserved' OR NEW.settled_at IS NOT NULL OR EXISTS (SELECT 1 FROM entries WHERE id = NEW.id)
  BEGIN SELECT RAISE(ABORT, 'a ledger entry begins as a new reservation'); END;
CREATE TRIGGER entries_settle BEFORE UPDATE ON entries
  WHEN OLD.state <> 'reserved' OR NEW.state NOT IN ('spent', 'void') OR NEW.settled_at IS NULL
    OR NEW.id <> OLD.id OR NEW.dataset <> OLD.dataset OR NEW.relation <> OLD.relation OR NEW.event <> OLD.event
    OR NEW.theorem <> OLD.theorem OR NEW.run <> OLD.run OR NEW.fingerprint IS NOT OLD.fingerprint
    OR NEW.reserved_at <> OLD.reserved_at
  BEGIN SELECT RAISE(ABORT, 'a ledger entry changes only once, from reserved to spent or void'); END;
CREATE TRIGGER entries_kept BEFORE DELETE ON entries
  BEGIN SELECT RAISE(ABORT, 'ledger entries are never deleted'); END;
""" + "".join(
    f"""
CREATE TRIGGER {table}_new BEFORE INSERT ON {table} WHEN {clash}
  BEGIN SELECT RAISE(ABORT, 'ledger {table} are never replaced'); END;
CREATE TRIGGER {table}_fixed BEFORE UPDATE ON {table}
  BEGIN SELECT RAISE(ABORT, 'ledger {table} are never changed'); END;
CREATE TRIGGER {table}_kept BEFORE DELETE ON {table}
  BEGIN SELECT RAISE(ABORT, 'ledger {table} are never deleted'); END;
"""
    for table, clash in (
        ("limits", "EXISTS (SELECT 1 FROM limits WHERE id = NEW.id)"),
        ("fingerprints", "EXISTS (SELECT 1 FROM fingerprints WHERE id = NEW.id OR fingerprint = NEW.fingerprint)"),
    )
)


def prepare(path: Path, timeout: float, *, create: bool) -> None:
    """Check that ``path`` is a sound ledger; make an empty one first if it is missing and ``create`` allows."""
    if path.is_dir():
        raise LedgerError(f"{path} is a folder, not a ledger file")
    if not path.exists():
        if not create:
            raise LedgerError(f"no ledger at {path}")
        if not path.parent.is_dir():
            raise LedgerError(f"cannot create the ledger {path}: the folder {path.parent} does not exist")
        _make(path, timeout)
    with connect(path, timeout) as connection:
        check(connection, path)
        if (found := connection.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
            raise LedgerError(f"the ledger {path} is damaged ({found}); restore it from a copy")


def _make(path: Path, timeout: float) -> None:
    """A ledger without entries, made under another name: an empty file is never one whose making was cut off."""
    made = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with connect(made, timeout, create=True, named=path) as connection:
            connection.execute("BEGIN IMMEDIATE")
            for statement in _statements():
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            connection.execute("COMMIT")
        with suppress(FileExistsError):  # another process was faster: its ledger stays
            try:
                os.link(made, path)
            except FileExistsError:
                raise
            except OSError:  # a file system without hard links
                with path.open("xb"):
                    made.replace(path)
    except OSError as error:
        raise LedgerError(f"cannot create the ledger {path}: {error.strerror}") from error
    finally:
        made.unlink(missing_ok=True)


def check(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a database that is not a ledger of this version."""
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if application != APPLICATION_ID and _is_empty(connection):
        raise LedgerError(f"the ledger {path} is empty: what it held is gone; restore it from a copy")
    if application != APPLICATION_ID:
        raise LedgerError(f"{path} is not a daskrado ledger (it is another SQLite database)")
    if version != SCHEMA_VERSION:
        raise LedgerError(f"the ledger {path} has version {version}; this daskrado reads version {SCHEMA_VERSION}")


@contextmanager
def connect(
    path: Path, timeout: float, *, create: bool = False, named: Path | None = None
) -> Iterator[sqlite3.Connection]:
    """A connection for one operation, durable, in explicit-transaction mode; SQLite errors become LedgerErrors.

    ``synchronous=EXTRA`` is FULL plus a sync of the folder after the rollback journal is removed: without it a
    power cut just after a debit could bring the journal back and undo the debit.
    """
    connection = None
    try:
        uri = f"file:{quote(str(path.absolute()))}?mode={'rwc' if create else 'rw'}"
        connection = sqlite3.connect(uri, uri=True, timeout=timeout, isolation_level=None)
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA synchronous = EXTRA")
        yield connection
    except sqlite3.Error as error:
        raise LedgerError(_explain(error, named or path, timeout)) from error
    finally:
        if connection is not None:
            connection.close()  # rolls back whatever was not committed


@contextmanager
def transaction(path: Path, timeout: float) -> Iterator[sqlite3.Connection]:
    """One write transaction that holds the ledger's only write lock from its first read to its commit."""
    if not path.is_file():
        raise LedgerError(f"no ledger at {path}")
    with connect(path, timeout) as connection:
        connection.execute("BEGIN IMMEDIATE")
        check(connection, path)
        yield connection
        connection.execute("COMMIT")


@contextmanager
def reading(path: Path, timeout: float) -> Iterator[sqlite3.Connection]:
    """One consistent view of the ledger; never creates or changes anything."""
    if not path.is_file():
        raise LedgerError(f"no ledger at {path}")
    with connect(path, timeout) as connection:
        connection.execute("BEGIN")
        check(connection, path)
        yield connection


def _is_empty(connection: sqlite3.Connection) -> bool:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    return bool(application == 0 and tables == 0)


def _statements() -> Iterator[str]:
    """The schema one statement at a time: ``executescript`` would commit the transaction it runs in."""
    pending = ""
    for line in _SCHEMA.splitlines():
        pending += line + "\n"
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""


def _explain(error: sqlite3.Error, path: Path, timeout: float) -> str:
    name = getattr(error, "sqlite_errorname", "")
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return f"the ledger {path} is locked by another process; waited {timeout:g} s; try again when it is done"
    if name.startswith("SQLITE_NOTADB"):
        return f"{path} is not a ledger: the file is not an SQLite database"
    if name.startswith("SQLITE_CORRUPT"):
        return f"the ledger {path} is damaged ({error}); restore it from a copy"
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
        return f"the ledger {path} cannot be opened for writing: the file and its folder must be writable ({error})"
    if name.startswith("SQLITE_CONSTRAINT"):
        return f"the ledger {path} refused the change: {error}"
    return f"the ledger {path} cannot be used: {error}"
