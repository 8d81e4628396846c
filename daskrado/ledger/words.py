"""One currency: every budget in words, as shares of a limit, which add up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import groupby
from typing import Any

from daskrado.lake.block_facts import EACH
from daskrado.ledger.records import Balance, Debit, Mark, Marked
from daskrado.privacy.curves import gaussian_mu
from daskrado.privacy.events import GaussianEvent, PureEvent
from daskrado.privacy.filter import Cost
from daskrado.privacy.groups import ProtectedUnit, steps
from daskrado.privacy.relations import Relation

PAID_EARLIER = "this run: nothing was debited, an earlier one had paid"


def percent(share: Fraction | float) -> str:
    """A share in percent, one decimal; more of them where it would look like nothing, or like all.

    >>> [percent(Fraction(part, 10**6)) for part in (0, 12, 14117, 985883, 999988, 10**6, 1382400)]
    ['0 %', '0.0012 %', '1.4 %', '98.6 %', '99.9988 %', '100 %', '138.2 %']
    """
    value = float(100 * share)
    near = min(abs(value), abs(100 - value))
    if 0 < near < 0.05:
        places = min(18, 1 - min(0, int(f"{near:e}".rpartition("e")[2])))
        return f"{value:.{places}f}".rstrip("0").rstrip(".") + " %"
    return f"{value:.1f}".removesuffix(".0") + " %"


def amount(epsilon: float | Fraction, delta: float | Fraction) -> str:
    """``epsilon 1 at delta 1e-06``; a delta of 0 is not spoken of."""
    return f"epsilon {float(epsilon):g}" + (f" at delta {short(delta)}" if delta else "")


def short(delta: float | Fraction) -> str:
    """A delta as people write it.

    >>> short(1e-6), short(Fraction(25, 10**7)), short(0)
    ('1e-6', '2.5e-6', '0')
    """
    return f"{float(delta):g}".replace("e-0", "e-")


def budget_name(balance: Balance) -> str:
    """``clinic (10, 1e-5)``."""
    limit = balance.limit
    return f"{balance.dataset} ({float(limit.epsilon):g}, {short(limit.delta)})"


@dataclass(frozen=True, slots=True)
class Price:
    """What a run takes from one budget, and how that stands once the run is charged."""

    balance: Balance
    cost: Cost

    @property
    def share(self) -> Fraction:
        """What the run takes of the counter that binds: of which fewest runs like it are left."""
        return self.balance.rule.shares(self.cost)[self._binding]

    @property
    def left(self) -> Fraction:
        """What is left of that counter afterwards."""
        return 1 - self.balance.rule.shares(self.balance.total)[self._binding]

    @property
    def more(self) -> int:
        """How many more runs like it fit."""
        return self.balance.rule.more_like(self.balance.total, self.cost)

    @property
    def largest(self) -> Fraction:
        """What the run takes of the counter of which it takes most."""
        return self.balance.rule.share(self.cost)

    @property
    def over(self) -> bool:
        """Whether the budget does not cover the run, which is in it already."""
        return self.balance.rule.share(self.balance.total) > 1

    @property
    def _binding(self) -> str:
        return self.balance.rule.binding(self.balance.total, self.cost)

    def to_json(self) -> dict[str, Any]:
        """For a manifest: numbers that people compare, and no more."""
        limit = self.balance.limit
        return {
            "dataset": self.balance.dataset,
            "relation": str(self.balance.relation),
            "unit": self.balance.whose.named,
            **({"block": self.balance.block} if self.balance.block else {}),
            "limit_epsilon": float(limit.epsilon),
            "limit_delta": float(limit.delta),
            "share": float(self.share),
            "left": float(max(self.left, Fraction(0))),
            "more_runs": self.more,
        }


def dearest(prices: Sequence[Price]) -> Price:
    """The price with the largest share; of equal ones the one with least left."""
    return max(prices, key=lambda price: (price.share, -price.left))


def run_line(what: str, prices: Sequence[Price]) -> str:
    """``this run: epsilon 1 at delta 1e-6 = 1.4 % of the budget of clinic (10, 1e-5); 98.6 % left, ...``.

    Share, rest and number are those of one budget and one counter: of the budget with the largest share. If fewer
    runs fit another one, its own three follow.
    """
    price, least = dearest(prices), min(prices, key=lambda price: (price.more, price.left))
    blocks = {price.balance.block for price in prices} - {""}
    each = "each block of " if EACH in blocks else f"each of {len(blocks)} blocks of "
    of = each if price.balance.block else ""
    line = f"this run: {what} = {percent(price.share)} of the budget of {of}{budget_name(price.balance)}"
    line += f"{_under(price, prices)}; {_left(price)}, {more_runs(price.more, 'like this')}"
    if least.more < price.more:
        other = f" under {spoken(least.balance)}" if spoken(least.balance) != spoken(price.balance) else ""
        line += (
            f"; {percent(least.share)} of {budget_name(least.balance)}{other}: {_left(least)}, {least.more:,} more"
        )
    return line


def _left(price: Price) -> str:
    block = price.balance.block
    return f"{percent(max(price.left, Fraction(0)))} left" + (f" in block {block}" if block not in ("", EACH) else "")


def more_runs(number: int, which: str) -> str:
    """``69 more runs like this``."""
    return f"{number:,} more run{'' if number == 1 else 's'} {which}" if number else f"no more run {which}"


def room(balance: Balance) -> tuple[str, str]:
    """What still fits, and by which counter, where no run is at hand: of epsilon 1 if the limit is larger.

    >>> from daskrado.privacy.filter import filter_for
    >>> whole = Balance("clinic", ProtectedUnit(Relation.ADD_REMOVE), "", filter_for(10, 1e-5), Cost(), 0)
    >>> room(whole), room(replace(whole, rule=filter_for("0.5", 0)))
    (('loss', '70 more runs of epsilon 1 at delta 1e-6'), ('loss', '10 more runs of epsilon 0.05'))
    """
    rule, limit = balance.rule, balance.limit
    epsilon = Fraction(1) if limit.epsilon >= 1 else limit.epsilon / 10
    delta = limit.delta / 10 if rule.whole.draws else Fraction(0)
    event = GaussianEvent(gaussian_mu(epsilon, delta)) if delta else PureEvent(epsilon)
    cost = rule.cost(event) if balance.total.mu2 else rule.charge(event)
    fits = more_runs(rule.more_like(balance.total, cost), f"of {amount(epsilon, delta)}")
    return rule.binding(balance.total, cost), fits


def _under(price: Price, prices: Sequence[Price]) -> str:
    plain = price.balance.relation is Relation.ADD_REMOVE and not price.balance.whose.column
    several = len({spoken(price.balance) for price in prices}) > 1
    return "" if plain and not several else f" under {spoken(price.balance)}"


def spoken(balance: Balance) -> str:
    """The relation of a limit, and whom it is for where that is not one row."""
    return f"{balance.relation} for {balance.whose.unit}" if balance.whose.column else str(balance.relation)


def mark_lines(marks: Sequence[Marked]) -> Iterator[str]:
    """Each kind of mark once: when and by whom it was set first, and how often."""
    for mark, found in groupby(sorted(marks, key=lambda marked: marked.mark), key=lambda marked: marked.mark):
        first, *others = sorted(found, key=lambda marked: marked.at)
        what = str(mark) if mark is Mark.NOT_PRIVATE else f"{mark} published"
        more = f", {len(others)} more since" if others else ""
        yield f"{what} on {first.at[:10]} by {first.who}, run {first.run[:12]}{more}"


def exposed_lines(marks: Sequence[Marked]) -> Iterator[str]:
    """What a run says of files that were read without protection before they were charged."""
    yield from (f"{line}, before these files were charged; no limit counts that" for line in mark_lines(marks))


def no_limit(dataset: str, whose: ProtectedUnit, blocks: Sequence[str] = ("",)) -> str:
    """Why a data set's budgets do not cover a debit at all; ``blocks`` are those without a budget."""
    named = f" for {_counted_blocks(blocks)}" if any(blocks) else ""
    people = f" --column {whose.column} --unit {whose.unit!r}" if whose.column else ""
    each = " --per-block" if named and not people else ""
    return (
        f"data set {dataset!r} has no limit under {whose.relation}{named}; nothing was debited; its owner sets one "
        f"for all relations with: daskrado ledger limit {dataset}{each} --epsilon E --delta D{people}"
    )


