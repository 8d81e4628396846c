"""Every limit's share, counted anew from the records alone, after random histories; nothing of the ledger's own sums.

What is expected follows from the meaning of a record: a unit's loss is the sum over all debits that are not void and
that read it. Only the mathematics (group events, the cost of an event under a rule) is shared with the ledger.
"""

import itertools
import json
import random
from fractions import Fraction

import pytest
from click.testing import CliRunner

from daskrado.cli.main import cli
from daskrado.errors import BudgetError, DaskradoError
from daskrado.ledger import balances
from daskrado.ledger.history import check_all, exported, verified
from daskrado.ledger.ledger import EACH, Ledger
from daskrado.privacy.accountant import ApproximateEvent, GaussianEvent, PureEvent, ZcdpEvent, gaussian_mu
from daskrado.privacy.events import event_from_json
from daskrado.privacy.filter import Cost, filter_from_json
from daskrado.privacy.groups import ProtectedUnit, charged_as

RELATIONS = ["add_remove", "replace_one", "label_flip", "feature_flip"]
BLOCKS = ["a", "b", "c"]


def a_limit(draw: random.Random) -> ProtectedUnit | None:
    if draw.random() < 0.3:
        return None
    relation, people = draw.choice(RELATIONS), draw.random() < 0.3
    own = {"column": "p", "unit": "one p", "owns": draw.choice([None, 1, 3])} if people else {}
    return ProtectedUnit(relation, feature="" if relation == "feature_flip" else None, **own)


def a_debit(draw: random.Random) -> tuple[ProtectedUnit, object]:
    relation, column = draw.choice(RELATIONS), draw.choice([None, None, None, "p", "q"])
    own = {"rows": draw.choice([1, 1, 2])} if column is None else {"column": column, "unit": "one", "bound": 1}
    size = draw.choice([0.01, 0.05, 0.2, 0.5, 1, 2])
    kind = draw.random()
    event = (
        PureEvent(str(size))
        if kind < 0.4
        else GaussianEvent(gaussian_mu(size, 1e-6))
        if kind < 0.8
        else ApproximateEvent(str(size), "1e-9")
        if kind < 0.9
        else ZcdpEvent(size**2 / 20)
    )
    return ProtectedUnit(relation, feature=draw.choice("st") if relation == "feature_flip" else None, **own), event


def live(ledger: Ledger, draw: random.Random, steps: int) -> None:
    """Limits, debits, spends and voids by chance; whatever is refused is refused."""
    open_grants = []
    for step in range(steps):
        what = draw.random()
        try:
            if step == 0 or what < 0.25:
                epsilon, delta = draw.choice(
                    [(0.5, "1e-6"), (1, "1e-6"), (2, "1e-5"), (3, 0), (5, "1e-5"), (20, "1e-5")]
                )
                block = draw.choice(["", "", "", EACH, EACH, "a"])
                ledger.set_limit("d", a_limit(draw) if step else None, epsilon, delta, block=block)
            elif what < 0.85:
                blocks = draw.choice([(), ("a",), ("a", "b"), ("c",), (EACH,), (EACH, "b")])
                whose, event = a_debit(draw)
                part = draw.choice(["", "", "", "one/x", "one/y", "one/x + w", "one/w + y", "two/z"])
                grant = ledger.reserve("d", whose, event, theorem="t", run="r", blocks=blocks, part=part)
                open_grants.append(grant)
            elif open_grants:
                grant = open_grants.pop(draw.randrange(len(open_grants)))
                (ledger.void if draw.random() < 0.6 else ledger.spend)(grant)
        except DaskradoError:
            continue


