"""Blocks in the ledger: closed at their first debit, known again by what they hold, each with a budget of its own.

A block is closed before anything about it is released: from then on no row may be added to it, so that what it can
lose is fixed before the first answer. It is known by its fingerprint, which stays in the ledger, under a key.

*Reference*: Lécuyer et al., "Privacy Accounting and Quality Control in the Sage Differentially Private ML Platform",
SOSP 2019; Luo et al., "Privacy Budget Scheduling", OSDI 2021.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence

from daskrado.errors import BudgetError, DataError, UsageError
from daskrado.lake.block_facts import EACH, Reading, public_name
from daskrado.ledger import balances, chain, parts
from daskrado.ledger.balances import Budget
from daskrado.ledger.chain import Kind, Record
from daskrado.ledger.checked import keyed
from daskrado.ledger.records import Balance, Debit
from daskrado.ledger.store import Rows, Store
from daskrado.privacy.groups import ProtectedUnit
from daskrado.privacy.relations import Relation


def check_rows(relation: Relation | str | ProtectedUnit | None, block: str) -> None:
    """Refuse a limit for people on a block: one of them may have rows in several, and lose something in each.

    Their rows with one value of a column are a unit that lies in one block, if blocks are the values of that column.
    """
    if block and isinstance(relation, ProtectedUnit) and relation.column is not None and relation.within is None:
        raise UsageError(
            f"a budget of a block is for its rows: {relation.unit} may have rows in several blocks; set a limit for "
            "the whole data set, without --per-block, or one for their rows of one block, --within COLUMN"
        )


def close(rows: Rows, dataset: str, reading: Reading, charged: Sequence[Budget], who: str, run: str) -> None:
    """Close the blocks that are read for the first time; refuse one that changed since, or has another name.

    A block whose debits are all void may hold something else now: nothing was released of it. All blocks of a data
    set are values of one column: a row has one value of each, so those of a second one would give it a second budget.
    """
    if reading.blocks:
        _check_column(rows, dataset, reading.column)
    for block, fingerprint in reading.blocks.items():
        hidden = None if fingerprint is None else keyed(rows, fingerprint)
        if hidden is not None:
            known_elsewhere(rows, dataset, hidden, f"block {block}")
        known = _closed(rows, dataset, block)
        if known is not None and known.fingerprint == hidden:
            continue
        if known is not None and _used([budget.balance for budget in charged if budget.balance.block == block]):
            raise DataError(
                f"block {reading.column}={block} of data set {dataset!r} was closed when it was first charged, and "
                "its rows have changed since; nothing was debited; restore it, and put late rows into a later block"
            )
        _write(rows, dataset, reading, block, hidden, who, run)


def _write(rows: Rows, dataset: str, reading: Reading, block: str, hidden: str | None, who: str, run: str) -> None:
    salt = secrets.token_hex(16)
    table = None if reading.table is None else reading.table["table"]
    body = {"column": reading.column, "table": table, "seal": chain.seal(hidden, salt)}
    record = chain.append(rows, Kind.CLOSE, body, who, dataset, run, name=block)
    if hidden is not None:
        rows.execute(
            "INSERT INTO lakes (record, dataset, fingerprint, salt) VALUES (?, ?, ?, ?)",
            (record.id, dataset, hidden, salt),
        )


def known_elsewhere(rows: Rows, dataset: str, hidden: str, what: str) -> None:
    """Refuse what was charged under another name: it would have a second budget."""
    for row in rows.execute("SELECT dataset FROM lakes WHERE fingerprint = ?", (hidden,)):
        if (name := row["dataset"]) != dataset:
            raise BudgetError(
                f"{what} is already in the ledger {rows.address} as {name!r}; a second name, {dataset!r}, would give "
                f"it a second budget; nothing was debited; use the name {name!r}"
            )


def _check_column(rows: Rows, dataset: str, column: str | None) -> None:
    """Refuse another column than that whose values are this data set's blocks: that of the first that was closed."""
    first = next(chain.records(rows, "r.dataset = ? AND r.kind = ?", (dataset, str(Kind.CLOSE))), None)
    if first is not None and (own := first.facts["column"]) != column:
        raise BudgetError(
            f"data set {dataset!r} has budgets for the values of {own!r}; those of {column!r} would give each row a "
            f"second one; nothing was debited; use blocks: {{column: {own}}}"
        )


def _closed(rows: Rows, dataset: str, block: str) -> Record | None:
    """The last record that closed a block."""
    where = "r.dataset = ? AND r.kind = ? AND r.name = ?"
    return next(reversed([*chain.records(rows, where, (dataset, str(Kind.CLOSE), block))]), None)


def _used(own: Sequence[Balance]) -> bool:
    """Whether anything counts against a block's budgets; where it has none, that is not known."""
    return not own or any(balance.entries for balance in own)


class BlockViews:
    """What a ledger tells of blocks."""

    store: Store

    def check_column(self, dataset: str, column: str) -> None:
        """Refuse blocks that are the values of another column than those that were charged."""
        with self.store.reading() as rows:
            _check_column(rows, dataset, column)

    def unpayable(self, dataset: str, debits: Sequence[Debit], blocks: Iterable[str]) -> list[str]:
        """The blocks with a budget of their own that does not cover all debits together."""
        named = list(blocks)
        with self.store.reading() as rows:
            known = balances.with_begun(balances.budgets_of(rows, dataset, named), named)
        short = set()
        for budget in (budget for budget in known if budget.balance.block in named):
            costs = budget.costs(debits)
            if costs and not budget.fits(parts.together(costs, budget.balance), parts.ALL):
                short.add(budget.balance.block)
        return [block for block in named if block in short]

    def block_balances(self, dataset: str) -> dict[str, list[Balance]]:
        """The budgets of each block that was read or has a limit of its own, in the order of their names."""
        found: dict[str, list[Balance]] = {}
        with self.store.reading() as rows:
            told = chain.records(rows, "r.dataset = ? AND r.kind = ?", (dataset, str(Kind.CLOSE)))
            read = dict.fromkeys(record.name for record in told)
            for budget in balances.with_begun(balances.budgets_of(rows, dataset), read):
                if budget.balance.block not in ("", EACH):
                    found.setdefault(budget.balance.block, []).append(budget.balance)
        return dict(sorted(found.items()))

    def closed_blocks(self, table: str, column: str) -> dict[str, str]:
        """The blocks of a table, by its own identity, that no row may be added to, each with its data set."""
        known = public_name(table), column
        with self.store.reading() as rows:
            told = [
                record
                for record in chain.records(rows, "r.kind = ?", (str(Kind.CLOSE),))
                if (record.facts["table"], record.facts["column"]) == known
            ]
        closed = {record.name: record.dataset for record in told}
        own = {name: self.block_balances(name) for name in set(closed.values())}
        return {block: name for block, name in closed.items() if _used(own[name].get(block, []))}