def _counted_blocks(blocks: Sequence[str]) -> str:
    """``block 2026-11-17``, ``blocks a, b, c and 4 more``."""
    if EACH in blocks:
        return "each block"
    shown, more = ", ".join(blocks[:3]), len(blocks) - 3
    return f"block{'s' if len(blocks) > 1 else ''} {shown}" + (f" and {more} more" if more > 0 else "")


def affordable(
    priced: Callable[[Sequence[Debit]], list[Price]], debits: Sequence[Debit]
) -> tuple[list[Price], Sequence[Debit]]:
    """What the debits of a run take, and they themselves; all of them as one, where that fits and they do not.

    One debit may take a whole budget that it stays within (:meth:`daskrado.privacy.filter.Filter.charge`).
    """
    prices, whole = priced(debits), Debit.together(debits)
    if whole is not None and any(price.over for price in prices):
        alone = priced([whole])
        if not any(price.over for price in alone):
            return alone, [whole]
    return prices, debits


def over_budget(prices: Sequence[Price], debits: Sequence[Debit]) -> str | None:
    """Why a run, which is in the balances of its prices already, does not fit; None if it does."""
    price = next((price for price in prices if price.over), None)
    if price is None:
        return None
    before = replace(price.balance, total=price.balance.total - price.cost)
    often = max(steps(debit.whose, before.whose) or 1 for debit in debits)
    delta = min(debit.delta or 0 for debit in debits)
    return refusal(before, price.cost, often=often, several=len(prices) > 1, delta=delta)


def refusal(
    balance: Balance, cost: Cost, *, often: int = 1, several: bool = False, delta: float | None = None
) -> str:
    """Why a budget does not cover a cost, and what would fit: no number that people cannot use.

    ``delta`` is the one that was asked for, if that is known.
    """
    rule, total = balance.rule, balance.total
    asked, left = rule.shares(cost), rule.shares(total)
    name = max(asked, key=lambda counter: asked[counter] + left[counter])
    counter = {"loss": "", "delta": " of what is kept for deltas", "draws": " of the Gaussian releases"}[name]
    level = Fraction(0) if cost.epsilon is not None else Fraction(delta or balance.limit.delta / 10)
    fitting = rule.largest_epsilon(total, level, often)
    kind = "pure " if balance.limit.delta else ""
    if level:
        kind = "" if cost.draws else "one Gaussian release of "
    would = f": {kind}{amount(fitting, level)} would fit" if fitting > 0 and name != "draws" else ""
    block = f"{_counted_blocks([balance.block])} of " if balance.block else ""
    plain = balance.relation is Relation.ADD_REMOVE and not (several or balance.whose.column)
    under = "" if plain else f" under {spoken(balance)}"
    return (
        f"the budget of {block}{budget_name(balance)}{under} does not cover this: asked for {percent(asked[name])}"
        f"{counter}, {percent(max(1 - left[name], Fraction(0)))} is left{would}; nothing was debited"
    )
