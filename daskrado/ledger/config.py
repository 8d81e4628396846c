"""Which ledger a job debits."""

from __future__ import annotations

import os
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
