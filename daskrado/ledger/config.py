"""Which ledger a job debits."""

from __future__ import annotations

import getpass
import os
from contextvars import ContextVar
from pathlib import Path

from daskrado.privacy.protect import Budget
from daskrado.table.yaml_file import Frozen


class LedgerConfig(Frozen):
    """Which ledger is debited. ``first_limit`` applies only to a data set whose owner has set no limit yet."""

    path: str | None = None
    first_limit: Budget | None = None


def default_ledger() -> Path:
    """The ledger of this user, unless the environment variable DASKRADO_LEDGER names another."""
    named = os.environ.get("DASKRADO_LEDGER")
    return Path(named) if named else Path.home() / ".daskrado" / "ledger.sqlite"


who: ContextVar[str | None] = ContextVar("who", default=None)
"""The name that ``--who`` gave for this command."""


def this_user() -> str:
    """The name that stands in a ledger's records: what ``--who`` gave, else this user's."""
    given = who.get()
    if given is not None:
        return given
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in some containers
        return str(os.getuid())
