"""A ledger in a PostgreSQL database, for a team: several machines share one budget.

The tables lie in a schema of their own, ``daskrado``. A connection lives for one operation, as with a file. Journals
and engines of its runs stay on the machine that runs them, in ``~/.daskrado`` (or beside the file that
``DASKRADO_LEDGER`` names), in folders called ``postgresql-`` and a digest of the server's and the database's name.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daskrado.errors import LedgerError, NoLedgerError, UsageError
from daskrado.ledger.config import local_folder
from daskrado.ledger.store import TABLES, Rows

if TYPE_CHECKING:
    import psycopg

_SCHEMA = "daskrado"
_TRIGGERS = (
    "CREATE FUNCTION stop() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN RAISE EXCEPTION 'rows of %s are never changed or removed', TG_TABLE_NAME; END $$",
    *(
        f"CREATE TRIGGER {table}_fixed BEFORE {events} ON {table} {each} EXECUTE FUNCTION stop()"
        for table, events, each in (
            ("records", "UPDATE OR DELETE", "FOR EACH ROW"),
            ("lakes", "UPDATE OR DELETE", "FOR EACH ROW"),
            ("balances", "DELETE", "FOR EACH ROW"),
        )
    ),
    *(
        f"CREATE TRIGGER {table}_kept BEFORE TRUNCATE ON {table} EXECUTE FUNCTION stop()"
        for table in ("records", "lakes", "balances")
    ),
    "CREATE TRIGGER balances_forward BEFORE UPDATE ON balances FOR EACH ROW WHEN "
    "(NEW.record <= OLD.record OR NEW.budget <> OLD.budget) EXECUTE FUNCTION stop()",
)


@dataclass(frozen=True)
class PostgresRows:
    """One transaction of a ledger on a server."""

    address: str
    connection: psycopg.Connection[Any]

    def execute(self, statement: str, values: Sequence[object] = ()) -> Iterable[Mapping[str, Any]]:
        """Run one statement; the rows that it finds."""
        return self.connection.execute(statement.replace("?", "%s").encode(), values)


@dataclass(frozen=True)
class Postgres:
    """The store of a ledger on a PostgreSQL server."""

    url: str = field(repr=False)
    timeout: float
    fill: Callable[[Rows], None]

    @cached_property
    def address(self) -> str:
        """User, server and database, without the password."""
        psycopg = _psycopg()
        try:
            found = psycopg.conninfo.conninfo_to_dict(self.url)
        except psycopg.Error:  # which quotes what it cannot read: it may be the password
            raise UsageError(
                "this address of a ledger cannot be read: write postgresql://USER@HOST:PORT/DATABASE, with %40 for "
                "an @ and %25 for a % inside a name or a password"
            ) from None
        user, host = found.get("user", ""), found.get("host", "localhost")
        port = f":{found['port']}" if "port" in found else ""
        place, socket = ("", f"?host={host}") if host.startswith("/") else (host, "")
        return f"postgresql://{user}{'@' if user else ''}{place}{port}/{found.get('dbname', '')}{socket}"

    @cached_property
    def path(self) -> Path:
        """A local name, beside which journals and engines are kept."""
        place = self.address.partition("://")[2].rpartition("@")[2]
        name = f"postgresql-{hashlib.sha256(place.encode()).hexdigest()[:16]}"
        return local_folder() / name

    def prepare(self, *, create: bool) -> None:
        """Check that the database holds a ledger; make an empty one if it holds none and ``create`` allows."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._connected() as connection:
            if self._holds(connection):
                return
            if not create:
                raise NoLedgerError(f"no ledger at {self.address}")
            connection.execute("SELECT pg_advisory_xact_lock(hashtext('daskrado'))")
            if not self._made(connection):  # no other process was faster
                connection.execute(f"CREATE SCHEMA IF NOT EXISTS {_SCHEMA}")
                for statement in (*_tables(), *_TRIGGERS):
                    connection.execute(statement.encode())
                self.fill(PostgresRows(self.address, connection))
            connection.commit()

    @staticmethod
    def _holds(connection: psycopg.Connection[Any]) -> bool:
        found = connection.execute(f"SELECT to_regclass('{_SCHEMA}.records') AS found").fetchone()
        return found is not None and found["found"] is not None

    @staticmethod
    def _made(connection: psycopg.Connection[Any]) -> bool:
        """Whether the table is there now: a fresh read, where ``to_regclass`` may answer from the session's cache."""
        asked = "SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = %s AND tablename = 'records'"
        return connection.execute(asked, (_SCHEMA,)).fetchone() is not None

    def check_pages(self) -> None:
        """Nothing: pages and indexes are the server's affair (``initdb --data-checksums``)."""

    @contextmanager
    def transaction(self) -> Iterator[Rows]:
        """One write transaction, which excludes all others from its first read to its commit."""
        with self._connected() as connection:
            connection.execute("LOCK TABLE records IN EXCLUSIVE MODE")
            yield PostgresRows(self.address, connection)
            connection.commit()

    @contextmanager
    def reading(self) -> Iterator[Rows]:
        """One consistent view of the ledger."""
        with self._connected() as connection:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield PostgresRows(self.address, connection)

    @contextmanager
    def _connected(self) -> Iterator[psycopg.Connection[Any]]:
        """A connection for one operation; errors of the server become LedgerErrors, and nothing is half done."""
        psycopg = _psycopg()
        try:
            connection = self._connect(psycopg)
            try:
                yield connection
            finally:
                connection.close()  # rolls back whatever was not committed
        except psycopg.Error as error:
            raise LedgerError(self._explain(error)) from error

    def _connect(self, psycopg: Any) -> psycopg.Connection[Any]:
        """Connect, and wait while the server has no place for another client."""
        options = (
            f"-c search_path={_SCHEMA} -c lock_timeout={max(1, int(self.timeout * 1000))} -c synchronous_commit=on"
        )
        until = time.monotonic() + self.timeout
        while True:
            try:
                return psycopg.connect(  # type: ignore[no-any-return]
                    self.url,
                    options=options,
                    connect_timeout=max(2, int(self.timeout)),
                    row_factory=psycopg.rows.dict_row,
                )
            except psycopg.OperationalError as error:
                if "too many clients" not in str(error) or time.monotonic() > until:
                    raise
                time.sleep(0.05)

    def _explain(self, error: psycopg.Error) -> str:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        match error.sqlstate:
            case "55P03":
                return (
                    f"the ledger {self.address} is locked by another process; waited {self.timeout:g} s; "
                    "try again when it is done"
                )
            case "42501":
                return f"the ledger {self.address} cannot be used by this user: {first}"
            case "53100":
                return f"the ledger {self.address} could not be written: the server's disk is full"
            case "P0001" | "23505":
                return f"the ledger {self.address} refused the change: {first}"
            case None:
                return (
                    f"the ledger {self.address} cannot be reached ({first}); `daskrado ledger show` says what is "
                    "charged"
                )
        return f"the ledger {self.address} cannot be used: {first}"


def _tables() -> Iterator[str]:
    """The tables as this server writes them; names compare by their bytes, as in a file."""
    for statement in TABLES:
        yield statement.replace(" INTEGER", " BIGINT").replace(" TEXT", ' TEXT COLLATE "C"')


def _psycopg() -> Any:
    try:
        import psycopg
        import psycopg.conninfo
        import psycopg.rows
    except ImportError:
        raise UsageError("a postgresql:// ledger needs psycopg: pip install 'daskrado[postgres]'") from None
    return psycopg
