"""A ledger in an SQLite file: its tables, its connections, and clear errors about the file.

A connection lives for one operation only. So a ledger object may be forked, pickled and shared between threads,
and no process ever holds a lock between two operations.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from daskrado.errors import LedgerError, NoLedgerError
from daskrado.lake.file_locks import has_locks
from daskrado.ledger.store import TABLES, VERSION, Rows

APPLICATION_ID = 0x6461736B  # "dask"

# Triggers stop mistakes and raw SQL; they do not stop somebody who owns the file and wants to cheat, which the chain
# shows. REPLACE deletes without firing a delete trigger, so inserting over an existing row is refused as well.
_STOP = "BEGIN SELECT RAISE(ABORT, 'rows of {0} are never {1}'); END"
TRIGGERS = (
    *(
        f"CREATE TRIGGER {table}_{event.lower()} BEFORE {event} ON {table} {when}{_STOP.format(table, done)}"
        for table, key in (("records", "id"), ("lakes", "record"), ("balances", "budget"))
        for event, done, when in (
            ("INSERT", "replaced", f"WHEN EXISTS (SELECT 1 FROM {table} WHERE {key} = NEW.{key}) "),
            ("UPDATE", "put back", "WHEN NEW.record <= OLD.record OR NEW.budget <> OLD.budget ")
            if table == "balances"
            else ("UPDATE", "changed", ""),
            ("DELETE", "removed", ""),
        )
    ),
)
_OF_VERSION_1 = "CREATE TABLE sqlite_sequence(name,seq)"  # SQLite's own; it stays in a file that was converted
SCHEMA = tuple(f"{statement} STRICT" if "CREATE TABLE" in statement else statement for statement in TABLES) + TRIGGERS


@dataclass(frozen=True)
class SqliteRows:
    """One transaction of a ledger file."""

    address: str
    connection: sqlite3.Connection

    def execute(self, statement: str, values: Sequence[object] = ()) -> Iterable[Mapping[str, Any]]:
        """Run one statement; the rows that it finds."""
        return self.connection.execute(statement, values)


@dataclass(frozen=True)
class LedgerFile:
    """The store of a ledger on a local disk. ``convert`` turns the tables of version 1 into records."""

    path: Path
    timeout: float
    fill: Callable[[Rows], None]
    convert: Callable[[Rows], None]

    @property
    def address(self) -> str:
        """The path."""
        return str(self.path)

    def prepare(self, *, create: bool) -> None:
        """Check that the path is a ledger of this version; make an empty one if it is missing and ``create`` allows.

        A ledger of version 1 is converted in place, in one transaction: whoever waited for the lock with an older
        daskrado finds version 2 and refuses it.
        """
        if self.path.is_dir():
            raise LedgerError(f"{self.path} is a folder, not a ledger file")
        if not self.path.exists():
            if not create:
                raise NoLedgerError(f"no ledger at {self.path}")
            if not self.path.parent.is_dir():
                raise LedgerError(
                    f"cannot create the ledger {self.path}: the folder {self.path.parent} does not exist"
                )
            self._make()
        with self._connected() as connection:
            version = self._version(connection)
        if version == 1:
            self._convert()

    def _make(self) -> None:
        """A ledger without entries, made under another name: an empty file is never one whose making was cut off."""
        made = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}")
        try:
            with suppress(OSError):  # what SQLite says of a folder that cannot be written is said below
                os.close(os.open(made, os.O_CREAT | os.O_EXCL, 0o600))
            with self._connected(made) as connection:
                connection.execute("BEGIN IMMEDIATE")
                self._lay_out(connection)
                self.fill(SqliteRows(self.address, connection))
                connection.execute("COMMIT")
            with suppress(FileExistsError):  # another process was faster: its ledger stays
                try:
                    os.link(made, self.path)
                except FileExistsError:
                    raise
                except OSError:  # a file system without hard links
                    with self.path.open("xb"):
                        made.replace(self.path)
        except OSError as error:
            raise LedgerError(f"cannot create the ledger {self.path}: {error.strerror}") from error
        finally:
            made.unlink(missing_ok=True)

    @staticmethod
    def _lay_out(connection: sqlite3.Connection) -> None:
        for statement in SCHEMA:
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION}")

    def _convert(self) -> None:
        with self._connected() as connection:
            connection.execute("BEGIN IMMEDIATE")
            if self._version(connection) != 1:
                return  # another process was faster
            if connection.execute("PRAGMA integrity_check(1)").fetchone()[0] != "ok":
                raise LedgerError(f"the ledger {self.path} is damaged; restore it from a copy")
            self._lay_out(connection)
            self.convert(SqliteRows(self.address, connection))
            for table in ("entries", "limits", "fingerprints"):
                connection.execute(f"DROP TABLE {table}")
            connection.execute("COMMIT")
        with suppress(OSError):
            self.path.chmod(0o600)

    def _version(self, connection: sqlite3.Connection) -> int:
        """The version of a ledger that this daskrado reads or converts; refuse everything else."""
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if application == 0 and connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
            raise LedgerError(f"the ledger {self.path} is empty: what it held is gone; restore it from a copy")
        if application != APPLICATION_ID:
            raise LedgerError(f"{self.path} is not a daskrado ledger (it is another SQLite database)")
        if version not in (1, VERSION):
            raise LedgerError(
                f"the ledger {self.path} has version {version}; this daskrado reads versions 1 and {VERSION}: "
                "use the daskrado that wrote it"
            )
        return int(version)

    def check_pages(self) -> None:
        """Refuse a file with damaged pages, indexes or tables. What a record says is checked by its digest."""
        with self._connected() as connection:
            if (found := connection.execute("PRAGMA integrity_check(1)").fetchone()[0]) != "ok":
                why = " ".join(found.split())
                raise LedgerError(f"the ledger {self.path} is damaged ({why}); restore it from a copy")
            known = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")
            if {row["sql"] for row in known} - {_OF_VERSION_1} != {*SCHEMA}:
                raise LedgerError(
                    f"the ledger {self.path} is damaged (its tables were changed); restore it from a copy"
                )

    @contextmanager
    def _connected(self, path: Path | None = None) -> Iterator[sqlite3.Connection]:
        """A connection for one operation, durable, in explicit-transaction mode; SQLite errors become LedgerErrors.

        ``synchronous=EXTRA`` is FULL plus a sync of the folder after the rollback journal is removed: without it a
        power cut just after a debit could bring the journal back and undo the debit.
        """
        connection = None
        try:
            uri = f"file:{quote(str((path or self.path).absolute()))}?mode=rw"
            connection = sqlite3.connect(uri, uri=True, timeout=self.timeout, isolation_level=None)
            connection.row_factory = sqlite3.Row
            connection.execute("PRAGMA synchronous = EXTRA")
            yield connection
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise LedgerError(_explain(error, self.path, self.timeout)) from error
        finally:
            if connection is not None:
                connection.close()  # rolls back whatever was not committed

    @contextmanager
    def transaction(self) -> Iterator[Rows]:
        """One write transaction that holds the ledger's only write lock from its first read to its commit."""
        with self._begun("BEGIN IMMEDIATE") as connection:
            yield SqliteRows(self.address, connection)
            connection.execute("COMMIT")

    @contextmanager
    def reading(self) -> Iterator[Rows]:
        """One consistent view of the ledger; never creates or changes anything."""
        with self._begun("BEGIN") as connection:
            yield SqliteRows(self.address, connection)

    @contextmanager
    def _begun(self, how: str) -> Iterator[sqlite3.Connection]:
        if not self.path.is_file():
            raise NoLedgerError(f"no ledger at {self.path}")
        with self._connected() as connection:
            connection.execute(how)
            if self._version(connection) == 1:
                raise LedgerError(f"the ledger {self.path} has version 1: a copy was put back; open it again")
            yield connection


