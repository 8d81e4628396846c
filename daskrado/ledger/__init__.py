"""Who pays and what is kept: the ledger, the account of a run, its journal."""

from __future__ import annotations