def history(ledger: Ledger) -> tuple[dict, list[tuple[ProtectedUnit, object, list[str], str]]]:
    """The limits in force, by whom they are for and which block, and the debits that are not void."""
    limits, debits = {}, {}
    for _, kind, _, _, _, _, entry, _, body, _ in exported(ledger)["records"]:
        facts = json.loads(body)
        if kind == "limit":
            whose = ProtectedUnit(**facts["whose"])
            key = (whose.relation, whose.column, whose.within, whose.feature, whose.rows)
            limits[(*key, facts["block"])] = whose, filter_from_json(facts["rule"])
        elif kind == "debit":
            event = event_from_json(facts["event"])
            debits[entry] = ProtectedUnit(**facts["whose"]), event, facts["blocks"], facts.get("part", "")
        elif kind == "void":
            del debits[entry]
    return limits, list(debits.values())


def worst(whose: ProtectedUnit, rule, block: str, debits) -> tuple[Fraction, bool]:
    """The largest share that a unit of a block has lost, and whether it has to be what the ledger says exactly."""
    own = []
    for debited, event, blocks, part in debits:
        if block and blocks and block not in blocks and EACH not in blocks:
            continue
        counts = charged_as(event, debited, whose)
        if counts is not None:
            own.append((rule.cost(counts), *part.rpartition("/")[::2]))
    partitions = {}
    for _, partition, part in own:
        if partition:
            partitions.setdefault(partition, {""}).update(part.split(" + "))
    most, exact = Fraction(0), len(partitions) < 2
    for chosen in itertools.product(*partitions.values()):
        place = dict(zip(partitions, chosen, strict=True))
        costs = [cost for cost, partition, part in own if not partition or place[partition] in part.split(" + ")]
        share = rule.share(sum(costs, Cost()))
        if share > 1 and len(costs) == 1:  # one event alone within the limit takes all of it, whatever the rule says
            share, exact = Fraction(1), False
        most = max(most, share)
    return most, exact and most <= 1


def check_shares(ledger: Ledger) -> int:
    """Compare every budget, of every block, begun or not; the number of them."""
    limits, debits = history(ledger)
    with ledger.store.reading() as rows:
        known = balances.with_begun(balances.budgets_of(rows, "d"), BLOCKS)
    told = {}
    for budget in known:
        whose = budget.balance.whose
        key = (whose.relation, whose.column, whose.within, whose.feature, whose.rows)
        told[(*key, budget.balance.block)] = budget.balance
    for (*key, block), (whose, rule) in limits.items():
        own = [b for b in BLOCKS if (*key, b) not in limits]
        for place in [block, *own] if block == EACH else [block]:
            balance = told.pop((*key, place))
            assert balance.rule == rule
            share, exact = worst(whose, rule, place, debits)
            said = rule.share(balance.total)
            assert said == share if exact else said >= share, (str(whose), place, float(said), float(share))
    assert not told
    return len(known)


@pytest.mark.parametrize("seed", range(24))
def test_every_limit_counts_what_the_records_say(address, seed):
    ledger, draw, checked = Ledger.open(address), random.Random(seed), 0
    for _ in range(6):
        live(ledger, draw, 6)
        checked += check_shares(ledger)
    assert checked
    check_all(ledger)
    verified("x", exported(ledger))


def test_a_limit_for_each_block_counts_what_its_blocks_paid_before(address, tmp_path):
    """Three runs of one day fill a budget that is set for each day after them; other days are free."""
    ledger = Ledger.open(address)
    ledger.set_limit("visits", None, 10, "1e-5")
    event = GaussianEvent(gaussian_mu(1, 1e-6))
    for run in "123":
        last = ledger.reserve("visits", "add_remove", event, theorem="t", run=run, blocks=["2026-11-17"])
    words = ["ledger", "limit", "visits", "--epsilon", "1", "--delta", "1e-6", "--per-block", "--ledger", address]
    assert CliRunner().invoke(cli, words).exit_code == 0
    with pytest.raises(BudgetError, match="block 2026-11-17 of visits"):
        ledger.reserve("visits", "add_remove", event, theorem="t", run="4", blocks=["2026-11-17"])
    ledger.reserve("visits", "add_remove", event, theorem="t", run="5", blocks=["2026-11-18"])
    ledger.void(last)
    check_all(ledger)
