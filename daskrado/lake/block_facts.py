"""What a ledger knows of blocks: a name for each of them, and what was read. Light, since every ledger loads it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

EACH = "*"
"""In the place of a block's name: each of them."""


@dataclass(frozen=True)
class Reading:
    """What a ledger notes of the rows that it is charged for: the table's version, and what each block holds.

    ``blocks`` has a fingerprint for each block, which stays in the ledger; None for those of a frame, which are not
    known again: a made-up frame must learn nothing from being refused or not. ``files`` has the marks by which each
    file is known again, with its path; the ledger keeps them under a key.
    """

    table: Mapping[str, Any] | None = None
    column: str = ""
    blocks: Mapping[str, str | None] = field(default_factory=dict, repr=False)
    files: Mapping[str, str] = field(default_factory=dict, repr=False)


def public_name(identity: str) -> str:
    """A table's identity as it is published: who knows this name cannot make a table with that identity."""
    return hashlib.sha256(f"table {identity}".encode()).hexdigest()[:32] if identity else "of an older version"
