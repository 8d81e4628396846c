"""Ledgers of version 1: their tables become records, and every old entry costs what it would cost today."""

from __future__ import annotations

import json

from daskrado.errors import DaskradoError, LedgerError
from daskrado.ledger import chain, checked
from daskrado.ledger.balances import limited, write_debit
from daskrado.ledger.chain import Kind
from daskrado.ledger.entries import whose
from daskrado.ledger.records import Debit
from daskrado.ledger.store import Rows
from daskrado.privacy.accountant import event_from_json
from daskrado.privacy.filter import filter_for

_WHO = "version 1"
_SETTLED = {"spent": Kind.SPEND, "void": Kind.VOID}


def convert(rows: Rows) -> None:
    """Turn the tables ``limits``, ``fingerprints`` and ``entries`` into the chain of a new ledger.

    Nobody gains budget: every entry keeps its number and its state and is charged by the rule of its limit. Where old
    charges exceed that rule, nothing is left. Version 1 composed the least of several totals, so they may.
    """
    checked.begin(rows, _WHO)
    try:
        for row in list(rows.execute("SELECT * FROM entries ORDER BY id")):
            event = event_from_json(json.loads(row["event"]))
            debit = Debit(whose(row["relation"]), event, row["theorem"])
            own = _WHO, row["dataset"], row["run"], row["id"]
            write_debit(rows, debit, row["fingerprint"], [], *own, at=row["reserved_at"])
            if row["state"] != "reserved":
                name = row["relation"] if row["state"] == "void" else ""
                chain.append(rows, _SETTLED[row["state"]], {}, *own, name, row["settled_at"])
        for row in list(rows.execute("SELECT * FROM limits ORDER BY id")):
            rule = filter_for(row["epsilon"], row["delta"])
            limited(rows, row["dataset"], [(whose(row["relation"]), rule)], who=_WHO, at=row["set_at"])
    except (DaskradoError, ValueError, KeyError) as error:
        raise LedgerError(f"the ledger {rows.address} of version 1 holds something unreadable: {error}") from error