def _explain(error: Exception, path: Path, timeout: float) -> str:
    name = getattr(error, "sqlite_errorname", "")
    if name.startswith("SQLITE_BUSY") and not has_locks(path.parent):
        name = "SQLITE_IOERR_LOCK"  # SQLite takes a lock that is not there for one that is held
    for beginnings, text in _EXPLAINED:
        if name.startswith(beginnings):
            return text.format(path=path, error=error, timeout=timeout)
    return f"the ledger {path} cannot be used: {error}"


_EXPLAINED = (
    (
        ("SQLITE_BUSY", "SQLITE_LOCKED"),
        "the ledger {path} is locked by another process; waited {timeout:g} s; try again when it is done",
    ),
    (("SQLITE_NOTADB",), "{path} is not a ledger: the file is not an SQLite database"),
    (("SQLITE_CORRUPT",), "the ledger {path} is damaged ({error}); restore it from a copy"),
    (
        ("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM"),
        "the ledger {path} cannot be opened for writing: the file and its folder must be writable ({error})",
    ),
    (("SQLITE_CONSTRAINT",), "the ledger {path} refused the change: {error}"),
    (
        (
            "SQLITE_IOERR_LOCK",
            "SQLITE_IOERR_RDLOCK",
            "SQLITE_IOERR_UNLOCK",
            "SQLITE_IOERR_CHECKRESERVED",
            "SQLITE_NOLFS",
        ),
        "the ledger {path} is on a file system without locks; keep it on a local disk, or use a postgresql:// ledger",
    ),
    (
        ("SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_FSYNC", "SQLITE_IOERR_TRUNCATE"),
        "the ledger {path} could not be written: is the disk full? ({error}); this step changed nothing in it",
    ),
)
