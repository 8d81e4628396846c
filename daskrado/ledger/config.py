"""Which ledger a job debits."""

from __future__ import annotations

import getpass
import os
from pathlib import Path

from pydantic import AliasChoices, Field

from daskrado.errors import UsageError
from daskrado.privacy.protect import Budget
from daskrado.table.yaml_file import Frozen

MAX_NAME = 100
SERVERS = ("postgresql://", "postgres://")
"""How the address of a ledger on a server begins."""


class LedgerConfig(Frozen):
    """Which ledger is debited: a file, or ``postgresql://user@server/database``.

    ``first_limit`` applies only to a data set whose owner has set no limit yet.
    """

    path: str | None = Field(default=None, validation_alias=AliasChoices("path", "url"))
    first_limit: Budget | None = None


def default_ledger() -> str | Path:
    """The ledger of this user, unless the environment variable DASKRADO_LEDGER names another."""
    named = os.environ.get("DASKRADO_LEDGER")
    if named and named.startswith(SERVERS):
        return named
    return Path(named) if named else Path.home() / ".daskrado" / "ledger.sqlite"


def local_folder() -> Path:
    """Where this machine keeps what belongs to its ledger: beside the default file, or ``~/.daskrado``."""
    chosen = default_ledger()
    return Path.home() / ".daskrado" if isinstance(chosen, str) else chosen.absolute().parent


def this_user() -> str:
    """The name that stands in a ledger's records: DASKRADO_WHO, or what ``--who`` gave, or this user's."""
    try:
        return os.environ.get("DASKRADO_WHO") or getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in some containers
        return str(os.getuid())


def checked_name(who: str) -> str:
    """A name that stands on one line of ``ledger show``, and looks like what it is; or a UsageError."""
    if not (who.isprintable() and 1 <= len(who) <= MAX_NAME):
        raise UsageError(
            f"a name in a ledger has 1 to {MAX_NAME} characters that can be printed on one line, got "
            f"{who[:MAX_NAME]!a}; give another with --who or DASKRADO_WHO"
        )
    return who
