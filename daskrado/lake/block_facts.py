"""What a ledger knows of blocks: a name for each of them, and what was read. Light, since every ledger loads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

EACH = "*"
"""In the place of a block's name: each of them."""


@dataclass(frozen=True)
class Reading:
    """What a ledger notes of the rows that it is charged for: the table's version, and what each block holds.

    ``blocks`` has a fingerprint for each block. It is a fact about private rows, and stays in the ledger.
    """

    table: Mapping[str, Any] | None = None
    column: str = ""
    blocks: Mapping[str, str] = field(default_factory=dict, repr=False)
