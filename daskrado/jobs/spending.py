"""A budget for a block of Python: everything private inside is counted against it, beside the ledger's limits."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence

from daskrado.errors import BudgetError, UsageError
from daskrado.jobs.outcome import Charge
from daskrado.ledger import parts
from daskrado.ledger.records import Balance, Debit
from daskrado.ledger.words import percent
from daskrado.privacy.costs import Cost
from daskrado.privacy.filter import Filter, filter_for

_ACTIVE: dict[str, Spending] = {}  # by data set; of this process, whatever thread asks
_LOCK = threading.RLock()


class Spending:
    """What one block may spend on a data set: a filter of its own, so the next run may depend on the last answers.

    A run that fails before it draws stays counted here. All runs inside protect the same: the first one says whom.
    Runs on all folds but one, and on that one, are charged to the units that they read (``jobs.holdout.of_parts``).

    Sensitivity
        None of its own: it refuses charges, which are computed and kept by the ledger as without it.

    Reference
        Smith and Thakurta (2022), as :class:`daskrado.privacy.filter.GaussianFilter`.
    """

    def __init__(self, dataset: str, rule: Filter) -> None:
        self.dataset = dataset
        self.runs = 0
        self._rule = rule
        self._balance: Balance | None = None

    def __repr__(self) -> str:
        return f"<Spending of {self.dataset}: {self.runs} runs, {percent(self.share)} of the block's budget>"

    @property
    def share(self) -> float:
        """The part of the block's budget that is spent."""
        return float(self._rule.share(self._balance.total)) if self._balance is not None else 0.0

    def pay(self, charges: Sequence[Charge]) -> None:
        """Count a run, or refuse it before anything is charged."""
        whose, before = charges[0].debit.whose, self._balance
        if before is not None and before.whose != whose:
            raise UsageError(
                f"budget of {self.dataset!r}: its first run protects {before.whose}, this one {whose}; all runs of a "
                "block protect the same"
            )
        after = before or Balance(self.dataset, whose, "", self._rule, Cost(), 0)
        costs = [(charge.part, self._rule.cost(charge.event)) for charge in charges]
        alone = charges[0].debit if len(charges) == 1 else Debit.together([charge.debit for charge in charges])
        if before is None and alone is not None:  # it may take all of a budget that it stays within
            costs = [(alone.part, self._rule.charge(alone.event))]
        for part, cost in costs:
            spent = parts.lost(after, part)
            if not self._rule.fits(spent, cost):
                asked, left = self._rule.shares(parts.together(costs, after)), self._rule.shares(spent)
                name = max(asked, key=lambda counter: asked[counter] + left[counter])
                raise BudgetError(
                    f"budget of {self.dataset!r}: this run needs {percent(asked[name])} "
                    f"of the block's epsilon {float(self._rule.epsilon):g} at delta {float(self._rule.delta):g}, and "
                    f"{percent(1 - left[name])} are left; nothing was charged for it"
                )
            after = parts.charged(after, cost, part)
        self._balance, self.runs = after, self.runs + 1


@contextlib.contextmanager
def budget(dataset: str, *, epsilon: float, delta: float = 0.0) -> Iterator[Spending]:
    """Let everything inside the block that is private and of this data set stay within (epsilon, delta) together.

    Every run is charged to the ledger as always; what would exceed the block's budget is refused before it is.
    Inside, scikit-learn's searches run on private rows, with ``scoring=daskrado.private_scorer(...)``.

    >>> with budget("clinic", epsilon=2.0, delta=1e-5) as spending:
    ...     spending.share
    0.0
    """
    with _LOCK:
        if dataset in _ACTIVE:
            raise UsageError(f"budget of {dataset!r}: a block with one is open already, and budgets do not nest")
        found = _ACTIVE[dataset] = Spending(dataset, filter_for(epsilon, delta))
    try:
        yield found
    finally:
        with _LOCK:
            del _ACTIVE[dataset]


def active(dataset: str | None) -> bool:
    """Whether a block with a budget of this data set is open."""
    return dataset in _ACTIVE


def pay(dataset: str, charges: Sequence[Charge]) -> None:
    """Count a run's charges against the block that is open, if there is one."""
    with _LOCK:
        if charges and dataset in _ACTIVE:
            _ACTIVE[dataset].pay(charges)
