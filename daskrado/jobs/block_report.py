"""The budget of each block, drawn and listed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from daskrado.jobs.report import Section, draw
from daskrado.ledger.words import Price, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from daskrado.jobs.run import Run

_SHOWN = 120  # blocks of a picture, the last ones
_LABELS = 12


def block_sections(run: Run, prices: Sequence[Price]) -> Iterator[Section]:
    """What the run took from each block, and how all blocks of the data set stand, by their fullest budget."""
    known = run.account.ledger.block_balances(run.job.dataset)
    spent = {block: max(own.rule.share(own.total) for own in balances) for block, balances in known.items()}
    taken = {
        block: max(price.share for price in prices if price.balance.block == block)
        for block in {price.balance.block for price in prices if price.balance.block}
    }
    left = [(block, percent(taken.get(block, Fraction(0))), percent(1 - share)) for block, share in spent.items()]
    yield Section("Budget by block", plot=_picture(spent, taken))
    yield Section("All blocks", rows=left, header=("block", "this run", "left"), folded=True)


def _picture(spent: dict[str, Fraction], taken: dict[str, Fraction]) -> str:
    """For each block a bar: spent before, this run, left."""
    blocks = list(spent)[-_SHOWN:]

    def paint(axes: Axes) -> None:
        own = [100 * float(taken.get(block, Fraction(0))) for block in blocks]
        before = [100 * float(spent[block]) - mine for block, mine in zip(blocks, own, strict=True)]
        places = range(len(blocks))
        axes.bar(places, [100.0] * len(blocks), color="#e2e8f0", width=0.9)
        axes.bar(places, before, color="#718096", width=0.9, label="spent before")
        axes.bar(places, own, bottom=before, color="#2b6cb0", width=0.9, label="this run")
        shown = places[:: max(1, -(-len(blocks) // _LABELS))]
        axes.set_xticks(shown, [blocks[place].replace("$", r"\$") for place in shown], rotation=45, ha="right")
        axes.set_ylim(0, 100)

    return draw(paint, "block", "% of its budget", legend="")
