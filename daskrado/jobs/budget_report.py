"""Budgets in a report: what the run took, what is left, by block where there are blocks, and who spent what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from daskrado.errors import in_one_line
from daskrado.jobs.plots import FAINT, PALE, SHOWN, UP, draw
from daskrado.jobs.section import Section
from daskrado.lake.block_facts import EACH
from daskrado.ledger.words import PAID_EARLIER, Price, dearest, percent, run_line, spoken

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from daskrado.jobs.run import Run

_BLOCKS = 120  # of a picture, the last ones
_LABELS = 12
_SPENT, _OWN, _LEFT = "spent before", "this run", "left"


def budget_sections(run: Run) -> Iterator[Section]:
    """What the run took, what is left, and who spent what and when."""
    prices = run.prices()
    if not prices:
        return
    whole = [price for price in prices if not price.balance.block]
    yield Section(
        "Budget",
        text=PAID_EARLIER if run.paid_earlier else run_line(run.asked, prices),
        rows=[
            (spoken(price.balance), percent(price.share), percent(price.left), f"{price.more:,}") for price in whole
        ],
        header=("relation", "this run, share of the budget", "left", "more runs like it") if whole else (),
        plot=budget_bar(whole) if whole else "",
    )
    if any(price.balance.block not in ("", EACH) for price in prices):
        yield _block_section(run, prices)
    told = [
        (entry.reserved_at[:16].replace("T", " "), entry.who, entry.run[:12], "" if share is None else percent(share))
        for entry, share in run.account.ledger.history(run.job.dataset, SHOWN)
    ]
    why = "Each share is the largest of its run over all counters and limits: they may add up to more than is spent."
    header = ("when", "who", "run", "share")
    yield Section("Who spent what, and when", text=why, rows=told, header=header, folded=True)


def budget_bar(prices: Sequence[Price]) -> str:
    """For each budget a bar: spent before, this run, left."""

    def paint(axes: Axes) -> None:
        for place, price in enumerate(reversed(prices)):
            own, left = 100 * float(price.share), max(0.0, 100 * float(price.left))
            before = max(0.0, 100 - own - left)
            pieces = ((0.0, before, FAINT, _SPENT), (before, own, UP, _OWN), (100 - left, left, PALE, _LEFT))
            for start, width, colour, name in pieces:
                axes.barh(place, width, left=start, color=colour, height=0.6, label=None if place else name)
        axes.set_yticks(range(len(prices)), [spoken(price.balance) for price in reversed(prices)])
        axes.set_xlim(0, 100)
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, fontsize=9, frameon=False)

    return draw(paint, "% of the budget", height=1.1 + 0.3 * len(prices), alt="Shares of each budget")


def _block_section(run: Run, prices: Sequence[Price]) -> Section:
    """What the run took from each block, and how all blocks of the data set stand, by their fullest budget."""
    known = run.account.ledger.block_balances(run.job.dataset)
    spent = {block: max(own.rule.share(own.total) for own in balances) for block, balances in known.items()}
    read = {price.balance.block for price in prices if price.balance.block}
    dear = {block: dearest([price for price in prices if price.balance.block == block]) for block in read}
    taken = {block: price.share for block, price in dear.items()}
    spent |= {block: 1 - price.left for block, price in dear.items() if block in spent}  # of the same counter
    left = [(block, percent(taken.get(block, Fraction(0))), percent(1 - share)) for block, share in spent.items()]
    header = ("block", "this run", "left")
    return Section("Budget by block", rows=left, header=header, plot=_picture(spent, taken), folded=True)


def _picture(spent: dict[str, Fraction], taken: dict[str, Fraction]) -> str:
    """For each block a bar: spent before, this run, left."""
    blocks = list(spent)[-_BLOCKS:]

    def paint(axes: Axes) -> None:
        own = [100 * float(taken.get(block, Fraction(0))) for block in blocks]
        before = [100 * float(spent[block]) - mine for block, mine in zip(blocks, own, strict=True)]
        places = range(len(blocks))
        axes.bar(places, [100.0] * len(blocks), color=PALE, width=0.9)
        axes.bar(places, before, color=FAINT, width=0.9, label=_SPENT)
        axes.bar(places, own, bottom=before, color=UP, width=0.9, label=_OWN)
        shown = places[:: max(1, -(-len(blocks) // _LABELS))]
        axes.set_xticks(
            shown, [in_one_line(blocks[place]).replace("$", r"\$") for place in shown], rotation=45, ha="right"
        )
        axes.set_ylim(0, 100)

    return draw(paint, "block", "% of its budget", legend="", alt="Shares of the budget of each block")
